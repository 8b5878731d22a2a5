package peer

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/core/timing"
)

// TestSignsWhileSending: what the other side's system takes of a long message does not show that its process lives. Its signs do.
func TestSignsWhileSending(t *testing.T) {
	for _, lives := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			const silence = time.Second
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			seen := 0
			all := NewConns(&Port{Ctx: ctx}, silence, func(uint64) { seen++ }, func(string) uint64 { return 1 }, &wg)
			wg.Go(all.Run)
			signs, other := net.Pipe()
			c := all.NewConn(takes{signs}, "there:1")
			wg.Go(func() {
				time.Sleep(silence / 10) // between the looks
				each := time.NewTicker(silence / timing.LooksPerTimeout)
				defer each.Stop()
				for range 40 {
					<-each.C
					if lives {
						other.Write(make([]byte, 4))
					}
				}
				other.Write(append(binary.BigEndian.AppendUint32(nil, 1), 'x'))
			})
			err := c.Exchange(io.LimitReader(slow{}, 98*32<<10), func() error {
				_, err := io.ReadFull(c, make([]byte, 1))
				return err
			})
			if err != nil {
				t.Error(err)
			}
			if lives != (seen > 30) || !lives && seen > 1 { // the answer is one
				t.Errorf("lives %v: seen alive %d times", lives, seen)
			}
			c.Close()
			cancel()
			wg.Wait()
		})
	}
}

// takes is a connection of which the other side's system takes what is written, and its process nothing.
type takes struct{ net.Conn }

func (takes) Write(p []byte) (int, error) { return len(p), nil }

// slow is a reader that has 32 KiB, or what is asked for, each 0.1 s.
type slow struct{}

func (slow) Read(p []byte) (int, error) {
	time.Sleep(100 * time.Millisecond)
	return min(len(p), 32<<10), nil
}
