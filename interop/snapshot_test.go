//go:build interop

package interop

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/proto"
)

// TestKilledInSnapshot kills the server while it writes a snapshot or compacts its log.
// Constant writes to the same znodes make it do so. After a restart it checks the same as
// TestKilledServer, and that each znode has the last acknowledged data, or later data.
func TestKilledInSnapshot(t *testing.T) {
	t.Parallel()
	const kills = 8
	c := newCrash(t)
	f := &flood{c: c}
	for range kills {
		c.start()
		c.verify()
		f.verify()
		c.stream(f.untilSnapshot)
		c.check()
	}
	c.finish()
	t.Logf("%d MiB of overwrites, %d of the kills left an unfinished snapshot", f.bytes>>20, f.cut)
}

const (
	floodZnodes = 32
	floodSize   = 512 << 10 // of each znode
	floodWindow = 4

	// floodLimit is how much may be written without a snapshot: several times the
	// size of the log at which the server takes one.
	floodLimit = 512 << 20
)

// flood overwrites large znodes.
type flood struct {
	c        *crash
	versions [floodZnodes]struct{ sent, acked int32 }
	made     bool
	bytes    int64
	cut      int // kills that left an unfinished snapshot
}

func (f *flood) path(i int) string { return fmt.Sprintf("%s/big-%d", crashRoot, i) }

// data returns the data of version v of znode i.
func (f *flood) data(i int, v int32) []byte {
	word := fmt.Sprintf("%s@%d;", f.path(i), v)
	return bytes.Repeat([]byte(word), floodSize/len(word))
}

// verify checks the znodes. The first time, it creates them.
func (f *flood) verify() {
	f.c.t.Helper()
	for i := range f.versions {
		if !f.made {
			f.c.create(f.path(i), f.data(i, 0), 0)
			continue
		}
		var got proto.DataReply
		f.c.ask(proto.OpGetData, &proto.PathWatch{Path: f.path(i)}, &got)
		v, version := &f.versions[i], got.Stat.Version
		if version < v.acked || version > v.sent {
			f.c.fatalf("%s has version %d: %d was acknowledged, %d sent", f.path(i), version, v.acked, v.sent)
		}
		if !bytes.Equal(got.Data, f.data(i, version)) {
			f.c.fatalf("%s does not hold the data of its version %d", f.path(i), version)
		}
		v.acked, v.sent = version, version
	}
	f.made = true
}

// untilSnapshot writes until the server writes a snapshot, and kills it a random moment
// later while the writes continue: every other time after the snapshot is started, and
// otherwise when it is complete and the log is being compacted.
func (f *flood) untilSnapshot() {
	c := f.c
	c.t.Helper()
	complete := len(c.rounds)%2 == 0
	before := c.snapshots()
	conn, err := dialRaw(c.server.addr, 10*time.Second, c.shown, proto.ConnectReply{})
	if err != nil {
		c.fatalf("flood: %v", err)
	}
	c.t.Cleanup(func() { conn.Close() })
	over := make(chan error, 1)
	go func() { over <- f.run(conn) }()
	deadline := time.After(2 * time.Minute)
	for !c.newSnapshot(before, complete) {
		select {
		case err := <-over:
			c.fatalf("flood: no snapshot after %d MiB: %v", f.bytes>>20, err)
		case <-deadline:
			c.fatalf("no snapshot within 2 minutes of overwriting")
		case <-time.After(200 * time.Microsecond):
		}
	}
	time.Sleep(c.moment(50 * time.Millisecond))
	c.server.Kill()
	if err := <-over; err != nil {
		c.fatalf("flood: %v", err)
	}
	if !c.newSnapshot(before, true) {
		f.cut++
	}
}

// newSnapshot reports whether there is a new snapshot. An incomplete one is recognized by
// its name.
func (c *crash) newSnapshot(before map[string]bool, complete bool) bool {
	c.t.Helper()
	for name := range c.snapshots() {
		if !before[name] && !(complete && strings.HasSuffix(name, ".tmp")) {
			return true
		}
	}
	return false
}

// run writes to the znodes in turn until the connection ends. It returns an error only
// for a wrong reply.
func (f *flood) run(conn *rawclient.Client) error {
	defer conn.Close()
	sent, answered := 0, 0
	limit := f.bytes + floodLimit
	err := conn.Pipeline(floodWindow, func(b []byte, xid int32) []byte {
		if f.bytes >= limit {
			return b
		}
		i := sent % floodZnodes
		sent++
		f.versions[i].sent++
		data := f.data(i, f.versions[i].sent)
		f.bytes += int64(len(data))
		return rawclient.Request(b, xid, proto.OpSetData, &proto.SetDataRequest{Path: f.path(i), Data: data, Version: proto.AnyVersion})
	}, func(r *rawclient.Frame, _ time.Time) error {
		i := answered % floodZnodes
		answered++
		v := &f.versions[i]
		v.acked++
		var got proto.Stat
		if err := r.Decode(&got); err != nil || r.Code != proto.OK || got.Version != v.acked {
			return fmt.Errorf("%s: %v, version %d follows version %d", f.path(i), r.Code, got.Version, v.acked-1)
		}
		return nil
	})
	if connectionEnded(err) { // killed
		return nil
	}
	return err
}

// snapshots returns the names of the snapshots that the server has or is writing.
func (c *crash) snapshots() map[string]bool {
	c.t.Helper()
	entries, err := os.ReadDir(filepath.Join(c.dir, "raft", "snapshots"))
	if err != nil && !os.IsNotExist(err) {
		c.fatalf("%v", err)
	}
	names := make(map[string]bool)
	for _, e := range entries {
		names[e.Name()] = true
	}
	return names
}
