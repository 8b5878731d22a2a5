package memnet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// pair is a connection from host a to host b.
type pair struct {
	*Network
	t    *testing.T
	a, b net.Conn
}

// connect makes a connection from host a to host b.
func connect(t *testing.T, n *Network) pair {
	t.Helper()
	l, err := n.Host("b").Listen("b:1")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := pair{Network: n, t: t}
	accepted := make(chan net.Conn, 1)
	go func() {
		c, _ := l.Accept()
		accepted <- c
	}()
	if p.a, err = n.Host("a").Dial(t.Context(), "b:1"); err != nil {
		t.Fatal(err)
	}
	p.b = <-accepted
	t.Cleanup(func() {
		p.a.Close()
		p.b.Close()
	})
	return p
}

// cutBoth cuts both directions, or heals them.
func (p pair) cutBoth(cut bool) {
	p.Cut("a", "b", cut)
	p.Cut("b", "a", cut)
}

func send(t *testing.T, c net.Conn, text string) {
	t.Helper()
	testkit.Must(c.Write([]byte(text)))(t)
}

// expect reads text, which must arrive after exactly that time.
func expect(t *testing.T, c net.Conn, text string, after time.Duration) {
	t.Helper()
	began, b := time.Now(), make([]byte, len(text))
	if _, err := io.ReadFull(c, b); err != nil || string(b) != text {
		t.Fatalf("read %q: %v", b, err)
	}
	if took := time.Since(began); took != after {
		t.Errorf("%q arrived after %v, should be %v", text, took, after)
	}
}

// fails reads until the connection ends, which must be with that error after that time.
func fails(t *testing.T, c net.Conn, want error, after time.Duration) {
	t.Helper()
	began := time.Now()
	_, err := io.Copy(io.Discard, c)
	if want == io.EOF {
		want = nil
	}
	if took := time.Since(began); !errors.Is(err, want) || took != after {
		t.Errorf("the connection ended after %v: %v; should be after %v: %v", took, err, after, want)
	}
}

const ms = time.Millisecond

// TestResent: what was sent during a cut, or was in flight, arrives with TCP's next attempt,
// however soon the link was healed, and everything arrives in order. A new connection works
// at once.
func TestResent(t *testing.T) {
	for _, x := range []struct{ cut, arrives time.Duration }{
		{50 * ms, 200 * ms}, {300 * ms, 600 * ms}, {601 * ms, 1400 * ms}, {13 * time.Second, 25400 * ms},
		{110 * time.Second, 204600 * ms},
	} {
		for _, inFlight := range []bool{true, false} {
			t.Run(fmt.Sprint(x.cut, inFlight), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					p := connect(t, New())
					p.SetDelay(func(string, string) time.Duration { return 10 * ms })
					send(t, p.a, "early")
					time.Sleep(10 * ms)
					if inFlight {
						send(t, p.a, "one")
					}
					p.Cut("a", "b", true)
					if !inFlight {
						send(t, p.a, "one")
					}
					expect(t, p.b, "early", 0)
					send(t, p.b, "back")
					expect(t, p.a, "back", 10*ms)
					time.Sleep(x.cut - 10*ms)
					send(t, p.a, "two")
					p.Cut("a", "b", false)
					send(t, p.a, "three")
					began := time.Now()
					fresh := connect(t, p.Network)
					send(t, fresh.a, "fresh")
					expect(t, fresh.b, "fresh", 10*ms)
					expect(t, p.b, "onetwothree", x.arrives+10*ms-x.cut-time.Since(began))
					send(t, p.a, "as ever")
					expect(t, p.b, "as ever", 10*ms)
				})
			})
		}
	}
}

// TestLongestWait: no two attempts are more than 120 s apart.
func TestLongestWait(t *testing.T) {
	began := time.Now()
	h := &half{n: New(), lost: began}
	for at, next := range map[time.Duration]time.Duration{204 * time.Second: 204600 * ms, 205 * time.Second: 324600 * ms, 400 * time.Second: 444600 * ms} {
		if got := h.resent(began.Add(at)).Sub(began); got != next {
			t.Errorf("after %v the next attempt is at %v, should be %v", at, got, next)
		}
	}
}

