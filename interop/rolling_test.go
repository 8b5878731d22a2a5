//go:build interop

package interop

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/tools/stock"
)

// TestClusterRolling restarts the members one after the other while clients write, with
// SIGTERM and with kill -9. No client may lose its session, and no write may be lost.
// Then one member stays down for longer than the others' log reaches back, and one comes
// back without its data directory. Both must get the state again.
func TestClusterRolling(t *testing.T) {
	t.Parallel()
	e := startEnsemble(t, 3)
	streams := startStreams(t, e.listen, seeded(t))
	var stays []*stayer
	for range 6 {
		stays = append(stays, startStayer(t, e.listen))
	}
	progress := func() {
		t.Helper()
		for _, s := range stays {
			s.progress()
		}
	}
	progress()
	for _, way := range []struct {
		name string
		down func(i int)
	}{{"SIGTERM", e.stop}, {"kill -9", e.kill}} {
		began := time.Now()
		for i := range e.procs {
			way.down(i)
			progress()
			e.launch(i)
			e.await()
			progress()
		}
		t.Logf("%s of all members, one by one: %v", way.name, time.Since(began).Round(time.Millisecond))
	}

	// Down for longer than the log reaches back.
	away := (e.leader() + 1) % 3
	e.kill(away)
	before := must(storage.Check(e.data(away)))(t)
	w := startWriter(t, e.listen[(away+1)%3])
	rewrite(t, e.listen[(away+2)%3], "/large", func() bool {
		return min(oldestEntry(t, e.data((away+1)%3)), oldestEntry(t, e.data((away+2)%3))) > before.LastIndex+1
	})
	began := time.Now()
	e.args = append(e.args, "--log-level", "debug")
	e.launch(away)
	e.args = e.args[:len(e.args)-2]
	e.await()
	t.Logf("back after %v, having been away with entries %d to %d", time.Since(began).Round(time.Millisecond), before.FirstIndex, before.LastIndex)
	if !strings.Contains(strings.ToLower(e.procs[away].stderr.String()), "installed remote snapshot") {
		t.Error("the member got no snapshot")
	}
	w.answers(20) // the others have served all the time
	w.end()

	// Back without its data directory.
	wiped := (e.leader() + 1) % 3
	e.kill(wiped)
	check(t, os.RemoveAll(e.data(wiped)))
	began = time.Now()
	e.launch(wiped)
	e.await()
	t.Logf("back without its data after %v", time.Since(began).Round(time.Millisecond))
	progress()

	writes := 0
	for _, s := range stays {
		writes += s.end()
	}
	sent, acked, segments := endStreams(t, e.listen[wiped], streams)
	t.Logf("%d clients kept their sessions and wrote %d times; %d creates sent on %d connections, %d acknowledged", len(stays), writes, sent, segments, acked)
	e.finish()
}

// oldestEntry returns the index at which the log in a data directory begins, or a lower one.
func oldestEntry(t *testing.T, dir string) uint64 {
	t.Helper()
	segments, err := filepath.Glob(filepath.Join(dir, "raft", "wal", "*.wal"))
	if err != nil || len(segments) == 0 {
		t.Fatalf("%s has no log: %v", dir, err)
	}
	base, _, _ := strings.Cut(filepath.Base(slices.Min(segments)), "-")
	index := must(strconv.ParseUint(base, 10, 64))(t)
	return index
}

// rewrite overwrites one znode with much data until done returns true.
func rewrite(t *testing.T, addr, path string, done func() bool) {
	t.Helper()
	conn := connect(t, addr, 40*time.Second)
	defer conn.Close()
	create(t, conn, path)
	data := make([]byte, 900<<10)
	for end := time.Now().Add(startDeadline); !done(); {
		_, err := conn.Set(path, data, -1)
		if err != nil && !errors.Is(err, zk.ErrConnectionClosed) && !errors.Is(err, zk.ErrNoServer) {
			t.Fatal(err)
		}
		if time.Now().After(end) {
			t.Fatal("the log is not compacted")
		}
	}
}

// stayer is a go-zookeeper client of all members that must keep its session. It writes to
// an ephemeral znode of its own all the time.
type stayer struct {
	t       *testing.T
	conn    *zk.Conn
	path    string
	session int64
	writes  atomic.Int64
	stop    chan struct{}
	done    chan struct{}
}

func startStayer(t *testing.T, addrs []string) *stayer {
	t.Helper()
	conn, _, err := zk.Connect(addrs, 40*time.Second, zk.WithLogInfo(false), zk.WithLogger(stock.Quiet{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	s := &stayer{t: t, conn: conn, stop: make(chan struct{}), done: make(chan struct{})}
	if s.path, err = conn.Create("/stays-", []byte("0"), zk.FlagEphemeral|zk.FlagSequence, openACL); err != nil {
		t.Fatal(err)
	}
	s.session = conn.SessionID()
	go s.run()
	return s
}

func (s *stayer) run() {
	defer close(s.done)
	version := int32(0) // the znode's last known version
	for n := 1; ; {
		select {
		case <-s.stop:
			return
		default:
		}
		st, err := s.conn.Set(s.path, fmt.Append(nil, n), version)
		switch {
		case err == nil:
			if version++; st.Version != version {
				s.t.Errorf("%s has version %d after the write of %d", s.path, st.Version, version)
				return
			}
			n++
			s.writes.Add(1)
		case errors.Is(err, zk.ErrConnectionClosed), errors.Is(err, zk.ErrNoServer):
			// The outcome is unknown. A read in the same session shows it.
			data, st, err := s.conn.Get(s.path)
			for errors.Is(err, zk.ErrConnectionClosed) || errors.Is(err, zk.ErrNoServer) {
				data, st, err = s.conn.Get(s.path)
			}
			switch {
			case err != nil:
				s.t.Errorf("%s: %v", s.path, err)
				return
			case st.Version != version && (st.Version != version+1 || string(data) != fmt.Sprint(n)):
				s.t.Errorf("%s has version %d and %q after version %d and an attempt to write %d", s.path, st.Version, data, version, n)
				return
			case st.Version == version+1:
				version++
				n++
			}
		default:
			s.t.Errorf("%s: write %d: %v", s.path, n, err)
			return
		}
	}
}

// progress waits until a write that starts from now on is answered.
func (s *stayer) progress() {
	s.t.Helper()
	want := s.writes.Load() + 2
	for deadline := time.Now().Add(startDeadline); s.writes.Load() < want; time.Sleep(time.Millisecond) {
		select {
		case <-s.done:
			s.t.FailNow()
		default:
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("%s: no answer within %v", s.path, startDeadline)
		}
	}
}

// end stops the client and returns how often it has written.
func (s *stayer) end() int {
	s.t.Helper()
	close(s.stop)
	<-s.done
	if id := s.conn.SessionID(); id != s.session {
		s.t.Errorf("the client of %s has session %#x, and had %#x", s.path, id, s.session)
	}
	_, st, err := s.conn.Get(s.path)
	if err != nil || st.EphemeralOwner != s.session {
		s.t.Errorf("%s: %+v, %v", s.path, st, err)
	}
	s.conn.Close()
	return int(s.writes.Load())
}
