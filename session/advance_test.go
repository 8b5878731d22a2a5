package session

import (
	"fmt"
	"slices"
	"testing"
)

func TestTrackerAdvance(t *testing.T) {
	for _, x := range []struct {
		ms           int64
		alive        []int64
		late         []int64
		next         string // the deadlines of the others
		stillTracked int
	}{
		{0, nil, nil, "2:2100 3:4100", 3},
		{100, nil, nil, "2:2000 3:4000", 3},
		{999, nil, []int64{2}, "3:3101", 3}, // now is 1101
		{999, []int64{2}, nil, "2:3200 3:3101", 3},
		{999, []int64{1, 2, 3}, nil, "2:3200 3:5200", 3}, // 1 is late already, and cannot be touched
		{2001, nil, []int64{2}, "3:2099", 3},             // its timeout is less
		{1 << 40, nil, []int64{2, 3}, "", 3},
	} {
		tr := NewTracker(100)
		for id, timeout := range map[int64]int32{1: 1000, 2: 2000, 3: 4000} {
			tr.Add(&Session{ID: id, Timeout: timeout}, 0)
		}
		const now = 1101
		if l := tr.Late(now); len(l) != 1 || l[0].ID != 1 {
			t.Fatalf("late: %v", l)
		}
		late := tr.Advance(now, x.ms, func(id int64) bool { return slices.Contains(x.alive, id) })
		slices.Sort(late)
		if want := append([]int64{1}, x.late...); !slices.Equal(late, want) {
			t.Errorf("%d ms, alive %d: late %d, want %d", x.ms, x.alive, late, want)
		}
		var found []int64
		for _, s := range tr.Late(now) {
			found = append(found, s.ID)
		}
		if !slices.Equal(found, x.late) {
			t.Errorf("%d ms, alive %d: found late %d", x.ms, x.alive, found)
		}
		next := map[int64]int64{}
		for _, b := range bucketsOf(tr) {
			for _, id := range b.Sessions {
				next[id] = b.Deadline
			}
		}
		var text []string
		for _, id := range []int64{1, 2, 3} {
			if d, ok := next[id]; ok {
				text = append(text, fmt.Sprintf("%d:%d", id, d))
			}
		}
		if got := fmt.Sprint(text); got != "["+x.next+"]" || tr.Len() != x.stillTracked {
			t.Errorf("%d ms, alive %d: deadlines %s, want %s; %d sessions", x.ms, x.alive, got, x.next, tr.Len())
		}
	}
}
