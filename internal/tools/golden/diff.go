package golden

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// Diff is the error of a replay: the first point where the endpoint behaved differently
// from the recorded server.
type Diff struct {
	Scenario string
	Step     *Step
	Why      string
	Want     []byte // the recorded bytes, with this run's values where they vary
	Got      []byte // the received bytes, as far as they arrived
	Offset   int    // of the first byte that differs; -1 if the difference is not in the bytes
}

// Error returns where the difference is, and both sides in hex.
func (d *Diff) Error() string {
	var b strings.Builder
	if d.Scenario != "" {
		fmt.Fprintf(&b, "%s: ", d.Scenario)
	}
	fmt.Fprintf(&b, "line %d: ", d.Step.Line)
	if d.Step.Conn != "" {
		fmt.Fprintf(&b, "%s ", d.Step.Conn)
	}
	fmt.Fprintf(&b, "%s: %s", d.Step.Kind, d.Why)
	if d.Step.Comment != "" {
		fmt.Fprintf(&b, "\n  golden: %s", d.Step.Comment)
	}
	if d.Step.Kind == Word {
		fmt.Fprintf(&b, "\n  want: %q\n  got:  %q", d.Want, d.Got)
		return b.String()
	}
	if d.Want != nil {
		fmt.Fprintf(&b, "\n  want: %x%s", d.Want, header(d.Want))
	}
	if d.Got != nil {
		fmt.Fprintf(&b, "\n  got:  %x%s", d.Got, header(d.Got))
	}
	if d.Offset >= 0 {
		fmt.Fprintf(&b, "\n        %*s^^ byte %d", 2*d.Offset, "", d.Offset)
	}
	return b.String()
}

// header decodes the header of a reply. The answer to a handshake has none; it is
// recognized by its protocol version 0, which is not the xid of any recorded reply.
func header(frame []byte) string {
	if len(frame) < headerEnd || binary.BigEndian.Uint32(frame[xidAt:]) == 0 {
		return ""
	}
	return fmt.Sprintf("  (xid=%d zxid=%#x err=%d)", int32(binary.BigEndian.Uint32(frame[xidAt:])),
		binary.BigEndian.Uint64(frame[zxidAt:]), int32(binary.BigEndian.Uint32(frame[headerEnd-4:])))
}

// firstDiff returns the offset of the first byte at which a and b differ, or -1 if they
// are equal.
func firstDiff(a, b []byte) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	if len(a) != len(b) {
		return n
	}
	return -1
}
