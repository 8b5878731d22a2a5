package admin

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"
)

// stream sends the state of the server to browsers, as server-sent events. One goroutine
// gathers it for all of them, and only while there are some. A browser that reads slowly
// gets the newest state when it is ready for it; nothing is queued.
type stream struct {
	survey *survey

	mu       sync.Mutex
	browsers int
	stop     context.CancelFunc // of the goroutine; nil if there is none
	ended    chan struct{}      // closed when the last goroutine has ended
	newest   []byte             // an event; nil before the first
	replaced chan struct{}      // closed when newest is replaced
	closed   bool
	closing  chan struct{} // closed by close
}

func newStream(s *survey) *stream {
	ended := make(chan struct{})
	close(ended)
	return &stream{survey: s, ended: ended, replaced: make(chan struct{}), closing: make(chan struct{})}
}

// Limits of a stream.
const (
	maxBrowsers = 64
	// writeTimeout is how long a browser may not read at all.
	writeTimeout = 20 * time.Second
	// interval is the time between two states if something has changed, and
	// idleInterval if nothing has. They are longer if gathering takes long.
	interval     = 250 * time.Millisecond
	idleInterval = time.Second
	// share of the time in which states are gathered, without waiting for others.
	share = 0.05
)

// serve sends events until the browser is gone.
func (s *stream) serve(w http.ResponseWriter, r *http.Request) {
	if !s.join() {
		http.Error(w, "too many browsers have the console open", http.StatusServiceUnavailable)
		return
	}
	defer s.leave()
	consoleHeaders(w.Header(), "text/event-stream")
	rc := http.NewResponseController(w)
	for {
		s.mu.Lock()
		event, replaced := s.newest, s.replaced
		s.mu.Unlock()
		if event != nil {
			rc.SetWriteDeadline(time.Now().Add(writeTimeout)) // an error means that w has none
			if _, err := w.Write(event); err != nil {
				return
			}
			if rc.Flush() != nil {
				return
			}
		}
		select {
		case <-replaced:
		case <-s.closing:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// close ends all calls of serve, and waits for the goroutine.
func (s *stream) close() {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.closing)
		if s.stop != nil {
			s.stop()
		}
	}
	ended := s.ended
	s.mu.Unlock()
	<-ended
}

// join starts the goroutine for the first browser. It returns false if there are too many, or
// after close.
func (s *stream) join() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.browsers == maxBrowsers {
		return false
	}
	if s.browsers++; s.browsers == 1 {
		ctx, stop := context.WithCancel(context.Background())
		before, ended := s.ended, make(chan struct{})
		s.stop, s.ended, s.newest = stop, ended, nil
		go func() {
			defer close(ended)
			<-before
			s.run(ctx)
		}()
	}
	return true
}

// leave ends the goroutine with the last browser, and waits for it.
func (s *stream) leave() {
	s.mu.Lock()
	s.browsers--
	last, ended := s.browsers == 0, s.ended
	if last {
		s.stop()
	}
	s.mu.Unlock()
	if last {
		<-ended
	}
}

// run gathers states until ctx ends.
func (s *stream) run(ctx context.Context) {
	s.survey.begin()
	defer s.survey.end()
	for ctx.Err() == nil {
		began := time.Now()
		state := s.survey.gather(ctx)
		text, err := json.Marshal(state)
		if err != nil {
			panic(err) // a type that JSON does not have: a bug
		}
		s.publish(append(append([]byte("data: "), text...), "\n\n"...))
		cost := time.Since(began) - s.survey.waited
		pause(ctx, max(interval, time.Duration(float64(cost)/share))-cost)
		for ctx.Err() == nil && time.Since(began) < idleInterval && !s.survey.changed() {
			pause(ctx, interval/5)
		}
	}
}

func (s *stream) publish(event []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.newest = event
	close(s.replaced)
	s.replaced = make(chan struct{})
}

// pause waits for a time, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
