package golden

import (
	"os"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// TestAppend encodes every file again, which must give the same bytes.
func TestAppend(t *testing.T) {
	for _, s := range loadAll(t) {
		want := testkit.Must(os.ReadFile("../../../testdata/golden/" + s.Name + ".txt"))(t)
		got := s.AppendHeader(nil)
		for i := range s.Steps {
			got = s.Steps[i].Append(got)
		}
		if string(got) != string(want) {
			at := firstDiff(got, want)
			t.Errorf("%s: differs from byte %d: %.80q, should be %.80q", s.Name, at, got[at:], want[at:])
		}
	}
}
