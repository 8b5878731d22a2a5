package lockkeeper_test

import (
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/rawclient"
	"github.com/lockkeeper/lockkeeper/internal/testhooks"
	"github.com/lockkeeper/lockkeeper/proto"
)

const quotaStats = "/zookeeper/quota/q/zookeeper_stats"

// setQuota sets a quota on /q as zkCli does.
func setQuota(t testing.TB, c *rawclient.Client, limits string) {
	t.Helper()
	for _, n := range [][2]string{{"/q", ""}, {"/zookeeper/quota/q", ""}, {"/zookeeper/quota/q/zookeeper_limits", limits}, {quotaStats, "count=0,bytes=0"}} {
		must(c.Create(n[0], []byte(n[1]), 0))(t)
	}
}

func statsText(t testing.TB, c *rawclient.Client) string {
	t.Helper()
	var r proto.DataReply
	must(c.Call(proto.OpGetData, &proto.PathWatch{Path: quotaStats}, &r))(t)
	return string(r.Data)
}

// TestQuotaNotEnforced: stats are kept all the same, also over a restart that
// enforces them, and through the end of a session.
func TestQuotaNotEnforced(t *testing.T) {
	noGoroutineLeft(t)
	cfg := withMemory(lockkeeper.Config{})
	s := open(t, cfg)
	c := connect(t, inMemory(s))
	setQuota(t, c, "countHardLimit=1")
	must(c.Create("/q/a", []byte("123"), 0))(t)
	must(c.Create("/q/e", []byte("45"), proto.FlagEphemeral))(t)
	check(t, s.Close())

	cfg.EnforceQuota = true
	s = open(t, cfg)
	other := connectFor(t, inMemory(s), 10*time.Second)
	if got := statsText(t, other); got != "count=3,bytes=5" {
		t.Errorf("after the restart the stats are %q", got)
	}
	if _, err := other.Create("/q/b", nil, 0); err != proto.QuotaExceeded {
		t.Errorf("enforced: %v", err)
	}
	check(t, testhooks.Of(s).ExpireSession(c.Session.SessionID))
	if got := statsText(t, other); got != "count=2,bytes=3" {
		t.Errorf("when the session has ended the stats are %q", got)
	}
}
