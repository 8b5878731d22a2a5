package whole

import (
	"context"
	"crypto/tls"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/core/testhooks"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient/rawtest"
)

func rng(seed uint64, stream int) *rand.Rand { return rand.New(rand.NewPCG(seed, uint64(stream))) }

var (
	eventually      = testkit.Eventually
	noGoroutineLeft = testkit.NoGoroutineLeft
	check           = testkit.Check
	seed            = testkit.Seed

	connect    = rawtest.Connect
	connectFor = rawtest.ConnectFor
	closed     = rawtest.Closed
	alive      = rawtest.Alive
	exists     = rawtest.Exists
	word       = rawtest.Word
	allWords   = rawtest.Words
	counts     = rawtest.Counts
	number     = rawtest.Number
)

// rounds returns the second number for a run that is thorough, and otherwise the first.
func rounds(usual, thorough int) int {
	if testkit.Thorough {
		return thorough
	}
	return usual
}

// peerList returns the members with these addresses, ordered by id.
func peerList(addrs map[uint64]string) (peers []lockkeeper.Peer) {
	for _, id := range slices.Sorted(maps.Keys(addrs)) {
		peers = append(peers, lockkeeper.Peer{ID: id, Addr: addrs[id]})
	}
	return peers
}

// fault returns a channel that receives what Err returns when the server has stopped serving.
func fault(s *lockkeeper.Server) <-chan error {
	why := make(chan error, 1)
	go func() {
		<-s.Done()
		why <- s.Err()
	}()
	return why
}

// withMemory has a server keep its state in memory from one run to the next.
func withMemory(cfg lockkeeper.Config) lockkeeper.Config {
	testhooks.In(&cfg).Memory = storage.NewMemory()
	return cfg
}

// ready waits until a server is ready, for a minute at most.
func ready(s *lockkeeper.Server) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return s.Wait(ctx)
}

// dialer gives connections to a server, over TCP or in memory.
type dialer = rawtest.Dialer

func overTCP(s *lockkeeper.Server) dialer {
	return func() (net.Conn, error) { return net.DialTimeout("tcp", s.Addr().String(), time.Minute) }
}

func inMemory(s *lockkeeper.Server) dialer {
	return func() (net.Conn, error) { return s.Dial("", "", time.Minute) }
}

// overTLS gives connections to the port where TLS is spoken. Certificates are
// those of the client, if it has any.
func overTLS(s *lockkeeper.Server, ca *testkit.CA, certificates ...tls.Certificate) dialer {
	config := &tls.Config{RootCAs: ca.Pool, Certificates: certificates}
	return func() (net.Conn, error) {
		return tls.DialWithDialer(&net.Dialer{Timeout: time.Minute}, "tcp", s.SecureAddr().String(), config)
	}
}

// overAll runs a test over TCP, over TLS and in memory, each on a server of its own.
func overAll(t *testing.T, cfg lockkeeper.Config, test func(t *testing.T, s *lockkeeper.Server, dial dialer)) {
	t.Run("TCP", func(t *testing.T) {
		noGoroutineLeft(t)
		cfg.ClientAddr = "127.0.0.1:0"
		s := open(t, cfg)
		test(t, s, overTCP(s))
	})
	t.Run("TLS", func(t *testing.T) {
		noGoroutineLeft(t)
		ca := testkit.NewCA(t)
		cfg.ClientAddr, cfg.SecureAddr = "", "127.0.0.1:0"
		cfg.TLS = &tls.Config{Certificates: []tls.Certificate{ca.Server(t)}}
		s := open(t, cfg)
		test(t, s, overTLS(s, ca))
	})
	cfg.SecureAddr, cfg.TLS = "", nil
	t.Run("memory", func(t *testing.T) {
		noGoroutineLeft(t)
		cfg.ClientAddr = ""
		s := open(t, cfg)
		test(t, s, inMemory(s))
	})
}

func must[T any](v T, err error) func(t testing.TB) T { return testkit.Must(v, err) }
