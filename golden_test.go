package lockkeeper_test

import (
	"net"
	"os"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/golden"
)

// TestGolden plays exchanges captured from Apache ZooKeeper 3.8.0 against a
// server. Every frame must be the same, but for the zxid of events, which 3.9
// fills in.
func TestGolden(t *testing.T) {
	configs := map[string]lockkeeper.Config{
		"ext": {
			TickTime:    500 * time.Millisecond,
			SuperDigest: "super:lK75jTNcA+U9vtVEw5vB51mj/w4=",
		},
		"default": {TickTime: 2 * time.Second, NoTTL: true, EnforceQuota: true, MaxConnectionsPerAddress: 4, FourLetterWords: []string{"srvr"}},
	}
	notYet := map[string]string{
		"60-4lw-whitelist": "TestFourLetterWords looks at the words",
	}
	scenarios, err := golden.LoadAll(os.DirFS("testdata/golden"))
	if err != nil {
		t.Fatal(err)
	}
	played := 0
	for name, cfg := range configs {
		cfg.ClientAddr = "127.0.0.1:0"
		s := open(t, cfg)
		dial := func() (net.Conn, error) { return net.Dial("tcp", s.Addr().String()) }
		for _, scenario := range scenarios {
			if scenario.Config != name || notYet[scenario.Name] != "" {
				continue
			}
			played++
			t.Run(scenario.Name, func(t *testing.T) {
				if err := scenario.Replay(t.Context(), dial, golden.Options{EventZxid: true}); err != nil {
					t.Error(err)
				}
			})
		}
	}
	if played < 50 {
		t.Errorf("only %d scenarios were played", played)
	}
}

// open opens a server that the test closes, and waits until it is ready.
func open(t testing.TB, cfg lockkeeper.Config) *lockkeeper.Server {
	t.Helper()
	s, err := lockkeeper.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	select {
	case <-s.Ready():
	case err := <-s.Err():
		t.Fatal(err)
	case <-time.After(10 * time.Second):
		t.Fatal("not ready after 10 s")
	}
	return s
}
