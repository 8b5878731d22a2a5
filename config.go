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
	"github.com/lockkeeper/lockkeeper/internal/core/server"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/core/testhooks"
	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

// MaxFrameLimit is the largest value that Config.MaxFrameBytes may have. Raft's log,
// the messages between members and snapshots are all sized for requests up to this limit.
const MaxFrameLimit = fsm.MaxRequest

// Config configures a server. A field left at its zero value gets the default
// that its comment states. The zero Config runs a standalone server that keeps
// its state in memory and opens no port.
type Config struct {
	// ClientAddr is the TCP address, HOST:PORT, on which the server listens for
	// clients. With port 0 the system picks a port. If ClientAddr is empty, no
	// port is opened.
	//
	// With Reconfig, a client's reconfig can give this server another client
	// address. The server then listens there instead, also after a restart.
	ClientAddr string
	// SecureAddr is the TCP address, HOST:PORT, on which the server listens for
	// clients that use TLS. With port 0 the system picks a port. If SecureAddr is
	// empty, no such port is opened.
	SecureAddr string
	// TLS configures the connections accepted on SecureAddr, and is required
	// with it. It must supply a certificate. Open copies it.
	//
	// If ClientAuth requests a client certificate and ClientCAs verify it, the
	// connection gets an identity of scheme x509: the certificate's subject in the
	// form of RFC 2253. If TLS is nil, no client can have such an identity, and
	// ACLs that use the scheme x509 are rejected.
	TLS *tls.Config
	// DataDir is the directory that holds the server's state. It is created if it
	// does not exist. If DataDir is empty, the state is kept in memory only.
	DataDir string
	// LogStore is how Raft's log is kept in DataDir: "wal" in segments of
	// hashicorp/raft-wal, with one sync for each write, or "boltdb" in a database of
	// hashicorp/raft-boltdb. The default is what DataDir has, and "wal" if it is new.
	// Open refuses a DataDir with the other one, which lockkeeper check --convert
	// converts.
	LogStore string
	// ID is the server's id, from 1 to 254. The default is 1.
	ID uint64

	// Peers lists the members of a new cluster, including this server: it maps
	// each member's id to the address of its peer port, HOST:PORT. Every member
	// must be started with the same Peers. The cluster is formed once, when all of
	// its voting members have been started; see also [Server.FormCluster]. A server
	// that is started with an empty DataDir later joins it, without a vote at first.
	//
	// Peers is used only by a server that has no state yet. After that, the
	// members are the ones recorded in the state. If Peers is nil, the server is
	// standalone, unless Join or PeerAddr is set.
	//
	// Peers is a map because each id has one address, and Observers is a separate
	// field because most clusters have none. [Server.Members] returns both as a
	// list of [Peer].
	Peers map[uint64]string
	// ClientAddrs maps the ids of members, or of this server, to their addresses for clients,
	// [HOST]:PORT, and ElectionPorts to their election ports. The members need neither, but
	// /zookeeper/config shows them to clients, which may connect to what they find there.
	// An address that a client's reconfig gave to another member counts more, and with Reconfig
	// so does one that it gave to this server.
	ClientAddrs   map[uint64]string
	ElectionPorts map[uint64]int
	// PeerAddr is the address, HOST:PORT, of this server's peer port. The default
	// is its address in Peers.
	PeerAddr string
	// PeerAllIPs makes the server listen for other members on all addresses of
	// the host instead of only on the host of PeerAddr (quorumListenOnAllIPs).
	PeerAllIPs bool
	// Join is the address, HOST:PORT, of the peer port of a member of a running
	// cluster. The server asks that member to add it to the cluster. Join needs a
	// PeerAddr and excludes Peers. With a PeerAddr but neither Peers nor Join, the
	// server waits until it is added, by [Server.AddMember] for example.
	Join string
	// Observers lists the ids of members that do not vote. Observers serve clients,
	// but the cluster needs no acknowledgement from them. Each must be in Peers;
	// a server that joins a cluster lists its own id to join as an observer.
	Observers []uint64
	// PeerTLS, if not nil, is used for all connections between members, both the
	// ones that this server makes and the ones that it accepts. For mutual
	// authentication it needs a certificate, RootCAs, ClientCAs and
	// tls.RequireAndVerifyClientCert. Whoever has a certificate that ClientCAs
	// verify is accepted as a member, so these CAs must not issue certificates to
	// anybody else.
	PeerTLS *tls.Config
	// ElectionTimeout is how long the leader may be silent before the other
	// members elect a new one. A member that has lost contact with a majority for
	// this long, or for 300 ms if a majority refuses connections, disconnects its
	// clients, and a leader whose disk has been stuck for this long gives up
	// leadership. It corresponds to ZooKeeper's syncLimit times
	// tickTime. The default is 2 s; the minimum is 100 ms.
	//
	// When the leader's process ends, the others do not wait for the timeout: they
	// notice that its connections close and that new ones are refused.
	ElectionTimeout time.Duration

	// TickTime is ZooKeeper's tickTime. Session expiry is rounded up to multiples
	// of it. The default is 2 s; the minimum is 1 ms.
	TickTime time.Duration
	// MinSessionTimeout and MaxSessionTimeout bound the session timeout that a
	// client can negotiate; a timeout outside of the bounds is replaced by the
	// nearer one. The defaults are 2 and 20 ticks.
	MinSessionTimeout, MaxSessionTimeout time.Duration
	// DigestAlgorithm is the hash used for identities of scheme digest, by its
	// Java name: SHA1, SHA-224 to SHA-512, SHA3-224 to SHA3-512, or MD5
	// (DigestAuthenticationProvider.digestAlg). The default is SHA1, which clients
	// expect. Since ACLs contain such hashes, all servers of a cluster must use the
	// same algorithm, and it must not change later.
	DigestAlgorithm string
	// NoDigest turns the scheme digest off: clients cannot authenticate with it,
	// and ACLs that use it are rejected (DigestAuthenticationProvider.enabled=false).
	NoDigest bool
	// EnforceAuth lists authentication schemes: digest, ip or x509. A client must
	// have an identity of one of them before its first request; otherwise that
	// request fails with SessionClosedRequireSASLAuth and the connection is closed
	// (enforce.auth.enabled and enforce.auth.schemes). Every client has an identity
	// of scheme ip. If EnforceAuth is empty, nothing is enforced.
	EnforceAuth []string
	// SuperDigest is the digest identity of the super user, to whom no ACL
	// applies: USER:BASE64(SHA1(USER:PASSWORD)), with DigestAlgorithm in place of
	// SHA1. If it is empty, there is no such user. It is ZooKeeper's
	// DigestAuthenticationProvider.superDigest.
	SuperDigest string
	// X509SuperUser is the subject of a client certificate whose owner is the
	// super user, to whom no ACL applies: CN=admin,O=Example, for instance. If it
	// is empty, there is no such user. It is ZooKeeper's
	// X509AuthenticationProvider.superUser.
	X509SuperUser string
	// FourLetterWords lists the four-letter words that the server answers; nil
	// means all of them. The server always answers srvr, and isro if ReadOnly is
	// set. ZooKeeper's own default is only srvr.
	FourLetterWords []string
	// NoTTL rejects the creation of TTL znodes with Unimplemented, as ZooKeeper
	// does unless extendedTypesEnabled is set.
	NoTTL bool
	// EnforceQuota rejects creates and setData that exceed a hard quota with
	// QuotaExceeded, and logs those that exceed a soft quota (enforceQuota). Usage
	// is counted even if EnforceQuota is false.
	EnforceQuota bool
	// Reconfig lets clients change the members of the cluster if they have write
	// permission on /zookeeper/config, as the super user has (reconfigEnabled).
	Reconfig bool
	// AllowSingleVoter allows a reconfig that leaves only one voting member, as
	// ZooKeeper does with standaloneEnabled=false. If it is false, such a reconfig
	// fails with BadArguments. The leader's setting decides.
	AllowSingleVoter bool
	// LeaderDiskFirst makes this server, while it leads a cluster, write an entry to its own
	// disk before it sends the entry to the others. By default it does both at once, so that
	// a write waits for one disk instead of two. Neither acknowledges anything before a
	// majority has it on disk.
	LeaderDiskFirst bool
	// ReadOnly makes a member that has lost contact with a majority serve reads to
	// clients that accept a read-only server (readonlymode.enabled). They read the
	// state that the member had when it lost contact.
	ReadOnly bool
	// ContainerCheckInterval is the time between searches for empty containers and
	// expired TTL znodes, which are then deleted. The default is one minute.
	ContainerCheckInterval time.Duration

	// MaxFrameBytes is the maximum size of a request (jute.maxbuffer). The default
	// is 1 MiB - 1; the maximum is MaxFrameLimit, 16 MiB.
	MaxFrameBytes int
	// MaxConnections (maxCnxns) and MaxConnectionsPerAddress (maxClientCnxns) limit the
	// number of client connections. A connection beyond a limit is reset. 0 means no
	// limit.
	//
	// Whatever MaxConnections is, an accepted connection is also reset if its socket is
	// one of the last quarter of the file descriptors that the process may have
	// (RLIMIT_NOFILE at that moment). They stay free for the log, snapshots, other
	// members, and the rest of the program. Connections of [Server.Dial] do not count.
	MaxConnections, MaxConnectionsPerAddress int
	// MaxSessions limits the number of sessions in the whole cluster. At the limit,
	// the server closes the connection of a client that asks for a new session
	// without answering. Each server checks the limit on its own, so sessions
	// opened at the same moment through different servers can exceed it slightly.
	// 0 means no limit.
	MaxSessions int
	// MaxWatches limits the number of watches of one connection; a persistent
	// watch counts as two. A request that would exceed the limit fails with
	// ThrottledOp and has no effect. If that request is a setWatches, the server
	// also closes the connection. 0 means no limit.
	MaxWatches int
	// MaxTLSHandshakes limits the number of TLS handshakes in progress. If one more
	// begins, the connection of the oldest is closed. A quarter of the file descriptors
	// that the process may have is a limit, too. The default is 1000.
	MaxTLSHandshakes int
	// HandshakeTimeout is how long a client may take for its TLS handshake and its
	// first request together before the server closes the connection
	// (nio.sessionlessCnxnTimeout). The default is 10 s.
	HandshakeTimeout time.Duration
	// MaxOutstanding limits how many requests of one connection may wait to be
	// applied. At the limit the server stops reading from the connection until one
	// of them is answered. The default is 1000.
	MaxOutstanding int
	// MaxOutboxBytes limits how many bytes may be queued for one client. When a
	// reply or a watch event does not fit, the server closes the connection. It
	// must be at least 2 MiB more than MaxFrameBytes, so that every znode that can
	// be written can also be read. The default is 64 MiB.
	MaxOutboxBytes int
	// SnapshotBytes is how far the log may grow before the server takes a snapshot
	// and truncates the log. If the data in the tree is larger than SnapshotBytes,
	// the log may grow to that size instead. Every entry counts as at least 256
	// bytes. The default is 16 MiB.
	SnapshotBytes int64

	// Logger receives the server's log. If it is nil, nothing is logged.
	Logger *slog.Logger

	digest crypto.Hash // the hash that DigestAlgorithm names
	hooks  testhooks.Hooks
}

