package admin

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/core/report"
)

// This file searches for znodes by their paths.

// Limits of a search.
const (
	maxFound     = 100     // in one answer
	maxFoundText = 1 << 20 // bytes of their paths, of which there is always one
	maxLooked    = 1_000_000
	searchTime   = 2 * time.Second
	searchesWait = 5 * time.Second // for each other
)

// searcher searches for znodes, once at a time. What it finds is what the tree of the page shows: a znode's
// path, if the console may list the children of every znode above it.
type searcher struct {
	reader
	turn  chan struct{} // has an element while a search runs
	most  int           // znodes that one looks at
	limit time.Duration // of one
}

func newSearcher(r reader) *searcher {
	return &searcher{r, make(chan struct{}, 1), maxLooked, searchTime}
}

// searchAnswer is what a search has found.
type searchAnswer struct {
	Found      []foundZnode `json:"found"`
	More       int          `json:"more"`                 // that match, too
	Incomplete string       `json:"incomplete,omitempty"` // why there may be others
}

// foundZnode is one of them.
type foundZnode struct {
	Path string `json:"path"`
	inShort
}

// serve answers with the znodes whose paths contain the text "q".
func (s *searcher) serve(w http.ResponseWriter, q *http.Request) {
	answer, err := s.search(q.Context(), q.URL.Query().Get("q"))
	respond(w, answer, unread(err))
}

func (s *searcher) search(ctx context.Context, text string) (*searchAnswer, error) {
	if text == "" || len(text) > maxFilter {
		return nil, refuse(http.StatusBadRequest, "the text must have 1 to %d bytes", maxFilter)
	}
	wait := time.NewTimer(searchesWait)
	defer wait.Stop()
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-wait.C:
		return nil, refuse(http.StatusServiceUnavailable, "others are searching")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	began := time.Now()
	x, err := s.from.Search(report.Search{Text: text, Most: maxFound, MostBytes: maxFoundText, Continue: func(looked int) bool {
		return looked < s.most && time.Since(began) < s.limit && ctx.Err() == nil
	}})
	if err != nil {
		return nil, err
	}
	answer := &searchAnswer{Found: []foundZnode{}, More: max(0, x.Matching-len(x.Paths))}
	for _, path := range x.Paths {
		if z, ok := s.inShort(path); ok {
			answer.Found = append(answer.Found, foundZnode{path, z})
		}
	}
	if !x.Complete {
		answer.Incomplete = fmt.Sprintf("only %d of %d znodes were looked at; a search ends after %d znodes or %v, and when a snapshot replaces the state", x.Looked, x.Znodes, s.most, s.limit)
	}
	return answer, nil
}
