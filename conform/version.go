package conform

import (
	"fmt"

	"github.com/lockkeeper/lockkeeper/internal/tools/releases"
)

// Version is a release of ZooKeeper.
type Version struct {
	Major, Minor, Patch int
	// Debian marks Debian's 3.8.0, which has some fixes of later releases.
	Debian bool
}

// Newest returns the newest release that the suite knows.
func Newest() Version { return Version(releases.Newest) }

// ParseVersion parses a version as srvr shows it ("3.9.3-c26634f34490bb0ea7a09cc51e05ede3b4e320ee")
// or as a person writes it ("3.8.4", "3.8.0+debian").
func ParseVersion(s string) (Version, error) {
	v, err := releases.Parse(s)
	if err != nil {
		err = fmt.Errorf("conform: %w", err)
	}
	return Version(v), err
}

// String returns the version in a form that ParseVersion accepts.
func (v Version) String() string { return releases.Version(v).String() }

// In reports whether the version is in a range: alternatives separated by "|", each a
// list of conditions that must all hold. A condition is ">=3.9.2", "<3.9", "debian" for
// Debian's patched 3.8.0, or "!debian" for every other version.
func (v Version) In(r string) bool { return releases.Version(v).In(r) }
