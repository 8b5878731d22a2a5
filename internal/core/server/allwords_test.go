package server

import (
	"maps"
	"slices"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient/rawtest"
)

// TestAllWords checks that the tests which go through all words know each of them.
func TestAllWords(t *testing.T) {
	served := slices.Sorted(maps.Keys(words))
	known := slices.Sorted(slices.Values(rawtest.Words))
	if !slices.Equal(served, known) {
		t.Errorf("the server knows %q, rawtest.Words %q", served, known)
	}
}
