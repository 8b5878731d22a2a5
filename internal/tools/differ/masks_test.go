package differ

import "testing"

// TestMasksByVersion checks which masks apply between two versions. An endpoint that does
// not report its version counts as a new one.
func TestMasksByVersion(t *testing.T) {
	const debian, newest = "3.8.0-${mvngit.commit.id}", "3.9.5-abc"
	for _, x := range []struct {
		a, b, mask string
		on         bool
	}{
		{debian, newest, "event-zxid", true},
		{debian, newest, "exists-read", true},
		{debian, newest, "event-read", false},
		{"3.8.0-abc", newest, "event-read", true},
		{debian, newest, "multi-create", true},
		{"3.8.4-abc", newest, "multi-create", false},
		{"3.8.4-abc", newest, "event-zxid", true},
		{"3.8.4-abc", newest, "check-alone", true},
		{"3.9.2-abc", "3.9.2-abc", "check-alone", true},
		{"3.9.1-abc", newest, "exists-watch", true},
		{newest, "3.9.5-lockkeeper-0.1.0", "ip6-acl", false},
		{newest, "3.9.5-lockkeeper-0.1.0", "wrong-password", true},
		{"", newest, "event-zxid", false},
		{"nonsense", newest, "event-zxid", false},
	} {
		a, b := parseVersion("Zookeeper version: "+x.a+", built on today\nMode: standalone\n"), parseVersion("Zookeeper version: "+x.b)
		on, err := choose(a, b, nil, false)
		if err != nil || on[x.mask] != x.on {
			t.Errorf("%s between %q and %q: %v, %v", x.mask, x.a, x.b, on[x.mask], err)
		}
	}
}
