package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/proto"
)

// Crowds returns the workloads with very many sessions, which are measured only when they are
// named: each takes minutes, and more file descriptors than most processes may have.
func Crowds() []Workload {
	return []Workload{
		{Name: "sessions-open", Says: "opens one of very many sessions, each with a lock of its own, and holds them all", Once: true, Run: sessionsOpen},
		{Name: "sessions-failover", Says: "the time without service of a session whose server, the leader of many sessions, is killed", Once: true, Run: sessionsFailover,
			Needs: needs("a command that kills a server", func(t *Target) bool { return t.Kill != nil })},
		{Name: "sessions-vanish", Says: "the time until the session of a client expires that vanishes together with thousands of others", Once: true, Run: sessionsVanish},
		{Name: "sessions-watch", Says: "the time until one of many sessions has an event of znodes that all of them watch and that change at once", Once: true, Run: sessionsWatch},
	}
}

// Note is a figure that only one workload has.
type Note struct {
	What  string  `json:"what"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
}

func (r *Run) note(what string, value float64, unit string) {
	r.result.Notes = append(r.result.Notes, Note{what, round(value), unit})
}

// with calls f with a session of its own on one of the servers.
func (r *Run) with(i int, f func(c *rawclient.Client) error) error {
	c, err := r.open(i)
	if err != nil {
		return err
	}
	defer r.end(c)
	return f(c)
}

// crowd calls f with a crowd that is not open yet, and ends the sessions.
func (r *Run) crowd(n int, f func(c *crowd) error) error {
	r.limit = crowdLimit
	c, err := r.newCrowd(n, r.Root+"/crowd", sessionTimeout)
	if err != nil {
		return err
	}
	defer c.close()
	return steps(func() error { return f(c) }, c.endAll)
}

// measuredAlone runs the measured part in one goroutine.
func (r *Run) measuredAlone(c *crowd, work func(w *Worker) error) (err error) {
	count := func(w *Worker) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.w, c.began = w, time.Now()
	}
	failed := r.Measured(1, func(_ int, w *Worker) {
		count(w)
		defer count(nil)
		err = work(w)
	})
	return errors.Join(failed, err)
}

// unharmed returns an error if sessions were lost or moved.
func (c *crowd) unharmed() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost > 0 || c.moved > 0 {
		return fmt.Errorf("%d sessions were lost, and connections were lost %d times", c.lost, c.moved)
	}
	return nil
}

func sessionsOpen(r *Run) error {
	before, err := r.Target.usage()
	if err != nil {
		return err
	}
	return r.crowd(r.o.Sessions, func(c *crowd) error {
		return steps(
			func() error { return r.measuredAlone(c, func(*Worker) error { return c.openAll() }) },
			func() error { return r.itemMemory(before, len(c.seats)) },
			func() error { return r.held(c) },
			c.unharmed,
		)
	})
}

// held holds a crowd for the time of a measurement, and notes what each server uses meanwhile.
func (r *Run) held(c *crowd) error {
	alone := func(pid int) usage { u, _ := (&Target{PIDs: []int{pid}}).usage(); return u }
	pids := r.Target.PIDs
	before := make([]usage, len(pids))
	for i, pid := range pids {
		before[i] = alone(pid)
	}
	began, own := time.Now(), alone(os.Getpid())
	if !c.wait(r.o.Time) {
		return context.Cause(c.ctx)
	}
	took := time.Since(began).Seconds()
	for i, pid := range pids {
		after := alone(pid)
		r.note(fmt.Sprintf("memory of server %d", i+1), float64(after.memory)/(1<<20), "MiB")
		r.note(fmt.Sprintf("processor of server %d while the sessions are held", i+1), (after.server-before[i].server).Seconds()/took, "cores")
	}
	after := alone(os.Getpid())
	r.note("the same of this process", (after.server-own.server).Seconds()/took, "cores")
	return nil
}

func sessionsFailover(r *Run) error {
	return r.crowd(r.o.Sessions, func(c *crowd) error {
		if err := c.openAll(); err != nil {
			return err
		}
		c.wait(r.o.settle)
		leader, err := r.Target.leader(r)
		if err != nil {
			return err
		}
		pids := r.Target.PIDs
		r.Target.PIDs = nil // one of them ends
		defer func() { r.Target.PIDs = pids }()
		var theirs, had []*seat // the seats at the leader, and those that had to move
		c.mu.Lock()
		for i := range c.seats {
			if r.Target.Addrs[c.seats[i].server] == leader {
				theirs = append(theirs, &c.seats[i])
			}
		}
		c.mu.Unlock()
		stays := func(s *seat) bool { return !s.hadMoved }
		return r.measuredAlone(c, func(*Worker) error {
			began := time.Now()
			killed := make(chan error, 1)
			go func() { // ends with the command
				fresh, err := r.Target.Kill(r.ctx, leader)
				if fresh != nil {
					pids = fresh
				}
				killed <- err
			}()
			var failed error
			err := c.until(func() bool {
				select {
				case failed = <-killed:
				default:
				}
				return failed != nil || c.served+c.lost == len(c.seats) && !slices.ContainsFunc(theirs, stays)
			})
			r.note("until all are served again", time.Since(began).Seconds(), "s")
			c.mu.Lock()
			defer c.mu.Unlock()
			for i := range c.seats {
				if s := &c.seats[i]; s.hadMoved {
					had = append(had, s)
				}
			}
			r.note("sessions that had to move", float64(len(had)), "")
			r.note("sessions lost", float64(c.lost), "")
			return errors.Join(failed, err)
		})
	})
}

// leader returns the address of the server that leads, by the four-letter word srvr.
func (t *Target) leader(r *Run) (string, error) {
	for i, addr := range t.Addrs {
		nc, err := r.dial(i)
		if err != nil {
			continue
		}
		text, _ := rawclient.Word(nc, "srvr", frameTimeout)
		r.forget(nc)
		if strings.Contains(text, "Mode: leader") || strings.Contains(text, "Mode: standalone") {
			return addr, nil
		}
	}
	return "", errors.New("no server says that it leads")
}

func sessionsVanish(r *Run) error {
	vanishing := min(r.o.Vanishing, r.o.Sessions)
	return r.crowd(r.o.Sessions-vanishing, func(stay *crowd) error {
		if err := stay.openAll(); err != nil {
			return err
		}
		path := r.Root + "/vanish"
		gone, err := r.newCrowd(vanishing, path, r.o.vanish)
		if err != nil {
			return err
		}
		defer gone.close()
		if err := gone.openAll(); err != nil {
			return err
		}
		var over atomic.Bool
		var others sync.WaitGroup
		var errs [2]error
		var sets, hands timed
		others.Go(func() {
			errs[0] = r.with(1, func(c *rawclient.Client) error { return loneSets(c, r.Root, &sets, &over) })
		})
		others.Go(func() { errs[1] = r.handing(&hands, &over) })
		defer others.Wait()
		defer over.Store(true)
		gone.wait(r.o.Time)
		n := len(gone.seats)
		err = r.measuredAlone(gone, func(w *Worker) error {
			return r.with(0, func(c *rawclient.Client) error {
				vanished := time.Now()
				gone.close()
				var first time.Time
				for left := int32(n); left > 0 && !r.Stopped(); time.Sleep(5 * time.Millisecond) {
					s, err := c.Exists(path, false)
					if err != nil {
						return err
					}
					for ; left > s.NumChildren; left-- {
						w.Done(time.Since(vanished))
					}
					if first.IsZero() && int(left) < n {
						first = time.Now()
						sets.since.Store(true)
						hands.since.Store(true)
					}
				}
				r.note("from the first expiry to the last", time.Since(first).Seconds(), "s")
				return nil
			})
		})
		over.Store(true)
		others.Wait()
		sets.note(r, "a lone set")
		hands.note(r, "handing a lock over")
		return errors.Join(err, stay.unharmed(), errs[0], errs[1])
	})
}

// timed collects how long something takes before a moment and after it.
type timed struct {
	since atomic.Bool // the moment has come
	times [2][]time.Duration
}

func (t *timed) add(began time.Time) {
	i := 0
	if t.since.Load() {
		i = 1
	}
	t.times[i] = append(t.times[i], time.Since(began))
}

func (t *timed) note(r *Run, what string) {
	for i, when := range []string{"before", "meanwhile"} {
		slices.Sort(t.times[i])
		for _, x := range []struct {
			name string
			q    float64
		}{{"median", 0.5}, {"p99", 0.99}, {"longest", 1}} {
			r.note(fmt.Sprintf("%s %s, %s", what, when, x.name), float64(quantile(t.times[i], x.q))/1e6, "ms")
		}
	}
}

func loneSets(c *rawclient.Client, path string, t *timed, over *atomic.Bool) error {
	for !over.Load() {
		began := time.Now()
		if _, err := c.Set(path, data); err != nil {
			return err
		}
		t.add(began)
		time.Sleep(time.Millisecond)
	}
	return nil
}

// handing hands a lock over again and again: from the delete of one session until the next one
// has the event.
func (r *Run) handing(t *timed, over *atomic.Bool) error {
	return r.with(2, func(holder *rawclient.Client) error {
		return r.with(3, func(next *rawclient.Client) error {
			path := r.Root + "/lock"
			for !over.Load() {
				if _, err := holder.Create(path, nil, proto.FlagEphemeral); err != nil {
					return err
				}
				for { // until the next one's server has it, too
					if _, err := next.Exists(path, true); err == nil {
						break
					} else if err != proto.NoNode {
						return err
					}
				}
				next.Events = nil
				began := time.Now()
				if err := holder.Delete(path); err != nil {
					return err
				}
				for next.Events == nil {
					f, err := next.Read()
					if err != nil {
						return err
					}
					if e, ok := f.Event(); ok && e.Type == proto.EventNodeDeleted {
						break
					}
				}
				t.add(began)
				time.Sleep(time.Millisecond)
			}
			return nil
		})
	})
}

// sessionsWatch has each session watch the data of the same children of a znode, and sets all of
// those in one transaction.
func sessionsWatch(r *Run) error {
	return r.crowd(r.o.Sessions, func(c *crowd) error {
		parent := r.Root + "/watched"
		children := max(1, r.o.Watches/len(c.seats))
		set := &proto.MultiRequest{}
		for i := range children {
			set.Ops = append(set.Ops, proto.MultiOp{Op: proto.OpSetData, Request: &proto.SetDataRequest{Path: fmt.Sprintf("%s/%d", parent, i), Data: data, Version: proto.AnyVersion}})
		}
		prepare := func(one *rawclient.Client) error {
			_, err := one.Create(parent, nil, 0)
			for i := 0; i < children && err == nil; i++ {
				_, err = one.Create(fmt.Sprintf("%s/%d", parent, i), nil, 0)
			}
			return err
		}
		return r.with(0, func(one *rawclient.Client) error {
			err := steps(
				func() error { return prepare(one) },
				c.openAll,
				func() error { return c.askAll(proto.OpSync, &proto.Path{Path: parent}) },
			)
			for i := 0; i < children && err == nil; i++ {
				err = c.askAll(proto.OpGetData, &proto.PathWatch{Path: fmt.Sprintf("%s/%d", parent, i), Watch: true})
			}
			if err != nil {
				return err
			}
			r.note("watches", float64(children*len(c.seats)), "")
			err = r.measuredAlone(c, func(*Worker) error {
				if _, err := one.Send(proto.OpMulti, set); err != nil {
					return err
				}
				return c.until(func() bool { return c.told == children*len(c.seats) })
			})
			if err != nil {
				return err
			}
			if _, err := one.Read(); err != nil {
				return err
			}
			r.note("until the last session had all events", r.result.Seconds, "s")
			return c.unharmed()
		})
	})
}
