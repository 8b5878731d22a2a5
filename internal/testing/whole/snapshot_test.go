package whole

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/core/testhooks"
	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/proto"
)

func snapshotOf(t *testing.T, s *lockkeeper.Server) []byte {
	t.Helper()
	var b bytes.Buffer
	check(t, s.WriteSnapshot(&b))
	return b.Bytes()
}

// restoring returns a change of a member's configuration that restores a snapshot for it.
func restoring(t *testing.T, snapshot []byte) func(c *lockkeeper.Config) {
	return func(c *lockkeeper.Config) {
		c.DataDir = filepath.Join(testkit.MemoryDir(t), "data")
		testhooks.In(c).Memory = nil
		check(t, lockkeeper.Restore(*c, bytes.NewReader(snapshot)))
	}
}

// TestRestoreSnapshot restores the snapshot of a standalone server and of a cluster to a
// standalone server and to a cluster, each of which then goes on from there.
func TestRestoreSnapshot(t *testing.T) {
	start := func(t *testing.T, servers int, change func(c *lockkeeper.Config)) *members {
		if servers > 1 {
			return startMembers(t, servers, change)
		}
		m := &members{t: t, configs: []lockkeeper.Config{{ID: 1, TickTime: 500 * time.Millisecond}}, servers: make([]*lockkeeper.Server, 1)}
		if change != nil {
			change(&m.configs[0])
		}
		m.start(0)
		t.Cleanup(func() { m.stop(0) })
		m.ready(m.servers[0])
		return m
	}
	secret := []proto.ACL{{Perms: proto.PermAll, ID: proto.ID{Scheme: proto.SchemeDigest, ID: "u:Jq7wMyA/w2Vd5WIDAKdu4OIIFEQ="}}} // u:p
	login := func(c *rawclient.Client) {
		c.Call(proto.OpAuth, &proto.AuthRequest{Scheme: proto.SchemeDigest, Auth: []byte("u:p")}, nil)
	}
	for name, servers := range map[string][2]int{"one to one": {1, 1}, "one to three": {1, 3}, "three to one": {3, 1}, "three to three": {3, 3}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				noGoroutineLeft(t)
				old := start(t, servers[0], nil)
				last := servers[0] - 1
				c, gone := old.connect(0, 10*time.Second), old.connect(last, 10*time.Second)
				must(c.Create("/locks", nil, 0))(t)
				held := must(c.Create("/locks/lock-", []byte("mine"), proto.FlagEphemeral|proto.FlagSequential))(t)
				must(gone.Create("/locks/lock-", nil, proto.FlagEphemeral|proto.FlagSequential))(t)
				must(c.Call(proto.OpCreate, &proto.CreateRequest{Path: "/private", Data: []byte("p"), ACL: secret}, nil))(t)

				stop := old.busy(c)
				for before := int64(0); before < 20; before++ { // snapshots while it writes
					state := must(storage.VerifySnapshot(bytes.NewReader(snapshotOf(t, old.servers[last]))))(t)
					if state.Sessions != 2 && servers[0] == 1 || state.Zxid < before {
						t.Errorf("%+v, after zxid %#x", state, before)
					}
					time.Sleep(7 * time.Millisecond)
				}
				stop()
				must(gone.Call(proto.OpSync, &proto.Path{Path: "/"}, nil))(t)
				login(gone)
				before, _ := tree(t, gone, "/locks")
				snapshot := snapshotOf(t, old.servers[last])
				state := must(storage.VerifySnapshot(bytes.NewReader(snapshot)))(t)
				for i := range old.servers {
					old.stop(i)
				}

				now := start(t, servers[1], restoring(t, snapshot))
				// The client has seen what came after the snapshot, under other leaders.
				seen, session := state.Zxid+5<<32, c.Session
				c = rawclient.New(must(now.servers[servers[1]-1].Dial("", "", time.Minute))(t))
				q := rawclient.Resumption(session)
				q.LastZxidSeen = seen
				check(t, c.Handshake(q))
				if c.Session.SessionID != session.SessionID {
					t.Errorf("the session is %#x, not %#x", c.Session.SessionID, session.SessionID)
				}
				if after, _ := tree(t, c, "/locks"); after != before {
					t.Errorf("the tree was\n%s\nbut is\n%s", before, after)
				}
				if _, err := c.Get("/private", false); err != proto.NoAuth {
					t.Errorf("/private without its password: %v", err)
				}
				login(c)
				if r := must(c.Get("/private", false))(t); string(r.Data) != "p" {
					t.Errorf("/private has %q", r.Data)
				}
				if config := string(must(c.Get("/zookeeper/config", false))(t).Data); strings.Count(config, "server.") != servers[1]/3*3 {
					t.Errorf("/zookeeper/config is %q", config)
				}
				if stat := must(c.Set(held, nil))(t); stat.Mzxid <= seen || stat.EphemeralOwner != c.Session.SessionID {
					t.Errorf("a write after zxid %#x has %#x", seen, stat.Mzxid)
				}
				if next := must(c.Create("/locks/lock-", nil, proto.FlagSequential))(t); next != "/locks/lock-0000000002" {
					t.Errorf("the next in the queue is %s", next)
				}
				// The other client does not come back.
				began := time.Now()
				for c.Ping() == nil && now.servers[0].Status().State.Sessions == 2 {
					time.Sleep(time.Second)
				}
				if took := time.Since(began); took < 8*time.Second || took > 15*time.Second {
					t.Errorf("its session ended after %v", took)
				}
				if _, err := c.Exists("/locks/lock-0000000001", false); err != proto.NoNode {
					t.Errorf("its lock: %v", err)
				}
				eventually(t, "the same state on all members", func() bool {
					first := now.servers[0].Status()
					for _, s := range now.servers {
						if x := s.Status(); x.State.Index != first.State.Index || x.State.Digest != first.State.Digest {
							return false
						}
					}
					return true
				})
				for i := range now.servers {
					now.stop(i)
					must(storage.Check(now.configs[i].DataDir))(t)
				}
			})
		})
	}
}

