package lockkeeper

import (
	"crypto/tls"
	"log/slog"
	"maps"
	"math"
	"net"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/lockkeeper/lockkeeper/cluster"
	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/membership"
	"github.com/lockkeeper/lockkeeper/internal/core/peer"
	"github.com/lockkeeper/lockkeeper/internal/core/persona"
	"github.com/lockkeeper/lockkeeper/internal/core/sasl"
	"github.com/lockkeeper/lockkeeper/internal/core/server"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/core/testhooks"
	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/znode"
)

// MaxFrameLimit is the largest value that Limits.MaxFrameBytes may have. Raft's log,
// the messages between members and snapshots are all sized for requests up to this limit.
const MaxFrameLimit = fsm.MaxRequest

// Config configures a server. A field left at its zero value gets the default
// that its comment states. The zero Config runs a standalone server that keeps
// its state in memory and opens no port.
type Config struct {
	// ID is the server's id, from 1 to 254. The default is 1.
	ID uint64
	// ClientAddr is the TCP address, HOST:PORT, on which the server listens for
	// clients. With port 0 the system picks a port. If ClientAddr is empty, no
	// port is opened.
	//
	// With Features.Reconfig, a client's reconfig can give this server another client
	// address. The server then listens there instead, also after a restart.
	ClientAddr string
	// SecureAddr is the TCP address, HOST:PORT, on which the server listens for
	// clients that use TLS. With port 0 the system picks a port. If SecureAddr is
	// empty, no such port is opened.
	SecureAddr string
	// TLSOnClientAddr lets clients use TLS on ClientAddr, too, beside those that do not
	// (client.portUnification). It needs TLS.
	TLSOnClientAddr bool
	// TLS configures the connections with TLS, and is required with SecureAddr and
	// TLSOnClientAddr. It must supply a certificate. Open copies it.
	//
	// If ClientAuth requests a client certificate and ClientCAs verify it, the
	// connection gets an identity of scheme x509: the certificate's subject in the
	// form of RFC 2253. If TLS is nil, no client can have such an identity, and
	// ACLs that use the scheme x509 are rejected.
	TLS *tls.Config

	// DataDir is the directory that holds the server's state. It is created if it
	// does not exist. If DataDir is empty, the state is kept in memory only.
	DataDir string
	// LogStore is how Raft's log is kept in DataDir. The default is what DataDir has, and
	// [LogStoreWAL] if it is new. Open refuses a DataDir that has the other one, which
	// lockkeeper check --convert converts.
	LogStore LogStore

	// Peers lists the members of a new cluster, including this server, in any order. Every
	// member must be started with the same Peers. The cluster is formed once, when all of
	// its voting members have been started; see also [Server.FormCluster]. A server
	// that is started with an empty DataDir later joins it, without a vote at first.
	//
	// Peers is used only by a server that has no state yet. After that, the
	// members are the ones recorded in the state, and of Peers only their ClientAddr and
	// ElectionPort count (see [Peer]). If Peers is empty, the server is standalone, unless
	// Join or PeerAddr is set.
	Peers []Peer
	// PeerAddr is the address, HOST:PORT, of this server's peer port, as the other members reach it. The
	// default is its address in Peers. See also PeerAllIPs.
	PeerAddr string
	// PeerAllIPs makes the server listen for other members on all addresses of
	// the host instead of only on the host of PeerAddr (quorumListenOnAllIPs).
	PeerAllIPs bool
	// PeerTLS, if not nil, is used for all connections between members, both the
	// ones that this server makes and the ones that it accepts. For mutual
	// authentication it needs a certificate, RootCAs, ClientCAs and
	// tls.RequireAndVerifyClientCert: without the last two, which Go does not set by default, whoever can
	// connect is accepted as a member, and Open logs a warning. Whoever has a certificate that ClientCAs
	// verify is accepted as a member, so these CAs must not issue certificates to
	// anybody else.
	PeerTLS *tls.Config
	// PeerDialTLS, if not nil, is called for each connection that this server makes to another
	// member, and returns its configuration in place of PeerTLS, which is required with it. With
	// it and PeerTLS.GetConfigForClient, certificates and authorities can change while the server
	// runs. It must be safe for concurrent use, and what it returned must not change.
	PeerDialTLS func() *tls.Config
	// PeerTLSMode says which connections between members use TLS, if there is a PeerTLS. By default all
	// must. The other modes are for a cluster that moves to TLS while it runs.
	PeerTLSMode PeerTLSMode
	// Join is the address, HOST:PORT, of the peer port of a member of a running
	// cluster. The server asks that member to add it to the cluster. Join needs a
	// PeerAddr, and excludes Peers. With a PeerAddr but neither Peers nor Join, the
	// server waits until it is added, by [Server.AddMember] for example. So does one with Peers
	// whose DataDir is empty and which is no member of the cluster that they have formed.
	Join string
	// JoinAsObserver makes a server with Join an observer, which does not vote.
	JoinAsObserver bool
	// AdvertisedClientAddr and AdvertisedElectionPort are what a server with a PeerAddr, but
	// without Peers, tells clients of itself, as Peer.ClientAddr and Peer.ElectionPort do for
	// those in Peers.
	AdvertisedClientAddr   string
	AdvertisedElectionPort int
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
	// ContainerCheckInterval is the time between searches for empty containers and
	// expired TTL znodes, which are then deleted. The default is one minute.
	ContainerCheckInterval time.Duration
	// Auth says how clients authenticate.
	Auth Auth
	// Limits bounds what clients, and the log, may use.
	Limits Limits
	// Features says what the server does beyond the necessary, and what it leaves out.
	Features Features

	// Logger receives the server's log. If it is nil, nothing is logged. Its handler's method Handle
	// may block, no other one: a server waits for it only at the end of Close, for up to a second. Until then up to 20,000
	// lines wait, and further ones are left out; a line says how many. What still waits after that second is lost. At most one
	// call of Handle goes on after Close. [Restore] waits for it.
	Logger *slog.Logger
	// SlowRequest is how long a request may take, from when the server has read it until its reply
	// is queued, before the server logs who asked, for what, and how long it took; at most 50 lines
	// a second. 0 logs none.
	SlowRequest time.Duration
	// Audit, if not nil, is told of the changes that clients of this server make or try to make
	// (audit.enable), in their order, of the ephemeral znodes of all sessions that end, and of the changes of the members
	// that are asked of this server in other ways, by its methods or at its peer port. One goroutine calls
	// it, behind the server: up to 1,000 events wait for it, and then the server waits, so that none
	// is lost. So it must not wait for the server. Close returns when all events were told. An operation
	// whose connection is lost before its outcome is known has the result "invoked".
	Audit func(AuditEvent)

	configHooks
}