// TestLostAgain: the attempts go on as before if the link is cut again before one succeeds,
// and begin anew after one that did.
func TestLostAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := connect(t, New())
		p.Cut("a", "b", true)
		send(t, p.a, "x")
		time.Sleep(700 * ms)
		p.Cut("a", "b", false)
		time.Sleep(600 * ms)
		p.Cut("a", "b", true)
		time.Sleep(200 * ms) // the attempt after 1.4 s was lost too
		p.Cut("a", "b", false)
		expect(t, p.b, "x", 1500*ms)
		p.Cut("a", "b", true)
		send(t, p.a, "y")
		p.Cut("a", "b", false)
		expect(t, p.b, "y", 200*ms)
	})
}

func TestHealAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New()
		n.HealAtOnce()
		p := connect(t, n)
		p.cutBoth(true)
		send(t, p.a, "x")
		dialed := make(chan error)
		go func() {
			_, err := n.Host("b").Dial(t.Context(), "a:1")
			dialed <- err
		}()
		time.Sleep(50 * time.Second)
		p.Heal()
		expect(t, p.b, "x", 0)
		if err := <-dialed; !errors.Is(err, syscall.ECONNREFUSED) {
			t.Error(err)
		}
	})
}

// TestDialAgain: Dial tries again after 1, 3, 7 s and so on, and gives up after 127 s. It
// takes a round trip.
func TestDialAgain(t *testing.T) {
	for _, x := range []struct{ healed, took time.Duration }{{ms, time.Second}, {1500 * ms, 3 * time.Second}, {8 * time.Second, 15 * time.Second}} {
		for _, way := range [][2]string{{"a", "b"}, {"b", "a"}} {
			synctest.Test(t, func(t *testing.T) {
				n := New()
				n.SetDelay(func(string, string) time.Duration { return 5 * ms })
				n.Cut(way[0], way[1], true)
				began := time.Now()
				time.AfterFunc(x.healed, n.Heal)
				if _, err := n.Host("a").Dial(t.Context(), "b:1"); !errors.Is(err, syscall.ECONNREFUSED) || time.Since(began) != x.took+10*ms {
					t.Errorf("after %v: %v", time.Since(began), err)
				}
			})
		}
	}
	synctest.Test(t, func(t *testing.T) {
		n := New()
		n.Cut("a", "b", true)
		began := time.Now()
		if _, err := n.Host("a").Dial(t.Context(), "b:1"); !errors.Is(err, syscall.ETIMEDOUT) || time.Since(began) != 127*time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 500*ms)
		defer cancel()
		if _, err := n.Host("a").Dial(ctx, "b:1"); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}

// TestGivesUp: a sender whose bytes get lost gives up after TCP's limit or its own. The
// other end is not told until it sends something, or by its keepalive.
func TestGivesUp(t *testing.T) {
	for _, x := range []struct{ user, after time.Duration }{{0, 924600 * ms}, {5 * time.Second, 5 * time.Second}} {
		for _, speaks := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				p := connect(t, New())
				p.a.(interface{ SetUserTimeout(time.Duration) error }).SetUserTimeout(x.user)
				time.Sleep(time.Hour)
				p.Cut("a", "b", true)
				send(t, p.a, "lost")
				fails(t, p.a, syscall.ETIMEDOUT, x.after)
				if _, err := p.a.Write([]byte("x")); !errors.Is(err, syscall.ETIMEDOUT) {
					t.Error(err)
				}
				if x.user == 0 {
					return // keepalive has ended the other end
				}
				p.Heal()
				if speaks {
					send(t, p.b, "x")
					fails(t, p.b, syscall.ECONNRESET, 0)
				} else {
					fails(t, p.b, syscall.ECONNRESET, keepAliveEvery)
				}
				if _, err := p.b.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
					t.Error(err)
				}
			})
		}
	}
}

// TestNobodyReads: writes block once 256 KiB wait, until the reader reads, or longer than
// the user timeout.
func TestNobodyReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := connect(t, New())
		p.a.SetWriteDeadline(time.Now().Add(time.Second))
		n, err := p.a.Write(make([]byte, 300<<10))
		if n != 256<<10 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("wrote %d: %v", n, err)
		}
		p.a.SetWriteDeadline(time.Time{})
		time.AfterFunc(time.Second, func() { io.CopyN(io.Discard, p.b, 100) })
		began := time.Now()
		if n, err := p.a.Write(make([]byte, 100)); n != 100 || err != nil || time.Since(began) != time.Second {
			t.Errorf("wrote %d after %v: %v", n, time.Since(began), err)
		}
		p.a.(*conn).SetUserTimeout(3 * time.Second)
		began = time.Now()
		if _, err := p.a.Write(make([]byte, 1)); !errors.Is(err, syscall.ETIMEDOUT) || time.Since(began) != 3*time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}

