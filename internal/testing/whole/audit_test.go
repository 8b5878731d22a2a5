package whole

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/proto"
)

// auditLines collects the lines of an audit log.
type auditLines struct {
	mu   sync.Mutex
	text []string
}

func (a *auditLines) add(e lockkeeper.AuditEvent) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.text = append(a.text, strings.ReplaceAll(e.String(), "\t", " "))
}

func (a *auditLines) all() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.text)
}

func (a *auditLines) reset() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.text = nil
}

// TestAudit compares the lines of a client's requests, and of the end of its session. interop compares
// more of them with ZooKeeper's.
func TestAudit(t *testing.T) {
	noGoroutineLeft(t)
	var log auditLines
	dir := t.TempDir()
	cfg := lockkeeper.Config{DataDir: dir, ClientAddr: "127.0.0.1:0", Audit: log.add}
	s := open(t, cfg)
	c := connect(t, overTCP(s))
	call := func(op proto.OpCode, q proto.Record) { c.Call(op, q, nil) } // some are to fail
	call(proto.OpAuth, &proto.AuthRequest{Scheme: "digest", Auth: []byte("ann:secret")})
	open := proto.OpenACL
	call(proto.OpCreate, &proto.CreateRequest{Path: "/a", ACL: open})
	call(proto.OpCreate2, &proto.CreateRequest{Path: "/a/q-", ACL: open, Flags: proto.FlagEphemeralSeq})
	call(proto.OpCreate, &proto.CreateRequest{Path: "/none/a", ACL: open, Flags: proto.FlagSequential})
	call(proto.OpCreate, &proto.CreateRequest{Path: "/odd", ACL: open, Flags: 77})
	call(proto.OpSetData, &proto.SetDataRequest{Path: "/a", Version: 7})
	call(proto.OpSetData, &proto.SetDataRequest{Path: "/a", Version: -1})
	call(proto.OpGetData, &proto.PathWatch{Path: "/a"})
	call(proto.OpSync, &proto.Path{Path: "/a"})
	call(proto.OpSetACL, &proto.SetACLRequest{Path: "/a", Version: -1, ACL: []proto.ACL{{Perms: 31, ID: proto.ID{Scheme: "world", ID: "anyone"}}, {Perms: proto.PermRead, ID: proto.ID{Scheme: "ip", ID: "10.0.0.1"}}}})
	call(proto.OpMulti, &proto.MultiRequest{Ops: []proto.MultiOp{
		{Op: proto.OpCreate, Request: &proto.CreateRequest{Path: "/m", ACL: open, Flags: proto.FlagEphemeral}},
		{Op: proto.OpCheck, Request: &proto.PathVersion{Path: "/m", Version: -1}},
		{Op: proto.OpCreate, Request: &proto.CreateRequest{Path: "/m-", ACL: open, Flags: proto.FlagSequential}},
		{Op: proto.OpDelete, Request: &proto.PathVersion{Path: "/m", Version: -1}},
	}})
	call(proto.OpMulti, &proto.MultiRequest{Ops: []proto.MultiOp{
		{Op: proto.OpCreate, Request: &proto.CreateRequest{Path: "/n", ACL: open}},
		{Op: proto.OpDelete, Request: &proto.PathVersion{Path: "/none", Version: -1}},
	}})
	call(proto.OpDelete, &proto.PathVersion{Path: "/a\n", Version: -1})
	call(proto.OpReconfig, &proto.ReconfigRequest{})
	id := fmt.Sprintf("session=0x%x", uint64(c.Session.SessionID))
	must(c.Call(proto.OpCloseSession, nil, nil))(t)
	by := id + " user=127.0.0.1,ann ip=127.0.0.1 operation="
	want := []string{
		by + "create znode=/a znode_type=persistent result=success",
		by + "create znode=/a/q-0000000000 znode_type=ephemeral_sequential result=success",
		by + "create znode=/none/a znode_type=persistent_sequential result=failure",
		by + "setData znode=/a result=failure",
		by + "setData znode=/a result=success",
		by + "setAcl znode=/a acl=world:anyone:cdrwaip:10.0.0.1:r result=success",
		by + "create znode=/m znode_type=ephemeral result=success",
		by + "create znode=/m-0000000002 result=success",
		by + "delete znode=/m result=success",
		by + "multiOperation result=failure",
		by + `delete znode=/a\u000a result=failure`,
		by + "reconfig result=failure",
		id + " operation=ephemeralZNodeDeletionOnSessionCloseOrExpire znode=/a/q-0000000000 result=success",
	}
	check(t, s.Close()) // when all was told
	got := log.all()
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || got[i] != want[i] {
			t.Errorf("line %d:\n%q, not\n%q", i, got[min(i, len(got)):], want[min(i, len(want)):])
			break
		}
	}

	// What is in the log of the server is not audited again.
	s = must(lockkeeper.Open(cfg))(t)
	defer s.Close()
	check(t, ready(s))
	if again := log.all(); len(again) != len(got) {
		t.Errorf("after a restart: %q", again[len(got):])
	}
}

// TestAuditOfMembers: each member logs what its own clients do, and the ends of all sessions. A write
// that a client does not wait for is logged, too.
func TestAuditOfMembers(t *testing.T) {
	noGoroutineLeft(t)
	var logs [3]auditLines
	m := startMembers(t, 3, func(c *lockkeeper.Config) { c.Audit = logs[c.ID-1].add })
	c := m.connect(0, 10*time.Second)
	must(c.Create("/e", nil, proto.FlagEphemeral))(t)
	must(c.Send(proto.OpSetData, &proto.SetDataRequest{Path: "/e", Version: -1}))(t)
	must(c.Send(proto.OpCloseSession, nil))(t)
	all := func(i int) []string { // a member that starts late joins the others
		return slices.DeleteFunc(logs[i].all(), func(line string) bool { return strings.Contains(line, "operation=reconfig") })
	}
	for i := range logs {
		want := 1
		if i == 0 {
			want = 3
		}
		eventually(t, "the lines", func() bool { return len(all(i)) >= want })
		if got := all(i); len(got) != want || !strings.Contains(got[want-1], " operation=ephemeralZNodeDeletionOnSessionCloseOrExpire znode=/e ") {
			t.Errorf("member %d: %q", i+1, got)
		}
	}
}

// TestAuditWaits: the audit log may ask the server and take its time. The server waits for it only when many events
// wait, loses none, and is closed when all were told, in their order.
func TestAuditWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 1000
		told, hold := 0, make(chan struct{})
		var s *lockkeeper.Server
		s = open(t, lockkeeper.Config{Audit: func(e lockkeeper.AuditEvent) {
			if told++; told == 1 {
				s.Status() // which waits for the state
				<-hold
			}
			if want := fmt.Sprintf("/n%d", told); e.Path != want {
				t.Errorf("event %d is about %s", told, e.Path)
			}
			time.Sleep(time.Millisecond)
		}})
		c := connect(t, inMemory(s))
		for i := range most + 1 {
			must(c.Create(fmt.Sprintf("/n%d", i+1), nil, 0))(t)
		}
		written := make(chan error, 1)
		go func() {
			_, err := c.Create(fmt.Sprintf("/n%d", most+2), nil, 0)
			written <- err
		}()
		synctest.Wait()
		select {
		case err := <-written:
			close(hold)
			t.Fatalf("the server did not wait: %v", err)
		default:
		}
		close(hold)
		check(t, <-written)
		check(t, s.Close())
		if told != most+2 {
			t.Errorf("told of %d events", told)
		}
	})
}