// PeerTLSMode says which connections between members use TLS.
type PeerTLSMode string

// The modes. To move a cluster to TLS, restart its members one by one with PeerTLSAccept, then with
// PeerTLSUse and then with PeerTLSOnly.
const (
	PeerTLSAccept PeerTLSMode = "accept" // this server accepts them with and without TLS, and makes them without
	PeerTLSUse    PeerTLSMode = "use"    // it accepts them with and without TLS, and makes them with TLS
	PeerTLSOnly   PeerTLSMode = "only"   // the default
)

// LogStore is a way of keeping Raft's log in a directory.
type LogStore string

const (
	LogStoreWAL    LogStore = "wal"    // segments of hashicorp/raft-wal, with one sync for each write
	LogStoreBoltDB LogStore = "boltdb" // a database of hashicorp/raft-boltdb
)

// Auth says how clients authenticate, and who may do everything.
type Auth struct {
	// DigestAlgorithm is the hash used for identities of scheme digest, by its Java name
	// (DigestAuthenticationProvider.digestAlg): MD5, SHA1, or SHA-224 or SHA3-224 and longer ones. The
	// default is SHA1, which clients expect. Since ACLs contain such hashes, all servers of a
	// cluster must use the same algorithm, and it must not change later.
	DigestAlgorithm string
	// NoDigest turns the scheme digest off: clients cannot authenticate with it,
	// and ACLs that use it are rejected (DigestAuthenticationProvider.enabled=false).
	NoDigest bool
	// Enforce lists authentication schemes: digest, ip, x509 or sasl. A client must
	// have an identity of one of them before its first request; otherwise that
	// request fails with SessionClosedRequireSASLAuth and the connection is closed
	// (enforce.auth.enabled and enforce.auth.schemes). Every client has an identity
	// of scheme ip. If Enforce is empty, nothing is enforced.
	Enforce []string
	// SuperDigest is the digest identity of the super user, to whom no ACL
	// applies: USER:BASE64(SHA1(USER:PASSWORD)), with DigestAlgorithm in place of
	// SHA1. If it is empty, there is no such user. It is ZooKeeper's
	// DigestAuthenticationProvider.superDigest.
	SuperDigest string
	// SuperX509 is the subject of a client certificate whose owner is the
	// super user, to whom no ACL applies: CN=admin,O=Example, for instance. If it
	// is empty, there is no such user. It is ZooKeeper's
	// X509AuthenticationProvider.superUser.
	SuperX509 string
	// ZooKeeperPasswords gives new sessions the passwords that ZooKeeper would give them, so that
	// their clients can go on with a ZooKeeper to which the state is moved (lockkeeper migrate to). By
	// default a password is random. ZooKeeper computes it from the session's id, which all
	// clients see as the owner of ephemeral znodes: whoever can connect can then take over a
	// session. So set this only for such a move. Sessions that were opened without it cannot move.
	ZooKeeperPasswords bool
	// SASL says who can authenticate with SASL.
	SASL SASL
}

