package watch

import (
	"fmt"
	"testing"
)

// TestEachWhileTableChanges: Each finds a path that is watched all the time, whichever of its two watches
// goes meanwhile.
func TestEachWhileTableChanges(t *testing.T) {
	const paths = 100
	for _, goes := range []Kind{Data, Child} {
		w := New[int]()
		for i := range paths {
			w.Add(1, Data, fmt.Sprint("/", i), Standard)
			w.Add(1, Child, fmt.Sprint("/", i), Standard)
		}
		found, calls := map[string]bool{}, 0
		w.Each(func(_ int, path string) bool {
			found[path] = true
			if calls++; calls == paths/2 {
				for i := range paths {
					w.Remove(1, goes, fmt.Sprint("/", i), Standard)
				}
			}
			return true
		})
		if len(found) != paths {
			t.Errorf("when the watches of kind %d go, %d of %d paths are found", goes, len(found), paths)
		}
	}
}
