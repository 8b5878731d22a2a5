package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/core/persona"
	"github.com/lockkeeper/lockkeeper/proto"
)

// serveOptions are the configuration, and the flags of serve that are not simply fields
// of it.
type serveOptions struct {
	config             lockkeeper.Config
	file               string
	memory, zooEnv     bool
	peers              string
	joinPeers          bool
	enforceAuth, words string
	format             string
	level              slog.Level
	auditLog           string
	tls                tlsFlags
	sasl               saslFlags
	peerTLS            peerTLSFlags
	admin              adminFlags
	until              untilFlags
	reloads            reloads
	testControl        string
	cluster            int
	tree               string
}

func serveCommand() *cobra.Command {
	o := serveOptions{level: slog.LevelWarn}
	c := &cobra.Command{
		Use:   "serve",
		Short: "Serve ZooKeeper clients",
		Long: `Serve ZooKeeper clients until SIGTERM or SIGINT. Without flags it is a single
server on 127.0.0.1:2181 that keeps its state in the directory lockkeeper-data.

When clients can connect, serve prints one line on standard error:

  lockkeeper: serving ZooKeeper clients on HOST:PORT

With --log-format json that is the message ("msg") of a line of JSON, as is the last line
after a fault; only an error in a flag or a variable is text.
Once it serves, it also tells systemd (sd_notify, for units with Type=notify). It waits for
addresses that this machine does not have yet, and for names that it cannot look up
yet, and logs which.

It exits with 0 after one of these signals, with 1 after a fault, and with 2 if a
flag, a variable or the configuration file is wrong. After SIGHUP it reads the files
for TLS and SASL again, which it also does when they have changed, and opens the audit
log anew.`,
		Example: `  # One durable server
  lockkeeper serve

  # One server for tests, which stores nothing on disk
  lockkeeper serve --memory --listen 127.0.0.1:0

  # With a console, metrics, ZooKeeper's commands and probes on http://127.0.0.1:8080
  lockkeeper serve --admin :8080

  # Three servers for tests, which inject faults by HTTP requests (docs/test-control.md)
  lockkeeper serve --memory --cluster 3 --test-control 127.0.0.1:8181

  # The first of three servers; the others have --id 2 and --id 3. Start all of them
  lockkeeper serve --id 1 --peers 1=a:7000,2=b:7000,3=c:7000 --listen :2181

  # The same, with addresses that clients find in /zookeeper/config
  lockkeeper serve --id 1 --peers '1=a:7000;a:2181,2=b:7000;b:2181,3=c:7000;c:2181' --listen :2181

  # A fourth server, later
  lockkeeper serve --id 4 --peer-listen d:7000 --join a:7000 --listen :2181

  # The same, with flags that only differ by the server's id and name from those of the first three
  lockkeeper serve --id 4 --peers 1=a:7000,2=b:7000,3=c:7000 --join-peers --peer-listen d:7000 --listen :2181

  # One server for tests, for a program that starts it with a pipe as standard input: it exits when that program does
  lockkeeper serve --memory --listen 127.0.0.1:0 --until-stdin-closes

  # With ZooKeeper's configuration file
  lockkeeper serve --config /etc/zookeeper/conf/zoo.cfg`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return o.serve(c) },
	}
	o.define(c)
	firstScreen(c, "listen", "data", "memory", "config", "id", "peers", "peer-listen", "join", "log-level", "admin", "test-control", "cluster")
	return c
}

// What help says about flags that snapshot restore has, too.
const (
	logStoreUsage = "how the log is kept in --data: `STORE` is wal or boltdb. By default what the directory already has, and wal in a new one"
	idUsage       = "this server's `ID`, from 1 to 254"
	peersUsage    = "`MEMBERS` of a new cluster, with the addresses of their peer ports: 1=a:7000,2=b:7000,3=c:7000. Append :observer for an observer, and ;PORT or ;ADDRESS:PORT to show that address for clients in /zookeeper/config, as in zoo.cfg. The cluster is formed when all that vote have been started"
)

