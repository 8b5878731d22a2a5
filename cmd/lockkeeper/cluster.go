package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/lockkeeper/lockkeeper/cluster"
	"github.com/lockkeeper/lockkeeper/internal/rawclient"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/znode"
)

const clusterUsage = "cluster status | add ID=HOST:PORT | remove ID | transfer [ID]"

// clusterCommand asks a member about the members, or to change them.
func clusterCommand(args []string, getenv func(string) string, stdout io.Writer) error {
	f := flag.NewFlagSet(clusterUsage, flag.ContinueOnError)
	servers := f.String("server", "127.0.0.1:2181", "client ports, `HOST:PORT,…`, of members, of which the first to answer tells all peer ports")
	peer := f.String("peer", "", "peer port, `HOST:PORT`, of any member, instead of -server")
	observer := f.Bool("observer", false, "with add: a member that does not vote")
	asJSON := f.Bool("json", false, "print JSON")
	timeout := f.Duration("timeout", 15*time.Second, "how long to wait")
	peerTLS := peerTLSFlags(f)
	given, err := parse("cluster", f, args, getenv, stdout)
	if err != nil {
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
	byPeer := given["peer"] > given["server"]
	switch err := checkPeer(*peer); {
	case given["peer"] != byDefault && given["peer"] == given["server"]:
		return usageError{errors.New("both -server and -peer")}
	case byPeer && err != nil:
		return usageError{fmt.Errorf("invalid value %q for flag -peer: %w", *peer, err)}
	}
	if *observer && q.Add == nil {
		return usageError{errors.New("-observer goes with add")}
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	ctx, cancel = context.WithTimeout(ctx, *timeout)
	defer cancel()
	peers := []string{*peer}
	if !byPeer {
		if peers, err = peersOf(ctx, *servers); err != nil {
			return err
		}
	}
	var s *cluster.Status
	for _, addr := range peers {
		s, err = cluster.Ask(ctx, cluster.TCP{TLS: config}, addr, q)
		if down := (*net.OpError)(nil); !errors.As(err, &down) || down.Op != "dial" {
			break
		}
	}
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

// peersOf asks servers at their client ports for the peer ports of all members,
// until one answers. Its own comes first.
func peersOf(ctx context.Context, servers string) (peers []string, err error) {
	for addr := range strings.SplitSeq(servers, ",") {
		if peers, err = peersBy(ctx, strings.TrimSpace(addr)); err == nil {
			return peers, nil
		}
	}
	return nil, err
}

// peersBy reads /zookeeper/config, which everybody may, also in read-only mode.
func peersBy(ctx context.Context, addr string) (peers []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	nc, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	defer stop()
	c := rawclient.New(nc)
	err = c.Handshake(&proto.ConnectRequest{
		Timeout: 10_000, Password: make([]byte, proto.PasswordLen), HasReadOnly: true, ReadOnly: true,
	})
	var config proto.DataReply
	if err == nil {
		config, err = c.Get(znode.ConfigPath, false)
		c.Call(proto.OpCloseSession, nil, nil)
	}
	if err != nil {
		return nil, fmt.Errorf("%s does not tell the members: %w", addr, cmp.Or(ctx.Err(), err))
	}
	members, err := proto.ParseServers(string(config.Data))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", addr, err)
	case len(members) == 0:
		return nil, fmt.Errorf("%s is alone and no member of a cluster", addr)
	}
	self := uint64(c.Session.SessionID) >> 56 // who gave the id
	for _, m := range members {
		if m.ID == self {
			peers = slices.Insert(peers, 0, m.Addr)
		} else {
			peers = append(peers, m.Addr)
		}
	}
	return peers, nil
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
