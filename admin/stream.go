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
	"github.com/lockkeeper/lockkeeper/internal/core/wake"
)

// stream sends the state of the server to browsers, as server-sent events. One goroutine
// gathers it for all of them, makes an event for each view that some of them have, and runs
// only while there are some. A browser that reads slowly gets the newest state when it is ready for
// it; nothing is queued.
type stream struct {
	survey *survey
	open   context.Context // ends with close
	shut   context.CancelFunc

	gathering wake.Turn // of the goroutine

	mu       sync.Mutex
	browsers int
	stop     context.CancelFunc // of the goroutine
	running  sync.WaitGroup     // the goroutine, and one before it that is about to end
	views    map[view]*shown    // those that browsers have
	replaced wake.Broadcast     // the events
	added    wake.Signal        // there is a new view
}

// shown is what browsers with the same view get.
type shown struct {
	browsers int
	event    []byte // the newest; nil before the first
}

func newStream(s *survey) *stream {
	x := &stream{survey: s, gathering: wake.NewTurn(), views: map[view]*shown{}, added: wake.NewSignal()}
	x.open, x.shut = context.WithCancel(context.Background())
	return x
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
		event, replaced := mine.event, s.replaced.Wait()
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
		case <-s.open.Done():
			return
		case <-r.Context().Done():
			return
		}
	}
}

// close ends all calls of serve, and waits for the goroutine.
func (s *stream) close() {
	s.mu.Lock()
	s.shut()
	s.mu.Unlock()
	s.running.Wait()
}

// join starts the goroutine for the first browser, and returns what those with its view get. It
// returns false if there are too many, or after close.
func (s *stream) join(v view) (*shown, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open.Err() != nil || s.browsers == maxBrowsers {
		return nil, false
	}
	mine := s.views[v]
	if mine == nil {
		mine = &shown{}
		s.views[v] = mine
		s.added.Raise()
	}
	mine.browsers++
	if s.browsers++; s.browsers == 1 {
		ctx, stop := context.WithCancel(s.open)
		s.stop = stop
		s.running.Go(func() { s.run(ctx) })
	}
	return mine, true
}

// leave ends the goroutine with the last browser.
func (s *stream) leave(v view) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.views[v].browsers--; s.views[v].browsers == 0 {
		delete(s.views, v)
	}
	if s.browsers--; s.browsers == 0 {
		s.stop()
	}
}

// run gathers states until ctx ends.
func (s *stream) run(ctx context.Context) {
	s.gathering.Take()
	defer s.gathering.Give()
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
	s.replaced.Raise()
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
