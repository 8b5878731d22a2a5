package locks

import (
	"fmt"
	"strconv"
	"strings"
)

// MaxData is the length up to which data is worth reading, and shownData how many characters of it
// are shown.
const (
	MaxData   = 4 << 10
	shownData = 100
)

// DataText returns text for a znode's data, for people: of limited length, in one line, and
// with everything that cannot be printed escaped as in Go. It is "" if there is no data.
// data may be nil if the length is more than MaxData.
func DataText(data []byte, length int32) string {
	if length > MaxData {
		return fmt.Sprintf("(%d bytes)", length)
	}
	text, cut := string(data), ""
	n := 0
	for i := range text {
		if n++; n > shownData {
			text, cut = text[:i], "…"
			break
		}
	}
	quoted := strconv.Quote(text)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`) + cut
}