func (o *serveOptions) define(c *cobra.Command) {
	cfg, all := &o.config, c.Flags()
	group(all, "Clients", func(f *pflag.FlagSet) {
		f.StringVar(&cfg.ClientAddr, "listen", "127.0.0.1:2181", "`ADDRESS` for clients; port 0 picks a free one. If it is empty, there is no such port, and --tls-listen is required")
		f.BoolVar(&cfg.Features.ReadOnly, "read-only", false, "without a majority, serve reads to clients that accept read-only mode, as with ZooKeeper's readonlymode.enabled")
		f.BoolVar(&cfg.Features.NoTTL, "no-ttl", false, "refuse TTL znodes, as ZooKeeper does by default")
		f.StringVar(&cfg.Features.BehaveAs, "behave-as", persona.Newest.String(), "answer clients as this `LINE` of ZooKeeper's releases does, to test the clients: 3.4, 3.5, 3.6, 3.7, 3.8 or 3.9")
		f.StringVar(&o.words, "4lw", "*", "four-letter `WORDS` to answer, separated by commas; * means all")
	})
	group(all, "Data and configuration", func(f *pflag.FlagSet) {
		f.StringVar(&cfg.DataDir, "data", "lockkeeper-data", "`DIR` for the state")
		f.StringVar((*string)(&cfg.LogStore), "log-store", "", logStoreUsage)
		f.BoolVar(&o.memory, "memory", false, "keep the state in memory only")
		f.BoolVar(&o.zooEnv, "zoo-env", false, "without --config, read the ZOO_ variables of ZooKeeper's container image, or /conf/zoo.cfg if there is one, and the properties in JVMFLAGS; other flags and variables take precedence")
		f.StringVar(&o.file, "config", "", "a ZooKeeper configuration `FILE` (zoo.cfg); flags and environment variables take precedence")
	})
	group(all, "Cluster", func(f *pflag.FlagSet) {
		f.Uint64Var(&cfg.ID, "id", 1, idUsage)
		f.StringVar(&o.peers, "peers", "", peersUsage)
		f.StringVar(&cfg.PeerAddr, "peer-listen", "", "`HOST:PORT` at which the other members reach this server's peer port; by default its address in --peers. Append ;PORT or ;ADDRESS:PORT for clients, as there. Without --peers and --join a server with an empty --data waits until 'lockkeeper cluster add' adds it")
		f.StringVar(&cfg.Join, "join", "", "join a cluster that has been formed: the peer port, `HOST:PORT`, of any of its members. Not together with --peers")
		f.BoolVar(&o.joinPeers, "join-peers", false, "if this server is not in --peers, join the cluster of those in it, by way of the first: so all servers can have the same flags. It needs --peer-listen")
		f.BoolVar(&cfg.JoinAsObserver, "observer", false, "join as an observer, which does not vote")
		f.BoolVar(&cfg.PeerAllIPs, "peer-all-ips", false, "accept connections from members on all addresses of this host")
		o.peerTLS.define(f)
		o.peerTLS.defineLimits(f, "members")
		f.StringVar((*string)(&cfg.PeerTLSMode), "peer-tls-mode", "", "`MODE` while a running cluster moves to TLS: accept lets members connect with and without TLS, and connects without; use connects with TLS; only, the default, demands it of all")
		f.DurationVar(&cfg.ElectionTimeout, "election-timeout", 2*time.Second, "how long the leader may be silent before the others elect a new one, at least 100ms; ZooKeeper's syncLimit, as a time. If the leader's process ends, the election starts earlier")
		f.BoolVar(&cfg.Features.Reconfig, "reconfig", false, "let clients that may write /zookeeper/config change the members, as with ZooKeeper's reconfigEnabled")
		f.BoolVar(&cfg.Features.AllowSingleVoter, "allow-single-voter", false, "let a reconfig leave a single voting member, as with ZooKeeper's standaloneEnabled=false")
	})
	group(all, "Sessions", func(f *pflag.FlagSet) {
		f.DurationVar(&cfg.TickTime, "tick-time", 2*time.Second, "ZooKeeper's tickTime: session timeouts are between 2 and 20 ticks, and sessions expire at multiples of it")
		f.BoolVar(&cfg.Auth.ZooKeeperPasswords, "zookeeper-passwords", false, "give new sessions the passwords that ZooKeeper would give them, so that they can be moved back to it (docs/migrating.md). Whoever sees the id of a session can compute its password")
	})
	group(all, "Security", func(f *pflag.FlagSet) {
		o.tls.define(f, cfg)
		f.StringVar(&cfg.Auth.SuperDigest, "super-digest", "", "the super user, as `USER:HASH`; ZooKeeper's superDigest")
		f.StringVar(&cfg.Auth.DigestAlgorithm, "digest-algorithm", "SHA1", "`HASH` for identities of scheme digest, as in ZooKeeper's DigestAuthenticationProvider.digestAlg")
		f.BoolVar(&cfg.Auth.NoDigest, "no-digest", false, "disable the scheme digest, as ZooKeeper's DigestAuthenticationProvider.enabled=false does")
		f.StringVar(&o.enforceAuth, "enforce-auth", "", "`SCHEMES` (digest, ip, x509, sasl), separated by commas; a client must first authenticate with one of them, as with ZooKeeper's enforce.auth.schemes")
		o.sasl.define(f, cfg)
	})
	group(all, "Limits", func(f *pflag.FlagSet) {
		f.IntVar(&cfg.Limits.MaxConnections, "max-cnxns", 0, "`NUMBER` of client connections in all, as ZooKeeper's maxCnxns; 0 means no limit. However large it is, clients get at most three quarters of the file descriptors that the process may have (ulimit -n)")
		f.IntVar(&cfg.Limits.MaxConnectionsPerAddress, "max-client-cnxns", 0, "`NUMBER` of connections that one address may have; 0 means no limit")
		f.BoolVar(&cfg.Features.EnforceQuota, "enforce-quota", false, "refuse writes that exceed the hard limits of a quota, and log those that exceed its soft limits")
	})
	group(all, "Logging", func(f *pflag.FlagSet) {
		f.StringVar(&o.format, "log-format", "text", "`FORMAT` of the log on standard error: text or json")
		f.StringVar(&o.auditLog, "audit-log", "", "append to `FILE` who changed what, and who tried, as with ZooKeeper's audit.enable")
		f.TextVar(&o.level, "log-level", o.level, "lowest `LEVEL` to log: debug, info, warn or error")
		f.DurationVar(&cfg.SlowRequest, "log-slow", 0, "log each request that takes longer than this `TIME`, with its client, session, operation and path; 0 logs none")
	})
	group(all, "Operations", func(f *pflag.FlagSet) {
		o.admin.define(f)
		o.until.define(f)
	})
	group(all, "Tests", func(f *pflag.FlagSet) {
		f.StringVar(&o.testControl, "test-control", "", "with --memory, an HTTP `ADDRESS` for tests, which end sessions, inject faults and look inside (docs/test-control.md). Everyone who can connect to it may do that. Without a host it is on 127.0.0.1; port 0 picks a free one")
		f.StringVar(&o.tree, "tree", "", "with --test-control, begin with the znodes in `FILE`: one line for each, as /state shows them")
		f.IntVar(&o.cluster, "cluster", 0, "with --test-control, run a cluster of `N` members, at most 9, in this process. They listen on the port of --listen and the ones after it, or on free ones")
	})
	completeWith(c, "log-store", "wal", "boltdb")
	completeWith(c, "peer-tls-mode", "accept", "use", "only")
	completeWith(c, "log-format", "text", "json")
	completeWith(c, "log-level", "debug", "info", "warn", "error")
	completeWith(c, "tls-client-auth", "need", "want", "none")
}

