package golden

import "testing"

// TestSameShape: what an answer says is its shape, not when it was given, or in
// how many buckets sessions expire.
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
