package report

import (
	"slices"
	"testing"
)

// TestWatchTwice: a watch that went and came back while somebody read the list counts once.
func TestWatchTwice(t *testing.T) {
	w := Watches{{1, "/b"}, {2, "/b"}, {1, "/a"}, {1, "/b"}}
	if g := w.BySession(); len(g) != 2 || !slices.Equal(g[0].Items, []string{"/a", "/b"}) {
		t.Errorf("by session: %q", g)
	}
	if g := w.ByPath(); len(g) != 2 || !slices.Equal(g[1].Items, []string{"0x1", "0x2"}) {
		t.Errorf("by path: %q", g)
	}
}
