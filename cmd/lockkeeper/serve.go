package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/lockkeeper/lockkeeper"
)

func serve(args []string, getenv func(string) string, stdout, stderr io.Writer) error {
	var cfg lockkeeper.Config
	f := flag.NewFlagSet("serve [FLAGS]", flag.ContinueOnError)
	f.StringVar(&cfg.ClientAddr, "listen", "127.0.0.1:2181", "`address` for clients; port 0 picks one")
	f.StringVar(&cfg.DataDir, "data", "lockkeeper-data", "`directory` to keep the state in")
	file := f.String("config", "", "a ZooKeeper zoo.cfg `file`; flags and the environment win over it")
	memory := f.Bool("memory", false, "keep the state in memory, and nowhere else")
	f.Uint64Var(&cfg.ID, "id", 1, "this server's `id`, 1 to 254")
	peers := f.String("peers", "", "`members` of a new cluster, by their peer ports: 1=HOST:PORT,2=HOST:PORT,3=HOST:PORT")
	f.StringVar(&cfg.PeerAddr, "peer-listen", "", "`address` of this server's peer port, as the other members reach it; by default that in -peers")
	f.StringVar(&cfg.Join, "join", "", "peer port, `HOST:PORT`, of a member of a running cluster, to be taken in by it")
	peerTLS := tlsFlags(f, "peer")
	f.DurationVar(&cfg.TickTime, "tick-time", 2*time.Second, "ZooKeeper's tickTime: sessions last 2 to 20 of it and end in steps of it")
	f.StringVar(&cfg.SuperDigest, "super-digest", "", "the super user, `USER:HASH` as for ZooKeeper's superDigest")
	f.IntVar(&cfg.MaxConnectionsPerAddress, "max-client-cnxns", 0, "connections that one address may have; 0 is any number")
	f.BoolVar(&cfg.NoTTL, "no-ttl", false, "refuse TTL znodes, as ZooKeeper does by default")
	words := f.String("4lw", "*", "four-letter `words` to answer, separated by commas; * is all")
	format := f.String("log-format", "text", "`format` of the log on standard error: text or json")
	level := slog.LevelWarn
	f.TextVar(&level, "log-level", level, "least `level` to log: debug, info, warn or error")
	given, err := parse(f, args, getenv, stdout)
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
		if cfg.Peers, err = parsePeers(*peers); err != nil {
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
	}
	if cfg.PeerTLS, err = peerTLS(); err != nil {
		return err
	}
	if cfg.TickTime < time.Millisecond {
		return usageError{fmt.Errorf("invalid value %v for flag -tick-time: below 1ms", cfg.TickTime)}
	}
	if cfg.SuperDigest != "" && !strings.Contains(cfg.SuperDigest, ":") {
		return usageError{fmt.Errorf("invalid value %q for flag -super-digest: not USER:HASH", cfg.SuperDigest)}
	}
	if cfg.MaxConnectionsPerAddress < 0 {
		return usageError{fmt.Errorf("invalid value %d for flag -max-client-cnxns: negative", cfg.MaxConnectionsPerAddress)}
	}
	if *memory {
		cfg.DataDir = ""
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
	for ready := s.Ready(); ; {
		select {
		case <-ready:
			fmt.Fprintf(stderr, "lockkeeper: serving ZooKeeper clients on %s\n", s.Addr())
			ready = nil
		case err := <-s.Err():
			return errors.Join(err, s.Close())
		case <-ctx.Done():
			cancel() // a second signal ends the process at once
			return s.Close()
		}
	}
}

// parsePeers reads ID=HOST:PORT,ID=HOST:PORT,…
func parsePeers(list string) (map[uint64]string, error) {
	peers := map[uint64]string{}
	for p := range strings.SplitSeq(list, ",") {
		name, addr, ok := strings.Cut(strings.TrimSpace(p), "=")
		id, err := strconv.ParseUint(name, 10, 64)
		switch {
		case !ok || err != nil || id == 0 || id > 254:
			return nil, fmt.Errorf("%q is not ID=HOST:PORT with an id in 1 to 254", p)
		case peers[id] != "":
			return nil, fmt.Errorf("server %d is there twice", id)
		}
		if _, _, err := net.SplitHostPort(addr); err != nil {
			return nil, err
		}
		peers[id] = addr
	}
	return peers, nil
}

// tlsFlags defines -NAME-tls-cert, -NAME-tls-key and -NAME-tls-ca, for mutual
// TLS, and returns what makes a configuration of them: nil if none was given.
func tlsFlags(f *flag.FlagSet, name string) func() (*tls.Config, error) {
	cert := f.String(name+"-tls-cert", "", "PEM `file` of the certificate to prove this side by, to "+name+"s")
	key := f.String(name+"-tls-key", "", "PEM `file` of its key")
	ca := f.String(name+"-tls-ca", "", "PEM `file` of the authorities whose certificates are good")
	return func() (*tls.Config, error) {
		if *cert == "" && *key == "" && *ca == "" {
			return nil, nil
		}
		if *cert == "" || *key == "" || *ca == "" {
			return nil, usageError{fmt.Errorf("-%[1]s-tls-cert, -%[1]s-tls-key and -%[1]s-tls-ca go together", name)}
		}
		pair, err := tls.LoadX509KeyPair(*cert, *key)
		if err != nil {
			return nil, err
		}
		pem, err := os.ReadFile(*ca)
		if err != nil {
			return nil, err
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s has no certificate", *ca)
		}
		return &tls.Config{
			Certificates: []tls.Certificate{pair}, RootCAs: pool, ClientCAs: pool,
			ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12,
		}, nil
	}
}
