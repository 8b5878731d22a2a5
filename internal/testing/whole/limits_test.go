package whole

import (
	"bytes"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/proto"
)

// TestHandshakeTimeout: a client that says nothing loses its connection after the
// time that was configured, 10 s by default, and one that has a session does not.
func TestHandshakeTimeout(t *testing.T) {
	for configured, want := range map[time.Duration]time.Duration{0: 10 * time.Second, 3 * time.Second: 3 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			s := open(t, lockkeeper.Config{Limits: lockkeeper.Limits{HandshakeTimeout: configured}})
			healthy := connect(t, inMemory(s))
			nc := must(s.Dial("", "", time.Second))(t)
			defer nc.Close()
			start := time.Now()
			if n, err := nc.Read(make([]byte, 1)); n > 0 || err == nil {
				t.Errorf("%d bytes, %v", n, err)
			}
			if took := time.Since(start); took != want {
				t.Errorf("closed after %v, not %v", took, want)
			}
			alive(t, healthy)
		})
	}
}

// largest is a write whose frame has n bytes.
func largest(n int) *proto.SetDataRequest {
	q := &proto.SetDataRequest{Path: "/large", Version: -1, Data: []byte{}}
	q.Data = bytes.Repeat([]byte("0123456789abcdef"), n/16+1)[:4+n-len(rawclient.Request(nil, 1, proto.OpSetData, q))]
	return q
}

// TestLargestFrame: a request as long as a configuration can allow is carried out and
// read again, and what it made is in the log, in a snapshot and after a restart.
func TestLargestFrame(t *testing.T) {
	size := lockkeeper.MaxFrameLimit
	if !testkit.Thorough {
		size /= 4
	}
	cfg := lockkeeper.Config{DataDir: t.TempDir(), Limits: lockkeeper.Limits{MaxFrameBytes: size, SnapshotBytes: 1}}
	q := largest(size)
	const identities = 60 // of a connection
	var acl proto.ACLReply
	for round := range 3 {
		s := open(t, cfg)
		c := connect(t, inMemory(s))
		if round == 0 {
			must(c.Create(q.Path, nil, 0))(t)
			must(c.Call(proto.OpSetData, q, nil))(t)
			// The longest list that "auth" may become, and one beyond.
			for i := range identities {
				must(c.Call(proto.OpAuth, &proto.AuthRequest{Scheme: proto.SchemeDigest, Auth: fmt.Append(nil, i, ":p")}, nil))(t)
			}
			for n := 1200; ; n /= 2 {
				list := make([]proto.ACL, n)
				for i := range list {
					list[i] = proto.ACL{Perms: int32(i)<<5 | proto.PermAll, ID: proto.ID{Scheme: proto.SchemeAuth}}
				}
				_, err := c.Call(proto.OpSetACL, &proto.SetACLRequest{Path: q.Path, ACL: list, Version: -1}, nil)
				if err == nil {
					break
				}
				if err != proto.InvalidACL {
					t.Fatal(err)
				}
			}
		}
		must(c.Call(proto.OpAuth, &proto.AuthRequest{Scheme: proto.SchemeDigest, Auth: []byte("1:p")}, nil))(t)
		if r := must(c.Get(q.Path, false))(t); !bytes.Equal(r.Data, q.Data) {
			t.Fatalf("round %d: %d bytes of %d", round, len(r.Data), len(q.Data))
		}
		must(c.Call(proto.OpGetACL, &proto.Path{Path: q.Path}, &acl))(t)
		if n := len(acl.ACL); n < 10_000 || n%identities != 0 {
			t.Errorf("round %d: an ACL of %d entries", round, n)
		}
		must(c.Create(fmt.Sprint("/round", round), nil, 0))(t)
		check(t, s.Close())
		if r := must(storage.Check(cfg.DataDir))(t); r.Znodes != 4+1+round+1 {
			t.Errorf("round %d: %+v", round, r)
		}
	}
}

// TestLargestFrameInCluster: as long a request goes through a follower to the
// leader and on to the others, and a snapshot with it to a member that was away.
func TestLargestFrameInCluster(t *testing.T) {
	noGoroutineLeft(t)
	size := lockkeeper.MaxFrameLimit
	switch {
	case testkit.Race: // members have three seconds for a message
		size /= 16
	case !testkit.Thorough:
		size /= 4
	}
	m := startMembers(t, 3, func(c *lockkeeper.Config) { c.Limits.MaxFrameBytes, c.Limits.SnapshotBytes = size, 1 })
	q := largest(size)
	// A member that lags gets a snapshot, and then it ends the connections of its clients.
	ask := func(i int, do func(c *rawclient.Client) error) {
		t.Helper()
		eventually(t, "an answer", func() bool {
			c := m.reconnect(i)
			defer c.Close()
			return do(c) == nil
		})
	}
	set := func(i int) {
		t.Helper()
		q.Data[0]++
		ask(i, func(c *rawclient.Client) error {
			_, err := c.Call(proto.OpSetData, q, nil)
			return err
		})
	}
	read := func(i int) {
		t.Helper()
		ask(i, func(c *rawclient.Client) error {
			if _, err := c.Call(proto.OpSync, &proto.Path{Path: q.Path}, nil); err != nil {
				return err
			}
			r, err := c.Get(q.Path, false)
			if err == nil && !bytes.Equal(r.Data, q.Data) {
				t.Errorf("member %d has %d bytes of %d", i, len(r.Data), len(q.Data))
			}
			return err
		})
	}
	must(m.reconnect(0).Create(q.Path, nil, 0))(t)
	for i := range m.servers {
		set(i)
		read((i + 1) % 3)
	}
	m.stop(2)
	set(0)
	for range 20 {
		must(m.reconnect(1).Set("/", nil))(t)
	}
	m.wipe(2)
	m.serve(2)
	read(2)
}