// maxID is the largest server id, as in ZooKeeper.
const maxID = 254

// minElectionTimeout leaves enough time for a heartbeat and its answer.
const minElectionTimeout = 100 * time.Millisecond

// complete sets the defaults and validates every field. Its error is a *ConfigError.
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
		c.hooks.Network = cluster.TCP{TLS: c.PeerTLS, AllIPs: c.PeerAllIPs, ElectionTimeout: c.ElectionTimeout}
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
	for id, addr := range c.ClientAddrs {
		if client, ok := proto.ParseClient(addr); c.peer(id) == "" {
			return badField("ClientAddrs", "server %d is not among the members", id)
		} else if !ok || client != addr {
			return badField("ClientAddrs", "%q is not [HOST]:PORT", addr)
		}
	}
	for id, port := range c.ElectionPorts {
		if c.peer(id) == "" {
			return badField("ElectionPorts", "server %d is not among the members", id)
		} else if port < 1 || port > math.MaxUint16 {
			return badField("ElectionPorts", "%d is not a port", port)
		}
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
		return badField("Observers", "only a server that joins a cluster, or is a listed member of a new one, can be an observer")
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
		return badField("MaxOutboxBytes", "%d is less than the longest request plus %d", c.MaxOutboxBytes, server.MinOutbox)
	case !supported:
		return badField("DigestAlgorithm", "%q is not supported", c.DigestAlgorithm)
	case c.SuperDigest != "" && !strings.Contains(c.SuperDigest, ":"):
		return badField("SuperDigest", "%q is not USER:HASH", c.SuperDigest)
	case c.SecureAddr == "" && c.TLS != nil:
		return badField("SecureAddr", "TLS is configured without an address for its clients")
	case c.SecureAddr != "" && (c.TLS == nil || len(c.TLS.Certificates) == 0 && c.TLS.GetCertificate == nil && c.TLS.GetConfigForClient == nil):
		return badField("TLS", "a port for TLS needs a certificate")
	case c.X509SuperUser != "" && c.TLS == nil:
		return badField("X509SuperUser", "no client can prove a subject without a port for TLS")
	case c.LogStore != "" && !slices.Contains(storage.LogStores, storage.LogStore(c.LogStore)):
		return badField("LogStore", "it must be wal or boltdb, not %q", c.LogStore)
	case c.LogStore != "" && c.DataDir == "":
		return badField("LogStore", "state in memory has no log on disk")
	case c.DataDir != "" && c.hooks.Memory != nil:
		return badField("DataDir", "the test has already provided memory for the state")
	}
	return nil
}

