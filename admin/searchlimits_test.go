package admin

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/core/report"
)

// TestSearchLimits: a search ends after so many znodes and so much time, and says so; one that waits for
// another gives up after a time.
func TestSearchLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, err := lockkeeper.Open(lockkeeper.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := server.Wait(ctx); err != nil {
			t.Fatal(err)
		}
		c, err := connect(server, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for i := range 600 {
			if _, err := c.Create(fmt.Sprintf("/%03d", i), nil, 0); err != nil {
				t.Fatal(err)
			}
		}
		s := newSearcher(reader{report.Of(server)})
		search := func(most int, limit time.Duration) *searchAnswer {
			t.Helper()
			s.most, s.limit = most, limit
			a, err := s.search(ctx, "/0")
			if err != nil {
				t.Fatal(err)
			}
			return a
		}
		if a := search(1000, time.Second); len(a.Found) != 100 || a.More != 0 || a.Incomplete != "" {
			t.Errorf("%+v", a)
		}
		if a := search(512, time.Second); len(a.Found) == 0 || len(a.Found) > 99 || !strings.HasPrefix(a.Incomplete, "only 512 of 604 znodes were looked at") {
			t.Errorf("%d found: %s", len(a.Found), a.Incomplete)
		}
		if a := search(1000, 0); len(a.Found) != 0 || !strings.HasPrefix(a.Incomplete, "only 0 of 604 znodes were looked at") {
			t.Errorf("%+v", a)
		}
		s.turn <- struct{}{} // another one
		began := time.Now()
		_, err = s.search(ctx, "/0")
		if r, ok := err.(*refusal); !ok || r.status != http.StatusServiceUnavailable || time.Since(began) != searchesWait {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		time.AfterFunc(time.Second, func() { <-s.turn })
		if a := search(1000, time.Second); len(a.Found) != 100 {
			t.Errorf("%+v", a)
		}
	})
}

// TestAbandonedSearch: a search whose browser has gone does not wait for the one before it.
func TestAbandonedSearch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSearcher(reader{})
		s.turn <- struct{}{}
		ctx, cancel := context.WithTimeout(t.Context(), searchesWait/2)
		defer cancel()
		began := time.Now()
		if _, err := s.search(ctx, "a"); err != context.DeadlineExceeded || time.Since(began) != searchesWait/2 {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}