func (o *serveOptions) serve(c *cobra.Command) (err error) {
	o.reloads.catch()
	cfg, flags := &o.config, c.Flags()
	stderr, err := newServeLines(c.ErrOrStderr(), o.format, o.level, &cfg.Logger)
	if err != nil {
		return badFlag(flags, "log-format", "%w", err)
	}
	c.SetErr(stderr)
	warnOfVariables(c, os.Environ(), cfg.Logger)
	switch {
	case o.file != "":
		if o.zooEnv {
			warnOfZooVariables(variablesIn(os.Environ()), cfg.Logger)
		}
		err = readZooCfg(o.file, flags, cfg)
	case o.zooEnv:
		err = readZooEnv(os.Environ(), flags, cfg)
	}
	if err != nil {
		return err
	}
	if err := errors.Join(o.checkTestControl(flags), o.until.check(flags)); err != nil {
		return err
	}
	// In Config, these values would mean the default.
	for _, name := range []string{"id", "tick-time", "election-timeout", "digest-algorithm"} {
		if value := flags.Lookup(name).Value.String(); value == "0" || value == "0s" || value == "" {
			return badFlag(flags, name, "it cannot be %q", value)
		}
	}
	if o.peers != "" {
		if cfg.Peers, err = parsePeers(o.peers); err != nil {
			return badFlag(flags, "peers", "%w", err)
		}
	}
	var client string
	if cfg.PeerAddr, client, err = cutClient(cfg.PeerAddr); err != nil {
		return badFlag(flags, "peer-listen", "%w", err)
	}
	self := slices.IndexFunc(cfg.Peers, func(p lockkeeper.Peer) bool { return p.ID == cfg.ID })
	if client != "" && self >= 0 {
		cfg.Peers[self].ClientAddr = client
	} else {
		cfg.AdvertisedClientAddr = client
	}
	for _, x := range []struct {
		name  string
		check func(addr string) error
	}{{"peer-listen", checkPeer}, {"join", checkPeer}, {"listen", checkListen}, {"tls-listen", checkListen}} {
		addr := flags.Lookup(x.name).Value.String()
		if err := x.check(addr); addr != "" && err != nil {
			return badFlag(flags, x.name, "%w", err)
		}
	}
	switch {
	case cfg.Join != "" && len(cfg.Peers) > 0:
		_, peers := sourceOf(flags.Lookup("peers"))
		return badFlag(flags, "join", "not together with %s; see --join-peers", peers)
	case o.joinPeers && len(cfg.Peers) == 0:
		return badFlag(flags, "join-peers", "without a list of members in --peers")
	case o.joinPeers && self < 0:
		cfg.Join, cfg.Peers = cfg.Peers[0].Addr, nil
	}
	if cfg.ClientAddr == "" && cfg.SecureAddr == "" {
		return badFlag(flags, "listen", "without an address for clients there must be one in --tls-listen")
	}
	if err := o.loadTLS(flags); err != nil {
		return err
	}
	if o.reloads.sasl, err = o.sasl.load(flags, cfg); err != nil {
		return err
	}
	data, _ := sourceOf(flags.Lookup("data"))
	memory, memoryName := sourceOf(flags.Lookup("memory"))
	switch {
	case o.memory && data > byFile && data >= memory:
		return badFlag(flags, "data", "not together with %s", memoryName)
	case o.memory:
		cfg.DataDir = ""
	default:
		if err := notZooKeepers(cfg.DataDir); err != nil {
			return badFlag(flags, "data", "%s: %w", cfg.DataDir, err)
		}
	}
	if cfg.Auth.Enforce, err = listFlag(flags, "enforce-auth", o.enforceAuth); err != nil {
		return err
	}
	if cfg.Features.FourLetterWords = list(o.words); len(cfg.Features.FourLetterWords) == 0 {
		cfg.Features.FourLetterWords = []string{"srvr"} // none would mean all
	}
	ctx, cancel := o.until.context(c.InOrStdin())
	defer cancel()
	if o.testControl != "" {
		defer o.reloads.start()()
		return o.serveTests(ctx, flags, stderr)
	}
	port, err := o.admin.open(ctx, flags, cfg.Logger, o.file, &o.reloads)
	if err != nil {
		return untilSignal(ctx, err)
	}
	defer port.close()
	metrics, err := o.admin.openMetrics(ctx, flags, cfg.Logger, &o.reloads)
	if err != nil {
		return untilSignal(ctx, err)
	}
	defer metrics.close()
	closeAudit, err := o.reloads.openAudit(o.auditLog, cfg)
	if err != nil {
		return badFlag(flags, "audit-log", "%w", err)
	}
	defer closeAudit()
	defer o.reloads.start()()
	return serveUntil(ctx, flags, *cfg, []*adminPort{port, metrics}, &o.reloads, stderr)
}

