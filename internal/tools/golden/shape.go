package golden

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

var (
	expiry     = regexp.MustCompile(`(?m)^\d+ expire at \w{3} \w{3} \d\d [\d:]{8} \S+ \d{4}:\n`)
	incidental = regexp.MustCompile(`(?m)^(zk_\w+_per_namespace\t|0 expire at ).*\n`)
	number     = regexp.MustCompile(`0x[0-9a-f]+|-?[0-9][0-9.]*`)
	restoring  = regexp.MustCompile(`(?m)^zk_(\w+_)?(restore|snapshot_error|snapshot_rate)_\w+\t.*\n`) // new in 3.9, for its admin server
	value      = regexp.MustCompile(`(?m)^([\w.]+=|Zookeeper version:|zk_version\t).*$`)
)

// SameShape compares the answer to a four-letter word with the recorded one. It ignores
// numbers, values after "key=" and the order of the lines. It also ignores the lines
// for namespaces, which depend on earlier writes, and the number of expiry buckets,
// which depends on the time. It can serve as Options.Text.
func SameShape(st *Step, got string) error {
	w, g := Shape(st.Text), Shape(got)
	for line, n := range w {
		if g[line] != n {
			return fmt.Errorf("%d times %q where %d were recorded", g[line], line, n)
		}
	}
	for line := range g {
		if w[line] == 0 {
			return fmt.Errorf("%q was not recorded", line)
		}
	}
	if strings.HasSuffix(got, "\n") != strings.HasSuffix(st.Text, "\n") {
		return errors.New("only one of the answers ends with a line feed")
	}
	return nil
}

// Shape counts the lines of an answer that are equal except for their values. All lines
// about expiry buckets count as one.
func Shape(text string) map[string]int {
	const bucket = "N expire at D:\n"
	text = incidental.ReplaceAllString(text, "")
	text = restoring.ReplaceAllString(text, "")
	text = value.ReplaceAllString(text, "$1")
	text = expiry.ReplaceAllString(text, bucket)
	text = number.ReplaceAllString(text, "N")
	lines := map[string]int{}
	for line := range strings.Lines(text) {
		lines[line]++
	}
	if lines[bucket] > 1 {
		lines[bucket] = 1
	}
	return lines
}
