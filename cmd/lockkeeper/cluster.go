package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/lockkeeper/lockkeeper/cluster"
)

const clusterUsage = "cluster status | add ID=HOST:PORT | remove ID | transfer [ID]"

// clusterCommand asks a member about the members, or to change them.
func clusterCommand(args []string, getenv func(string) string, stdout io.Writer) error {
	f := flag.NewFlagSet(clusterUsage, flag.ContinueOnError)
	peer := f.String("peer", "127.0.0.1:7000", "peer port, `HOST:PORT`, of any member")
	observer := f.Bool("observer", false, "with add: a member that does not vote")
	asJSON := f.Bool("json", false, "print JSON")
	timeout := f.Duration("timeout", 15*time.Second, "how long to wait")
	peerTLS := peerTLSFlags(f)
	if _, err := parse(f, args, getenv, stdout); err != nil {
		return err
	}
	config, err := peerTLS()
	if err != nil {
		return err
	}
	q, err := clusterRequest(f.Args(), *observer)
	if err != nil {
		return usageError{err}
	}
	if err := checkPeer(*peer); err != nil {
		return usageError{fmt.Errorf("invalid value %q for flag -peer: %w", *peer, err)}
	}
	if *observer && q.Add == nil {
		return usageError{errors.New("-observer goes with add")}
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	ctx, cancel = context.WithTimeout(ctx, *timeout)
	defer cancel()
	s, err := cluster.Ask(ctx, cluster.TCP{TLS: config}, *peer, q)
	if err != nil {
		return err
	}
	if *asJSON {
		return json.NewEncoder(stdout).Encode(s)
	}
	fmt.Fprintf(stdout, "server %d is %s, in term %d at entry %d, zxid 0x%x, digest %s\n", s.ID, s.Role, s.Term, s.Index, s.Zxid, s.Digest)
	for _, m := range s.Members {
		role := "follower"
		switch {
		case m.ID == s.Leader:
			role = "leader"
		case !m.Voter:
			role = "observer"
		}
		fmt.Fprintf(stdout, "%-4d %-30s %s\n", m.ID, m.Addr, role)
	}
	return nil
}

func clusterRequest(args []string, observer bool) (q cluster.Request, err error) {
	if len(args) == 0 {
		return q, errors.New("usage: " + clusterUsage)
	}
	command, args := args[0], args[1:]
	switch {
	case command == "status" && len(args) == 0:
		q.Status = true
	case command == "add" && len(args) == 1:
		peers, observers, err := parsePeers(args[0])
		if err != nil {
			return q, err
		}
		if len(peers) != 1 || observer && len(observers) > 0 {
			return q, errors.New("usage: " + clusterUsage)
		}
		for id, addr := range peers {
			q.Add = &cluster.MemberInfo{ID: id, Addr: addr, Voter: !observer && len(observers) == 0}
		}
	case command == "remove" && len(args) == 1:
		if q.Remove, err = strconv.ParseUint(args[0], 10, 64); err != nil || q.Remove == 0 {
			return q, fmt.Errorf("%q is no server id", args[0])
		}
	case command == "transfer" && len(args) <= 1:
		q.Transfer = new(uint64)
		if len(args) == 1 {
			if *q.Transfer, err = strconv.ParseUint(args[0], 10, 64); err != nil || *q.Transfer == 0 {
				return q, fmt.Errorf("%q is no server id", args[0])
			}
		}
	default:
		return q, errors.New("usage: " + clusterUsage)
	}
	return q, nil
}
