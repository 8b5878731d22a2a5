package fsm

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/session"
)

// TestDigestIsStored computes the digest as its definition says, since it is part of the snapshots of
// every build, for more sessions than are summed up at once.
func TestDigestIsStored(t *testing.T) {
	for _, sessions := range []int{1, 77, 78, 79, 1000} {
		m := filled(t, 3, sessions)
		var b []byte
		for s := range m.sessions.All() {
			b = session.Append(b, s)
		}
		b = jute.AppendLong(jute.AppendLong(b, m.zxid), int64(m.tree.Digest()))
		b = append(appendBatches(b, m.batches), m.appendMembers(nil)...)
		if want := m.tree.Digest() ^ uint64(crc32.Checksum(b, castagnoli)); m.Digest() != want {
			t.Errorf("digest of %d sessions is %016x, want %016x", sessions, m.Digest(), want)
		}
	}
}

// TestDigestLater checks that it is the digest of the state at which it was asked for, and not computed
// before it is called.
func TestDigestLater(t *testing.T) {
	r := NewReplica()
	r.Load(filled(t, 1, 2))
	var later func() uint64
	var want uint64
	r.View(func(v *View) { later, want = v.DigestLater(), v.Digest() })
	n := r.m.Index() + 1
	if err := r.Apply(&raft.Log{Index: n, Term: 1, Data: entryOf(1, n, OpenSession(1, int64(n), 1000, session.Password{}))}); err != nil {
		t.Fatal(err)
	}
	if got := later(); got != want {
		t.Errorf("the digest is %016x, want %016x", got, want)
	}
	for s := range r.m.Sessions().All() { // which nothing else ever changes
		s.Timeout++
	}
	if later() == want {
		t.Error("it was computed with the state locked")
	}
}

// TestBrowse checks that entries are applied while somebody reads much, and that the view then shows them.
func TestBrowse(t *testing.T) {
	r := NewReplica()
	w := &watcher{}
	r.View(func(v *View) {
		for i := range 3 * pace {
			r.watches.Add(w, 0, fmt.Sprint("/", i), 1)
		}
	})
	for name, look := range map[string]func(step func() (more bool)){
		"state": func(step func() bool) {
			r.Browse(func(v *View, pause func()) {
				for step() {
					pause()
				}
			})
		},
		"watches": func(step func() bool) {
			for more := true; more; {
				r.Watches(func(Watcher, string) bool {
					more = step()
					return more
				})
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			index := uint64(0)
			r.View(func(v *View) { index = v.Index() + 1 })
			applied := make(chan error)
			began := false
			look(func() (more bool) {
				if !began {
					began = true
					go func() {
						applied <- r.apply(index, 1, entryOf(1, index, OpenSession(1, 0, 1000, session.Password{})))
					}()
				}
				select {
				case err := <-applied:
					if err != nil {
						t.Error(err)
					}
					return false
				default:
					return true
				}
			})
			r.View(func(v *View) {
				if v.Index() != index || v.Sessions().Len() != int(index) {
					t.Errorf("%d sessions at entry %d, want entry %d", v.Sessions().Len(), v.Index(), index)
				}
			})
		})
	}
}

// TestSnapshotWhileSessionsChange checks that a snapshot has the sessions of its own moment.
func TestSnapshotWhileSessionsChange(t *testing.T) {
	m := filled(t, 3, 1000)
	s, want := m.Snapshot(), m.Digest()
	for id := range int64(900) {
		one(t, m, 1, ExpireSession(m.Sessions().Get(id+1), 0))
	}
	one(t, m, 1, OpenSession(1, 0, 1000, session.Password{}))
	var b bytes.Buffer
	if err := s.Write(&b); err != nil {
		t.Fatal(err)
	}
	again, err := ReadSnapshot(&b)
	if err != nil || again.Digest() != want || again.Sessions().Len() != 1000 {
		t.Errorf("%v, %d sessions", err, again.Sessions().Len())
	}
}