// SASLExchange is the authentication of one connection. One goroutine at a time calls the methods.
type SASLExchange interface {
	// Step takes the client's next token and returns the server's answer. After an error the client is
	// told that it is not authenticated.
	Step(token []byte) (answer []byte, err error)
	// User returns the name of the user who has authenticated; false as long as none has.
	User() (name string, ok bool)
}

// SASL says who can authenticate with SASL: the Users, by its mechanism DIGEST-MD5, or those whom
// another mechanism knows. A user who has authenticated has an identity of scheme sasl, which is
// the user's name. The user super matches all entries of scheme sasl in ACLs.
type SASL struct {
	// Users maps the names of users to their passwords, as the section Server of ZooKeeper's JAAS
	// file does. All servers of a cluster should have the same users. If there are none, and no
	// Mechanism, SASL is not configured: a client's attempt to authenticate with it has no effect, as in ZooKeeper,
	// and ACLs that use the scheme sasl are rejected.
	//
	// Clients do not send passwords, but whoever can read the network traffic can try many
	// passwords offline, so passwords should be long and random, or clients use TLS.
	Users map[string]string
	// Mechanism begins the authentication of a connection by another mechanism than DIGEST-MD5, if it is
	// not nil. There must be no Users then. All servers of a cluster should have the same mechanism. It
	// must be safe for concurrent use.
	Mechanism func() SASLExchange
	// SuperUsers are the names of users to whom no ACL applies (superUser).
	SuperUsers []string
	// AllowFailed lets a client continue, without an identity, that has failed to authenticate
	// (allowSaslFailedClients). By default its connection is closed. If Auth.Enforce has sasl, it
	// is closed in any case.
	AllowFailed bool
}

// on reports whether SASL is configured.
func (s *SASL) on() bool { return len(s.Users) > 0 || s.Mechanism != nil }

// Limits bounds what a server's clients and its log may use. Where its comment names no other
// default, a limit of 0 means that there is none.
type Limits struct {
	// MinSessionTimeout and MaxSessionTimeout bound the session timeout that a
	// client can negotiate; a timeout outside of the bounds is replaced by the
	// nearer one. The defaults are 2 and 20 ticks (Config.TickTime); that of MaxSessionTimeout is
	// MinSessionTimeout if this is longer. As in ZooKeeper, MinSessionTimeout may be shorter than 2 ticks,
	// but [Open] warns of that: a leader whose process was paused for up to half a tick does not notice it.
	MinSessionTimeout, MaxSessionTimeout time.Duration
	// HandshakeTimeout is how long a client may take for its TLS handshake and its
	// first request together before the server closes the connection
	// (nio.sessionlessCnxnTimeout). The default is 10 s.
	HandshakeTimeout time.Duration
	// MaxTLSHandshakes limits the number of TLS handshakes in progress. If one more
	// begins, the connection of the oldest is closed. A quarter of the file descriptors
	// that the process may have is a limit, too. The default is 1000.
	MaxTLSHandshakes int
	// MaxConnections (maxCnxns) and MaxConnectionsPerAddress (maxClientCnxns) limit the
	// number of client connections. A connection beyond a limit is reset.
	//
	// Whatever MaxConnections is, an accepted connection is also reset if its socket is
	// one of the last quarter of the file descriptors that the process may have
	// (RLIMIT_NOFILE at that moment). They stay free for the log, snapshots, other
	// members, and the rest of the program. Connections of [Server.Dial] do not need any.
	MaxConnections, MaxConnectionsPerAddress int
	// MaxSessions limits the number of sessions in the whole cluster. At the limit,
	// the server closes the connection of a client that asks for a new session
	// without answering. Each server checks the limit on its own, so sessions
	// opened at the same moment through different servers can exceed it slightly.
	MaxSessions int
	// MaxWatches limits the number of watches of one connection; a persistent
	// watch counts as two. A request that would exceed the limit fails with
	// ThrottledOp and has no effect. If that request is a setWatches, the server
	// also closes the connection.
	MaxWatches int
	// MaxFrameBytes is the maximum size of a request (jute.maxbuffer). The default
	// is 1 MiB - 1; the maximum is [MaxFrameLimit], 16 MiB.
	MaxFrameBytes int
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
}

