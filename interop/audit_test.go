//go:build interop

package interop

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/proto"
)

// auditLine matches the fields of a line of an audit log, whatever is before them.
var auditLine = regexp.MustCompile(`AuditLogger(?::| -) (.*)`)

// TestAudit sends the same requests to ZooKeeper and to lockkeeper, and compares their audit logs.
func TestAudit(t *testing.T) {
	t.Parallel()
	z := startZooKeeper(t, zk39, map[string]string{"zookeeper.audit.enable": "true", "zookeeper.extendedTypesEnabled": "true",
		"org.slf4j.simpleLogger.log.org.apache.zookeeper.audit": "info", "zookeeper.DigestAuthenticationProvider.superDigest": withSuper["zookeeper.DigestAuthenticationProvider.superDigest"]}, nil)
	file := filepath.Join(t.TempDir(), "audit.log")
	l := startLockkeeper(t, "--memory", "--audit-log", file, "--super-digest", withSuper["zookeeper.DigestAuthenticationProvider.superDigest"])
	logs := [2][]string{}
	for i, addr := range []string{z.addr, l.addr} {
		sessions := map[string]string{}
		open := func(name string) *rawclient.Client {
			t.Helper()
			nc := must(net.DialTimeout("tcp", addr, rawTimeout))(t)
			t.Cleanup(func() { nc.Close() })
			c := must(rawclient.Open(nc, 30*time.Second))(t)
			sessions[fmt.Sprintf("session=0x%x", uint64(c.Session.SessionID))] = "session=" + name
			return c
		}
		auditRequests(open)
		text := func() string {
			name := file
			if i == 0 {
				name = z.logFile()
			}
			b := must(os.ReadFile(name))(t)
			return string(b)
		}
		for deadline := time.Now().Add(time.Minute); !strings.Contains(text(), "znode=/the-last\t"); time.Sleep(50 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("the last line is missing: %s", text())
			}
		}
		for line := range strings.Lines(text()) {
			m := auditLine.FindStringSubmatch(line)
			if m == nil {
				continue
			}
			fields := strings.Split(m[1], "\t")
			for j, f := range fields {
				if name, ok := sessions[f]; ok {
					fields[j] = name
				}
				if names, ok := strings.CutPrefix(f, "user="); ok { // a set, in ZooKeeper
					list := strings.Split(names, ",")
					slices.Sort(list)
					fields[j] = "user=" + strings.Join(list, ",")
				}
			}
			logs[i] = append(logs[i], strings.Join(fields, "\t"))
		}
	}
	for n := range max(len(logs[0]), len(logs[1])) {
		if n >= len(logs[0]) || n >= len(logs[1]) || logs[0][n] != logs[1][n] {
			rest := func(lines []string) []string { return lines[min(n, len(lines)):min(n+2, len(lines))] }
			t.Fatalf("from line %d:\nZooKeeper:  %q\nlockkeeper: %q", n, rest(logs[0]), rest(logs[1]))
		}
	}
	if len(logs[0]) < 40 {
		t.Errorf("only %d lines: %q", len(logs[0]), logs[0])
	}
}