func (o *serveOptions) loadTLS(flags *pflag.FlagSet) error {
	members, err := o.peerTLS.load(flags, o.config.Logger)
	if err != nil {
		return err
	}
	if members != nil {
		o.config.PeerTLS, o.config.PeerDialTLS = members.Server(), members.Dial
		o.reloads.tls = append(o.reloads.tls, members)
	}
	clients, err := o.tls.load(flags, &o.config)
	if clients != nil {
		o.reloads.tls = append(o.reloads.tls, clients)
	}
	return err
}

// untilSignal returns err, or nil if that only says that ctx ended while serve waited for an address.
func untilSignal(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil
	}
	return err
}

// probe prepares a Config, in a build with the tag trace.
var probe = func(*lockkeeper.Config) error { return nil }

// serveUntil runs a server with its HTTP ports, some of which may be nil, until ctx ends or a
// fault. flags are the flags from which cfg was made.
func serveUntil(ctx context.Context, flags *pflag.FlagSet, cfg lockkeeper.Config, ports []*adminPort, reloads *reloads, stderr io.Writer) error {
	defer keepHeapFloor(os.Getenv)()
	defer keepMemoryLimit(os.Getenv, os.DirFS("/"))()
	if err := probe(&cfg); err != nil {
		return err
	}
	s, err := opened(ctx, cfg.Logger, func() (*lockkeeper.Server, error) { return lockkeeper.Open(cfg) })
	if err != nil {
		reloads.auditServer("serverStart", "failure")
	}
	if bad := (*lockkeeper.ConfigError)(nil); errors.As(err, &bad) {
		return badField(flags, bad)
	} else if err != nil {
		return untilSignal(ctx, namePort(flags, err))
	}
	reloads.auditServer("serverStart", "success")
	defer reloads.auditServer("serverStop", "invoked")
	for _, port := range ports {
		port.serve(s, stderr)
	}
	if s.Wait(ctx) == nil {
		if a := s.SecureAddr(); a != nil {
			fmt.Fprintf(stderr, "lockkeeper: serving ZooKeeper clients with TLS on %s\n", a)
		}
		if a := s.Addr(); a != nil {
			fmt.Fprintf(stderr, "lockkeeper: serving ZooKeeper clients on %s\n", a)
		}
		tellManager(os.Getenv, cfg.Logger, nowReady)
	}
	select {
	case <-s.Done():
		tellManager(os.Getenv, cfg.Logger, nowStopping)
		return errors.Join(s.Err(), s.Close())
	case <-ctx.Done():
		tellManager(os.Getenv, cfg.Logger, nowStopping)
		return shutdown(s, cfg.Logger)
	}
}