// Features says what a server does beyond the necessary, and what it leaves out. Names in
// parentheses are those of ZooKeeper's configuration.
type Features struct {
	// FourLetterWords lists the four-letter words that the server answers. Empty means all of
	// them. The server always answers srvr, and isro if ReadOnly is set: to have it answer
	// nothing else, as ZooKeeper does by default, list srvr.
	FourLetterWords []string
	// ReadOnly makes a member that has lost contact with a majority serve reads to
	// clients that accept a read-only server (readonlymode.enabled). They read the
	// state that the member had when it lost contact.
	ReadOnly bool
	// Reconfig lets clients change the members of the cluster if they have write
	// permission on /zookeeper/config, as the super user has (reconfigEnabled).
	Reconfig bool
	// AllowSingleVoter allows a reconfig that leaves only one voting member, as
	// ZooKeeper does with standaloneEnabled=false. If it is false, such a reconfig
	// fails with BadArguments. The leader's setting decides.
	AllowSingleVoter bool
	// EnforceQuota rejects creates and setData that exceed a hard quota with
	// QuotaExceeded, and logs those that exceed a soft quota (enforceQuota). Usage
	// is counted even if EnforceQuota is false.
	EnforceQuota bool
	// NoTTL rejects the creation of TTL znodes with Unimplemented, as ZooKeeper
	// does unless extendedTypesEnabled is set.
	NoTTL bool
	// BehaveAs is the release line of ZooKeeper whose answers the server gives its clients: 3.4,
	// 3.5, 3.6, 3.7, 3.8 or, by default, 3.9, the newest. An older one is for testing client
	// libraries: the server lacks what that line lacks; docs/compatibility.md says what differs.
	// It concerns only this server's own clients: the members of a cluster may have different
	// lines. With a line before 3.7, no quota is enforced on these clients, whatever EnforceQuota says.
	BehaveAs string
}

// Peer is a member of a cluster, or a server that is to become one.
type Peer struct {
	ID   uint64 // from 1 to 254
	Addr string // of its peer port, HOST:PORT, as the other members reach it
	// Observer is whether it does not vote. Observers serve clients, but the cluster needs no
	// acknowledgement from them.
	Observer bool
	// ClientAddr, [HOST]:PORT, and ElectionPort are what /zookeeper/config shows of it to
	// clients, which may connect to what they find there. Neither is needed, and nothing uses
	// the election port. An address that a client's reconfig gave to another member counts more
	// than Config.Peers, and with Features.Reconfig so does one that it gave to this server.
	ClientAddr   string
	ElectionPort int
}

// maxID is the largest server id, as in ZooKeeper.
const maxID = 254

