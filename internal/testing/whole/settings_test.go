package whole

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/proto"
)

// TestSettings: each field of Config reaches the part of the server that implements it.
// What it does there is tested beside that part.
func TestSettings(t *testing.T) {
	login := func(c *rawclient.Client) error {
		_, err := c.Call(proto.OpAuth, &proto.AuthRequest{Scheme: proto.SchemeDigest, Auth: []byte("user:pass")}, nil)
		return err
	}
	super := func(t *testing.T, dial dialer) {
		c := connect(t, dial)
		check(t, login(c))
		var who proto.WhoAmIReply
		must(c.Call(proto.OpWhoAmI, nil, &who))(t)
		if !slices.Contains(who.IDs, proto.ID{Scheme: proto.SchemeSuper}) {
			t.Errorf("not the super user: %v", who.IDs)
		}
	}
	refused := func(t *testing.T, dial dialer) {
		nc := must(dial())(t)
		defer nc.Close()
		if c, err := rawclient.Open(nc, time.Second); err == nil {
			t.Errorf("session %#x", c.Session.SessionID)
		}
	}
	for name, x := range map[string]struct {
		cfg  lockkeeper.Config
		test func(t *testing.T, dial dialer)
	}{
		"SuperDigest":     {lockkeeper.Config{Auth: lockkeeper.Auth{SuperDigest: "user:smGaoVKd/cQkjm7b88GyorAUz20="}}, super}, // SHA1
		"DigestAlgorithm": {lockkeeper.Config{Auth: lockkeeper.Auth{DigestAlgorithm: "sha-256", SuperDigest: "user:70yRTFkWmLJo2zxkFj6v2nIJpjDyNuvw7r8EVGDfcjo="}}, super},
		"NoDigest": {lockkeeper.Config{Auth: lockkeeper.Auth{NoDigest: true}}, func(t *testing.T, dial dialer) {
			c := connect(t, dial)
			acl := []proto.ACL{{Perms: proto.PermAll, ID: proto.ID{Scheme: proto.SchemeDigest, ID: "user:hash"}}}
			if _, err := c.Call(proto.OpCreate, &proto.CreateRequest{Path: "/x", ACL: acl}, nil); err != proto.InvalidACL {
				t.Errorf("create: %v", err)
			}
			if err := login(c); err != proto.AuthFailed {
				t.Errorf("auth: %v", err)
			}
		}},
		"EnforceAuth": {lockkeeper.Config{Auth: lockkeeper.Auth{Enforce: []string{"digest"}}}, func(t *testing.T, dial dialer) {
			if _, err := connect(t, dial).Create("/x", nil, 0); err != proto.SessionClosedRequireSASLAuth {
				t.Errorf("without an identity: %v", err)
			}
			c := connect(t, dial)
			check(t, login(c))
			must(c.Create("/x", nil, 0))(t)
		}},
		"NoTTL": {lockkeeper.Config{Features: lockkeeper.Features{NoTTL: true}}, func(t *testing.T, dial dialer) {
			q := &proto.CreateTTLRequest{CreateRequest: proto.CreateRequest{Path: "/x", ACL: proto.OpenACL, Flags: proto.FlagTTL}, TTL: 1000}
			if _, err := connect(t, dial).Call(proto.OpCreateTTL, q, nil); err != proto.Unimplemented {
				t.Error(err)
			}
		}},
		"MaxSessions": {lockkeeper.Config{Limits: lockkeeper.Limits{MaxSessions: 1}}, func(t *testing.T, dial dialer) {
			connect(t, dial)
			refused(t, dial)
		}},
		"MaxConnections": {lockkeeper.Config{Limits: lockkeeper.Limits{MaxConnections: 1}}, func(t *testing.T, dial dialer) {
			connect(t, dial)
			refused(t, dial)
		}},
		"MaxWatches": {lockkeeper.Config{Limits: lockkeeper.Limits{MaxWatches: 1}}, func(t *testing.T, dial dialer) {
			c := connect(t, dial)
			must(c.Get("/", true))(t)
			if _, err := c.Get("/zookeeper", true); err != proto.ThrottledOp {
				t.Error(err)
			}
		}},
		"MaxOutboxBytes": {lockkeeper.Config{Limits: lockkeeper.Limits{MaxOutboxBytes: 4 << 20}}, func(t *testing.T, dial dialer) {
			c := connect(t, dial)
			must(c.Create("/x", make([]byte, 1<<19), 0))(t)
			q := &proto.MultiReadRequest{}
			for range 9 {
				q.Ops = append(q.Ops, proto.MultiOp{Op: proto.OpGetData, Request: &proto.PathWatch{Path: "/x"}})
			}
			must(c.Send(proto.OpMultiRead, q))(t)
			closed(t, c)
		}},
		"FourLetterWords": {lockkeeper.Config{Features: lockkeeper.Features{FourLetterWords: []string{"ruok"}}}, func(t *testing.T, dial dialer) {
			if got := word(t, dial, "ruok"); got != "imok" {
				t.Errorf("ruok: %q", got)
			}
			if got := word(t, dial, "stat"); !strings.Contains(got, "not in the whitelist") {
				t.Errorf("stat: %q", got)
			}
		}},
		"no FourLetterWords": {lockkeeper.Config{Features: lockkeeper.Features{FourLetterWords: []string{}}}, func(t *testing.T, dial dialer) {
			if got := word(t, dial, "ruok"); got != "imok" {
				t.Errorf("ruok: %q", got)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) { x.test(t, inMemory(open(t, x.cfg))) })
	}
}

// TestSettingsInWords: four-letter words, which are all answered by default, show the
// version and the configuration.
func TestSettingsInWords(t *testing.T) {
	dir := t.TempDir()
	s := open(t, lockkeeper.Config{
		ID: 7, DataDir: dir, ClientAddr: "127.0.0.1:0", TickTime: 500 * time.Millisecond,
		Limits: lockkeeper.Limits{MaxConnectionsPerAddress: 50, MaxSessionTimeout: time.Hour},
	})
	_, port, _ := strings.Cut(s.Addr().String(), ":")
	dir = regexp.QuoteMeta(dir)
	for w, want := range map[string]string{
		"srvr": `Zookeeper version: 3\.\d+\.\d+-lockkeeper-` + regexp.QuoteMeta(lockkeeper.Version) + `, built on \d{4}-\d\d-\d\d \d\d:\d\d UTC\n(.*\n)*`,
		"conf": `clientPort=` + port + `\nsecureClientPort=-1\ndataDir=` + dir + `\ndataDirSize=[1-9]\d*\ndataLogDir=` + dir + `\ndataLogSize=[1-9]\d*\n` +
			`tickTime=500\nmaxClientCnxns=50\nminSessionTimeout=1000\nmaxSessionTimeout=3600000\nclientPortListenBacklog=-1\nserverId=7\n`,
		"hash": ``,
	} {
		if got := word(t, inMemory(s), w); !regexp.MustCompile(`^` + want + `$`).MatchString(got) {
			t.Errorf("%s: %q, should match %q", w, got, want)
		}
	}
}
