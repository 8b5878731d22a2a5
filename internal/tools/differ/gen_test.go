package differ

import (
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

// TestFrameSizes checks that a frame is above the limit only where the step expects the
// connection to end. Which of the requests before it are still answered is up to chance.
// The last round of its seeds once had a multi with two large values.
func TestFrameSizes(t *testing.T) {
	c := &blanks{
		root:    "/differ-00000000",
		zxid:    func(n int) int64 { return int64(n) },
		session: func(int) (int64, []byte) { return 1, make([]byte, 16) },
	}
	masks, err := choose(parseVersion("Zookeeper version: 3.9.5-abc"), parseVersion("Zookeeper version: 3.9.5-lockkeeper-0.1.0"), nil, false)
	if err != nil {
		t.Fatal(err)
	}
	largest := 0
	for seed := uint64(989_999_982); seed < 990_000_032; seed++ {
		for i, st := range generate(seed, 2450, nil, masks, map[string]int{}, nil, "super:secret") {
			for _, f := range st.Frames {
				n := len(f.append(nil, c)) - 4
				if n > jute.DefaultMaxFrame && !st.Ends {
					t.Errorf("seed %d, step %d: opcode %d has %d bytes", seed, i, f.Op, n)
				}
				largest = max(largest, n)
			}
		}
	}
	if largest < jute.DefaultMaxFrame*9/10 {
		t.Errorf("the largest frame has only %d bytes", largest)
	}
}

// TestSurveyed: the requests that read the znodes at the end of a run fit in what a server
// reads at a time, even if there are many znodes.
func TestSurveyed(t *testing.T) {
	paths := make([]string, 500)
	for i := range paths {
		paths[i] = "/differ-12345678/" + strings.Repeat("x", i)
	}
	for len(paths) > 0 {
		n := surveyed(paths)
		size := 0
		for _, p := range paths[:n] {
			for _, op := range []proto.OpCode{proto.OpGetChildren2, proto.OpGetData, proto.OpGetACL} {
				size += len(request(1, op).str(p).bool(false).append(nil, &blanks{root: "/"}))
			}
		}
		if n == 0 || size > 4096 {
			t.Fatalf("%d znodes of %d at once, with %d bytes", n, len(paths), size)
		}
		paths = paths[n:]
	}
}
