package logqueue

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// handling is a handler that calls before for each line.
type handling struct {
	slog.Handler
	before func()
}

func (h handling) Handle(ctx context.Context, r slog.Record) error {
	h.before()
	return h.Handler.Handle(ctx, r)
}

// logTo returns a logger to out, which calls before for each line, and its queue.
func logTo(out *strings.Builder, before func()) (*slog.Logger, *Queue) {
	return New(slog.New(handling{slog.NewTextHandler(out, nil), before}))
}

// TestQueue: nobody waits for a log that blocks, and when it does no longer, it gets all lines in order. If too many
// wait, it gets the first ones, how many were left out, and what is logged later.
func TestQueue(t *testing.T) {
	for _, lines := range []int{100, most + 1000} {
		synctest.Test(t, func(t *testing.T) {
			var out strings.Builder
			open := make(chan struct{})
			log, q := logTo(&out, func() { <-open })
			log.Info("line", "i", 0)
			synctest.Wait() // until the log has it
			began := time.Now()
			for i := 1; i < lines; i++ {
				log.Info("line", "i", i)
			}
			if took := time.Since(began); took != 0 {
				t.Errorf("who logs waits for %v", took)
			}
			close(open)
			synctest.Wait()
			log.Info("line", "i", "last")
			q.Close()
			var want []string
			for i := range min(lines, most+1) {
				want = append(want, fmt.Sprint("i=", i))
			}
			if left := lines - len(want); left > 0 {
				want = append(want, fmt.Sprint("lines=", left))
			}
			want = append(want, "i=last")
			got := strings.Split(strings.TrimSpace(out.String()), "\n")
			if len(got) != len(want) {
				t.Fatalf("%d lines, not %d", len(got), len(want))
			}
			for i, line := range got {
				if !strings.HasSuffix(line, want[i]) {
					t.Fatalf("line %d is %q, not %q", i, line, want[i])
				}
			}
			if q.waiting != nil {
				t.Error("the queue keeps what was logged")
			}
		})
	}
}

// TestLeftTwice: the log takes some lines after the queue was full, and then it is full again. Each gap says how long it is,
// also if the log has errors only.
func TestLeftTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		step := make(chan struct{})
		only := slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelError})
		log, q := New(slog.New(handling{only, func() { <-step }}))
		n := 0
		say := func(lines int) {
			for range lines {
				log.Error("line", "i", n)
				n++
			}
			synctest.Wait()
		}
		say(1) // the log has it
		say(most + 5)
		for range 101 {
			step <- struct{}{}
		}
		synctest.Wait()
		say(100 + 1000)
		close(step)
		q.Close()
		var got []string
		before := ""
		for line := range strings.Lines(out.String()) {
			last := line[strings.LastIndex(line, " ")+1 : len(line)-1]
			if strings.HasPrefix(last, "lines=") {
				got = append(got, before, last)
			}
			before = last
		}
		if want := fmt.Sprintf("[i=%d lines=5 i=%d lines=1000]", most, most+105); fmt.Sprint(got) != want {
			t.Errorf("%v, not %v", got, want)
		}
	})
}

// TestClose: a slow log gets lines for a second, and then none but the one that it is taking.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		var out strings.Builder
		log, q := logTo(&out, func() { n++; time.Sleep(300 * time.Millisecond) })
		for range 10 {
			log.Info("line")
		}
		began := time.Now()
		q.Close()
		if took := time.Since(began); took != time.Second {
			t.Errorf("Close took %v", took)
		}
		log.Info("late")
		time.Sleep(time.Minute)
		synctest.Wait()
		if n != 4 {
			t.Errorf("the log got %d lines", n)
		}
	})
}

// TestHandlerEndsGoroutine: a handler that ends the goroutine, as t.FailNow does, costs one line.
func TestHandlerEndsGoroutine(t *testing.T) {
	n := 0
	var out strings.Builder
	log, q := logTo(&out, func() {
		if n++; n == 1 {
			runtime.Goexit()
		}
	})
	log.Info("first")
	log.Info("second")
	q.Close()
	if !strings.Contains(out.String(), "second") {
		t.Errorf("the log has %q", out.String())
	}
}
