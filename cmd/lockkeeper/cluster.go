package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lockkeeper/lockkeeper/cluster"
	"github.com/lockkeeper/lockkeeper/internal/rawclient"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/znode"
)

// clusterOptions are the flags of all cluster commands.
type clusterOptions struct {
	servers, peer string
	json          bool
	timeout       time.Duration
	tls           peerTLSFlags
}

func clusterCommand() *cobra.Command {
	var o clusterOptions
	c := &cobra.Command{
		Use:   "cluster COMMAND",
		Short: "Show or change the members of a cluster",
		Long: `Show or change the members of a cluster. Every command prints the members when it
is done.

The command asks a server at its client port (--server) for the peer ports of all
members, and then connects to a peer port. So it has to run where it can reach the
peer ports. For a member that does not serve clients, because it has no majority or
is in no cluster yet, give its peer port instead (--peer).`,
		Example: `  lockkeeper cluster status --server a:2181,b:2181,c:2181
  lockkeeper cluster add 4=d:7000 --server a:2181`,
	}
	c.Flags().SortFlags, c.PersistentFlags().SortFlags = false, false
	group(c.PersistentFlags(), "Which server to ask", func(f *pflag.FlagSet) {
		f.StringVar(&o.servers, "server", "127.0.0.1:2181", "client ports of members, `HOST:PORT,...`; the first one that answers is used")
		f.StringVar(&o.peer, "peer", "", "the peer port of any member, `HOST:PORT`, instead of --server")
		o.tls.define(f)
		f.DurationVar(&o.timeout, "timeout", 15*time.Second, "how long to wait")
	})
	group(c.PersistentFlags(), "Output", func(f *pflag.FlagSet) { f.BoolVar(&o.json, "json", false, "print JSON") })
	for _, flag := range []string{"peer-tls-cert", "peer-tls-key", "peer-tls-ca"} {
		must(c.MarkPersistentFlagFilename(flag))
	}
	observer := false
	add := o.command("add ID=HOST:PORT", "Add a running server",
		`Add a server to the cluster, given its id and its peer port. The server must be
running, with --peer-listen. It gets a vote as soon as it has caught up. If the
server is already a member, add changes its address or, with --observer, takes its
vote away.`,
		"  lockkeeper cluster add 4=d:7000\n  lockkeeper cluster add 5=e:7000 --observer", 1, 1,
		func(args []string) (q cluster.Request, err error) {
			peers, observers, err := parsePeers(args[0])
			if err == nil && len(peers) != 1 {
				err = errors.New("cluster add takes one server, ID=HOST:PORT")
			}
			for id, addr := range peers {
				q.Add = &cluster.MemberInfo{ID: id, Addr: addr, Voter: !observer && len(observers) == 0}
			}
			return q, err
		})
	add.Flags().BoolVar(&observer, "observer", false, "add it as an observer, which does not vote")
	c.AddCommand(
		o.command("status", "Show the members and the leader",
			`Show what a member knows about the cluster, and what each member says about itself:
its role, and how far it has applied the log. A member that lags has a lower entry.
The first line ends with the id of the cluster, which never changes. A member with
another id has the wrong data directory, or the list of members a wrong address. If a
member's state differs from the leader's, it has stopped: see "Two members differ" in
docs/operations.md.

A server that is in no cluster yet says what it is waiting for; ask it with --peer.

In the JSON, "cluster" is the id, "" in no cluster; "configured" are the members with
which a server is to form a cluster, and "waiting" is why it is in none yet; "noVote"
is why a member has no vote that was not started as an observer; "differs" are the ids
of members that differ, each with the first entry at which that was seen; and "answers"
is what the members say about themselves, without those that do not answer.`,
			"  lockkeeper cluster status\n  lockkeeper cluster status --json --server a:2181,b:2181\n  lockkeeper cluster status --peer a:7000", 0, 0,
			func([]string) (cluster.Request, error) { return cluster.Request{Status: true}, nil }),
		o.command("form", "Form a new cluster although not all of its servers are there",
			`Let a server form the cluster that its --peers lists with those that are running,
although not all of them are. They must be a majority of the voting servers. Without
this command a cluster is formed as soon as all its voting servers have been started.
The absent ones join later, when they are started.

Use it only if you know that the cluster has never been formed. An absent server that
belongs to it already may have writes that were acknowledged, and the others would
begin without them. If the directories were restored from a snapshot, or are from a
build in which clusters had no ids, use it only if the disks of the absent servers are
lost.

The server that forms the cluster serves no clients yet, so it is asked at its peer
port, with --peer.`,
			"  lockkeeper cluster form --peer a:7000", 0, 0,
			func([]string) (cluster.Request, error) { return cluster.Request{Form: true}, nil }),
		add,
		o.command("remove ID", "Remove a member",
			`Remove a member permanently. If it is running, it exits with a message that says
so. The last voting member cannot be removed.`,
			"  lockkeeper cluster remove 2", 1, 1,
			func(args []string) (q cluster.Request, err error) {
				q.Remove, err = parseID(args[0])
				return q, err
			}),
		o.command("transfer [ID]", "Hand leadership over to another member",
			"Hand leadership over to the member with this id, or to any other voting member.",
			"  lockkeeper cluster transfer\n  lockkeeper cluster transfer 3", 0, 1,
			func(args []string) (q cluster.Request, err error) {
				q.Transfer = new(uint64)
				if len(args) == 1 {
					*q.Transfer, err = parseID(args[0])
				}
				return q, err
			}),
	)
	return c
}

