package rawtest

import (
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
)

// QuotaStats is the znode with the stats of the quota that SetQuota sets.
const QuotaStats = "/zookeeper/quota/q/zookeeper_stats"

// SetQuota sets a quota on /q as zkCli does.
func SetQuota(t testing.TB, c *rawclient.Client, limits string) {
	t.Helper()
	for _, n := range [][2]string{{"/q", ""}, {"/zookeeper/quota/q", ""}, {"/zookeeper/quota/q/zookeeper_limits", limits}, {QuotaStats, "count=0,bytes=0"}} {
		if _, err := c.Create(n[0], []byte(n[1]), 0); err != nil {
			t.Fatal(err)
		}
	}
}

// QuotaText returns the stats of the quota on /q.
func QuotaText(t testing.TB, c *rawclient.Client) string {
	t.Helper()
	r, err := c.Get(QuotaStats, false)
	if err != nil {
		t.Fatal(err)
	}
	return string(r.Data)
}
