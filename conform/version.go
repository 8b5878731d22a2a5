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

// in reports whether the version is in the range of a check.
func (v Version) in(r string) bool { return releases.Version(v).In(r) }
