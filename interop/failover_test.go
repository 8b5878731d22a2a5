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

	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/proto"
)

// envFailovers sets how often TestClusterFailover replaces the leader in each way.
const envFailovers = "LOCKKEEPER_INTEROP_FAILOVERS"

const defaultFailovers = 8

// Limits of the median, in addition to the time of some ordinary writes, which take
// longer on a slow or busy machine.
const (
	killedMedian = time.Second
	handedMedian = 200 * time.Millisecond
	writesMedian = 50
)

// TestClusterFailover replaces the leader, with default settings, while a client of
// another member writes: by kill -9, by SIGTERM, and by a transfer. The client keeps its
// session and, unless two elections in a row have no winner, its connection. All its
// requests are answered, and none of them waits long.
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
			// On a busy machine, a transfer may take too long and fail.
			for deadline := time.Now().Add(startDeadline); ; {
				_, err := e.cluster(lead, "transfer")
				if err == nil || e.leader() != lead {
					break
				}
				if time.Now().After(deadline) {
					t.Fatal(err)
				}
			}
			return func() {}
		}},
	} {
		t.Run(way.name, func(t *testing.T) {
			var waits, usual []time.Duration
			cuts := 0
			for range times {
				lead := e.leader()
				w := startWriter(t, e.listen[(lead+1)%3])
				w.answers(20)
				began := time.Now()
				usual = append(usual, w.mean())
				back := way.do(lead)
				w.answers(20) // the first one may have been sent before
				for e.leader() == lead {
					w.answers(1)
				}
				w.answers(20)
				waits = append(waits, w.longest(began))
				w.end()
				cuts += w.cuts
				back()
				e.await()
			}
			slices.Sort(waits)
			slices.Sort(usual)
			median, most := waits[len(waits)/2], way.median+writesMedian*usual[len(usual)/2]
			t.Logf("the longest that a write waited: median %v, most %v, of %d: %v; others took %v", median, waits[len(waits)-1], times, waits, usual[len(usual)/2])
			if median > most {
				t.Errorf("median %v, should be %v at most", median, most)
			}
			if cuts > times/2 {
				t.Errorf("the client lost its connection %d times in %d", cuts, times)
			}
		})
	}
	e.finish()
}

// writer writes in one session, one write at a time. It reconnects if its connection
// ends.
type writer struct {
	t    *testing.T
	addr string
	conn *rawclient.Client
	cuts int // number of connections that ended; read only after end
	stop chan struct{}
	done chan struct{}

	mu    sync.Mutex
	more  chan struct{} // closed and replaced with every answer
	spans []span
}

// span is the time of a write from the request to the reply.
type span struct{ sent, answered time.Time }

func startWriter(t *testing.T, addr string) *writer {
	t.Helper()
	w := &writer{t: t, addr: addr, conn: dialRawSoon(t, addr, 40*time.Second, 0), stop: make(chan struct{}), done: make(chan struct{}), more: make(chan struct{})}
	go w.run()
	t.Cleanup(w.end)
	return w
}

func (w *writer) run() {
	defer close(w.done)
	defer func() { w.conn.Close() }()
	for i := int32(1); ; i++ {
		select {
		case <-w.stop:
			return
		default:
		}
		sent := time.Now()
		if err := w.write(i); err != nil {
			w.t.Errorf("write %d of session %#x: %v", i, w.conn.Session.SessionID, err)
			return
		}
		w.mu.Lock()
		w.spans = append(w.spans, span{sent, time.Now()})
		close(w.more)
		w.more = make(chan struct{})
		w.mu.Unlock()
	}
}

// write writes once, and again if the connection ended and the outcome is unknown.
func (w *writer) write(i int32) error {
	for again := false; ; again = true {
		session := w.conn.Session
		_, err := w.conn.Create(fmt.Sprintf("/w%016x-%d", uint64(session.SessionID), i), nil, proto.FlagEphemeral)
		if err == nil || again && err == proto.NodeExists {
			return nil
		}
		if !connectionEnded(err) {
			return err
		}
		w.cuts++
		w.conn.Close()
		for deadline := time.Now().Add(startDeadline); ; time.Sleep(5 * time.Millisecond) {
			conn, err := dialRaw(w.addr, 40*time.Second, 0, session)
			if err == nil {
				w.conn = conn
				break
			}
			if time.Now().After(deadline) {
				return err
			}
		}
	}
}

// mean returns the mean time of the answered writes.
func (w *writer) mean() (d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.spans {
		d += s.answered.Sub(s.sent)
	}
	return d / time.Duration(len(w.spans))
}

// answers waits until n more writes are answered.
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

// longest returns the longest time after since that a write waited for its reply.
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