// TestBandwidth: all connections of a link share its bandwidth, which each direction has
// for itself, and which may change.
func TestBandwidth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New()
		p, q := connect(t, n), connect(t, n)
		n.SetBandwidth("a", "b", 1<<20)
		for _, c := range []net.Conn{p.a, q.a} {
			go c.Write(make([]byte, 512<<10))
		}
		began := time.Now()
		for _, c := range []net.Conn{p.b, q.b} {
			t.Cleanup(func() { c.Close() })
		}
		done := make(chan struct{})
		go func() {
			io.CopyN(io.Discard, q.b, 512<<10)
			close(done)
		}()
		io.CopyN(io.Discard, p.b, 512<<10)
		<-done
		if took := time.Since(began); took != time.Second {
			t.Errorf("1 MiB took %v", took)
		}
		send(t, p.b, strings.Repeat("x", 100<<10))
		expect(t, p.a, strings.Repeat("x", 100<<10), 0)
		n.SetBandwidth("a", "b", 0)
		send(t, p.a, "x")
		expect(t, p.b, "x", 0)
	})
}

// TestForget: a forgotten connection loses everything in both directions, also what is in
// flight. A new one works.
func TestForget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New()
		p, q := connect(t, n), connect(t, n)
		n.SetDelay(func(string, string) time.Duration { return ms })
		send(t, p.a, "lost")
		first := true
		n.Forget("b", "a", func() bool {
			defer func() { first = false }()
			return first
		})
		send(t, q.a, "x")
		expect(t, q.b, "x", ms)
		n.Heal()
		p.b.SetReadDeadline(time.Now().Add(time.Minute))
		fails(t, p.b, os.ErrDeadlineExceeded, time.Minute)
		p.b.SetReadDeadline(time.Time{})
		fails(t, p.b, syscall.ETIMEDOUT, keepAliveEnds-time.Minute)
		fails(t, p.a, syscall.ETIMEDOUT, giveUpAfter-keepAliveEnds-ms)
		fresh := connect(t, n)
		send(t, fresh.b, "x")
		expect(t, fresh.a, "x", ms)
	})
}

// TestShut: no connection is made, and open ones work.
func TestShut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New()
		p := connect(t, n)
		n.Shut("a", "b", true)
		send(t, p.a, "x")
		expect(t, p.b, "x", 0)
		l := testkit.Must(n.Host("b").Listen("b:2"))(t)
		defer l.Close()
		began := time.Now()
		if _, err := n.Host("a").Dial(t.Context(), "b:2"); !errors.Is(err, syscall.ETIMEDOUT) || time.Since(began) < time.Minute {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		n.Shut("a", "b", false)
		fresh := connect(t, n)
		send(t, fresh.a, "y")
		expect(t, fresh.b, "y", 0)
	})
}

// TestPause: a paused host neither reads nor sends, but its kernel takes what arrives.
func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := connect(t, New())
		p.SetDelay(func(string, string) time.Duration { return ms })
		send(t, p.b, "before")
		p.Pause("b", true)
		expect(t, p.a, "before", ms)
		send(t, p.a, "to b")
		send(t, p.b, "to a")
		time.AfterFunc(10*time.Second, func() { p.Pause("b", false) })
		expect(t, p.b, "to b", 10*time.Second)
		expect(t, p.a, "to a", ms)
		p.Pause("b", true)
		fresh := connect(t, p.Network)
		send(t, fresh.a, "x")
		p.Pause("b", false)
		expect(t, fresh.b, "x", ms)
		// Bytes that are lost while the sender is paused are sent again afterwards.
		send(t, p.b, "y")
		p.Cut("b", "a", true)
		p.Pause("b", true)
		p.Cut("b", "a", false)
		time.Sleep(time.Second)
		p.Pause("b", false)
		expect(t, p.a, "y", 401*ms)
		// And a loss that was repaired does not delay what a paused sender writes later.
		time.Sleep(time.Minute)
		p.Pause("b", true)
		send(t, p.b, "z")
		p.Pause("b", false)
		expect(t, p.a, "z", ms)
	})
}

