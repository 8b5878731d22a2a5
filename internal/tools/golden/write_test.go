package golden

import (
	"os"
	"testing"
)

// TestAppend encodes every file again, which must give the same bytes.
func TestAppend(t *testing.T) {
	for _, s := range loadAll(t) {
		want, err := os.ReadFile("../../../testdata/golden/" + s.Name + ".txt")
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Append(nil); string(got) != string(want) {
			at := firstDiff(got, want)
			t.Errorf("%s: differs from byte %d: %.80q, should be %.80q", s.Name, at, got[at:], want[at:])
		}
	}
}