// complete sets the defaults and validates every field. Its error is a *ConfigError.
func (c *Config) complete() error {
	setDefault(&c.ID, 1)
	setDefault(&c.Auth.DigestAlgorithm, "SHA1")
	setDefault(&c.TickTime, 2*time.Second)
	setDefault(&c.Limits.MinSessionTimeout, timing.Shortest(c.TickTime))
	setDefault(&c.Limits.MaxSessionTimeout, max(timing.Longest(c.TickTime), c.Limits.MinSessionTimeout))
	setDefault(&c.ContainerCheckInterval, time.Minute)
	setDefault(&c.Limits.MaxFrameBytes, jute.DefaultMaxFrame)
	setDefault(&c.Limits.MaxOutstanding, 1000)
	setDefault(&c.Limits.MaxTLSHandshakes, 1000)
	setDefault(&c.Limits.HandshakeTimeout, 10*time.Second)
	setDefault(&c.Limits.MaxOutboxBytes, 64<<20)
	setDefault(&c.Limits.SnapshotBytes, 16<<20)
	if len(c.Features.FourLetterWords) == 0 {
		c.Features.FourLetterWords = []string{"*"}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if self := c.listed(); self != nil && c.PeerAddr == "" {
		c.PeerAddr = self.Addr
	}
	if c.PeerTLS != nil && c.PeerTLSMode == "" {
		c.PeerTLSMode = PeerTLSOnly
	}
	if testhooks.In(&c.configHooks).Network == nil {
		testhooks.In(&c.configHooks).Network = peer.TCP{TLS: c.PeerTLS, DialTLS: c.PeerDialTLS, PlainToo: c.PeerTLSMode != PeerTLSOnly, DialPlain: c.PeerTLSMode == PeerTLSAccept, AllIPs: c.PeerAllIPs, ElectionTimeout: c.ElectionTimeout}
	}
	for _, limit := range []struct {
		field string
		value int64
	}{
		{"MaxFrameBytes", int64(c.Limits.MaxFrameBytes)}, {"MaxConnections", int64(c.Limits.MaxConnections)},
		{"MaxConnectionsPerAddress", int64(c.Limits.MaxConnectionsPerAddress)},
		{"MaxTLSHandshakes", int64(c.Limits.MaxTLSHandshakes)}, {"MaxSessions", int64(c.Limits.MaxSessions)}, {"MaxWatches", int64(c.Limits.MaxWatches)},
		{"MaxOutstanding", int64(c.Limits.MaxOutstanding)}, {"MaxOutboxBytes", int64(c.Limits.MaxOutboxBytes)}, {"SnapshotBytes", c.Limits.SnapshotBytes},
	} {
		if limit.value < 0 {
			return badField("Limits."+limit.field, "%d is negative", limit.value)
		}
	}
	if err := c.checkPeers(); err != nil {
		return err
	}
	for _, scheme := range c.Auth.Enforce {
		if !(scheme == proto.SchemeIP || scheme == proto.SchemeDigest && !c.Auth.NoDigest || scheme == proto.SchemeX509 && c.TLS != nil ||
			scheme == proto.SchemeSASL && c.Auth.SASL.on()) {
			return badField("Auth.Enforce", "no client can authenticate with scheme %q", scheme)
		}
	}
	for _, user := range slices.Sorted(maps.Keys(c.Auth.SASL.Users)) {
		if user == "" || !utf8.ValidString(user) || !znode.ValidSASL(user) {
			return badField("Auth.SASL.Users", "%q is not a name with which ZooKeeper lets a user authenticate", user)
		}
	}
	for _, user := range c.Auth.SASL.SuperUsers {
		switch _, ok := c.Auth.SASL.Users[user]; {
		case c.Auth.SASL.Mechanism != nil && (user == "" || !utf8.ValidString(user) || !znode.ValidSASL(user)):
			return badField("Auth.SASL.SuperUsers", "%q is not a name with which ZooKeeper lets a user authenticate", user)
		case c.Auth.SASL.Mechanism == nil && !ok:
			return badField("Auth.SASL.SuperUsers", "there is no user %q", user)
		}
	}
	if _, ok := persona.Of(c.Features.BehaveAs); !ok {
		return badField("Features.BehaveAs", "it must be one of %s, not %q", strings.Join(persona.Names(), ", "), c.Features.BehaveAs)
	}
	_, supported := server.DigestAlgorithm(c.Auth.DigestAlgorithm)
	const longest = math.MaxInt32 * time.Millisecond
	return firstOf([]rule{
		{c.ElectionTimeout != 0 && c.ElectionTimeout < timing.MinElectionTimeout, badField("ElectionTimeout", "%v is less than %v", c.ElectionTimeout, timing.MinElectionTimeout)},
		{c.TickTime < time.Millisecond, badField("TickTime", "%v is less than 1ms", c.TickTime)},
		{c.Limits.MinSessionTimeout < time.Millisecond, badField("Limits.MinSessionTimeout", "%v is less than 1ms", c.Limits.MinSessionTimeout)},
		{c.Limits.MaxSessionTimeout < c.Limits.MinSessionTimeout, badField("Limits.MaxSessionTimeout", "%v is less than the minimum, %v", c.Limits.MaxSessionTimeout, c.Limits.MinSessionTimeout)},
		{c.Limits.MaxSessionTimeout > longest, badField("Limits.MaxSessionTimeout", "%v is more than %v", c.Limits.MaxSessionTimeout, longest)},
		{c.SlowRequest < 0, badField("SlowRequest", "%v is negative", c.SlowRequest)},
		{c.ContainerCheckInterval < 0, badField("ContainerCheckInterval", "%v is negative", c.ContainerCheckInterval)},
		{c.Limits.HandshakeTimeout < 0, badField("Limits.HandshakeTimeout", "%v is negative", c.Limits.HandshakeTimeout)},
		{c.Limits.MaxFrameBytes > MaxFrameLimit, badField("Limits.MaxFrameBytes", "%d is more than %d", c.Limits.MaxFrameBytes, MaxFrameLimit)},
		{c.Limits.MaxOutboxBytes < c.Limits.MaxFrameBytes+server.MinOutbox, badField("Limits.MaxOutboxBytes", "%d is less than the longest request plus %d", c.Limits.MaxOutboxBytes, server.MinOutbox)},
		{!supported, badField("Auth.DigestAlgorithm", "%q is not supported", c.Auth.DigestAlgorithm)},
		{c.Auth.SuperDigest != "" && !strings.Contains(c.Auth.SuperDigest, ":"), badField("Auth.SuperDigest", "%q is not USER:HASH", c.Auth.SuperDigest)},
		{c.TLSOnClientAddr && c.ClientAddr == "", badField("TLSOnClientAddr", "there is no port for clients that may use TLS or not")},
		{c.SecureAddr == "" && !c.TLSOnClientAddr && c.TLS != nil, badField("SecureAddr", "TLS is configured without an address for its clients")},
		{(c.SecureAddr != "" || c.TLSOnClientAddr) && (c.TLS == nil || len(c.TLS.Certificates) == 0 && c.TLS.GetCertificate == nil && c.TLS.GetConfigForClient == nil), badField("TLS", "a port for TLS needs a certificate")},
		{c.PeerTLS != nil && len(c.PeerTLS.Certificates) == 0 && c.PeerTLS.GetCertificate == nil && c.PeerTLS.GetConfigForClient == nil, badField("PeerTLS", "a member needs a certificate, since others connect to it")},
		{c.PeerDialTLS != nil && c.PeerTLS == nil, badField("PeerDialTLS", "PeerTLS must say how connections of other members are accepted")},
		{c.PeerTLSMode != "" && c.PeerTLS == nil, badField("PeerTLSMode", "it is for a server that has a certificate for members")},
		{c.PeerTLSMode != "" && !slices.Contains([]PeerTLSMode{PeerTLSAccept, PeerTLSUse, PeerTLSOnly}, c.PeerTLSMode), badField("PeerTLSMode", "it must be accept, use or only, not %q", c.PeerTLSMode)},
		{c.Auth.SASL.Mechanism != nil && len(c.Auth.SASL.Users) > 0, badField("Auth.SASL.Mechanism", "there are users of DIGEST-MD5 as well")},
		{c.Auth.SASL.AllowFailed && !c.Auth.SASL.on(), badField("Auth.SASL.AllowFailed", "there are no users of SASL")},
		{c.Auth.SuperX509 != "" && c.TLS == nil, badField("Auth.SuperX509", "no client can prove a subject without a port for TLS")},
		{c.LogStore != "" && !slices.Contains(storage.LogStores, storage.LogStore(c.LogStore)), badField("LogStore", "it must be wal or boltdb, not %q", c.LogStore)},
		{c.LogStore != "" && c.DataDir == "", badField("LogStore", "state in memory has no log on disk")},
		{c.DataDir != "" && testhooks.In(&c.configHooks).Memory != nil, badField("DataDir", "the test has already provided memory for the state")},
	})
}

// rule is an error of a field, if it is broken.
type rule struct {
	broken bool
	err    error
}

// firstOf returns the error of the first rule that is broken; nil if none is.
func firstOf(rules []rule) error {
	for _, r := range rules {
		if r.broken {
			return r.err
		}
	}
	return nil
}

// checkPeers validates Peers, and what this server says of itself without them.
func (c *Config) checkPeers() error {
	byID, atAddr, voters := map[uint64]bool{}, map[string]uint64{}, 0
	for _, p := range c.Peers {
		other, taken := atAddr[p.Addr]
		if err := firstOf([]rule{
			{p.ID == 0 || p.ID > maxID, badField("Peers", "id %d is not in 1 to %d", p.ID, maxID)},
			{byID[p.ID], badField("Peers", "server %d is listed more than once", p.ID)},
			{p.Addr == "", badField("Peers", "server %d has no address", p.ID)},
			{!reachable(p.Addr), badField("Peers", "server %d: %q is not HOST:PORT as other members reach it", p.ID, p.Addr)},
			{taken, badField("Peers", "servers %d and %d have the same address", min(other, p.ID), max(other, p.ID))},
			{!clientForm(p.ClientAddr), badField("Peers", "server %d: %q is not [HOST]:PORT for clients", p.ID, p.ClientAddr)},
			{!electionPort(p.ElectionPort), badField("Peers", "server %d: %d is not a port", p.ID, p.ElectionPort)},
		}); err != nil {
			return err
		}
		byID[p.ID], atAddr[p.Addr] = true, p.ID
		if !p.Observer {
			voters++
		}
	}
	listed := len(c.Peers) > 0
	return firstOf([]rule{
		{c.ID > maxID, badField("ID", "%d is not in 1 to %d", c.ID, maxID)},
		{listed && !byID[c.ID], badField("ID", "server %d is not among the members", c.ID)},
		{listed && voters == 0, badField("Peers", "all members are observers, but one has to vote")},
		{c.PeerAddr != "" && !reachable(c.PeerAddr), badField("PeerAddr", "%q is not HOST:PORT as other members reach it", c.PeerAddr)},
		{c.Join != "" && listed, badField("Join", "not together with Peers: a server either forms a cluster with these or joins one")},
		{c.Join != "" && c.PeerAddr == "", badField("PeerAddr", "a server needs a peer address to join a cluster")},
		{c.JoinAsObserver && listed, badField("JoinAsObserver", "the list of members says who is an observer")},
		{c.JoinAsObserver && c.Join == "", badField("JoinAsObserver", "it is for a server that joins a cluster")},
		{!clientForm(c.AdvertisedClientAddr), badField("AdvertisedClientAddr", "%q is not [HOST]:PORT", c.AdvertisedClientAddr)},
		{!electionPort(c.AdvertisedElectionPort), badField("AdvertisedElectionPort", "%d is not a port", c.AdvertisedElectionPort)},
		{c.AdvertisedClientAddr != "" && (listed || c.PeerAddr == ""), badField("AdvertisedClientAddr", notAdvertised)},
		{c.AdvertisedElectionPort != 0 && (listed || c.PeerAddr == ""), badField("AdvertisedElectionPort", notAdvertised)},
	})
}

const notAdvertised = "it is for a server with a peer port, without a list of members: the list says it of each"

// clientForm reports whether a client address is empty or [HOST]:PORT.
func clientForm(addr string) bool {
	client, ok := proto.ParseClient(addr)
	return addr == "" || ok && client == addr
}

// trustsAnyPeer reports whether PeerTLS lets everybody connect to the peer port, as far as can be seen.
func (c *Config) trustsAnyPeer() bool {
	t := c.PeerTLS
	return t != nil && t.ClientAuth != tls.RequireAndVerifyClientCert && t.GetConfigForClient == nil && t.VerifyConnection == nil &&
		t.VerifyPeerCertificate == nil
}

// reachable reports whether an address can be one at which others connect to a member.
func reachable(addr string) bool {
	host, port, err := net.SplitHostPort(addr)
	ip := net.ParseIP(host)
	return err == nil && host != "" && port != "" && port != "0" && (ip == nil || !ip.IsUnspecified())
}

// electionPort reports whether an election port is 0 or a port.
func electionPort(port int) bool { return port >= 0 && port <= math.MaxUint16 }

// listed returns this server in Peers, or nil.
func (c *Config) listed() *Peer {
	if i := slices.IndexFunc(c.Peers, func(p Peer) bool { return p.ID == c.ID }); i >= 0 {
		return &c.Peers[i]
	}
	return nil
}

// advertised returns what the configuration tells clients of this server.
func (c *Config) advertised() (client string, election int) {
	if self := c.listed(); self != nil {
		return self.ClientAddr, self.ElectionPort
	}
	return c.AdvertisedClientAddr, c.AdvertisedElectionPort
}

// describes reports whether the configuration tells clients anything of members.
func (c *Config) describes() bool {
	return c.AdvertisedClientAddr != "" || c.AdvertisedElectionPort != 0 ||
		slices.ContainsFunc(c.Peers, func(p Peer) bool { return p.ClientAddr != "" || p.ElectionPort != 0 })
}

// member returns p as a proto.Peer.
func (p Peer) member() proto.Peer {
	p.ClientAddr = asRead(p.ClientAddr)
	return proto.Peer(p)
}

// asRead returns a client address as it will be read again from /zookeeper/config.
func asRead(addr string) string {
	if strings.HasPrefix(addr, ":") {
		return "0.0.0.0" + addr
	}
	return addr
}

func setDefault[T comparable](v *T, to T) {
	var zero T
	if *v == zero {
		*v = to
	}
}

func (c *Config) cluster() cluster.Config {
	var peers []proto.Peer
	for _, p := range c.Peers {
		peers = append(peers, p.member())
	}
	var settings fsm.Settings
	if c.Features.NoTTL {
		settings |= fsm.NoTTL
	}
	if c.TLS != nil {
		settings |= fsm.X509
	}
	if older, _ := persona.Of(c.Features.BehaveAs); c.Features.EnforceQuota && older.Does(persona.EnforcedQuotas) {
		settings |= fsm.EnforceQuota
	}
	if c.Features.Reconfig {
		settings |= fsm.Reconfig
	}
	if c.Auth.NoDigest {
		settings |= fsm.NoDigest
	}
	if c.Auth.SASL.on() {
		settings |= fsm.SASL
	}
	return cluster.Config{
		Server: membership.Server{
			ID: c.ID, Peers: peers, Addr: c.PeerAddr, Join: c.Join, Observer: c.JoinAsObserver,
			ClientAddr: asRead(c.AdvertisedClientAddr), ElectionPort: c.AdvertisedElectionPort,
		},
		Dir: c.DataDir, LogStore: storage.LogStore(c.LogStore), Memory: testhooks.In(&c.configHooks).Memory, Tick: c.TickTime, ReapInterval: c.ContainerCheckInterval,
		SnapshotBytes: c.Limits.SnapshotBytes, Settings: settings, Log: c.Logger,
		Network: testhooks.In(&c.configHooks).Network, ElectionTimeout: c.ElectionTimeout,
		TimeOfDay: testhooks.In(&c.configHooks).TimeOfDay, AllowSingleVoter: c.Features.AllowSingleVoter, Probes: testhooks.In(&c.configHooks).Probes,
	}
}

func (c *Config) server(replica *fsm.Replica, m *cluster.Member, a *auditor) server.Config {
	var audit func(server.AuditEvent)
	if a != nil {
		audit = func(e server.AuditEvent) { a.add(AuditEvent(e)) }
	}
	digest, _ := server.DigestAlgorithm(c.Auth.DigestAlgorithm)
	older, _ := persona.Of(c.Features.BehaveAs)
	var mechanism func() sasl.Exchange
	if begin := c.Auth.SASL.Mechanism; begin != nil {
		mechanism = func() sasl.Exchange { return begin() }
	} else if len(c.Auth.SASL.Users) > 0 {
		mechanism = sasl.NewDigestMD5(c.Auth.SASL.Users).Begin
	}
	return server.Config{
		ID: c.ID, Proposer: m, Replica: replica, Log: c.Logger,
		Tick: c.TickTime,
		Limits: server.Limits{
			MinSessionTimeout: c.Limits.MinSessionTimeout, MaxSessionTimeout: c.Limits.MaxSessionTimeout, MaxFrame: c.Limits.MaxFrameBytes,
			MaxConns: c.Limits.MaxConnections, MaxConnsPerAddr: c.Limits.MaxConnectionsPerAddress, MaxOutstanding: c.Limits.MaxOutstanding,
			MaxWatches: c.Limits.MaxWatches, MaxSessions: c.Limits.MaxSessions, OutboxBytes: c.Limits.MaxOutboxBytes,
			HandshakeTimeout: c.Limits.HandshakeTimeout, MaxTLSHandshakes: c.Limits.MaxTLSHandshakes,
		},
		Auth: server.Auth{
			Digest: digest, SuperDigest: c.Auth.SuperDigest, NoDigest: c.Auth.NoDigest, EnforceAuth: c.Auth.Enforce, SuperX509: c.Auth.SuperX509,
			SASL: mechanism, SuperSASL: c.Auth.SASL.SuperUsers, AllowSASLFailed: c.Auth.SASL.AllowFailed,
		},
		ReadOnly: c.Features.ReadOnly, ZooKeeperPasswords: c.Auth.ZooKeeperPasswords, FourLetterWords: c.Features.FourLetterWords,
		SlowRequest: c.SlowRequest, Version: older.Line().Release() + versionSuffix, Built: released, Persona: older, DataDir: c.DataDir, PeerAddr: c.PeerAddr, TimeOfDay: testhooks.In(&c.configHooks).TimeOfDay, Tap: testhooks.In(&c.configHooks).Tap,
		Audit: audit,
	}
}
