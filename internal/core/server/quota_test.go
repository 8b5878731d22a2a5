package server_test

import (
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/server"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient/rawtest"
	"github.com/lockkeeper/lockkeeper/proto"
	"log/slog"
)

// TestQuota: writes that exceed a hard limit are refused and counted, and those that
// exceed a soft limit are logged. Changes of the stats cause no watch events.
func TestQuota(t *testing.T) {
	var log testkit.Log
	overAll(t, server.Config{Log: log.Logger(slog.LevelWarn)}, func(t *testing.T, p *port, dial rawtest.Dialer) {
		log.Reset()
		p.loop.set(fsm.EnforceQuota)
		c, watcher := connect(t, dial), connect(t, dial)
		rawtest.SetQuota(t, c, "count=1,bytes=-1=;countHardLimit=-1;byteHardLimit=4")
		must(watcher.Call(proto.OpGetData, &proto.PathWatch{Path: rawtest.QuotaStats, Watch: true}, nil))(t)

		must(c.Create("/q/a", []byte("1"), 0))(t)
		if _, err := c.Create("/q/b", []byte("12345"), 0); err != proto.QuotaExceeded {
			t.Errorf("over the hard limit: %v", err)
		}
		if _, err := c.Create("/elsewhere", []byte("12345"), 0); err != nil {
			t.Error(err)
		}
		if got := rawtest.QuotaText(t, c); got != "count=2,bytes=1" {
			t.Errorf("the stats are %q", got)
		}
		must(watcher.Call(proto.OpExists, &proto.PathWatch{Path: "/"}, nil))(t)
		if len(watcher.Events) > 0 {
			t.Errorf("events of the stats: %v", watcher.Events)
		}
		eventually(t, "the lines of the log", func() bool {
			return len(log.Matching(`level=WARN msg="Quota exceeded: /q [current count=2, softCountLimit=1]`, "session")) == 1 &&
				len(log.Matching(`level=WARN msg="Quota exceeded: /q [current count=3, softCountLimit=1]`)) == 1 &&
				len(log.Matching(`level=WARN msg="Quota exceeded: /q [current bytes=6, hardByteLimit=4]`)) == 1
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