// TestRestoreSameState: the members for which one snapshot is restored have the same state
// before they are started.
func TestRestoreSameState(t *testing.T) {
	snapshot := snapshotOf(t, open(t, lockkeeper.Config{}))
	base, digests := testkit.MemoryDir(t), map[string]bool{}
	for id, kind := range map[uint64]lockkeeper.LogStore{1: lockkeeper.LogStoreWAL, 2: lockkeeper.LogStoreBoltDB, 3: ""} {
		cfg := lockkeeper.Config{ID: id, LogStore: kind, DataDir: filepath.Join(base, string(kind)), Peers: []lockkeeper.Peer{{ID: 1, Addr: "a:1"}, {ID: 2, Addr: "b:1", Observer: true}, {ID: 3, Addr: "c:1"}}}
		if kind == "" {
			cfg.DataDir = filepath.Join(base, "x", "y")
		}
		check(t, lockkeeper.Restore(cfg, bytes.NewReader(snapshot)))
		digests[must(storage.Check(cfg.DataDir))(t).Digest] = true
	}
	if len(digests) != 1 {
		t.Errorf("%v", digests)
	}
}

// TestRestoredTwice: the disk of a restored server is lost as well, before there is a newer backup,
// and the same backup is restored once more. Tokens are higher than those of both servers before,
// and a client that has seen those gets back.
func TestRestoredTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		noGoroutineLeft(t)
		base := testkit.MemoryDir(t)
		start := func(dir string, snapshot []byte) *lockkeeper.Server {
			cfg := lockkeeper.Config{TickTime: 500 * time.Millisecond, DataDir: filepath.Join(base, dir)}
			if snapshot != nil {
				check(t, lockkeeper.Restore(cfg, bytes.NewReader(snapshot)))
			}
			s := must(lockkeeper.Open(cfg))(t)
			check(t, ready(s))
			return s
		}
		client := func(s *lockkeeper.Server) *rawclient.Client {
			return must(rawclient.Open(must(s.Dial("", "", time.Minute))(t), 10*time.Second))(t)
		}
		// token takes a lock and returns its fencing token.
		token := func(c *rawclient.Client) int64 {
			path := must(c.Create("/lock-", nil, proto.FlagEphemeral|proto.FlagSequential))(t)
			return must(c.Exists(path, false))(t).Czxid
		}
		first := start("first", nil)
		c := client(first)
		token(c)
		backup := snapshotOf(t, first)
		check(t, first.Close())

		second := start("second", backup)
		c = client(second)
		var last int64
		for range 10 {
			last = token(c)
		}
		check(t, second.Close()) // its disk is lost
		time.Sleep(time.Minute)
		third := start("third", backup)
		defer third.Close()
		c = client(third)
		if next := token(c); next <= last {
			t.Errorf("a token of the servers that were restored again is %#x, not higher than %#x, which those before have given out", next, last)
		}
		// A client of the second server comes back.
		c = rawclient.New(must(third.Dial("", "", time.Minute))(t))
		q := rawclient.NewSession(10 * time.Second)
		q.LastZxidSeen = last
		if err := c.Handshake(q); err != nil {
			t.Errorf("a client that has seen zxid %#x is refused: %v", last, err)
		}
	})
}

