package session

import (
	"fmt"
	"testing"
)

func TestParseID(t *testing.T) {
	const id, high = 0x1dd000000000012, -0x0ffffffffffffffe // the second is of a server with an id above 127
	for text, want := range map[string]int64{
		"0x1dd000000000012": id, "0x01dd000000000012": id, "0X01DD000000000012": id, "01dd000000000012": id, "01DD000000000012": id,
		"134263563890982930": id, "-123456789012345": -123456789012345, FormatID(id): id, FormatID(high): high, "f000000000000002": high,
		"-1152921504606846974": high, "17293822569102704642": high, "1": 1, "010": 10, "1234567890123456": 0x1234567890123456,
	} {
		if got, err := ParseID(text); err != nil || got != want {
			t.Errorf("%s: %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "0", "0x", "0x0", "0000000000000000", "1dd", "0x1_0", "x1", "0x-1", "0x10000000000000000", "99999999999999999999", "1.5", " 1"} {
		if got, err := ParseID(text); err == nil {
			t.Errorf("%q: %d", text, got)
		}
	}
}

// TestZooKeeperPassword compares with what Java computes. The password does not depend on the
// highest two bytes of the id.
func TestZooKeeperPassword(t *testing.T) {
	for id, want := range map[uint64]string{
		1:                  "054cc74a37327db215e702e20c73f005",
		0xff00000000000001: "054cc74a37327db215e702e20c73f005",
		0x100a01c3e20000:   "ec3be5f109bd95a4aa5ee455fa52a305",
		0x8000000000000000: "f22acd4a97e69d6d20a49bb638eadb38",
		0xffffffffffffffff: "20f62cb5648dc2d771471c8a2486a9ee",
	} {
		if got := ZooKeeperPassword(int64(id)); fmt.Sprintf("%x", got) != want {
			t.Errorf("session %#x: %x, should be %s", id, got, want)
		}
	}
}
