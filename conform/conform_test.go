package conform_test

import (
	"context"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/conform"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

// waiting are the checks of what lockkeeper does not do yet.
var waiting = regexp.MustCompile(`^(auth/sasl not configured|four-letter words/(mntr|dump|dump's numbers|gtmk and stmk))$`)

// TestLockkeeper runs the whole suite against a server in this process.
func TestLockkeeper(t *testing.T) {
	s := lockkeepertest.Start(t, lockkeepertest.WithTCP(), lockkeepertest.WithConfig(func(c *lockkeeper.Config) {
		c.SuperDigest = "super:lK75jTNcA+U9vtVEw5vB51mj/w4="
		c.EnforceQuota = true
		c.ContainerCheckInterval = 100 * time.Millisecond
	}))
	conform.Test(t, func(ctx context.Context) (net.Conn, error) {
		return s.Dial("tcp", "", 10*time.Second)
	}, func(o *conform.Options) {
		o.Super, o.ReapWithin = "super:secret", time.Second
		var names []string
		for _, k := range conform.Checks() {
			if !waiting.MatchString(k.Name) {
				names = append(names, regexp.QuoteMeta(k.Name))
			}
		}
		o.Run = regexp.MustCompile("^(" + strings.Join(names, "|") + ")$")
	})
}
