package whole

import (
	"net"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/golden"
	"github.com/lockkeeper/lockkeeper/internal/tools/releases"
	"github.com/lockkeeper/lockkeeper/proto"
)

// TestGolden replays exchanges captured from Apache ZooKeeper 3.8.0 to a server. Every
// frame must be the same, except for the zxids of events, which 3.9 fills in, and what
// golden.Changed lists, which TestUnreadableMulti and the conformance suite check.
func TestGolden(t *testing.T) {
	configs := map[string]lockkeeper.Config{
		"ext": {
			TickTime: 500 * time.Millisecond,
			Auth:     lockkeeper.Auth{SuperDigest: "super:lK75jTNcA+U9vtVEw5vB51mj/w4="},
		},
		"default": {TickTime: 2 * time.Second, Features: lockkeeper.Features{NoTTL: true, EnforceQuota: true, FourLetterWords: []string{"srvr"}}, Limits: lockkeeper.Limits{MaxConnectionsPerAddress: 4}},
	}
	configs["sasl"] = lockkeeper.Config{TickTime: 500 * time.Millisecond, Auth: lockkeeper.Auth{SASL: lockkeeper.SASL{Users: map[string]string{"bob": "bobpw"}}}}
	elsewhere := map[string]string{
		"60-4lw-whitelist": "TestFourLetterWords checks the words",
	}
	opts := golden.Options{EventZxid: true, Mask: golden.Changed(releases.Newest), Timeout: time.Minute}
	scenarios := must(golden.LoadAll(os.DirFS("testdata/golden")))(t)
	played := 0
	for name, cfg := range configs {
		withPort := cfg
		withPort.ClientAddr = "127.0.0.1:0"
		s := open(t, withPort)
		dial := func() (net.Conn, error) { return net.Dial("tcp", s.Addr().String()) }
		for _, scenario := range scenarios {
			if scenario.Config != name || elsewhere[scenario.Name] != "" {
				continue
			}
			played++
			play := func(t *testing.T, dial dialer) {
				if err := scenario.Replay(t.Context(), dial, opts); err != nil {
					t.Error(err)
				}
			}
			t.Run(scenario.Name, func(t *testing.T) {
				waits := scenario.Name == "51-session-expiry" || slices.ContainsFunc(scenario.Steps, func(s golden.Step) bool { return s.Pause > 0 })
				if name == "ext" && waits { // or checks that nothing is sent
					synctest.Test(t, func(t *testing.T) { play(t, inMemory(open(t, cfg))) })
					return
				}
				play(t, dial)
			})
		}
	}
	if played < 50 {
		t.Errorf("only %d scenarios were played", played)
	}
}

// open opens a server, waits until it is ready, and closes it when the test ends.
func open(t testing.TB, cfg lockkeeper.Config) *lockkeeper.Server {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = testkit.Unblocked(t)
	}
	s := must(lockkeeper.Open(cfg))(t)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := ready(s); err != nil {
		t.Fatal("not ready: ", err)
	}
	return s
}

// TestUnreadableMulti sends multis with one create each, whose mode ZooKeeper 3.9 checks
// already while it decodes the multi.
func TestUnreadableMulti(t *testing.T) {
	overAll(t, lockkeeper.Config{}, func(t *testing.T, s *lockkeeper.Server, dial dialer) {
		c := connect(t, dial)
		create := proto.CreateRequest{Path: "/multi", ACL: proto.OpenACL}
		for _, test := range []struct {
			op     proto.OpCode
			flags  int32
			ttl    int64
			whole  proto.Code // of the multi
			result proto.Code // of its one operation
		}{
			{proto.OpCreate, -1, 0, proto.MarshallingError, 0},
			{proto.OpCreate, 9, 0, proto.MarshallingError, 0},
			{proto.OpCreate2, 7, 0, proto.MarshallingError, 0},
			{proto.OpCreateContainer, 9, 0, proto.MarshallingError, 0},
			{proto.OpCreate, proto.FlagTTL, 0, proto.MarshallingError, 0},
			{proto.OpCreate2, proto.FlagTTLSequential, 0, proto.MarshallingError, 0},
			{proto.OpCreateTTL, 9, 1000, proto.OK, proto.BadArguments},
			{proto.OpCreateTTL, proto.FlagTTL, 0, proto.OK, proto.BadArguments},
			{proto.OpCreate2, proto.FlagContainer, 0, proto.OK, proto.OK},
		} {
			create.Flags = test.flags
			var body proto.Record = &create
			if test.op == proto.OpCreateTTL {
				body = &proto.CreateTTLRequest{CreateRequest: create, TTL: test.ttl}
			}
			var reply proto.MultiReply
			_, err := c.Call(proto.OpMulti, &proto.MultiRequest{Ops: []proto.MultiOp{{Op: test.op, Request: body}}}, &reply)
			var whole, result proto.Code
			if code, ok := err.(proto.Code); ok {
				whole = code
			} else if err != nil {
				t.Fatal(err)
			} else {
				result = reply.Results[0].Code
			}
			if whole != test.whole || result != test.result {
				t.Errorf("multi of %v, flags %d, ttl %d: %v, %v", test.op, test.flags, test.ttl, whole, result)
			}
		}
	})
}
