package lockkeepertest_test

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
	"github.com/lockkeeper/lockkeeper/proto"
)

// rawConn opens a session for a client that sees every frame.
func rawConn(t *testing.T, s *lockkeepertest.Server) *rawclient.Client {
	t.Helper()
	nc := must(s.Dial("tcp", "", time.Second))(t)
	t.Cleanup(func() { nc.Close() })
	c := must(rawclient.Open(nc, 10*time.Second))(t)
	return c
}

// askWord returns the answer to a four-letter word.
func askWord(t *testing.T, s *lockkeepertest.Server, word string) string {
	t.Helper()
	nc := must(s.Dial("tcp", "", time.Second))(t)
	defer nc.Close()
	must(io.WriteString(nc, word))(t)
	answer, err := io.ReadAll(nc)
	if err != nil {
		t.Fatalf("%s: %v", word, err)
	}
	return string(answer)
}

// TestBehaveAs checks what a server says and knows as an older line. The conformance suite, in
// TestPersonas of package conform, checks the rest.
func TestBehaveAs(t *testing.T) {
	for _, x := range []struct {
		line, version  string
		unknown, known []proto.OpCode
		dirs, hash     bool
		mntr, conf     string // what they must not have
	}{
		{"3.4", `3\.4\.14-lockkeeper-\S+, built on \d\d/\d\d/\d{4} \d\d:\d\d GMT\nLatency min/avg/max: \d+/\d+/\d+\n`,
			[]proto.OpCode{proto.OpCreate2, proto.OpAddWatch, proto.OpWhoAmI}, nil, false, false, "zk_uptime", "dataDirSize"},
		{"3.5", `3\.5\.10-lockkeeper-\S+, built on \d\d/\d\d/\d{4} \d\d:\d\d GMT\nLatency min/avg/max: \d+/\d+/\d+\n`,
			[]proto.OpCode{proto.OpAddWatch, proto.OpWhoAmI}, []proto.OpCode{proto.OpCreate2}, true, false, "zk_uptime", "Backlog"},
		{"3.6", `3\.6\.4-lockkeeper-\S+, built on \d\d/\d\d/\d{4} \d\d:\d\d GMT\nLatency min/avg/max: \d+/\d+\.\d+/\d+\n`,
			[]proto.OpCode{proto.OpWhoAmI}, []proto.OpCode{proto.OpCreate2, proto.OpAddWatch}, true, true, "zk_throttled_ops", "none"},
		{"3.9", `3\.9\.5-lockkeeper-\S+, built on \d{4}-\d\d-\d\d \d\d:\d\d UTC\n`,
			nil, []proto.OpCode{proto.OpCreate2, proto.OpAddWatch, proto.OpWhoAmI}, true, true, "none", "none"},
	} {
		t.Run(x.line, func(t *testing.T) {
			s := lockkeepertest.Start(t, lockkeepertest.WithRelease(x.line))
			bodies := map[proto.OpCode]proto.Record{
				proto.OpCreate2: &proto.CreateRequest{Path: "/x", ACL: proto.OpenACL}, proto.OpAddWatch: &proto.PathType{Path: "/"}, proto.OpWhoAmI: nil,
			}
			for _, op := range x.unknown {
				c := rawConn(t, s)
				f, err := c.Call(op, bodies[op], nil)
				if err != proto.Unimplemented || f.Zxid != -1 {
					t.Errorf("operation %d: %v, zxid %d", op, err, f.Zxid)
				}
				if _, err := c.Read(); err == nil {
					t.Errorf("after operation %d the connection is open", op)
				}
			}
			c := rawConn(t, s)
			for _, op := range x.known {
				if _, err := c.Call(op, bodies[op], nil); err != nil {
					t.Errorf("operation %d: %v", op, err)
				}
			}
			if srvr := askWord(t, s, "srvr"); !regexp.MustCompile(`^Zookeeper version: ` + x.version).MatchString(srvr) {
				t.Errorf("srvr: %s", srvr)
			}
			for word, known := range map[string]bool{"dirs": x.dirs, "hash": x.hash} {
				if answer := askWord(t, s, word); known != (answer != "" || word == "hash" && x.hash) {
					t.Errorf("%s: %q", word, answer)
				}
			}
			for word, no := range map[string]string{"mntr": x.mntr, "conf": x.conf} {
				if answer := askWord(t, s, word); strings.Contains(answer, no) || answer == "" {
					t.Errorf("%s: %s", word, answer)
				}
			}
			// Only 3.4 has no /zookeeper/config.
			_, err := c.Get("/zookeeper/config", true)
			var children proto.Children2Reply
			must(c.Call(proto.OpGetChildren2, &proto.PathWatch{Path: "/zookeeper"}, &children))(t)
			want := 2
			if x.line == "3.4" {
				want = 1
			}
			if (err == proto.NoNode) != (want == 1) || len(children.Names) != want || int(children.Stat.NumChildren) != want {
				t.Errorf("/zookeeper/config: %v, %+v", err, children)
			}
			if dump := askWord(t, s, "dump"); strings.Contains(dump, "Connections dump:") != (want == 2) {
				t.Errorf("dump: %s", dump)
			}
		})
	}
}

