package server_test

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/report"
	"github.com/lockkeeper/lockkeeper/internal/core/server"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// TestSearchReplaced: a snapshot replaces the state while somebody searches. The znodes are stored in another order then, so
// the search may have missed some, and says so.
func TestSearchReplaced(t *testing.T) {
	const znodes = 20_000
	state := func(first bool) *fsm.Machine { // with the znode that is searched for stored first or last
		const owner = 1<<56 + 1
		m := fsm.NewMachine()
		apply := func(commands ...*fsm.Command) {
			e := fsm.BeginEntry(nil)
			for _, c := range commands {
				e = fsm.AppendCommand(e, c)
			}
			e = fsm.EndEntry(e, &fsm.Envelope{Origin: 1, Batch: m.Index() + 1, Time: 1000, Count: len(commands)})
			if err := m.Apply(m.Index()+1, 1, e, nil); err != nil {
				t.Fatal(err)
			}
		}
		create := func(path string) *fsm.Command {
			q := proto.CreateRequest{Path: path, ACL: proto.OpenACL}
			return &fsm.Command{Op: proto.OpCreate, Session: owner, Conn: 1, Body: q.Append(nil)}
		}
		apply(fsm.OpenSession(1, owner, 3_600_000, session.Password{1}))
		var all []*fsm.Command
		for i := range znodes {
			all = append(all, create(fmt.Sprintf("/%05d", i)))
		}
		at := len(all)
		if first {
			at = 0
		}
		all = slices.Insert(all, at, create("/wanted"))
		for part := range slices.Chunk(all, 1000) {
			apply(part...)
		}
		return m
	}
	p := open(t, server.Config{})
	for range 100 { // until it happens in the middle of a search
		p.loop.replica.Load(state(true))
		var replaced atomic.Bool
		other, begun, ended := state(false), make(chan struct{}), make(chan struct{})
		f, err := p.Search(report.Search{Text: "wanted", Most: 1, Continue: func(looked int) bool {
			if looked == 512 {
				go func() {
					defer close(ended)
					close(begun)
					p.loop.replica.Load(other)
					replaced.Store(true)
				}()
				<-begun
			}
			return looked < znodes/2 || replaced.Load()
		}})
		<-ended
		switch {
		case err != nil:
			t.Fatal(err)
		case f.Looked == znodes/2/256*256+256: // it was too fast, and ended itself
			continue
		case f.Complete:
			t.Errorf("it has looked at %d znodes of two states, found %d of what both have, and calls itself complete", f.Looked, f.Matching)
		}
		return
	}
	t.Error("no search lasted long enough")
}
