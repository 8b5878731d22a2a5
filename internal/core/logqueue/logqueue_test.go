package logqueue

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// slowLog is the handler of a log that takes nothing before open is closed.
type slowLog struct {
	slog.Handler
	open chan struct{}
}

func (s slowLog) Handle(ctx context.Context, r slog.Record) error {
	<-s.open
	return s.Handler.Handle(ctx, r)
}

// TestQueue: nobody waits for a log that blocks, and when it does no longer, it gets all lines in order. If too many
// wait, it gets the first ones.
func TestQueue(t *testing.T) {
	for _, lines := range []int{100, most + 1000} {
		synctest.Test(t, func(t *testing.T) {
			var out strings.Builder
			below := slowLog{slog.NewTextHandler(&out, nil), make(chan struct{})}
			log, q := New(slog.New(below))
			began := time.Now()
			for i := range lines {
				log.Info("line", "i", i)
			}
			if q.Wait(); time.Since(began) != time.Second {
				t.Errorf("waiting for a log that blocks took %v", time.Since(began))
			}
			close(below.open)
			q.Wait()
			got := strings.Split(strings.TrimSpace(out.String()), "\n")
			if n := len(got); lines <= most && n != lines || n > most+1 || n < min(lines, most) {
				t.Errorf("%d of %d lines", n, lines)
			}
			for i, line := range got {
				if !strings.HasSuffix(line, fmt.Sprintf("i=%d", i)) {
					t.Fatalf("line %d is %q", i, line)
				}
			}
		})
	}
}