// TestUnknownCode: a line that does not have an error code gets a closed connection instead.
func TestUnknownCode(t *testing.T) {
	few := lockkeepertest.WithConfig(func(c *lockkeeper.Config) { c.Limits.MaxWatches = 1 })
	for line, want := range map[string]error{"3.6": io.EOF, "3.7": proto.ThrottledOp} {
		c := rawConn(t, lockkeepertest.Start(t, few, lockkeepertest.WithRelease(line)))
		must(c.Get("/", true))(t)
		if _, err := c.Get("/zookeeper", true); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", line, err, want)
		}
	}
}

// TestWatchLimitOfLines: a recursive watch of lines before 3.9 is in both sets of watches, and counts twice.
func TestWatchLimitOfLines(t *testing.T) {
	one := lockkeepertest.WithConfig(func(c *lockkeeper.Config) { c.Limits.MaxWatches = 1 })
	for line, want := range map[string]error{"3.8": proto.ThrottledOp, "3.9": nil} {
		c := rawConn(t, lockkeepertest.Start(t, one, lockkeepertest.WithRelease(line)))
		if _, err := c.Call(proto.OpAddWatch, &proto.PathType{Path: "/", Type: 1}, nil); err != want {
			t.Errorf("%s: %v, want %v", line, err, want)
		}
	}
}

// TestLinesTogether: the members of a cluster may behave as different lines. The client of each
// sees the znodes that the others' clients have made, and its own line's events, and the members'
// states stay the same.
func TestLinesTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lines := map[uint64]string{1: "3.4", 2: "3.6", 3: "3.9"}
		c := lockkeepertest.StartCluster(t, 3, lockkeepertest.WithConfig(func(cfg *lockkeeper.Config) {
			cfg.Features.BehaveAs = lines[cfg.ID]
		}))
		var clients [4]*rawclient.Client
		for id := 1; id <= 3; id++ {
			clients[id] = rawConn(t, c.Server(id))
		}
		multi := &proto.MultiRequest{Ops: []proto.MultiOp{{Op: proto.OpCreate2, Request: &proto.CreateRequest{Path: "/m", ACL: proto.OpenACL}}}}
		for _, x := range []struct {
			id   int
			op   proto.OpCode
			body proto.Record
			want error
		}{
			{3, proto.OpCreateContainer, &proto.CreateRequest{Path: "/c", ACL: proto.OpenACL, Flags: proto.FlagContainer}, nil},
			{1, proto.OpCreate, &proto.CreateRequest{Path: "/c/x", ACL: proto.OpenACL}, nil},
			{1, proto.OpCreate, &proto.CreateRequest{Path: "/c/y", ACL: proto.OpenACL, Flags: proto.FlagContainer}, proto.BadArguments},
			{1, proto.OpCreate, &proto.CreateRequest{Path: "/c/y"}, proto.MarshallingError},
			{2, proto.OpCreate, &proto.CreateRequest{Path: "/c/y"}, proto.InvalidACL},
			{1, proto.OpMulti, multi, proto.MarshallingError},
			{2, proto.OpMulti, multi, nil},
			{3, proto.OpDelete, &proto.PathVersion{Path: "/m", Version: -1}, nil},
			{3, proto.OpMulti, multi, nil},
		} {
			if _, err := clients[x.id].Call(x.op, x.body, nil); err != x.want {
				t.Errorf("%s: operation %d: %v, want %v", lines[uint64(x.id)], x.op, err, x.want)
			}
		}
		var seen [4]proto.Stat
		for id := 1; id <= 3; id++ {
			k := clients[id]
			must(k.Call(proto.OpSync, &proto.Path{Path: "/"}, nil))(t)
			var err error
			if seen[id], err = k.Exists("/m", true); err != nil {
				t.Error(err)
			}
		}
		if seen[1] != seen[2] || seen[2] != seen[3] {
			t.Errorf("the members show %+v", seen[1:])
		}
		must(clients[3].Set("/m", []byte("x")))(t)
		for id := 1; id <= 3; id++ {
			k := clients[id]
			if len(k.Events) == 0 {
				f, err := k.Read()
				event, ok := f.Event()
				if err != nil || !ok {
					t.Fatalf("%s: %+v, %v", lines[uint64(id)], f, err)
				}
				k.Events = append(k.Events, event)
			}
			if event := k.Events[0]; event.Path != "/m" || (event.Zxid == -1) != (id < 3) {
				t.Errorf("%s: %+v", lines[uint64(id)], event)
			}
		}
		time.Sleep(time.Minute) // the members compare their states meanwhile
		state := regexp.MustCompile(`Zxid: \S+\nMode: \w+\nNode count: \d+\n`)
		mode := regexp.MustCompile(`Mode: \w+\n`)
		want := ""
		for id := 1; id <= 3; id++ {
			got := mode.ReplaceAllString(state.FindString(askWord(t, c.Server(id), "srvr")), "")
			if got == "" || want != "" && got != want {
				t.Errorf("%s: %q, not %q", lines[uint64(id)], got, want)
			}
			want = got
		}
	})
}

