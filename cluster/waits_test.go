package cluster

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
)

// TestWaits: what a request waits for, if nothing else is going on: messages that go one way between members, and writes to the disk, of
// which those on several members count as one if they are made at the same time.
func TestWaits(t *testing.T) {
	const message, disk = 10 * time.Millisecond, 3 * time.Millisecond
	for members, want := range map[int]struct{ write, sync, writeFollowing, syncFollowing time.Duration }{
		1: {write: disk},
		3: {2*message + disk, 2 * message, 4*message + disk, 2 * message}, // who asks agrees that the leader leads: with that, a majority
		5: {2*message + disk, 2 * message, 4*message + disk, 4 * message},
	} {
		synctest.Test(t, func(t *testing.T) {
			f, lead := fleetOf(t, members)
			f.net.SetDelay(func(string, string) time.Duration { return message })
			for _, d := range f.disks {
				d.SetFault(func() error { time.Sleep(disk); return nil })
			}
			time.Sleep(5 * time.Second)
			for i, m := range f.running {
				write, sync := want.write, want.sync
				if i != lead {
					write, sync = want.writeFollowing, want.syncFollowing
				}
				for _, x := range []struct {
					request *fsm.Command
					waits   time.Duration
				}{{someWrite(), write}, {fsm.Nothing(), sync}} {
					least := time.Hour // a heartbeat that is on its way delays the next one
					for range 10 {
						time.Sleep(317 * time.Millisecond)
						least = min(least, did(t, m, x.request))
					}
					if least != x.waits {
						t.Errorf("%d members: %+v waits for %v, not %v; on the leader: %v", members, x.request.Op, least, x.waits, i == lead)
					}
				}
			}
		})
	}
}