// TestEnds: the end of a connection travels like bytes.
func TestEnds(t *testing.T) {
	for name, x := range map[string]struct {
		end  func(p pair)
		want error
	}{
		"close": {func(p pair) { p.a.Close() }, io.EOF},
		"kill":  {func(p pair) { p.Kill("a") }, syscall.ECONNRESET},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := connect(t, New())
				x.end(p)
				fails(t, p.b, x.want, 0)

				p = connect(t, p.Network)
				p.cutBoth(true)
				x.end(p)
				send(t, p.b, "x")
				time.AfterFunc(time.Second, p.Heal)
				fails(t, p.b, x.want, 1400*ms)
				p.b.Write([]byte("x"))
				synctest.Wait()
				if _, err := p.b.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
					t.Error(err)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) { // what was sent before arrives, and a writer does not wait for the dead
		p := connect(t, New())
		send(t, p.a, "last words")
		blocked := make(chan error)
		go func() {
			_, err := p.b.Write(make([]byte, 300<<10))
			blocked <- err
		}()
		synctest.Wait()
		p.a.Close()
		if err := <-blocked; !errors.Is(err, syscall.EPIPE) {
			t.Error(err)
		}
		expect(t, p.b, "last words", 0)
		fails(t, p.b, io.EOF, 0)
		// A reset does not pass a cut link.
		p = connect(t, p.Network)
		p.Cut("a", "b", true)
		p.a.Close()
		send(t, p.b, "x")
		p.b.SetReadDeadline(time.Now().Add(time.Second))
		fails(t, p.b, os.ErrDeadlineExceeded, time.Second)
	})
	synctest.Test(t, func(t *testing.T) { // an idle connection
		p := connect(t, New())
		p.Cut("a", "b", true)
		fails(t, p.b, syscall.ETIMEDOUT, keepAliveEnds)
	})
}

// TestRandomLinks: whatever happens to the link, what arrives is a beginning of what was
// sent, all of it if the connection lives on after the link is healed, and twice the same.
func TestRandomLinks(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // otherwise the order of two goroutines is not the same in each run
	run := func(seed uint64) (trace string) {
		synctest.Test(t, func(t *testing.T) {
			r, delays, reads := rand.New(rand.NewPCG(seed, 0)), rand.New(rand.NewPCG(seed, 1)), rand.New(rand.NewPCG(seed, 2))
			n := New()
			p := connect(t, n)
			n.SetDelay(func(string, string) time.Duration { return time.Duration(delays.IntN(20)) * ms })
			var sent, got []byte
			var ended error
			done := make(chan struct{})
			go func() {
				defer close(done)
				b := make([]byte, 10_000)
				for ended == nil {
					var k int
					k, ended = p.b.Read(b)
					got = append(got, b[:k]...)
					time.Sleep(time.Duration(reads.IntN(3)) * ms)
				}
			}()
			forgotten := false
			for range 200 {
				switch r.IntN(8) {
				case 0:
					p.Cut("a", "b", r.IntN(2) == 0)
				case 1:
					p.Cut("b", "a", r.IntN(2) == 0)
				case 2:
					n.Pause([]string{"a", "b"}[r.IntN(2)], r.IntN(2) == 0)
				case 3:
					n.SetBandwidth("a", "b", r.IntN(2)*(10_000+r.IntN(1<<20)))
				case 4:
					if r.IntN(100) == 0 {
						forgotten = true
						n.Forget("a", "b", func() bool { return true })
					}
				default:
					b := make([]byte, r.IntN(100_000))
					for i := range b {
						b[i] = byte(len(sent) + i)
					}
					p.a.SetWriteDeadline(time.Now().Add(time.Second))
					k, _ := p.a.Write(b)
					sent = append(sent, b[:k]...)
				}
				time.Sleep(time.Duration(r.IntN(500)) * ms)
			}
			n.Heal()
			n.Pause("a", false)
			n.Pause("b", false)
			p.a.Close()
			<-done
			if string(got) != string(sent[:len(got)]) || !forgotten && (len(got) < len(sent) || ended != io.EOF) {
				t.Errorf("seed %d: %d bytes of %d arrived: %v", seed, len(got), len(sent), ended)
			}
			trace = fmt.Sprint(len(sent), len(got), ended, time.Now())
		})
		return trace
	}
	for seed := range uint64(30) {
		if a, b := run(seed), run(seed); a != b {
			t.Errorf("seed %d: %s, then %s", seed, a, b)
		}
	}
}
