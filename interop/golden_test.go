//go:build interop

package interop

import (
	"net"
	"os"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/golden"
)

// recorded are the server configurations of the golden exchanges, by the name
// that the files give them.
var recorded = map[string]struct{ props, cfg map[string]string }{
	"ext": {
		props: map[string]string{
			"zookeeper.extendedTypesEnabled": "true",
			// of super:secret
			"zookeeper.DigestAuthenticationProvider.superDigest": "super:lK75jTNcA+U9vtVEw5vB51mj/w4=",
		},
		cfg: map[string]string{"tickTime": "500", "4lw.commands.whitelist": "*"},
	},
	"default": {
		cfg: map[string]string{"tickTime": "2000", "enforceQuota": "true", "maxClientCnxns": "4"},
	},
	"admin": {
		cfg: map[string]string{"tickTime": "2000", "4lw.commands.whitelist": "*"},
	},
}

// TestGoldenAgainstZooKeeper plays every recorded exchange against a real
// server: what fails here is wrong in the player or in the file, not in
// lockkeeper. The scenarios of one configuration run one after another, as
// they were recorded. ZK_ADDR_EXT, ZK_ADDR_DEFAULT and ZK_ADDR_ADMIN name
// servers to use instead of starting one; their trees must be empty.
// ZK_EVENT_ZXID=1 says that they speak as 3.9 does.
func TestGoldenAgainstZooKeeper(t *testing.T) {
	scenarios, err := golden.LoadAll(os.DirFS("../testdata/golden"))
	if err != nil {
		t.Fatal(err)
	}
	opts := golden.Options{Text: golden.SameShape, EventZxid: os.Getenv("ZK_EVENT_ZXID") == "1"}
	for name, config := range recorded {
		t.Run(name, func(t *testing.T) {
			addr := os.Getenv("ZK_ADDR_" + strings.ToUpper(name))
			if addr == "" {
				addr, _ = startZooKeeper(t, config.props, config.cfg)
			}
			for _, s := range scenarios {
				if s.Config != name {
					continue
				}
				t.Run(s.Name, func(t *testing.T) {
					dial := func() (net.Conn, error) { return net.Dial("tcp", addr) }
					if err := s.Replay(t.Context(), dial, opts); err != nil {
						t.Error(err)
					}
				})
			}
		})
	}
}