// shutdownTime is how long a signal leaves a server for handing over leadership and answering
// requests.
const shutdownTime = 5 * time.Second

// shutdown stops a server gracefully or, after shutdownTime, at once.
func shutdown(s *lockkeeper.Server, log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTime)
	defer cancel()
	err := s.Shutdown(ctx)
	if err == context.DeadlineExceeded {
		log.Warn("requests were left unanswered at the end", "waited", shutdownTime)
		return nil
	}
	return err
}

// fieldFlags maps fields of the configuration to their flags. Fields without a flag have
// a key in zooTable.
var fieldFlags = map[string]string{
	"ClientAddr": "listen", "TLSOnClientAddr": "tls-on-listen", "SecureAddr": "tls-listen", "TLS": "tls-cert", "DataDir": "data", "LogStore": "log-store", "ID": "id",
	"Peers": "peers", "PeerAddr": "peer-listen", "AdvertisedClientAddr": "peer-listen", "PeerAllIPs": "peer-all-ips", "Join": "join", "JoinAsObserver": "observer",
	"PeerTLS": "peer-tls-cert", "PeerDialTLS": "peer-tls-cert", "PeerTLSMode": "peer-tls-mode", "ElectionTimeout": "election-timeout", "TickTime": "tick-time",
	"Auth.DigestAlgorithm": "digest-algorithm", "Auth.NoDigest": "no-digest", "Auth.Enforce": "enforce-auth",
	"Auth.SuperDigest": "super-digest", "Auth.SuperX509": "x509-super-user",
	"Auth.SASL.Users": "jaas", "Auth.SASL.Mechanism": "jaas", "Auth.SASL.SuperUsers": "sasl-super-user", "Auth.SASL.AllowFailed": "sasl-allow-failed", "Features.FourLetterWords": "4lw", "Features.BehaveAs": "behave-as", "Features.NoTTL": "no-ttl",
	"Features.EnforceQuota": "enforce-quota", "Features.Reconfig": "reconfig", "Features.AllowSingleVoter": "allow-single-voter",
	"Features.ReadOnly": "read-only", "SlowRequest": "log-slow", "Auth.ZooKeeperPasswords": "zookeeper-passwords", "Limits.MaxConnections": "max-cnxns", "Limits.MaxConnectionsPerAddress": "max-client-cnxns",
}

