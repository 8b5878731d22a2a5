package cluster

import (
	"sync"

	"github.com/lockkeeper/lockkeeper/fsm"
)

// entryCost is how many bytes an entry counts for at least, since raft.db adds
// some to each. It bounds the number of entries in a log of short ones.
const entryCost = 256

// logLength tells when a snapshot is due. Raft counts entries, but one of them
// may hold a command or thousands.
type logLength struct {
	mu      sync.Mutex
	room    sync.Cond // on mu: no snapshot is being taken, or the member closes
	due     signal    // has an element when a snapshot is
	bytes   int64     // applied since the newest snapshot was begun; each entry is at least entryCost
	entries int64     // likewise
	taking  bool
	closed  bool
}

func (l *logLength) init() {
	l.room.L = &l.mu
	l.due = newSignal()
}

func (l *logLength) close() {
	l.mu.Lock()
	l.closed = true
	l.room.Broadcast()
	l.mu.Unlock()
}

// snapshotDue is how many bytes of log make a snapshot worth its while: those
// that were configured, or as many as the snapshot would have.
func (m *Member) snapshotDue() (due int64) {
	m.replica.View(func(v *fsm.View) { due = max(m.cfg.SnapshotBytes, v.Tree().DataSize()) })
	return due
}

// logGrew counts an entry that was applied.
func (m *Member) logGrew(bytes int) {
	due := m.snapshotDue()
	l := &m.log
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bytes += max(int64(bytes), entryCost)
	l.entries++
	if l.bytes >= due && !l.taking {
		l.taking = true
		l.due.raise()
	}
}

// awaitLog waits while a snapshot is being taken and the log behind it is long
// enough for another: that bounds the log when writes outrun the disk.
func (m *Member) awaitLog() {
	due := m.snapshotDue()
	l := &m.log
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.taking && l.bytes >= due && !l.closed {
		l.room.Wait()
	}
}

// takeSnapshots has Raft take snapshots when they are due, and cut its log,
// beside everything else. One that fails leaves the log longer.
func (m *Member) takeSnapshots() {
	defer m.wg.Done()
	l := &m.log
	for {
		select {
		case <-l.due:
		case <-m.stop:
			return
		}
		l.mu.Lock()
		bytes, entries := l.bytes, l.entries
		l.bytes, l.entries = 0, 0
		l.mu.Unlock()
		if m.peers != nil {
			c := m.raft.ReloadableConfig()
			// About SnapshotBytes of the log stay behind the snapshot, for
			// members that lag: to send them is cheaper than the snapshot.
			c.TrailingLogs = uint64(max(1, m.cfg.SnapshotBytes*entries/max(1, bytes)))
			if err := m.raft.ReloadConfig(c); err != nil {
				m.cfg.Log.Warn("the log is cut as before", "error", err)
			}
		}
		if err := m.raft.Snapshot().Error(); err != nil {
			m.cfg.Log.Warn("no snapshot", "error", err)
		}
		l.mu.Lock()
		l.taking = false
		l.room.Broadcast()
		l.mu.Unlock()
	}
}
