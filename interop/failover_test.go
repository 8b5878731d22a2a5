//go:build interop

package interop

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"
)

// envFailovers is how often TestClusterFailover does each thing.
const envFailovers = "LOCKKEEPER_INTEROP_FAILOVERS"

const defaultFailovers = 8

// The most that the median may be. A test that runs beside others sees more
// than a machine at rest.
const (
	killedMedian = time.Second
	handedMedian = 200 * time.Millisecond
)

// TestClusterFailover takes the leader away, with default settings, while a
// client of another member writes: by kill -9, by SIGTERM, and by handing over.
// The client keeps its connection and so its session, all it sends is answered,
// and it does not wait long.
func TestClusterFailover(t *testing.T) {
	times := defaultFailovers
	if s := os.Getenv(envFailovers); s != "" {
		var err error
		if times, err = strconv.Atoi(s); err != nil {
			t.Fatalf("%s: %v", envFailovers, err)
		}
	}
	e := startEnsemble(t, 3)
	for _, way := range []struct {
		name   string
		median time.Duration
		do     func(lead int) (back func())
	}{
		{"kill -9", killedMedian, func(lead int) func() {
			e.kill(lead)
			return func() { e.launch(lead) }
		}},
		{"SIGTERM", handedMedian, func(lead int) func() {
			e.stop(lead)
			return func() { e.launch(lead) }
		}},
		{"transfer", handedMedian, func(lead int) func() {
			if _, err := e.cluster(lead, "transfer"); err != nil {
				t.Error(err)
			}
			return func() {}
		}},
	} {
		t.Run(way.name, func(t *testing.T) {
			var waits []time.Duration
			for range times {
				lead := e.leader()
				w := startWriter(t, e.listen[(lead+1)%3])
				w.answers(20)
				began := time.Now()
				back := way.do(lead)
				w.answers(20) // the first of which may have been under way
				for e.leader() == lead {
					w.answers(1)
				}
				w.answers(20)
				waits = append(waits, w.longest(began))
				w.end()
				back()
				e.await()
			}
			slices.Sort(waits)
			median := waits[len(waits)/2]
			t.Logf("the longest that a write waited: median %v, most %v, of %d: %v", median, waits[len(waits)-1], times, waits)
			if median > way.median {
				t.Errorf("median %v, should be %v at most", median, way.median)
			}
		})
	}
	e.finish()
}

// writer writes through one connection, one write at a time.
type writer struct {
	t    *testing.T
	conn *rawConn
	stop chan struct{}
	done chan struct{}

	mu    sync.Mutex
	more  chan struct{} // closed and replaced with every answer
	spans []span
}

// span is a write from its sending to its answer.
type span struct{ sent, answered time.Time }

func startWriter(t *testing.T, addr string) *writer {
	t.Helper()
	var conn *rawConn
	var err error
	for deadline := time.Now().Add(startDeadline); ; time.Sleep(5 * time.Millisecond) {
		if conn, err = dialRaw(addr, 10*time.Second, 0, rawSession{}); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	w := &writer{t: t, conn: conn, stop: make(chan struct{}), done: make(chan struct{}), more: make(chan struct{})}
	go w.run()
	t.Cleanup(w.end)
	return w
}

func (w *writer) run() {
	defer close(w.done)
	defer w.conn.Close()
	for i := int32(1); ; i++ {
		select {
		case <-w.stop:
			return
		default:
		}
		sent := time.Now()
		r, err := w.conn.call(createRequest(i, fmt.Sprintf("/w%016x-%d", uint64(w.conn.session), i), nil, flagEphemeral))
		if err != nil || r.code != 0 {
			w.t.Errorf("write %d of session %#x: code %d, %v", i, w.conn.session, r.code, err)
			return
		}
		w.mu.Lock()
		w.spans = append(w.spans, span{sent, time.Now()})
		close(w.more)
		w.more = make(chan struct{})
		w.mu.Unlock()
	}
}

// answers waits for n more.
func (w *writer) answers(n int) {
	w.t.Helper()
	w.mu.Lock()
	want := len(w.spans) + n
	w.mu.Unlock()
	late := time.After(startDeadline)
	for {
		w.mu.Lock()
		got, more := len(w.spans), w.more
		w.mu.Unlock()
		if got >= want {
			return
		}
		select {
		case <-more:
		case <-w.done:
			w.t.Fatal("no more writes")
		case <-late:
			w.t.Fatalf("no answer within %v", startDeadline)
		}
	}
}

// longest is the longest that a write answered since then has waited since then.
func (w *writer) longest(since time.Time) (longest time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.spans {
		if s.answered.After(since) {
			if s.sent.Before(since) {
				s.sent = since
			}
			longest = max(longest, s.answered.Sub(s.sent))
		}
	}
	return longest
}

func (w *writer) end() {
	select {
	case <-w.stop:
	default:
		close(w.stop)
	}
	<-w.done
}
