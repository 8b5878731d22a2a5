package storage

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc64"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/fsync"
)

const (
	snapshotDir     = "raft/snapshots"
	stateFile       = "state.bin" // in the directory of a snapshot, beside its meta.json
	retainSnapshots = 2

	// syncedAtOnce is how many bytes of a snapshot are synced at once. To sync all of a large
	// one at its end would keep the log from being synced for as long as that takes.
	syncedAtOnce = 1 << 20
)

// SnapshotSyncs is how many files may be synced, one after the other, when a snapshot is begun, and
// when it is completed: what is left of its state, its meta.json, and a directory.
const SnapshotSyncs = 3

func openSnapshots(dir string, log hclog.Logger) (raft.SnapshotStore, error) {
	s, err := raft.NewFileSnapshotStoreWithLogger(filepath.Join(dir, raftDir), retainSnapshots, log)
	return &privateSnapshots{FileSnapshotStore: s, dir: filepath.Join(dir, snapshotDir), log: log}, err
}

// privateSnapshots is Raft's own store, with files that only their owner may
// read: Raft's lets everybody read them. It also leaves nothing behind, and overlooks no
// snapshot, when there are no file descriptors left.
type privateSnapshots struct {
	*raft.FileSnapshotStore
	dir string
	log hclog.Logger

	mu    sync.Mutex
	metas map[snapshotName]string // what the meta.json of each, which has no checksum, said when it was first read
}

// Create begins a snapshot. Without descriptors it fails at once, since Raft tries again.
func (s *privateSnapshots) Create(version raft.SnapshotVersion, index, term uint64, c raft.Configuration, configIndex uint64, trans raft.Transport) (raft.SnapshotSink, error) {
	if err := spareFiles(s.dir, 3); err != nil { // Raft's store would leave a directory
		return nil, err
	}
	sink, err := s.FileSnapshotStore.Create(version, index, term, c, configIndex, trans)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(s.dir, sink.ID()+".tmp") // until the snapshot is complete
	err = errors.Join(os.Chmod(dir, dirMode), os.Chmod(filepath.Join(dir, metaFile), fileMode), os.Chmod(filepath.Join(dir, stateFile), fileMode))
	// Raft syncs the two files, and the directory that holds this one. It does not
	// sync this one, which holds the names of the files.
	err = errors.Join(err, fsync.Dir(dir))
	state, openErr := os.OpenFile(filepath.Join(dir, stateFile), os.O_WRONLY, 0)
	if err = errors.Join(err, openErr); err != nil {
		state.Close() // which may be nil
		sink.Cancel()
		return nil, err
	}
	return &privateSink{sink, s, state, 0}, nil
}

type privateSink struct {
	raft.SnapshotSink
	store    *privateSnapshots
	state    *os.File // the file that is being written, a second time: Raft's store has its own
	unsynced int      // bytes written since the last sync
}

// Write writes a part of the snapshot.
func (s *privateSink) Write(b []byte) (int, error) {
	n, err := s.SnapshotSink.Write(b)
	if s.unsynced += n; err == nil && s.unsynced >= syncedAtOnce {
		s.unsynced = 0
		err = s.state.Sync()
	}
	return n, err
}

// Cancel gives the snapshot up.
func (s *privateSink) Cancel() error {
	s.state.Close() // it may already be closed
	return s.SnapshotSink.Cancel()
}

// Close completes the snapshot. It waits for the descriptors that Raft needs for that and
// for deleting an older one: otherwise all that was written would be in vain.
func (s *privateSink) Close() error {
	s.state.Close() // Raft's store syncs what is left
	err := awaitFiles(s.store.log, "a snapshot", nil, func() error { return spareFiles(s.store.dir, 5) })
	if err != nil {
		return errors.Join(err, s.Cancel())
	}
	return s.SnapshotSink.Close()
}

// List returns the newest snapshots. If there is no descriptor, it waits: Raft's store
// leaves out a snapshot that it cannot read, and the log would be dealt with as if that
// were not there. It fails if the meta.json of the newest one is damaged.
func (s *privateSnapshots) List() (list []*raft.SnapshotMeta, err error) {
	err = awaitFiles(s.log, "the list of snapshots", nil, func() error {
		list, err = nil, nil
		names, _, err := snapshotNames(s.dir)
		if err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		texts := map[snapshotName]string{}
		for i, name := range names {
			var m snapshotMeta
			path := filepath.Join(s.dir, name.String(), metaFile)
			b, err := os.ReadFile(path)
			if OutOfFiles(err) {
				return err
			}
			if was := s.metas[name]; err == nil && was != "" && was != string(b) {
				err = errors.New("it has changed")
			}
			if err == nil {
				err = json.Unmarshal(b, &m)
			}
			switch {
			case err == nil:
				texts[name] = string(b)
				if len(list) < retainSnapshots {
					list = append(list, &m.SnapshotMeta)
				}
			case i == 0: // an older one may just be being deleted
				if now, _, _ := snapshotNames(s.dir); len(now) > 0 && now[0] != name {
					return errReplaced
				}
				return damaged(path, "%w", err)
			}
		}
		s.metas = texts
		return nil
	})
	if err == errReplaced {
		return s.List()
	}
	return list, err
}

