package locks

import "testing"

// TestEmptyLeases: a Meter that has seen how an empty directory of leases was made beside a queue sees the
// same as one that begins now, and as Find; also at the root.
func TestEmptyLeases(t *testing.T) {
	for _, at := range []string{"/s", ""} {
		for _, first := range []string{"/leases", "/locks"} {
			s := newMeasuredServer()
			s.mkdir(at + "/")
			s.nodes[at] = s.nodes[at+"/"]
			s.mkdir(at + first)
			if first == "/leases" {
				s.settle(1)
				s.mkdir(at + "/locks")
			}
			s.create(at+"/locks", "_c_"+guid+"-lock-%010d", 1)
			s.settle(2)
			if first == "/locks" {
				s.mkdir(at + "/leases")
				s.settle(3)
			}
			if l := s.find(); len(l) != s.meter.Totals(0).Held {
				t.Errorf("%s%s first: %d locks are held: %q", at, first, s.meter.Totals(0).Held, text(l))
			}
		}
	}
}