// badField turns an error about a field into one about its flag or its key in zoo.cfg.
func badField(flags *pflag.FlagSet, err *lockkeeper.ConfigError) error {
	if name, ok := fieldFlags[err.Field]; ok {
		return badFlag(flags, name, "%s", err.Reason)
	}
	key, config := zooKeyOf(err.Field), flags.Lookup("config")
	return usageError{fmt.Errorf("%s in %s: %s", key, cmp.Or(strings.Join(config.Annotations[key], ""), config.Value.String()), err.Reason)}
}

// namePort adds to the error of a client port that cannot be opened the flag, variable or key with
// its address.
func namePort(flags *pflag.FlagSet, err error) error {
	var port interface{ ConfigField() string }
	if !errors.As(err, &port) {
		return err
	}
	_, by := sourceOf(flags.Lookup(fieldFlags[port.ConfigField()]))
	return fmt.Errorf("%s: %w", by, err)
}

// badFlag returns the error for a flag with an invalid value. It names the flag, variable
// or key that set the value.
func badFlag(flags *pflag.FlagSet, name, why string, args ...any) error {
	_, by := sourceOf(flags.Lookup(name))
	return usageError{fmt.Errorf("%s: %w", by, fmt.Errorf(why, args...))}
}

// needPositive checks flags whose values are durations above 0.
func needPositive(flags *pflag.FlagSet, names ...string) error {
	for _, name := range names {
		if d, err := flags.GetDuration(name); err != nil || d <= 0 {
			return badFlag(flags, name, "%v is not above 0", d)
		}
	}
	return nil
}

// checkListen refuses what cannot be an address to listen on.
func checkListen(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if _, plain := strconv.ParseUint(addr, 10, 16); err != nil && plain == nil {
		return fmt.Errorf("%w: write :%s for all addresses of this machine, or 127.0.0.1:%s", err, addr, addr)
	} else if err != nil {
		return err
	}
	if _, err := net.LookupPort("tcp", port); err != nil {
		return fmt.Errorf("%q is not an address with a port to listen on", addr)
	}
	return checkHost(host)
}

// listFlag returns the items of a flag with a comma-separated list. One with commas but no item is refused: it
// would count as no list, and limit nothing.
func listFlag(flags *pflag.FlagSet, name, text string) (items []string, err error) {
	if items = list(text); len(items) == 0 && text != "" {
		err = badFlag(flags, name, "%q lists nothing", text)
	}
	return items, err
}

// list splits a comma-separated list.
func list(text string) (items []string) {
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	return items
}

// parsePeers parses the members of a cluster, ID=HOST:PORT[:observer][;[ADDRESS:]CLIENTPORT]
// separated by commas.
func parsePeers(list string) (peers []lockkeeper.Peer, err error) {
	for text := range strings.SplitSeq(list, ",") {
		name, addr, ok := strings.Cut(strings.TrimSpace(text), "=")
		id, err := strconv.ParseUint(name, 10, 64)
		switch {
		case !ok || err != nil || id == 0 || id > 254:
			return nil, fmt.Errorf("%q is not ID=HOST:PORT with an id in 1 to 254", text)
		case slices.ContainsFunc(peers, func(p lockkeeper.Peer) bool { return p.ID == id }):
			return nil, fmt.Errorf("server %d is listed more than once", id)
		}
		p := lockkeeper.Peer{ID: id}
		if addr, p.ClientAddr, err = cutClient(addr); err != nil {
			return nil, err
		}
		p.Addr, p.Observer = strings.CutSuffix(addr, ":observer")
		if err := checkPeer(p.Addr); err != nil {
			return nil, err
		}
		peers = append(peers, p)
	}
	return peers, nil
}

// cutClient takes the address for clients from the end of text, where there may be
// ;[ADDRESS:]CLIENTPORT, and returns the rest and the address.
func cutClient(text string) (rest, addr string, err error) {
	rest, client, has := strings.Cut(text, ";")
	if !has {
		return rest, "", nil
	}
	addr, ok := proto.ParseClient(client)
	if !ok {
		return "", "", fmt.Errorf("%q is not [ADDRESS:]PORT for clients", client)
	}
	return rest, addr, nil
}

// checkPeer refuses an address that other members cannot reach.
func checkPeer(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	n, invalid := strconv.ParseUint(port, 10, 16)
	switch {
	case err != nil:
		return err
	case host == "" || n == 0 || invalid != nil:
		return fmt.Errorf("%q is not HOST:PORT as other members reach it", addr)
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		return fmt.Errorf("%q is not HOST:PORT as other members reach it", addr)
	}
	return checkHost(host)
}