// errReplaced means that a snapshot is not the newest any more, and may just be being deleted, too.
var errReplaced = errors.New("a newer snapshot")

// snapshotNames returns the names of all snapshots, the newest first, and of a directory beside them that
// is none; "" if there is none.
func snapshotNames(dir string) (names []snapshotName, stranger string, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if name, ok := parseSnapshotName(e.Name()); ok && e.IsDir() {
			names = append(names, name)
		} else if e.IsDir() && !strings.HasSuffix(e.Name(), ".tmp") {
			stranger = e.Name()
		}
	}
	slices.SortFunc(names, func(a, b snapshotName) int { return b.compare(a) })
	return names, stranger, err
}

// verifySnapshots reads all of the newest snapshot, and returns it with the state
// that it holds; nil if there is none. Raft would silently skip a damaged one and
// go back to an older state. Older snapshots are not verified: they are not
// needed, and a crash while one was being removed leaves a part of it. The caller has the store open,
// which keeps other processes out: another one may have completed a snapshot until then.
func verifySnapshots(dir string, id uint64) (*raft.SnapshotMeta, *fsm.Machine, error) {
	dir = filepath.Join(dir, snapshotDir)
	names, stranger, err := snapshotNames(dir)
	if err == nil && stranger != "" {
		err = fmt.Errorf("%s is no snapshot: remove it", filepath.Join(dir, stranger))
	}
	if err != nil || len(names) == 0 {
		return nil, nil, err
	}
	path := filepath.Join(dir, names[0].String())
	meta, machine, err := readSnapshot(path, names[0], id)
	if errors.Is(err, fsm.ErrVersion) || OutOfFiles(err) || errors.Is(err, fs.ErrPermission) {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	if err != nil {
		return nil, nil, damaged(path, "%w", err)
	}
	return meta, machine, nil
}

// snapshotName is the name that Raft gives a snapshot's directory.
type snapshotName struct{ term, index, time uint64 }

func (n snapshotName) String() string { return fmt.Sprintf("%d-%d-%d", n.term, n.index, n.time) }

func (n snapshotName) compare(m snapshotName) int {
	return cmp.Or(cmp.Compare(n.term, m.term), cmp.Compare(n.index, m.index), cmp.Compare(n.time, m.time))
}

// parseSnapshotName returns the name of a snapshot's directory; ok is whether it is one.
func parseSnapshotName(name string) (n snapshotName, ok bool) {
	_, err := fmt.Sscanf(name, "%d-%d-%d", &n.term, &n.index, &n.time)
	return n, err == nil && n.String() == name
}

// snapshotMeta is the meta.json of a snapshot, as Raft writes it.
type snapshotMeta struct {
	raft.SnapshotMeta
	CRC []byte // CRC-64 of state.bin
}

// readSnapshot reads the snapshot in the directory path. It changes nothing
// there, unlike Raft's own store, which creates a file to see whether it can.
// The snapshot's meta.json has no checksum, so its content is compared with what
// else is known.
func readSnapshot(path string, name snapshotName, id uint64) (*raft.SnapshotMeta, *fsm.Machine, error) {
	b, err := os.ReadFile(filepath.Join(path, metaFile))
	if err != nil {
		return nil, nil, err
	}
	var m snapshotMeta
	if err := json.Unmarshal(b, &m); err != nil {
		return nil, nil, fmt.Errorf("meta.json: %w", err)
	}
	state, err := os.Open(filepath.Join(path, stateFile))
	if err != nil {
		return nil, nil, err
	}
	defer state.Close()
	voters, self := 0, false
	for _, s := range m.Configuration.Servers {
		if s.Suffrage == raft.Voter {
			voters++
		}
		self = self || s.ID == raft.ServerID(fmt.Sprint(id))
	}
	members := fsm.Members(m.Configuration)
	switch {
	case m.Version != 1 || m.ID != name.String() || m.Index != name.index || m.Term != name.term:
		return nil, nil, errors.New("meta.json is of another snapshot")
	case voters == 0 || members == nil && !self:
		return nil, nil, fmt.Errorf("meta.json does not have server %d in its cluster", id)
	}
	sum := crc64.New(crc64.MakeTable(crc64.ECMA))
	whole := io.TeeReader(state, sum)
	machine, err := fsm.ReadSnapshot(whole)
	if err != nil {
		return nil, nil, fmt.Errorf("state.bin: %w", err)
	}
	switch {
	case !bytes.Equal(sum.Sum(nil), m.CRC):
		return nil, nil, errors.New("state.bin does not have the checksum that meta.json says")
	case machine.Index() > m.Index:
		return nil, nil, fmt.Errorf("its state is of entry %d, after its end", machine.Index())
	}
	if members != nil && !machine.HasMembers(members) {
		return nil, nil, errors.New("meta.json does not have the members that its state has")
	}
	return &m.SnapshotMeta, machine, nil
}
