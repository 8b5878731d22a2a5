package cluster

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/core/engine"
)

// TestWhatIsLogged: at the default level, WARN, a member says when the leader has changed or is gone, which
// one leads now, and which members are missing when there is no majority. It says nothing else
// while others are stopped and started.
func TestWhatIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3)
		same := func(a, b []string) bool { // in any order
			slices.Sort(a)
			slices.Sort(b)
			return slices.Equal(a, b)
		}
		saidOneOf := func(after string, alternatives ...[]string) {
			t.Helper()
			var got []string
			for line := range strings.Lines(f.log.Reset()) {
				_, message, _ := strings.Cut(line, " msg=")
				got = append(got, strings.TrimSpace(message))
			}
			if !slices.ContainsFunc(alternatives, func(want []string) bool { return same(got, want) }) {
				t.Errorf("after %s:\n%s\nis none of\n%q", after, strings.Join(got, "\n"), alternatives)
			}
		}
		said := func(after string, want ...string) {
			t.Helper()
			saidOneOf(after, want)
		}
		leads := func() int { // and the others follow
			lead := uint64(0)
			until(t, "a leader", func() bool {
				lead = 0
				for _, m := range f.running {
					if m == nil {
						continue
					}
					if id := m.leader.Get().ID; id == 0 || lead != 0 && id != lead || f.running[id-1] == nil {
						return false
					} else {
						lead = id
					}
				}
				return true
			})
			return int(lead) - 1
		}
		orderly := func(i int) {
			m := f.running[i]
			f.running[i] = nil
			m.HandOver(t.Context()) // if this fails, the others elect a leader
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		}
		f.all(nil)
		said("the first start")

		alone := newFleet(t, 3)
		alone.start(0)
		time.Sleep(5 * time.Second)
		if alone.log.Count("\n") != 1 || alone.log.Count("waiting for server 2 at b:1, server 3 at c:1") != 1 {
			t.Errorf("the first of three says %q", alone.log.String())
		}
		alone.stop(0)

		gone := func(was int) []string { // as each of the others says it
			now := leads()
			line := fmt.Sprintf(`"the leader has changed" was=%d leader=%d address=%s`, was+1, now+1, f.peers[uint64(now+1)])
			return []string{line, line}
		}
		for range 3 {
			i := leads()
			orderly(i)
			time.Sleep(30 * time.Second)
			said("a stop of the leader", gone(i)...)
			f.start(i)
			f.whole()
			said("its return")
			i = (leads() + 1) % 3
			orderly(i)
			time.Sleep(30 * time.Second)
			f.start(i)
			f.whole()
			said("a restart of a follower")
		}

		dead := leads()
		f.stop(dead)
		time.Sleep(30 * time.Second)
		// The election may take longer than the others wait before they say it.
		none, again := fmt.Sprintf(`"the leader is gone, and there is no other yet" was=%d`, dead+1), fmt.Sprintf(`"there is a leader again" id=%d address=%s`, leads()+1, f.peers[uint64(leads()+1)])
		once := gone(dead)[0]
		saidOneOf("a crash of the leader", gone(dead), []string{none, again, none, again}, []string{none, again, once})
		f.start(dead)
		f.whole()
		said("its return")

		// A member without its disk says so once, however often it asks to be taken in.
		empty, lead := (leads()+1)%3, f.running[leads()]
		lead.membership.Hold()
		f.lose(empty)
		f.start(empty)
		time.Sleep(time.Minute)
		lead.membership.Release()
		f.whole()
		text := f.log.Reset()
		if strings.Count(text, "this member's data is empty") != 1 || strings.Count(text, "\n") > 5 {
			t.Errorf("after a loss of a disk:\n%s", text)
		}

		last := leads()
		for _, i := range []int{(last + 1) % 3, (last + 2) % 3} {
			f.stop(i)
		}
		time.Sleep(time.Minute)
		var missing []string
		for i := range 3 {
			if i != last {
				missing = append(missing, fmt.Sprintf("server %d at %s", i+1, f.peers[uint64(i+1)]))
			}
		}
		away := fmt.Sprintf("missing=%q", strings.Join(missing, ", "))
		said("the loss of the majority", `"no majority can be reached: disconnecting clients" `+away)
		f.stop(last)
		f.start(last)
		time.Sleep(3 * time.Second)
		said("the start of one of three", `"no majority can be reached: serving no clients" `+away)
		time.Sleep(time.Minute)
		said("a minute alone")
		f.start((last + 1) % 3)
		f.start((last + 2) % 3)
		f.whole()
		said("the return of the others", `"serving clients"`)
		for i := range 3 {
			orderly(i)
		}
		said("the end")
	})
}

// TestFailedIsQuiet: a follower that could not write, and that nobody closes, does not log at each attempt of the leader that it still cannot.
func TestFailedIsQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startedFleet(t, 20)
		f.whole()
		lead := leadOf(t, f)
		c := (lead + 1) % 3
		f.disks[c].SetFault(func() error { return errors.New("disk full") })
		f.write(lead)
		until(t, "its fault", f.running[c].Failed.Load)
		time.Sleep(5 * time.Minute)
		if n := strings.Count(f.log.String(), "disk full"); n > 1 {
			t.Errorf("it was logged %d times that its disk is full", n)
		}
	})
}

// TestReturnIsNotLogged: nobody logs, at the default level, that a follower was stopped, and that it needs a snapshot when it is started again.
func TestReturnIsNotLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3)
		f.change = func(c *Config) { c.SnapshotBytes = 100 * engine.EntryCost }
		f.all(nil)
		before := f.log.String()
		lead := leadOf(t, f)
		c := (lead + 1) % 3
		f.stop(c)
		f.writes(lead, 500)
		f.start(c)
		f.whole()
		if after := f.log.String(); after != before {
			t.Error(strings.TrimPrefix(after, before))
		}
	})
}
