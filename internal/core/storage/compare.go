package storage

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/session"
)

// Comparison is what [Compare] found. Two members of one cluster may end at different
// entries, and have different entries at their ends that were never committed. All else
// must be the same.
type Comparison struct {
	A *Report `json:"a"`
	B *Report `json:"b"`

	// FirstIndex and LastIndex are the entries that both logs have; 0 if there are none.
	FirstIndex uint64 `json:"firstIndex"`
	LastIndex  uint64 `json:"lastIndex"`
	// Tail is the first entry that is of different terms: from there on, one of the two
	// logs, or each, has only entries that were not committed. 0 if there is none.
	Tail  uint64 `json:"tail,omitempty"`
	TermA uint64 `json:"termA,omitempty"` // of the entry Tail
	TermB uint64 `json:"termB,omitempty"`

	// StateIndex is the last entry after which both can be in a state that agrees with the
	// other's log; the states after it are compared. If it is 0, there is no such state: one
	// has a snapshot of a later entry than all that the other has.
	StateIndex uint64 `json:"stateIndex"`

	// Different says what must be the same and is not; empty if nothing was found.
	Different string `json:"different,omitempty"`
}

// Compare verifies the data directories a and b of two members of a cluster, which do not
// run, and compares them: the entries that both logs have, and the states after the last
// entry up to which both logs agree. It changes nothing.
func Compare(a, b string) (*Comparison, error) {
	x, err := readStopped(a)
	if err != nil {
		return nil, err
	}
	defer x.store.Close()
	y, err := readStopped(b)
	if err != nil {
		return nil, err
	}
	defer y.store.Close()
	c := &Comparison{A: x.report, B: y.report}
	if of, other := x.report.Cluster, y.report.Cluster; of != 0 && other != 0 && of != other {
		c.Different = fmt.Sprintf("they belong to cluster %v and to cluster %v", of, other)
		return c, nil
	}
	if err := c.entries(x, y); err != nil || c.Different != "" {
		return c, err
	}
	index := min(x.end(), y.end())
	if c.Tail > 0 {
		index = min(index, c.Tail-1)
	}
	if index < max(x.report.SnapshotIndex, y.report.SnapshotIndex) {
		return c, nil
	}
	c.StateIndex = index
	for _, s := range []*stopped{x, y} {
		for i := s.report.SnapshotIndex + 1; i <= index; i++ {
			var l raft.Log
			err := s.log.GetLog(i, &l)
			if err == nil {
				err = apply(s.machine, &l)
			}
			if err != nil {
				return nil, fmt.Errorf("%s: log entry %d: %w", s.dir, i, err)
			}
		}
	}
	c.Different = differentStates(x.machine, y.machine)
	return c, nil
}

// stopped is the data directory of a member that does not run, and is verified.
type stopped struct {
	dir     string
	report  *Report
	store   raftStore
	log     raft.LogStore
	machine *fsm.Machine // of the newest snapshot, at first
}

func readStopped(dir string) (*stopped, error) {
	report, err := Check(dir)
	if err != nil {
		return nil, err
	}
	disk, err := report.LogStore.disk(hclog.NewNullLogger())
	if err != nil {
		return nil, err
	}
	store, err := disk.open(dir, true)
	if err != nil {
		return nil, err
	}
	newest, machine, err := verifySnapshots(dir, report.ServerID)
	if err != nil {
		store.Close()
		return nil, err
	}
	if newest == nil {
		machine = fsm.NewMachine()
	}
	return &stopped{dir, report, store, checksumLog{store}, machine}, nil
}

// end is the last entry that the log or the snapshot has.
func (s *stopped) end() uint64 { return max(s.report.LastIndex, s.report.SnapshotIndex) }

// placeholder reports whether an entry may stand for another: after a snapshot, the leader
// sends an empty entry with the index and the term of the last one that the snapshot
// covers. The log then begins with it.
func (s *stopped) placeholder(l *raft.Log) bool {
	return l.Index == s.report.FirstIndex && l.Index <= s.report.SnapshotIndex && l.Type == raft.LogNoop && len(l.Data) == 0
}

// entries compares the entries that both have. If two have the same index and term, they
// and all before them must be the same (Raft's paper, section 5.3).
func (c *Comparison) entries(x, y *stopped) error {
	first, last := max(x.report.FirstIndex, y.report.FirstIndex), min(x.report.LastIndex, y.report.LastIndex)
	if x.report.FirstIndex == 0 || y.report.FirstIndex == 0 || first > last {
		return nil
	}
	c.FirstIndex, c.LastIndex = first, last
	for i := first; i <= last; i++ {
		var l, m raft.Log
		if err := x.log.GetLog(i, &l); err != nil {
			return fmt.Errorf("%s: %w", x.dir, err)
		}
		if err := y.log.GetLog(i, &m); err != nil {
			return fmt.Errorf("%s: %w", y.dir, err)
		}
		switch {
		case l.Term != m.Term && c.Tail == 0:
			c.Tail, c.TermA, c.TermB = i, l.Term, m.Term
			if i <= min(x.report.SnapshotIndex, y.report.SnapshotIndex) {
				c.Different = fmt.Sprintf("entry %d, which is committed in both, is of term %d and of term %d", i, l.Term, m.Term)
				return nil
			}
		case l.Term != m.Term:
		case c.Tail > 0:
			c.Different = fmt.Sprintf("entry %d is of term %d and of term %d, but entry %d is of term %d in both", c.Tail, c.TermA, c.TermB, i, l.Term)
			return nil
		case x.placeholder(&l) || y.placeholder(&m):
		case l.Type != m.Type || !bytes.Equal(l.Data, m.Data) || !bytes.Equal(l.Extensions, m.Extensions):
			c.Different = fmt.Sprintf("entry %d of term %d has another content", i, l.Term)
			return nil
		}
	}
	return nil
}

// differentStates says in what two states differ, or "".
func differentStates(a, b *fsm.Machine) string {
	var ids []int64
	for _, m := range [][2]*fsm.Machine{{a, b}, {b, a}} {
		for s := range m[0].Sessions().All() {
			if other := m[1].Sessions().Get(s.ID); other == nil || *other != *s {
				ids = append(ids, s.ID)
			}
		}
	}
	if path := differentPath(a, b, "/"); path != "" {
		return "znode " + path
	}
	if len(ids) > 0 {
		return "session " + session.FormatID(slices.Min(ids))
	}
	if a.Zxid() != b.Zxid() {
		return fmt.Sprintf("zxid 0x%x and 0x%x", a.Zxid(), b.Zxid())
	}
	if a.Digest() != b.Digest() {
		return fmt.Sprintf("digest %016x and %016x", a.Digest(), b.Digest())
	}
	return ""
}

// differentPath returns the first path at or below path whose znode is not the same in
// both, or is only in one of them; "" if there is none. One below comes before path, since
// the stat of a znode changes with its children.
func differentPath(a, b *fsm.Machine, path string) string {
	x, y := a.Tree().Lookup(path), b.Tree().Lookup(path)
	if x == nil || y == nil {
		return path
	}
	names := slices.Collect(a.Tree().Children(x))
	for name := range b.Tree().Children(y) {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if below := differentPath(a, b, strings.TrimSuffix(path, "/")+"/"+name); below != "" {
			return below
		}
	}
	if !reflect.DeepEqual(x.Record(), y.Record()) {
		return path
	}
	return ""
}