// peer returns the address of a member's peer port, as far as the configuration knows it.
func (c *Config) peer(id uint64) string {
	if id == c.ID {
		return c.PeerAddr
	}
	return c.Peers[id]
}

// known returns the members of which the configuration says how clients are to see them.
func (c *Config) known() (servers []proto.QuorumServer) {
	ids := maps.Clone(c.Peers)
	if ids == nil {
		ids = map[uint64]string{}
	}
	ids[c.ID] = c.PeerAddr
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		client, election := c.ClientAddrs[id], c.ElectionPorts[id]
		if strings.HasPrefix(client, ":") { // as it will be read again
			client = "0.0.0.0" + client
		}
		if client != "" || election != 0 {
			servers = append(servers, proto.QuorumServer{ID: id, Addr: c.peer(id), ElectionPort: election, Client: client})
		}
	}
	return servers
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
		ID: c.ID, Dir: c.DataDir, LogStore: storage.LogStore(c.LogStore), Memory: c.hooks.Memory, Tick: c.TickTime, ReapInterval: c.ContainerCheckInterval,
		SnapshotBytes: c.SnapshotBytes, Settings: settings, Log: c.Logger,
		Peers: c.Peers, Known: c.known(), Addr: c.PeerAddr, Join: c.Join, Observers: c.Observers, Network: c.hooks.Network, ElectionTimeout: c.ElectionTimeout,
		TimeOfDay: c.hooks.TimeOfDay, AllowSingleVoter: c.AllowSingleVoter, DiskFirst: c.LeaderDiskFirst,
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
		Version: zookeeperVersion, Built: released, DataDir: c.DataDir, TimeOfDay: c.hooks.TimeOfDay, Tap: c.hooks.Tap,
	}
}
