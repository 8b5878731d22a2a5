package whole

import (
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient/rawtest"
	"github.com/lockkeeper/lockkeeper/proto"
)

// TestQuotaNotEnforced: stats are kept all the same, also over a restart that
// enforces them, and through the end of a session.
func TestQuotaNotEnforced(t *testing.T) {
	noGoroutineLeft(t)
	cfg := withMemory(lockkeeper.Config{})
	s := open(t, cfg)
	c := connect(t, inMemory(s))
	rawtest.SetQuota(t, c, "countHardLimit=1")
	must(c.Create("/q/a", []byte("123"), 0))(t)
	must(c.Create("/q/e", []byte("45"), proto.FlagEphemeral))(t)
	check(t, s.Close())

	cfg.Features.EnforceQuota = true
	s = open(t, cfg)
	other := connectFor(t, inMemory(s), 10*time.Second)
	if got := rawtest.QuotaText(t, other); got != "count=3,bytes=5" {
		t.Errorf("after the restart the stats are %q", got)
	}
	if _, err := other.Create("/q/b", nil, 0); err != proto.QuotaExceeded {
		t.Errorf("enforced: %v", err)
	}
	check(t, s.EndSession(t.Context(), c.Session.SessionID))
	if got := rawtest.QuotaText(t, other); got != "count=2,bytes=3" {
		t.Errorf("when the session has ended the stats are %q", got)
	}
}
