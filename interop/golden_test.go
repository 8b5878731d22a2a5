//go:build interop

package interop

import (
	"net"
	"os"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/tools/golden"
	"github.com/lockkeeper/lockkeeper/internal/tools/releases"
)

// recorded are the server configurations of the golden exchanges, by their names in the
// files.
var recorded = map[string]struct{ props, cfg map[string]string }{
	"ext": {
		props: merged(withTTL, withSuper),
		cfg:   merged(withWords, map[string]string{"tickTime": "500"}),
	},
	"default": {
		cfg: merged(withQuotas, map[string]string{"tickTime": "2000", "maxClientCnxns": "4"}),
	},
	"sasl": { // with users, which TestGoldenAgainstZooKeeper adds
		props: withSASL,
		cfg:   merged(withWords, map[string]string{"tickTime": "500"}),
	},
	"admin": {
		cfg: merged(withWords, map[string]string{"tickTime": "2000"}),
	},
}

// TestGoldenAgainstZooKeeper replays every recorded exchange against ZooKeeper, the
// recorded release and the newest one. A failure is a bug in the replay or in the file,
// not in lockkeeper. The scenarios of one configuration run one after another, in the
// order in which they were recorded.
func TestGoldenAgainstZooKeeper(t *testing.T) {
	t.Parallel()
	scenarios := must(golden.LoadAll(os.DirFS("../testdata/golden")))(t)
	for _, version := range []zkVersion{zk38, zk39} {
		release := must(releases.Parse(string(version)))(t)
		opts := golden.Options{
			Timeout:   rawTimeout,
			Text:      golden.SameShape,
			EventZxid: release.In(releases.EventZxid),
			Mask:      golden.Changed(release),
		}
		for name, config := range recorded {
			t.Run(string(version)+"/"+name, func(t *testing.T) {
				props := config.props
				if name == "sasl" {
					props = merged(props, map[string]string{"java.security.auth.login.config": jaasFile(t, map[string]string{"bob": "bobpw"}, "")})
				}
				addr := startZooKeeper(t, version, props, config.cfg).addr
				dial := func() (net.Conn, error) { return net.Dial("tcp", addr) }
				for _, s := range scenarios {
					if s.Config != name {
						continue
					}
					t.Run(s.Name, func(t *testing.T) {
						if err := s.Replay(t.Context(), dial, opts); err != nil {
							t.Error(err)
						}
					})
				}
			})
		}
	}
}