// TestRestoreRefuses: what cannot be restored leaves no directory.
func TestRestoreRefuses(t *testing.T) {
	good := snapshotOf(t, open(t, lockkeeper.Config{}))
	dir := filepath.Join(testkit.MemoryDir(t), "data")
	flipped := bytes.Clone(good)
	flipped[len(flipped)/2] ^= 4
	for says, snapshot := range map[string][]byte{
		"offset 0: cut short": nil, "offset 0: not a snapshot": []byte(strings.Repeat("hello ", 10)), "cut short": good[:len(good)-1],
		"checksum": flipped, "something after the end": append(bytes.Clone(good), '\n'),
	} {
		if err := lockkeeper.Restore(lockkeeper.Config{DataDir: dir}, bytes.NewReader(snapshot)); !errors.Is(err, fsm.ErrSnapshot) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
	peers := []lockkeeper.Peer{{ID: 1, Addr: "a:1"}, {ID: 2, Addr: "b:1"}}
	for field, cfg := range map[string]lockkeeper.Config{
		"DataDir": {}, "Join": {DataDir: dir, Join: "a:1", PeerAddr: "b:1"}, "PeerAddr": {DataDir: dir, PeerAddr: "b:1"},
		"ID": {DataDir: dir, ID: 3, Peers: peers}, "LogStore": {DataDir: dir, LogStore: "x"}, "Peers": {DataDir: dir, Peers: append(peers, peers[1])},
	} {
		var bad *lockkeeper.ConfigError
		if err := lockkeeper.Restore(cfg, bytes.NewReader(good)); !errors.As(err, &bad) || bad.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("there is a directory: %v", err)
	}
	check(t, lockkeeper.Restore(lockkeeper.Config{DataDir: dir}, bytes.NewReader(good)))
	if err := lockkeeper.Restore(lockkeeper.Config{DataDir: dir}, bytes.NewReader(good)); err == nil || !strings.Contains(err.Error(), dir+" is not empty") {
		t.Errorf("restored twice: %v", err)
	}
}

// TestWriteSnapshotFails: there is no snapshot of a server that is not ready, has failed or
// was closed, and what cannot be written is an error.
func TestWriteSnapshotFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bytes.Buffer
		cfg := lockkeeper.Config{Peers: []lockkeeper.Peer{{ID: 1, Addr: "host1:7000"}, {ID: 2, Addr: "host2:7000"}}}
		testhooks.In(&cfg).Network = memnet.New().Host("host1") // without the other
		s := must(lockkeeper.Open(cfg))(t)
		if err := s.WriteSnapshot(&b); err == nil || !strings.Contains(err.Error(), "not ready") {
			t.Errorf("before it is ready: %v", err)
		}
		check(t, s.Close())

		cfg = withMemory(lockkeeper.Config{})
		s = open(t, cfg)
		if err := s.WriteSnapshot(full{}); err != syscall.ENOSPC {
			t.Errorf("what cannot be written: %v", err)
		}
		testhooks.In(&cfg).Memory.SetFault(func() error { return syscall.EIO })
		testhooks.Of(s).Propose(fsm.Reap("/none"))
		<-s.Done()
		if err := s.WriteSnapshot(&b); !errors.Is(err, syscall.EIO) {
			t.Errorf("after a fault: %v", err)
		}
		check(t, s.Close())
		if err := s.WriteSnapshot(&b); !errors.Is(err, syscall.EIO) || b.Len() > 0 {
			t.Errorf("after Close: %v, %d bytes", err, b.Len())
		}
	})
}

// full is a disk that is full.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, syscall.ENOSPC }
