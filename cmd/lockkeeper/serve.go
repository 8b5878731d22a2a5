package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/server"
)

func serve(args []string, getenv func(string) string, stdout, stderr io.Writer) error {
	var cfg lockkeeper.Config
	f := flag.NewFlagSet("serve [FLAGS]", flag.ContinueOnError)
	f.StringVar(&cfg.ClientAddr, "listen", "127.0.0.1:2181", "`address` for clients; port 0 picks one, and without an address there is only that of -tls-listen")
	f.StringVar(&cfg.DataDir, "data", "lockkeeper-data", "`directory` to keep the state in")
	file := f.String("config", "", "a ZooKeeper zoo.cfg `file`; flags and the environment win over it")
	memory := f.Bool("memory", false, "keep the state in memory, and nowhere else")
	f.Uint64Var(&cfg.ID, "id", 1, "this server's `id`, 1 to 254")
	peers := f.String("peers", "", "`members` of a new cluster, by their peer ports: 1=HOST:PORT,2=HOST:PORT,3=HOST:PORT; with :observer behind it, one that does not vote")
	f.StringVar(&cfg.PeerAddr, "peer-listen", "", "`address` of this server's peer port, as the other members reach it; by default that in -peers. Alone it is for a server that somebody adds")
	f.StringVar(&cfg.Join, "join", "", "peer port, `HOST:PORT`, of a member of a running cluster, to be taken in by it")
	f.BoolVar(&cfg.PeerAllIPs, "peer-all-ips", false, "listen for members on all addresses of this host")
	observer := f.Bool("observer", false, "join as a member that does not vote")
	peerTLS := peerTLSFlags(f)
	f.DurationVar(&cfg.TickTime, "tick-time", 2*time.Second, "ZooKeeper's tickTime: sessions last 2 to 20 of it and end in steps of it")
	f.DurationVar(&cfg.ElectionTimeout, "election-timeout", 2*time.Second, "how long the leader of a cluster may be silent before the others elect another, at least 100ms: ZooKeeper's syncLimit, in ticks. The end of its process is seen at once")
	f.StringVar(&cfg.SuperDigest, "super-digest", "", "the super user, `USER:HASH` as for ZooKeeper's superDigest")
	f.StringVar(&cfg.DigestAlgorithm, "digest-algorithm", "SHA1", "`hash` in identities of scheme digest, as ZooKeeper's DigestAuthenticationProvider.digestAlg")
	f.BoolVar(&cfg.NoDigest, "no-digest", false, "turn the scheme digest off, as ZooKeeper does without DigestAuthenticationProvider.enabled")
	enforce := f.String("enforce-auth", "", "`schemes` (digest, ip, x509), separated by commas: a client has to authenticate with one of them first, as with ZooKeeper's enforce.auth.schemes")
	f.IntVar(&cfg.MaxConnectionsPerAddress, "max-client-cnxns", 0, "connections that one address may have; 0 is any number")
	f.BoolVar(&cfg.NoTTL, "no-ttl", false, "refuse TTL znodes, as ZooKeeper does by default")
	f.BoolVar(&cfg.EnforceQuota, "enforce-quota", false, "refuse writes over the hard limits of a quota, and log those over soft ones")
	f.BoolVar(&cfg.Reconfig, "reconfig", false, "let clients that may write /zookeeper/config change the members, as ZooKeeper's reconfigEnabled does")
	f.BoolVar(&cfg.AllowSingleVoter, "allow-single-voter", false, "let a reconfig leave a single member that votes, as ZooKeeper's standaloneEnabled=false does")
	f.BoolVar(&cfg.ReadOnly, "read-only", false, "without a majority, serve reads to clients that ask for no more, as ZooKeeper's readonlymode.enabled does")
	words := f.String("4lw", "*", "four-letter `words` to answer, separated by commas; * is all")
	format := f.String("log-format", "text", "`format` of the log on standard error: text or json")
	level := slog.LevelWarn
	f.TextVar(&level, "log-level", level, "least `level` to log: debug, info, warn or error")
	var secure tlsFlags
	secure.define(f, &cfg)
	given, err := parse("serve", f, args, getenv, stdout)
	if err != nil {
		return err
	}
	if f.NArg() > 0 {
		return usageError{fmt.Errorf("serve takes no arguments, but there is %q", f.Arg(0))}
	}
	options := &slog.HandlerOptions{Level: level}
	switch *format {
	case "text":
		cfg.Logger = slog.New(slog.NewTextHandler(stderr, options))
	case "json":
		cfg.Logger = slog.New(slog.NewJSONHandler(stderr, options))
	default:
		return usageError{fmt.Errorf("invalid value %q for flag -log-format: not text or json", *format)}
	}
	if *file != "" {
		if err := readZooCfg(*file, f, given, &cfg, cfg.Logger); err != nil {
			return err
		}
	}
	if cfg.ID == 0 || cfg.ID > 254 {
		return usageError{fmt.Errorf("invalid value %d for flag -id: not in 1 to 254", cfg.ID)}
	}
	if *peers != "" {
		if cfg.Peers, cfg.Observers, err = parsePeers(*peers); err != nil {
			return usageError{fmt.Errorf("invalid value %q for flag -peers: %w", *peers, err)}
		}
	}
	switch {
	case cfg.Peers != nil && cfg.Peers[cfg.ID] == "":
		return usageError{fmt.Errorf("server %d is not in -peers: set -id", cfg.ID)}
	case cfg.Peers != nil && cfg.Join != "":
		return usageError{errors.New("-peers forms a cluster and -join enters one: give one of them")}
	case cfg.Join != "" && cfg.PeerAddr == "":
		return usageError{errors.New("-join takes a -peer-listen")}
	case cfg.Peers != nil && len(cfg.Observers) == len(cfg.Peers):
		return usageError{errors.New("nobody votes in -peers")}
	case *observer && cfg.Join == "":
		return usageError{errors.New("-observer goes with -join; in -peers it is ID=HOST:PORT:observer")}
	case *observer:
		cfg.Observers = []uint64{cfg.ID}
	}
	for _, a := range []struct{ name, addr string }{{"peer-listen", cfg.PeerAddr}, {"join", cfg.Join}} {
		if err := checkPeer(a.addr); a.addr != "" && err != nil {
			return usageError{fmt.Errorf("invalid value %q for flag -%s: %w", a.addr, a.name, err)}
		}
	}
	if cfg.PeerTLS, err = peerTLS(); err != nil {
		return err
	}
	if cfg.TickTime < time.Millisecond {
		return usageError{fmt.Errorf("invalid value %v for flag -tick-time: below 1ms", cfg.TickTime)}
	}
	if _, ok := server.DigestAlgorithm(cfg.DigestAlgorithm); !ok {
		return usageError{fmt.Errorf("invalid value %q for flag -digest-algorithm: not supported", cfg.DigestAlgorithm)}
	}
	if cfg.ElectionTimeout < 100*time.Millisecond {
		return usageError{fmt.Errorf("invalid value %v for flag -election-timeout: below 100ms", cfg.ElectionTimeout)}
	}
	if cfg.SuperDigest != "" && !strings.Contains(cfg.SuperDigest, ":") {
		return usageError{fmt.Errorf("invalid value %q for flag -super-digest: not USER:HASH", cfg.SuperDigest)}
	}
	if cfg.MaxConnectionsPerAddress < 0 {
		return usageError{fmt.Errorf("invalid value %d for flag -max-client-cnxns: negative", cfg.MaxConnectionsPerAddress)}
	}
	if cfg.ClientAddr == "" && cfg.SecureAddr == "" {
		return usageError{errors.New("neither -listen nor -tls-listen gives an address")}
	}
	if err := secure.load(&cfg); err != nil {
		return err
	}
	if *memory {
		cfg.DataDir = ""
	}
	if *enforce != "" {
		for scheme := range strings.SplitSeq(*enforce, ",") {
			scheme = strings.TrimSpace(scheme)
			if !(scheme == "ip" || scheme == "digest" && !cfg.NoDigest || scheme == "x509" && cfg.SecureAddr != "") {
				return usageError{fmt.Errorf("invalid value %q for flag -enforce-auth: no client can authenticate with scheme %q", *enforce, scheme)}
			}
			cfg.EnforceAuth = append(cfg.EnforceAuth, scheme)
		}
	}
	for w := range strings.SplitSeq(*words, ",") {
		cfg.FourLetterWords = append(cfg.FourLetterWords, strings.TrimSpace(w))
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	s, err := lockkeeper.Open(cfg)
	if err != nil {
		return err
	}
	if s.Wait(ctx) == nil {
		if a := s.SecureAddr(); a != nil {
			fmt.Fprintf(stderr, "lockkeeper: serving ZooKeeper clients with TLS on %s\n", a)
		}
		if a := s.Addr(); a != nil {
			fmt.Fprintf(stderr, "lockkeeper: serving ZooKeeper clients on %s\n", a)
		}
	}
	select {
	case err := <-s.Err():
		return errors.Join(err, s.Close())
	case <-ctx.Done():
		cancel() // a second signal ends the process at once
		return s.Close()
	}
}

// parsePeers reads ID=HOST:PORT,ID=HOST:PORT:observer,…
func parsePeers(list string) (peers map[uint64]string, observers []uint64, err error) {
	peers = map[uint64]string{}
	for p := range strings.SplitSeq(list, ",") {
		name, addr, ok := strings.Cut(strings.TrimSpace(p), "=")
		id, err := strconv.ParseUint(name, 10, 64)
		switch {
		case !ok || err != nil || id == 0 || id > 254:
			return nil, nil, fmt.Errorf("%q is not ID=HOST:PORT with an id in 1 to 254", p)
		case peers[id] != "":
			return nil, nil, fmt.Errorf("server %d is there twice", id)
		}
		addr, observer := strings.CutSuffix(addr, ":observer")
		if err := checkPeer(addr); err != nil {
			return nil, nil, err
		}
		for other, a := range peers {
			if a == addr {
				return nil, nil, fmt.Errorf("servers %d and %d have one address", min(id, other), max(id, other))
			}
		}
		peers[id] = addr
		if observer {
			observers = append(observers, id)
		}
	}
	return peers, observers, nil
}

// checkPeer refuses what is no address that other members can reach.
func checkPeer(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	switch n, _ := strconv.ParseUint(port, 10, 16); {
	case err != nil:
		return err
	case host == "" || n == 0:
		return fmt.Errorf("%q is not HOST:PORT as other members reach it", addr)
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		return fmt.Errorf("%q is not HOST:PORT as other members reach it", addr)
	}
	return nil
}
