package locks

import (
	"fmt"
	"testing"
	"time"
)

// TestMeterFullIsFast: a Meter that knows as many directories as it may, all of which have a holder,
// does not look at all of them for each event in another directory. Package admin tells it of events
// while the state of the server is locked (meterRun.find, and meterRun.measure when it has a question).
func TestMeterFullIsFast(t *testing.T) {
	const dirs, events = 10_000, 5_000 // dirs is meterDirs of package admin
	m := &Meter{MaxDirs: dirs, MaxEntries: 100_000, Waited: func(int64) {}, Held: func(int64) {}}
	for i := range dirs {
		m.Created(fmt.Sprintf("/locks/%d/_c_x-lock-0000000000", i), 1)
	}
	for _, q := range m.Questions() {
		m.Listed(q, []string{"_c_x-lock-0000000000"}, true)
	}
	few := &Meter{MaxDirs: 2 * dirs, MaxEntries: 100_000, Waited: m.Waited, Held: m.Held}
	took := func(m *Meter) time.Duration {
		began := time.Now()
		for i := range events {
			m.Created(fmt.Sprintf("/more/%d/_c_x-lock-0000000000", i), 2)
		}
		return time.Since(began)
	}
	fast, slow := took(few), took(m)
	t.Logf("%d events take %v, and %v when it is full (%v for each)", events, fast, slow, slow/events)
	if slow > 20*fast {
		t.Errorf("%d events take %v instead of %v; 65536 may wait", events, slow, fast)
	}
}
