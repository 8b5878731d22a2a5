package releases

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// known returns the releases since 3.8.0, and an older one.
func known() []Version {
	all := []Version{{3, 7, 2, false}, {3, 8, 0, true}}
	for minor, patches := range map[int]int{8: 6, 9: 5} {
		for patch := range patches + 1 {
			all = append(all, Version{3, minor, patch, false})
		}
	}
	return all
}

// TestPairs checks that each release is in exactly one of two ranges that are for the
// new and the old behaviour.
func TestPairs(t *testing.T) {
	for _, pair := range [][2]string{
		{EventZxid, NoEventZxid}, {ExistsNeedsRead, ExistsNeedsNothing}, {EventsNeedRead, EventsNeedNothing},
		{Create2InMulti, Create2AsCreate}, {MultiReadsModes, MultiChecksModes}, {IPv6InACL, NoIPv6InACL},
		{WatchesSideBySide, WatchesOverwrite}, {PersistentTypes, NoPersistentTypes},
		{CheckOwnWatches, CheckAnyWatches}, {UnreadableTakesNone, UnreadableTakesZxid},
	} {
		for _, v := range known() {
			if v.In(pair[0]) == v.In(pair[1]) {
				t.Errorf("%s: In returns for both %q and %q %v", v, pair[0], pair[1], v.In(pair[0]))
			}
		}
		if !Newest.In(pair[0]) {
			t.Errorf("the newest release is not in %q", pair[0])
		}
	}
}

// TestOnePlace checks that the conformance checks take ranges since 3.8 from this
// package.
func TestOnePlace(t *testing.T) {
	files, err := filepath.Glob("../../../conform/*.go")
	if err != nil || len(files) < 10 {
		t.Fatal(len(files), err)
	}
	own := regexp.MustCompile(`In: +"[^"]*(3\.8|3\.9|3\.[1-9][0-9]|debian)[^"]*"`)
	for _, name := range files {
		if ok, _ := filepath.Match("*_test.go", filepath.Base(name)); ok {
			continue
		}
		text := testkit.Must(os.ReadFile(name))(t)
		if found := own.FindString(string(text)); found != "" {
			t.Errorf("%s has %s: it belongs in package releases", filepath.Base(name), found)
		}
	}
}
