package golden

import "testing"

// TestSameShape checks that dates and the number of expiry buckets do not matter, but
// the numbers of sessions and lines do.
func TestSameShape(t *testing.T) {
	const recorded = "Session Sets (1)/(2):\n2 expire at Sat Nov 21 03:11:14 UTC 2026:\n\t0x100\n\t0x101\n"
	for _, x := range []struct {
		got  string
		same bool
	}{
		{recorded, true},
		{"Session Sets (1)/(2):\n2 expire at Sun Feb 01 00:00:00 +0530 2032:\n\t0x1\n\t0x2\n", true},
		{"Session Sets (2)/(2):\n1 expire at Sat Nov 21 03:11:14 UTC 2026:\n\t0x100\n1 expire at Sat Nov 21 03:11:16 UTC 2026:\n\t0x101\n", true},
		{"Session Sets (1)/(2):\n0 expire at Sat Nov 21 03:11:12 UTC 2026:\n2 expire at Sat Nov 21 03:11:14 UTC 2026:\n\t0x100\n\t0x101\n", true},
		{"Session Sets (1)/(2):\n2 expire at 2026-11-21 03:11:14:\n\t0x100\n\t0x101\n", false},
		{"Session Sets (1)/(1):\n1 expire at Sat Nov 21 03:11:14 UTC 2026:\n\t0x100\n", false},
		{"Session Sets (0)/(2):\n\t0x100\n\t0x101\n", false},
		{recorded + "\t0x102\n", false},
		{recorded + "more\n", false},
	} {
		if err := SameShape(&Step{Text: recorded}, x.got); (err == nil) != x.same {
			t.Errorf("%q: %v", x.got, err)
		}
	}
}
