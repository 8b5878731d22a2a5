package lockkeeper

import (
	"crypto"
	"crypto/tls"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/cluster"
	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/testhooks"
	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

// MaxFrameLimit is the largest Config.MaxFrameBytes: what a request makes has to
// fit into the log, a message between members and a snapshot.
const MaxFrameLimit = fsm.MaxRequest

// Config says how to run a server. The zero value is a server in memory
// without a port. A field's zero value means its default.
type Config struct {
	// ClientAddr is the TCP address for clients, HOST:PORT; port 0 picks one.
	// Empty opens no port. With Reconfig, a reconfig that names another address for
	// this server moves the port there for good: that counts after a restart too.
	ClientAddr string
	// SecureAddr is the TCP address for clients that speak TLS, HOST:PORT; port 0
	// picks one. Empty opens no such port.
	SecureAddr string
	// TLS is how to speak it there: at least with a certificate. It is copied. A
	// client certificate that ClientAuth asks for and ClientCAs verify gives its
	// connection an identity of scheme x509: the certificate's subject, in the
	// form of RFC 2253. Without TLS nobody can have one, and ACLs may not name
	// the scheme.
	TLS *tls.Config
	// DataDir is where to keep the state; it is made if it does not exist.
	// Empty keeps it in memory.
	DataDir string
	// ID is this server's, 1 to 254. The default is 1.
	ID uint64

	// Peers are the members of a cluster, this server among them: the address
	// of each one's peer port, HOST:PORT, by id. All start with the same. It is
	// looked at by a server that has no state yet; later the members are those
	// in its state. Nil is a standalone server. It is a map, since an id has one
	// address, and Observers stand beside it since most clusters have none;
	// [Server.Members] returns both as a list of [Peer].
	Peers map[uint64]string
	// PeerAddr is this server's peer port. The default is that in Peers.
	PeerAddr string
	// PeerAllIPs has this server listen for members on all addresses of its host,
	// and not on that of its peer port alone (quorumListenOnAllIPs).
	PeerAllIPs bool
	// Join, instead of Peers, is the peer port of a member of a running cluster,
	// which is asked to take this server in. It takes a PeerAddr. With a PeerAddr
	// alone a server waits until somebody adds it.
	Join string
	// Observers are the ids of servers that are members without a vote: they
	// serve clients, and a cluster does not wait for them. They are among the
	// Peers, or it is this server, which joins as an observer.
	Observers []uint64
	// PeerTLS, if set, is for both directions between members. To have them
	// prove themselves to each other it takes a certificate, RootCAs, ClientCAs
	// and tls.RequireAndVerifyClientCert. Any certificate that ClientCAs verify is
	// taken for a member's, so they must issue none for anybody else.
	PeerTLS *tls.Config
	// ElectionTimeout is how long the leader may be silent before the others elect
	// another, and a majority before a member without one sends its clients away;
	// also how long a leader's disk may be stuck. It is what ZooKeeper calls
	// syncLimit, in ticks. The default is 2 s. When the leader's process ends, nobody
	// waits for it: the end of a connection and the refusal of another are seen.
	ElectionTimeout time.Duration

	// TickTime is ZooKeeper's tickTime: sessions end in steps of it. The default is 2 s.
	TickTime time.Duration
	// MinSessionTimeout and MaxSessionTimeout bound what clients may ask for.
	// The defaults are 2 and 20 ticks.
	MinSessionTimeout, MaxSessionTimeout time.Duration
	// DigestAlgorithm is the hash in identities of scheme digest, by Java's name
	// (DigestAuthenticationProvider.digestAlg): SHA1, SHA-224 to SHA-512, SHA3-224
	// to SHA3-512, or MD5. Clients put it into ACLs too, so it is one for all
	// servers, and for good. The default is SHA1, as clients expect.
	DigestAlgorithm string
	// NoDigest turns the scheme digest off (DigestAuthenticationProvider.enabled is
	// false): nobody can prove such an identity, and ACLs may not name one.
	NoDigest bool
	// EnforceAuth are schemes: digest, ip or x509. A client has to authenticate with
	// one of them before its first request (enforce.auth.enabled and
	// enforce.auth.schemes). Otherwise that is answered SessionClosedRequireSASLAuth,
	// and the connection is closed. Every client has an identity of scheme ip. Empty
	// enforces nothing.
	EnforceAuth []string
	// SuperDigest is ZooKeeper's superDigest: USER:BASE64(SHA1(USER:PASSWORD)), or
	// with the DigestAlgorithm, of the user who passes every ACL. Empty is nobody.
	SuperDigest string
	// X509SuperUser is ZooKeeper's X509AuthenticationProvider.superUser: the
	// subject of the client certificate whose owner passes every ACL, such as
	// CN=admin,O=Example. Empty is nobody.
	X509SuperUser string
	// FourLetterWords are those that are answered, besides srvr, and isro if
	// ReadOnly is set. Nil is all.
	// ZooKeeper's own default is srvr alone.
	FourLetterWords []string
	// NoTTL refuses TTL znodes with Unimplemented, as ZooKeeper does unless
	// extendedTypesEnabled is set.
	NoTTL bool
	// EnforceQuota refuses creates and setData that go over the hard limits of a
	// quota with QuotaExceeded, and logs those that go over soft ones
	// (enforceQuota). Quotas are counted either way.
	EnforceQuota bool
	// Reconfig lets clients that may write /zookeeper/config, such as the super
	// user, change the members of the cluster (reconfigEnabled).
	Reconfig bool
	// AllowSingleVoter lets a reconfig leave a single member that votes, as
	// ZooKeeper does with standaloneEnabled=false. Without it that is
	// BadArguments. The leader's setting counts.
	AllowSingleVoter bool
	// ReadOnly has a member that lost the majority serve reads to clients that ask
	// for no more (readonlymode.enabled): what it had when it lost it.
	ReadOnly bool
	// ContainerCheckInterval is how often container and TTL znodes are looked
	// through for those to delete. The default is one minute.
	ContainerCheckInterval time.Duration

	// MaxFrameBytes bounds a request (jute.maxbuffer). The default is 1 MiB - 1,
	// and the most is MaxFrameLimit, 16 MiB.
	MaxFrameBytes int
	// MaxConnections and MaxConnectionsPerAddress (maxClientCnxns) bound the
	// connections; one too many is reset. 0 is no bound.
	MaxConnections, MaxConnectionsPerAddress int
	// MaxSessions bounds the sessions of the whole cluster: at the limit the
	// connection of a client that asks for a new one is closed without an
	// answer. Servers of one cluster that open some at the same moment may
	// exceed it a little. 0 is no bound.
	MaxSessions int
	// MaxWatches bounds a connection's watches, of which a persistent one counts
	// for two. A request that would set one more is answered ThrottledOp and
	// does nothing, and a setWatches that would is the end of its connection.
	// 0 is no bound.
	MaxWatches int
	// MaxTLSHandshakes bounds the TLS handshakes under way; the connection of one
	// more is closed. The default is 1000.
	MaxTLSHandshakes int
	// HandshakeTimeout is how long a client has for the TLS handshake and its first
	// request together, before its connection is closed
	// (nio.sessionlessCnxnTimeout). The default is 10 s.
	HandshakeTimeout time.Duration
	// MaxOutstanding bounds a connection's requests that wait for the log. One
	// more is not read before another is answered. The default is 1000.
	MaxOutstanding int
	// MaxOutboxBytes is how much is queued for a client, before its connection is
	// closed; a reply that does not fit closes it too. It must be 2 MiB more than
	// MaxFrameBytes, so that all that was written can be read. The default is 64 MiB.
	MaxOutboxBytes int
	// SnapshotBytes is how long the log may grow before a snapshot is taken and
	// the log cut, unless the snapshot would be longer. An entry counts for at
	// least 256 bytes. The default is 16 MiB.
	SnapshotBytes int64

	// Logger gets what happens. Nil discards it.
	Logger *slog.Logger

	digest crypto.Hash // by DigestAlgorithm
	hooks  testhooks.Hooks
}

// maxID is the largest server id, as in ZooKeeper.
const maxID = 254

// minElectionTimeout leaves time for a heartbeat and its answer.
const minElectionTimeout = 100 * time.Millisecond

// complete puts defaults in, and checks the rules for all fields. Its error is a
// *ConfigError.
func (c *Config) complete() error {
	setDefault(&c.ID, 1)
	setDefault(&c.DigestAlgorithm, "SHA1")
	setDefault(&c.TickTime, 2*time.Second)
	setDefault(&c.MinSessionTimeout, 2*c.TickTime)
	setDefault(&c.MaxSessionTimeout, max(20*c.TickTime, c.MinSessionTimeout))
	setDefault(&c.ContainerCheckInterval, time.Minute)
	setDefault(&c.MaxFrameBytes, jute.DefaultMaxFrame)
	setDefault(&c.MaxOutstanding, 1000)
	setDefault(&c.MaxTLSHandshakes, 1000)
	setDefault(&c.HandshakeTimeout, 10*time.Second)
	setDefault(&c.MaxOutboxBytes, 64<<20)
	setDefault(&c.SnapshotBytes, 16<<20)
	if c.FourLetterWords == nil {
		c.FourLetterWords = []string{"*"}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.PeerAddr == "" {
		c.PeerAddr = c.Peers[c.ID]
	}
	if c.hooks.Network == nil {
		c.hooks.Network = cluster.TCP{TLS: c.PeerTLS, AllIPs: c.PeerAllIPs}
	}
	digest, supported := server.DigestAlgorithm(c.DigestAlgorithm)
	c.digest = digest
	for _, limit := range []struct {
		field string
		value int64
	}{
		{"MaxFrameBytes", int64(c.MaxFrameBytes)}, {"MaxConnections", int64(c.MaxConnections)},
		{"MaxConnectionsPerAddress", int64(c.MaxConnectionsPerAddress)},
		{"MaxTLSHandshakes", int64(c.MaxTLSHandshakes)}, {"MaxSessions", int64(c.MaxSessions)}, {"MaxWatches", int64(c.MaxWatches)},
		{"MaxOutstanding", int64(c.MaxOutstanding)}, {"MaxOutboxBytes", int64(c.MaxOutboxBytes)}, {"SnapshotBytes", c.SnapshotBytes},
	} {
		if limit.value < 0 {
			return badField(limit.field, "%d is negative", limit.value)
		}
	}
	atAddr := map[string]uint64{}
	for _, id := range slices.Sorted(maps.Keys(c.Peers)) {
		other, taken := atAddr[c.Peers[id]]
		switch {
		case id == 0 || id > maxID:
			return badField("Peers", "id %d is not in 1 to %d", id, maxID)
		case taken:
			return badField("Peers", "servers %d and %d have the same address", other, id)
		}
		atAddr[c.Peers[id]] = id
	}
	for _, id := range c.Observers {
		if len(c.Peers) > 0 && c.Peers[id] == "" {
			return badField("Observers", "server %d is not among the members", id)
		}
	}
	for _, scheme := range c.EnforceAuth {
		if !(scheme == proto.SchemeIP || scheme == proto.SchemeDigest && !c.NoDigest || scheme == proto.SchemeX509 && c.TLS != nil) {
			return badField("EnforceAuth", "no client can authenticate with scheme %q", scheme)
		}
	}
	const longest = math.MaxInt32 * time.Millisecond
	switch {
	case c.ID > maxID:
		return badField("ID", "%d is not in 1 to %d", c.ID, maxID)
	case len(c.Peers) > 0 && c.Peers[c.ID] == "":
		return badField("ID", "server %d is not among the members", c.ID)
	case len(c.Peers) > 0 && c.Join != "":
		return badField("Join", "a server forms a new cluster or joins one that runs, not both")
	case len(c.Peers) > 0 && len(c.Observers) >= len(c.Peers):
		return badField("Peers", "all members are observers, but one has to vote")
	case len(c.Observers) > 0 && len(c.Peers) == 0 && c.Join == "":
		return badField("Observers", "only a server that joins a cluster can be an observer, or a listed member of a new one")
	case c.Join != "" && c.PeerAddr == "":
		return badField("PeerAddr", "a server needs a peer address to join a cluster")
	case c.ElectionTimeout != 0 && c.ElectionTimeout < minElectionTimeout:
		return badField("ElectionTimeout", "%v is less than %v", c.ElectionTimeout, minElectionTimeout)
	case c.TickTime < time.Millisecond:
		return badField("TickTime", "%v is less than 1ms", c.TickTime)
	case c.MinSessionTimeout < time.Millisecond:
		return badField("MinSessionTimeout", "%v is less than 1ms", c.MinSessionTimeout)
	case c.MaxSessionTimeout < c.MinSessionTimeout:
		return badField("MaxSessionTimeout", "%v is less than the minimum, %v", c.MaxSessionTimeout, c.MinSessionTimeout)
	case c.MaxSessionTimeout > longest:
		return badField("MaxSessionTimeout", "%v is more than %v", c.MaxSessionTimeout, longest)
	case c.ContainerCheckInterval < 0:
		return badField("ContainerCheckInterval", "%v is negative", c.ContainerCheckInterval)
	case c.HandshakeTimeout < 0:
		return badField("HandshakeTimeout", "%v is negative", c.HandshakeTimeout)
	case c.MaxFrameBytes > MaxFrameLimit:
		return badField("MaxFrameBytes", "%d is more than %d", c.MaxFrameBytes, MaxFrameLimit)
	case c.MaxOutboxBytes < c.MaxFrameBytes+server.MinOutbox:
		return badField("MaxOutboxBytes", "%d is less than the longest request and %d more", c.MaxOutboxBytes, server.MinOutbox)
	case !supported:
		return badField("DigestAlgorithm", "%q is not supported", c.DigestAlgorithm)
	case c.SuperDigest != "" && !strings.Contains(c.SuperDigest, ":"):
		return badField("SuperDigest", "%q is not USER:HASH", c.SuperDigest)
	case c.SecureAddr == "" && c.TLS != nil:
		return badField("SecureAddr", "TLS is configured, but without an address for its clients")
	case c.SecureAddr != "" && (c.TLS == nil || len(c.TLS.Certificates) == 0 && c.TLS.GetCertificate == nil && c.TLS.GetConfigForClient == nil):
		return badField("TLS", "a port for TLS needs a certificate")
	case c.X509SuperUser != "" && c.TLS == nil:
		return badField("X509SuperUser", "no client can prove a subject without a port for TLS")
	case c.DataDir != "" && c.hooks.Memory != nil:
		return badField("DataDir", "a test keeps the state in memory")
	}
	return nil
}

func setDefault[T comparable](v *T, to T) {
	var zero T
	if *v == zero {
		*v = to
	}
}

func (c *Config) cluster() cluster.Config {
	var settings fsm.Settings
	if c.NoTTL {
		settings |= fsm.NoTTL
	}
	if c.TLS != nil {
		settings |= fsm.X509
	}
	if c.EnforceQuota {
		settings |= fsm.EnforceQuota
	}
	if c.Reconfig {
		settings |= fsm.Reconfig
	}
	if c.NoDigest {
		settings |= fsm.NoDigest
	}
	return cluster.Config{
		ID: c.ID, Dir: c.DataDir, Memory: c.hooks.Memory, Tick: c.TickTime, ReapInterval: c.ContainerCheckInterval,
		SnapshotBytes: c.SnapshotBytes, Settings: settings, Log: c.Logger,
		Peers: c.Peers, Addr: c.PeerAddr, Join: c.Join, Observers: c.Observers, Network: c.hooks.Network, ElectionTimeout: c.ElectionTimeout,
		TimeOfDay: c.hooks.TimeOfDay, AllowSingleVoter: c.AllowSingleVoter,
	}
}

func (c *Config) server(replica *fsm.Replica, p server.Proposer) server.Config {
	return server.Config{
		ID: c.ID, Proposer: p, Replica: replica, Log: c.Logger,
		Tick: c.TickTime, MinSessionTimeout: c.MinSessionTimeout, MaxSessionTimeout: c.MaxSessionTimeout,
		MaxSessions: c.MaxSessions, MaxWatches: c.MaxWatches,
		Digest: c.digest, NoDigest: c.NoDigest, EnforceAuth: c.EnforceAuth,
		SuperDigest: c.SuperDigest, SuperX509: c.X509SuperUser, MaxTLSHandshakes: c.MaxTLSHandshakes, MaxFrame: c.MaxFrameBytes, MaxConns: c.MaxConnections,
		MaxConnsPerAddr: c.MaxConnectionsPerAddress, MaxOutstanding: c.MaxOutstanding, OutboxBytes: c.MaxOutboxBytes,
		HandshakeTimeout: c.HandshakeTimeout, ReadOnly: c.ReadOnly, FourLetterWords: c.FourLetterWords,
		Version: zookeeperVersion, Built: released, DataDir: c.DataDir, TimeOfDay: c.hooks.TimeOfDay,
	}
}