// TestQuotasOfLines: a member that behaves as a line without enforced quotas enforces none on its
// own clients, whoever leads, so that no result in a multi has a code that they do not know.
func TestQuotasOfLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lines := map[uint64]string{1: "3.6", 2: "3.9", 3: "3.6"}
		c := lockkeepertest.StartCluster(t, 3, lockkeepertest.WithConfig(func(cfg *lockkeeper.Config) {
			cfg.Features.BehaveAs, cfg.Features.EnforceQuota = lines[cfg.ID], true
		}))
		k := rawConn(t, c.Server(2))
		for _, x := range [][2]string{{"/q"}, {"/zookeeper/quota/q"}, {"/zookeeper/quota/q/zookeeper_limits", "countHardLimit=1"}, {"/zookeeper/quota/q/zookeeper_stats", "count=0,bytes=0"}} {
			if _, err := k.Create(x[0], []byte(x[1]), 0); err != nil {
				t.Fatal(x[0], err)
			}
		}
		for id := 1; id <= 3; id++ {
			var reply proto.MultiReply
			q := &proto.MultiRequest{Ops: []proto.MultiOp{{Op: proto.OpCreate, Request: &proto.CreateRequest{Path: fmt.Sprint("/q/", id), ACL: proto.OpenACL}}}}
			want := proto.OK
			if lines[uint64(id)] == "3.9" {
				want = proto.QuotaExceeded
			}
			if _, err := rawConn(t, c.Server(id)).Call(proto.OpMulti, q, &reply); err != nil || len(reply.Results) != 1 || reply.Results[0].Code != want {
				t.Errorf("member %d, as %s: %v, %+v", id, lines[uint64(id)], err, reply)
			}
		}
	})
}

// TestNoConfigAfterReconnect: what a client of 3.4 watches when it reconnects tells it nothing of
// /zookeeper/config either, which that line does not have.
func TestNoConfigAfterReconnect(t *testing.T) {
	const config = "/zookeeper/config"
	for _, x := range []struct {
		line                string
		exists, data, child proto.EventType // 0 for none
	}{
		{"3.4", 0, proto.EventNodeDeleted, proto.EventNodeDeleted},
		{"3.5", proto.EventNodeCreated, 0, 0},
	} {
		c := rawConn(t, lockkeepertest.Start(t, lockkeepertest.WithRelease(x.line)))
		for _, w := range []struct {
			q    proto.SetWatchesRequest
			want proto.EventType
		}{
			{proto.SetWatchesRequest{Exist: []string{config}}, x.exists},
			{proto.SetWatchesRequest{Data: []string{config}}, x.data},
			{proto.SetWatchesRequest{Child: []string{config}}, x.child},
		} {
			c.Events = nil
			w.q.RelativeZxid = 1 << 40
			must(c.Call(proto.OpSetWatches, &w.q, nil))(t)
			var got proto.EventType
			for _, e := range c.Events {
				got = e.Type
			}
			if got != w.want {
				t.Errorf("%s: %+v: event %d, want %d", x.line, w.q, got, w.want)
			}
		}
	}
}

// TestBehaveAsUnknown: a line that there is not is an error.
func TestBehaveAsUnknown(t *testing.T) {
	var bad *lockkeeper.ConfigError
	_, err := lockkeeper.Open(lockkeeper.Config{Features: lockkeeper.Features{BehaveAs: "3.3"}})
	if !errors.As(err, &bad) || bad.Field != "Features.BehaveAs" || !strings.Contains(bad.Reason, "3.4, 3.5") {
		t.Errorf("%v", err)
	}
}
