package releases

import (
	"fmt"
	"strconv"
	"strings"
)

// Version is a release of ZooKeeper.
type Version struct {
	Major, Minor, Patch int
	Debian              bool // Debian's 3.8.0, which has some fixes of later releases
}

// Newest is the newest release that this package knows.
var Newest = Version{Major: 3, Minor: 9, Patch: 5}

// Parse parses a version as srvr shows it ("3.9.3-c26634f34490bb0ea7a09cc51e05ede3b4e320ee")
// or as a person writes it ("3.8.4", "3.8.0+debian").
func Parse(s string) (v Version, err error) {
	number, rest, _ := strings.Cut(s, "-")
	number, tag, _ := strings.Cut(number, "+")
	if n, err := fmt.Sscanf(number, "%d.%d.%d", &v.Major, &v.Minor, &v.Patch); n < 2 {
		return v, fmt.Errorf("%q is not a version of ZooKeeper: %v", s, err)
	}
	// Debian builds without git, so the placeholder for the commit is never replaced.
	v.Debian = tag == "debian" || strings.Contains(rest, "mvngit.commit.id")
	return v, nil
}

// String returns the version in a form that Parse accepts.
func (v Version) String() string {
	s := fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Patch)
	if v.Debian {
		s += "+debian"
	}
	return s
}

// In reports whether the version is in a range: alternatives separated by "|", each a
// list of conditions that must all hold. A condition is ">=3.9.2", "<3.9", "debian" for
// Debian's patched 3.8.0, or "!debian" for every other version.
func (v Version) In(r string) bool {
	for alternative := range strings.SplitSeq(r, "|") {
		holds := true
		for cond := range strings.FieldsSeq(alternative) {
			holds = holds && v.meets(cond)
		}
		if holds {
			return true
		}
	}
	return false
}

func (v Version) meets(cond string) bool {
	switch {
	case cond == "debian":
		return v.Debian
	case cond == "!debian":
		return !v.Debian
	case strings.HasPrefix(cond, ">="):
		return v.compare(cond[2:]) >= 0
	case strings.HasPrefix(cond, "<"):
		return v.compare(cond[1:]) < 0
	}
	panic(fmt.Sprintf("releases: condition %q", cond))
}

func (v Version) compare(s string) int {
	have := [3]int{v.Major, v.Minor, v.Patch}
	for i, part := range strings.Split(s, ".") {
		n, err := strconv.Atoi(part)
		if err != nil {
			panic(fmt.Sprintf("releases: version %q", s))
		}
		if have[i] != n {
			return have[i] - n
		}
	}
	return 0
}
