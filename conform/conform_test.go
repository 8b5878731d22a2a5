package conform_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/conform"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

// TestLockkeeper runs the whole suite against a server in this process.
func TestLockkeeper(t *testing.T) {
	s := lockkeepertest.Start(t, lockkeepertest.WithTCP(), lockkeepertest.WithConfig(func(c *lockkeeper.Config) {
		c.SuperDigest = "super:lK75jTNcA+U9vtVEw5vB51mj/w4="
		c.EnforceQuota = true
		c.ContainerCheckInterval = 100 * time.Millisecond
	}))
	conform.Test(t, func(ctx context.Context) (net.Conn, error) {
		return s.Dial("tcp", "", 10*time.Second)
	}, func(o *conform.Options) { o.Super, o.ReapWithin = "super:secret", time.Second })
}
