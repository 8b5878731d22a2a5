package cluster

import (
	"sync"

	"github.com/lockkeeper/lockkeeper/fsm"
)

// entryCost is the minimum number of bytes that an entry counts for, since raft.db
// adds some to each. It also bounds the number of entries in a log of short ones.
const entryCost = 256

// logLength counts the bytes of log since the last snapshot, to decide when the next
// is due. Raft would count entries, but an entry may hold one command or thousands.
type logLength struct {
	mu      sync.Mutex
	room    sync.Cond // on mu: signaled when a snapshot ends or the member closes
	due     signal    // for takeSnapshots
	bytes   int64     // applied since the newest snapshot was begun; each entry counts at least entryCost
	entries int64     // applied since then
	taking  bool      // a snapshot is due or being taken
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

// snapshotDue is how many bytes of log make a snapshot due: SnapshotBytes, or the
// size of the data if that is larger.
func (m *Member) snapshotDue() (due int64) {
	m.replica.View(func(v *fsm.View) { due = max(m.cfg.SnapshotBytes, v.Tree().DataSize()) })
	return due
}

// logGrew counts an entry that was applied. It takes the replica's lock, so the
// caller must not hold it.
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

// awaitLog blocks while a snapshot is being taken and the log written since is
// already long enough for another one. This bounds the log when writes outrun the
// disk.
func (m *Member) awaitLog() {
	due := m.snapshotDue()
	l := &m.log
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.taking && l.bytes >= due && !l.closed {
		l.room.Wait()
	}
}

// takeSnapshots has Raft take a snapshot and truncate its log when one is due. If a
// snapshot fails, the log stays longer and the next one is tried as usual.
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
			// Keep about SnapshotBytes of log for members that lag: sending them
			// log is cheaper than sending the snapshot.
			c.TrailingLogs = uint64(max(1, m.cfg.SnapshotBytes*entries/max(1, bytes)))
			if err := m.raft.ReloadConfig(c); err != nil {
				m.cfg.Log.Warn("cannot set how much log to keep after a snapshot", "error", err)
			}
		}
		if err := m.raft.Snapshot().Error(); err != nil {
			m.cfg.Log.Warn("cannot take a snapshot", "error", err)
		}
		l.mu.Lock()
		l.taking = false
		l.room.Broadcast()
		l.mu.Unlock()
	}
}
