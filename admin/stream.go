package admin

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/core/report"
)

// stream sends the state of the server to browsers, as server-sent events. One goroutine
// gathers it for all of them, makes an event for each view that some of them have, and runs
// only while there are some. A browser that reads slowly gets the newest state when it is ready for
// it; nothing is queued.
type stream struct {
	survey *survey

	coming chan struct{} // has an element while the goroutine starts or ends

	mu       sync.Mutex
	browsers int
	stop     context.CancelFunc // of the goroutine; nil before the first
	running  sync.WaitGroup     // the goroutine
	views    map[view]*shown    // those that browsers have
	replaced chan struct{}      // closed when the events are replaced
	added    chan struct{}      // has an element if there is a new view
	closed   bool
	closing  chan struct{} // closed by close
}

// shown is what browsers with the same view get.
type shown struct {
	browsers int
	event    []byte // the newest; nil before the first
}

func newStream(s *survey) *stream {
	return &stream{survey: s, coming: make(chan struct{}, 1), views: map[view]*shown{}, replaced: make(chan struct{}), added: make(chan struct{}, 1), closing: make(chan struct{})}
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
	// readingShare is that share while locks are being read that no state has shown yet.
	readingShare = 0.25
)

// serve sends events until the browser is gone.
func (s *stream) serve(w http.ResponseWriter, r *http.Request) {
	wanted, err := viewOf(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	mine, ok := s.join(wanted)
	if !ok {
		http.Error(w, "too many browsers have the console open", http.StatusServiceUnavailable)
		return
	}
	defer s.leave(wanted)
	consoleHeaders(w.Header(), "text/event-stream")
	rc := http.NewResponseController(w)
	for {
		s.mu.Lock()
		event, replaced := mine.event, s.replaced
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
	s.mu.Unlock()
	s.running.Wait()
}

// join starts the goroutine for the first browser, and returns what those with its view get. It
// returns false if there are too many, or after close.
func (s *stream) join(v view) (*shown, bool) {
	s.coming <- struct{}{}
	defer func() { <-s.coming }()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.browsers == maxBrowsers {
		return nil, false
	}
	mine := s.views[v]
	if mine == nil {
		mine = &shown{}
		s.views[v] = mine
		select {
		case s.added <- struct{}{}:
		default: // it is known already that there is one
		}
	}
	mine.browsers++
	if s.browsers++; s.browsers == 1 {
		ctx, stop := context.WithCancel(context.Background())
		s.stop = stop
		s.running.Go(func() { s.run(ctx) })
	}
	return mine, true
}

// leave ends the goroutine with the last browser, and waits for it.
func (s *stream) leave(v view) {
	s.coming <- struct{}{}
	defer func() { <-s.coming }()
	s.mu.Lock()
	if mine := s.views[v]; mine.browsers == 1 {
		delete(s.views, v)
	} else {
		mine.browsers--
	}
	s.browsers--
	last := s.browsers == 0
	s.mu.Unlock()
	if last {
		s.stop()
		s.running.Wait()
	}
}

// run gathers states until ctx ends.
func (s *stream) run(ctx context.Context) {
	s.survey.begin()
	defer s.survey.end()
	for ctx.Err() == nil {
		began := time.Now()
		select {
		case <-s.added: // it is in the events that follow
		default:
		}
		s.publish(s.survey.gather(ctx, s.finds()))
		cost, part := time.Since(began)-s.survey.waited, share
		if s.survey.reading {
			part = readingShare
		}
		pause(ctx, max(interval, time.Duration(float64(cost)/part))-cost)
		for !s.survey.reading && ctx.Err() == nil && time.Since(began) < idleInterval && !s.survey.changed() && len(s.added) == 0 {
			pause(ctx, interval/5)
		}
	}
}

// finds returns the texts by which browsers look for clients, at most report.MaxFind.
func (s *stream) finds() (all []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for v := range s.views {
		if v.client != "" {
			all = append(all, v.client)
		}
	}
	slices.Sort(all)
	all = slices.Compact(all)
	return all[:min(len(all), report.MaxFind)]
}

// publish makes the events of the views.
func (s *stream) publish(c *scene) {
	s.mu.Lock()
	views := slices.Collect(maps.Keys(s.views))
	s.mu.Unlock()
	events := map[view][]byte{}
	for _, v := range views {
		text, err := json.Marshal(c.show(v))
		if err != nil {
			panic(err) // a type that JSON does not have: a bug
		}
		events[v] = append(append([]byte("data: "), text...), "\n\n"...)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for v, mine := range s.views {
		if event := events[v]; event != nil {
			mine.event = event
		}
	}
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