// command returns a cluster command that takes between least and most arguments.
// request turns the arguments into the request to send.
func (o *clusterOptions) command(use, short, long, example string, least, most int, request func(args []string) (cluster.Request, error)) *cobra.Command {
	c := &cobra.Command{
		Use: use, Short: short, Long: long, Example: example, ValidArgsFunction: cobra.NoFileCompletions,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) < least || len(args) > most {
				return fmt.Errorf("usage: %s", c.UseLine())
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			q, err := request(args)
			if err != nil {
				return usageError{err}
			}
			return o.ask(c.Flags(), q, c.OutOrStdout())
		},
	}
	c.Flags().SortFlags = false
	return c
}

func parseID(text string) (uint64, error) {
	id, err := strconv.ParseUint(text, 10, 64)
	if err != nil || id == 0 || id > 254 {
		return 0, fmt.Errorf("%q is not a server id", text)
	}
	return id, nil
}

// ask sends q to a member and prints the answer.
func (o *clusterOptions) ask(flags *pflag.FlagSet, q cluster.Request, stdout io.Writer) error {
	config, err := o.tls.load(flags)
	if err != nil {
		return err
	}
	serverSource, server := sourceOf(flags.Lookup("server"))
	peerSource, _ := sourceOf(flags.Lookup("peer"))
	byPeer := peerSource > serverSource
	switch err := checkPeer(o.peer); {
	case peerSource != byDefault && peerSource == serverSource:
		return badFlag(flags, "peer", "it cannot be combined with %s", server)
	case byPeer && err != nil:
		return badFlag(flags, "peer", "%w", err)
	case q.Form && !byPeer:
		return usageError{errors.New("say with --peer which server is to form the cluster: its client port serves nobody yet")}
	}
	if err := needPositive(flags, "timeout"); err != nil {
		return err
	}
	var servers []string
	if !byPeer {
		if servers, err = serverList(flags, "server"); err != nil {
			return err
		}
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	ctx, cancel = context.WithTimeout(ctx, o.timeout)
	defer cancel()
	peers := []string{o.peer}
	if !byPeer {
		if peers, err = peersOf(ctx, servers); err != nil {
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
	own := ownStatus(ctx, cluster.TCP{TLS: config}, s)
	if o.json {
		return json.NewEncoder(stdout).Encode(struct {
			*cluster.Status
			Answers []memberStatus `json:"answers"`
		}{s, own})
	}
	printStatus(stdout, s, own)
	return nil
}

// printStatus prints what a member says about the cluster, and what the members say about
// themselves.
func printStatus(w io.Writer, s *cluster.Status, own []memberStatus) {
	if s.Formed {
		fmt.Fprintf(w, "server %d is %s, in term %d at entry %d, zxid 0x%x, digest %s, cluster %v\n", s.ID, s.Role, s.Term, s.Index, s.Zxid, s.Digest, s.Cluster)
	} else {
		data := ""
		if s.Data {
			data = ", and has data without the id of a cluster"
		}
		fmt.Fprintf(w, "server %d is in no cluster yet%s\n", s.ID, data)
	}
	for _, m := range membersOf(s) {
		says := "does not answer"
		if i := slices.IndexFunc(own, func(x memberStatus) bool { return x.ID == m.ID }); i >= 0 {
			switch x := own[i]; {
			case x.Cluster == 0:
				says = "in no cluster yet"
			case x.Cluster != s.Cluster:
				says = fmt.Sprintf("%-10s at entry %d, belongs to cluster %v", x.Role, x.Index, x.Cluster)
			default:
				says = fmt.Sprintf("%-10s at entry %d", x.Role, x.Index)
				if x.NoVote != "" {
					says += ", " + x.NoVote
				}
			}
		}
		if i := slices.IndexFunc(s.Differs, func(d cluster.Difference) bool { return d.ID == m.ID }); i >= 0 {
			says += fmt.Sprintf(", its state differs at entry %d", s.Differs[i].Index)
		}
		fmt.Fprintf(w, "%-4d %-30s %s\n", m.ID, m.Addr, says)
	}
	if s.Waiting != "" {
		fmt.Fprintf(w, "reason: %s\n", strings.ReplaceAll(s.Waiting, "\n", "; "))
	}
}

// memberStatus is what a member says about itself.
type memberStatus struct {
	ID      uint64            `json:"id"`
	Role    string            `json:"role"`
	Cluster cluster.ClusterID `json:"cluster"`
	Term    uint64            `json:"term"`
	Index   uint64            `json:"index"`
	Zxid    int64             `json:"zxid"`
	NoVote  string            `json:"noVote,omitempty"`
}

// membersOf returns the members of the cluster that s is about, or is to be about.
func membersOf(s *cluster.Status) []cluster.MemberInfo {
	if !s.Formed {
		return s.Configured
	}
	return s.Members
}

// ownStatus asks each member that s names for its own status, all at once, and returns those
// that answer in time, sorted by id. It adds to s the members that differ, which only the
// leader knows.
func ownStatus(ctx context.Context, network cluster.Network, s *cluster.Status) (all []memberStatus) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	members := membersOf(s)
	answers := make(chan *cluster.Status)
	for _, m := range members {
		go func() {
			x, err := cluster.Ask(ctx, network, m.Addr, cluster.Request{Status: true})
			if err != nil || x == nil || x.ID != m.ID { // another server may have that address now
				x = nil
			}
			answers <- x
		}()
	}
	for range members {
		x := <-answers
		if x == nil {
			continue
		}
		all = append(all, memberStatus{x.ID, x.Role, x.Cluster, x.Term, x.Index, x.Zxid, x.NoVote})
		if x.Cluster == s.Cluster && len(x.Differs) > 0 {
			s.Differs = x.Differs
		}
	}
	slices.SortFunc(all, func(a, b memberStatus) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// startTime is how long the commands try to reach servers that may just have been started.
const startTime = time.Second

// errNotServing says that a server closes the connections of clients.
var errNotServing = errors.New("serves no clients at the moment, as when it has no majority or is in no cluster yet; its peer port (--peer) tells more")

// peersOf asks servers at their client ports for the peer ports of all members, until
// one answers. The peer port of that server comes first.
func peersOf(ctx context.Context, servers []string) ([]string, error) {
	var before error
	for late := time.After(startTime); ; {
		var err error
		for _, addr := range servers {
			var peers []string
			if peers, err = peersBy(ctx, addr); err == nil {
				return peers, nil
			}
		}
		switch {
		case ctx.Err() != nil, errors.Is(err, context.DeadlineExceeded):
			return nil, cmp.Or(before, err) // an earlier error says more than that the last attempt was cut short
		case !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, errNotServing):
			return nil, err
		}
		before = err
		select {
		case <-time.After(100 * time.Millisecond):
		case <-late:
			return nil, err
		case <-ctx.Done():
			return nil, err
		}
	}
}

// peersBy reads /zookeeper/config, which everyone may read, even in read-only mode.
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
	switch {
	case err == io.EOF:
		return nil, fmt.Errorf("%s %w", addr, errNotServing)
	case err != nil:
		return nil, fmt.Errorf("cannot get the members from %s: %w", addr, cmp.Or(ctx.Err(), err))
	}
	members, err := proto.ParseServers(string(config.Data))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", addr, err)
	case len(members) == 0:
		return nil, fmt.Errorf("%s is a standalone server, not a member of a cluster", addr)
	}
	self := uint64(c.Session.SessionID) >> 56 // the id of the server that opened the session
	for _, m := range members {
		if m.ID == self {
			peers = slices.Insert(peers, 0, m.Addr)
		} else {
			peers = append(peers, m.Addr)
		}
	}
	return peers, nil
}
