package lockkeeper_test

import (
	"strings"
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

// TestQuota: writes over a hard limit are refused and counted, those over a
// soft one are logged, and nobody who watches the stats hears of their changes.
func TestQuota(t *testing.T) {
	log := &capture{}
	overAll(t, lockkeeper.Config{EnforceQuota: true, Logger: log.logger()}, func(t *testing.T, s *lockkeeper.Server, dial dialer) {
		log.reset()
		c, watcher := connect(t, dial), connect(t, dial)
		setQuota(t, c, "count=1,bytes=-1=;countHardLimit=-1;byteHardLimit=4")
		must(watcher.Call(proto.OpGetData, &proto.PathWatch{Path: quotaStats, Watch: true}, nil))(t)

		must(c.Create("/q/a", []byte("1"), 0))(t)
		if _, err := c.Create("/q/b", []byte("12345"), 0); err != proto.QuotaExceeded {
			t.Errorf("over the hard limit: %v", err)
		}
		if _, err := c.Create("/elsewhere", []byte("12345"), 0); err != nil {
			t.Error(err)
		}
		if got := statsText(t, c); got != "count=2,bytes=1" {
			t.Errorf("the stats are %q", got)
		}
		must(watcher.Call(proto.OpExists, &proto.PathWatch{Path: "/"}, nil))(t)
		if len(watcher.Events) > 0 {
			t.Errorf("events of the stats: %v", watcher.Events)
		}
		eventually(t, "the lines of the log", func() bool {
			return len(log.matching("WARN Quota exceeded: /q [current count=2, softCountLimit=1]", "session")) == 1 &&
				len(log.matching("WARN Quota exceeded: /q [current count=3, softCountLimit=1]")) == 1 &&
				len(log.matching("WARN Quota exceeded: /q [current bytes=6, hardByteLimit=4]")) == 1
		})
		mntr := word(t, dial, "mntr")
		for _, line := range []string{
			"zk_q_quota_count_limit_per_namespace\t1\n", "zk_q_quota_bytes_limit_per_namespace\t4\n",
			"zk_q_quota_count_usage_per_namespace\t2\n", "zk_q_quota_bytes_usage_per_namespace\t1\n",
			"zk_q_quota_exceeded_error_per_namespace\t1\n",
		} {
			if !strings.Contains(mntr, line) {
				t.Errorf("%q is not in\n%s", line, mntr)
			}
		}
	})
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
