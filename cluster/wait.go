package cluster

// A signal wakes up the one goroutine that receives from it. Signals that nobody has
// received yet count as one, so raising one never blocks.
type signal chan struct{}

func newSignal() signal { return make(signal, 1) }

func (s signal) raise() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// A turn is a lock for what may block for long, such as a connection attempt or a
// disk. In testing/synctest time stands still while a goroutine waits for a
// sync.Mutex, but not while one waits for a turn.
type turn chan struct{}

func newTurn() turn { return make(turn, 1) }

func (t turn) take() { t <- struct{}{} }

// tryTake reports whether it took the turn, and does not wait for it.
func (t turn) tryTake() bool {
	select {
	case t <- struct{}{}:
		return true
	default:
		return false
	}
}

func (t turn) give() { <-t }