// auditRequests makes requests of every kind, of which many fail.
func auditRequests(open func(name string) *rawclient.Client) {
	c := open("one")
	call := func(c *rawclient.Client, op proto.OpCode, q proto.Record) { c.Call(op, q, nil) }
	anyone := proto.OpenACL
	auth := func(c *rawclient.Client, scheme, text string) {
		call(c, proto.OpAuth, &proto.AuthRequest{Scheme: scheme, Auth: []byte(text)})
	}
	call(c, proto.OpCreate, &proto.CreateRequest{Path: "/first", ACL: anyone})
	auth(c, "digest", "ann:secret")
	auth(c, "digest", "bob:secret")
	for flags := int32(0); flags <= 7; flags++ {
		for _, op := range []proto.OpCode{proto.OpCreate, proto.OpCreate2, proto.OpCreateContainer} {
			call(c, op, &proto.CreateRequest{Path: fmt.Sprintf("/c%d-%d-", op, flags), ACL: anyone, Flags: flags})
		}
		call(c, proto.OpCreateTTL, &proto.CreateTTLRequest{CreateRequest: proto.CreateRequest{Path: fmt.Sprintf("/ttl%d-", flags), ACL: anyone, Flags: flags}, TTL: 1_000_000})
	}
	for _, path := range []string{"/c1-0-", "/none", "", "odd", "/", "/zookeeper"} {
		call(c, proto.OpCreate, &proto.CreateRequest{Path: path, ACL: anyone})
		call(c, proto.OpSetData, &proto.SetDataRequest{Path: path, Version: 5})
		call(c, proto.OpSetData, &proto.SetDataRequest{Path: path, Version: -1})
		call(c, proto.OpSetACL, &proto.SetACLRequest{Path: path, Version: 9, ACL: anyone})
		call(c, proto.OpDelete, &proto.PathVersion{Path: path, Version: 8})
		call(c, proto.OpDelete, &proto.PathVersion{Path: path, Version: -1})
		call(c, proto.OpGetData, &proto.PathWatch{Path: path})
		call(c, proto.OpSync, &proto.Path{Path: path})
	}
	call(c, proto.OpCreate, &proto.CreateRequest{Path: "/mine", ACL: []proto.ACL{{Perms: 31, ID: proto.ID{Scheme: "auth"}}}})
	for perms := int32(0); perms <= 32; perms += 3 {
		call(c, proto.OpSetACL, &proto.SetACLRequest{Path: "/mine", Version: -1, ACL: []proto.ACL{
			{Perms: perms, ID: proto.ID{Scheme: "world", ID: "anyone"}}, {Perms: 31, ID: proto.ID{Scheme: "digest", ID: "ann:x"}}, {Perms: 31, ID: proto.ID{Scheme: "auth"}}}})
	}
	call(c, proto.OpSetACL, &proto.SetACLRequest{Path: "/mine", Version: -1, ACL: []proto.ACL{}})
	call(c, proto.OpSetACL, &proto.SetACLRequest{Path: "/mine", Version: -1, ACL: []proto.ACL{{Perms: 31, ID: proto.ID{Scheme: "auth"}}}})
	create := func(path string, flags int32) proto.MultiOp {
		return proto.MultiOp{Op: proto.OpCreate, Request: &proto.CreateRequest{Path: path, ACL: anyone, Flags: flags}}
	}
	remove := func(path string) proto.MultiOp {
		return proto.MultiOp{Op: proto.OpDelete, Request: &proto.PathVersion{Path: path, Version: -1}}
	}
	for _, ops := range [][]proto.MultiOp{
		{create("/m1", 0), create("/m2", 1), create("/m3-", 2), create("/m4-", 3), {Op: proto.OpCreateContainer, Request: &proto.CreateRequest{Path: "/m5", ACL: anyone, Flags: 4}},
			{Op: proto.OpCreateTTL, Request: &proto.CreateTTLRequest{CreateRequest: proto.CreateRequest{Path: "/m6", ACL: anyone, Flags: 5}, TTL: 1_000_000}},
			{Op: proto.OpCreate2, Request: &proto.CreateRequest{Path: "/m7", ACL: anyone}}},
		{{Op: proto.OpCheck, Request: &proto.PathVersion{Path: "/m1", Version: -1}}, {Op: proto.OpSetData, Request: &proto.SetDataRequest{Path: "/m1", Version: -1}}, remove("/m2")},
		{create("/m8", 0), remove("/m8"), create("/m8", 1)},
		{create("/m9", 0), remove("/none")},
		{{Op: proto.OpCheck, Request: &proto.PathVersion{Path: "/m1", Version: 77}}},
		{},
	} {
		call(c, proto.OpMulti, &proto.MultiRequest{Ops: ops})
	}
	call(c, proto.OpReconfig, &proto.ReconfigRequest{})
	stranger := open("two")
	call(stranger, proto.OpSetData, &proto.SetDataRequest{Path: "/mine", Version: -1})
	call(stranger, proto.OpSetACL, &proto.SetACLRequest{Path: "/mine", Version: -1, ACL: anyone})
	call(stranger, proto.OpMulti, &proto.MultiRequest{Ops: []proto.MultiOp{create("/mine/x", 0)}})
	auth(stranger, "digest", "super:secret")
	call(stranger, proto.OpSetData, &proto.SetDataRequest{Path: "/mine", Version: -1})
	call(stranger, proto.OpCreate, &proto.CreateRequest{Path: "/e", ACL: anyone, Flags: proto.FlagEphemeral})
	call(stranger, proto.OpCloseSession, nil)
	call(c, proto.OpCreate, &proto.CreateRequest{Path: "/the-last", ACL: anyone})
}
