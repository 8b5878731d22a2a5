package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/lockkeeper/lockkeeper/internal/core/election"
	"github.com/lockkeeper/lockkeeper/internal/core/peer"
	"github.com/lockkeeper/lockkeeper/internal/core/request"
	"github.com/lockkeeper/lockkeeper/internal/tools/connect"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/znode"
)

type clusterOptions struct {
	servers, peer string
	json          bool
	yes, dryRun   bool // of add and remove
	timeout       time.Duration
	tls           clientTLS
	peerTLS       peerTLSFlags
}

const statusHelp = `Show what a member knows about the cluster, and what each member says about itself:
its client port, its role, how far it has applied the log, whether it uses TLS with
other members, and its version. A member that lags has a lower entry. "PEER TLS" is no,
or the mode of --peer-tls-mode: accept, use or only. The first line ends with the id of the cluster, which
never changes. A member with another id has the wrong data directory, or the list of
members a wrong address. If a member's state differs from the leader's, one of the two
is wrong, and has stopped or does not serve: see "Two members differ" in
docs/operations.md.

The last line is the health of the cluster, which is also the exit code:

  0  ok: all members answer, and serve clients
  3  degraded: the cluster works, but something is wrong with some of its members
  1  no majority: of the voting members, fewer than a majority answer and follow the
     same leader; or no server could be asked

A member that has just been started is waited for: with --server until one of these
serves clients and all that answer do, or --timeout. With --peer nothing is waited for.

So run it where all peer ports can be reached: a member that only this command cannot
reach counts as one that does not answer.

A server that is in no cluster yet says what it is waiting for; ask it with --peer. If
TLS with a member fails, its state says which side refuses the other, and why.

The JSON of the member that was asked has these fields:

  id, role       of that member; the role is leader, follower, observer (without a
                 vote) or looking (it knows no leader)
  leader         the id of the leader, 0 if it knows none
  term, index, zxid, digest  what it has applied of the log
  cluster        the id of the cluster, "" in none yet
  members        each with id, address (of the peer port) and voter
  version, serving, clientPort, secureClientPort, peerTLS  of that member
  formed, data, run  whether it is in the cluster, whether it has data, and a number
                 that changes with each start
  configured, waiting  only if it is in no cluster yet: the members with which it is to
                 form one, and why it has not
  noVote         only if it has no vote, but was not started as an observer: why
  differs        members that differ, each with id and index, the entry where that was
                 first seen
  answers        what the members that answer say about themselves, with fields of the
                 same names
  health         ok, degraded or no majority
  problems       what is wrong, a sentence each`

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
	group(c.PersistentFlags(), "Which server to ask", func(f *pflag.FlagSet) {
		f.StringVar(&o.servers, "server", "127.0.0.1:2181", "client ports of members, "+serverUsage+", and PATH does not matter; the first one that answers is used")
		o.tls.define(f)
		f.StringVar(&o.peer, "peer", "", "the peer port of any member, `HOST:PORT`, instead of --server")
		o.peerTLS.define(f)
		f.DurationVar(&o.timeout, "timeout", 15*time.Second, "how long to wait")
	})
	group(c.PersistentFlags(), "Output", func(f *pflag.FlagSet) { f.BoolVar(&o.json, "json", false, "print JSON") })
	observer := false
	add := o.command("add ID=HOST:PORT", "Add a running server",
		`Add a server to the cluster, given its id and its peer port. The server must be
running, with --peer-listen. It gets a vote as soon as it has caught up. If the
server is already a member, add changes its address or, with --observer, takes its
vote away.

`+asks,
		"  lockkeeper cluster add 4=d:7000\n  lockkeeper cluster add 5=e:7000 --observer", 1, 1,
		func(args []string) (q request.Request, err error) {
			peers, err := parsePeers(args[0])
			switch {
			case err != nil:
				return q, err
			case len(peers) != 1:
				return q, errors.New("cluster add takes one server, ID=HOST:PORT")
			case peers[0].ClientAddr != "":
				return q, errors.New("cluster add takes no address for clients: the server itself says it, with --peer-listen 'HOST:PORT;CLIENTPORT'")
			}
			q.Add = (*proto.Peer)(&peers[0])
			q.Add.Observer = q.Add.Observer || observer
			return q, nil
		})
	add.Flags().BoolVar(&observer, "observer", false, "add it as an observer, which does not vote")
	all := []*cobra.Command{
		o.command("status", "Show the members and the leader",
			statusHelp,
			"  lockkeeper cluster status\n  lockkeeper cluster status --json --server a:2181,b:2181\n  lockkeeper cluster status --peer a:7000", 0, 0,
			func([]string) (request.Request, error) { return request.Request{Status: true}, nil }),
		o.command("form", "Form a new cluster although not all of its servers are there",
			`Let a server form the cluster that its --peers lists with those that are running,
although not all of them are. They must be a majority of the voting servers. Without
this command a cluster is formed as soon as all its voting servers have been started.
The absent ones join later, when they are started.

Use it only if you know that the cluster has never been formed. An absent server that
belongs to it already may have writes that were acknowledged, and the others would
begin without them. If the directories were restored from a snapshot, use it only if the
disks of the absent servers are lost.

The server that forms the cluster serves no clients yet, so it is asked at its peer
port, with --peer.`,
			"  lockkeeper cluster form --peer a:7000", 0, 0,
			func([]string) (request.Request, error) { return request.Request{Form: true}, nil }),
		add,
		o.command("remove ID", "Remove a member",
			`Remove a member permanently. If it is running, it exits with a message that says
so. The last voting member cannot be removed.

`+asks,
			"  lockkeeper cluster remove 2\n  lockkeeper cluster remove --dry-run 2", 1, 1,
			func(args []string) (q request.Request, err error) {
				q.Remove, err = parseID(args[0])
				return q, err
			}),
		o.command("transfer [ID]", "Hand leadership over to another member",
			"Hand leadership over to the member with this id, or to any other voting member.",
			"  lockkeeper cluster transfer\n  lockkeeper cluster transfer 3", 0, 1,
			func(args []string) (q request.Request, err error) {
				q.Transfer = new(uint64)
				if len(args) == 1 {
					*q.Transfer, err = parseID(args[0])
				}
				return q, err
			}),
	}
	for _, sub := range all {
		if sub.Name() == "remove" || sub.Name() == "add" {
			sub.Flags().BoolVar(&o.yes, "yes", false, "do not ask")
			sub.Flags().BoolVar(&o.dryRun, "dry-run", false, "only say what would be left of the cluster, and change nothing")
		}
	}
	c.AddCommand(all...)
	return c
}

// command returns a cluster command that takes between least and most arguments.
// ask turns the arguments into the request to send.
func (o *clusterOptions) command(use, short, long, example string, least, most int, ask func(args []string) (request.Request, error)) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Long: long, Example: example,
		Args: takes(least, most),
		RunE: func(c *cobra.Command, args []string) error {
			q, err := ask(args)
			if err != nil {
				return usageError{err}
			}
			return o.ask(c, q)
		},
	}
}

// asks is what the help of add and remove says.
const asks = `If that takes a vote and leaves the cluster no voting member to lose, the command
says so and asks first. Where standard input is not a terminal, it needs --yes.`

func parseID(text string) (uint64, error) {
	id, err := strconv.ParseUint(text, 10, 64)
	if err != nil || id == 0 || id > 254 {
		return 0, fmt.Errorf("%q is not a server id", text)
	}
	return id, nil
}

// byPeer reports whether a peer port is asked, not client ports.
func byPeer(flags *pflag.FlagSet) bool {
	server, _ := sourceOf(flags.Lookup("server"))
	peer, _ := sourceOf(flags.Lookup("peer"))
	return peer > server
}

// send sends q to a member. It also returns the network by which members are reached. If it has to wait
// for the servers, it says so on stderr.
func (o *clusterOptions) send(ctx context.Context, flags *pflag.FlagSet, q request.Request, stderr io.Writer) (s *request.Status, network peer.TCP, err error) {
	switch keeper, err := o.peerTLS.load(flags, slog.New(slog.DiscardHandler)); {
	case err != nil:
		return nil, network, err
	case keeper != nil:
		network.TLS = keeper.Dial()
	}
	dialer, err := o.tls.dialer(flags)
	if err != nil {
		return nil, network, err
	}
	serverSource, server := sourceOf(flags.Lookup("server"))
	peerSource, _ := sourceOf(flags.Lookup("peer"))
	byPeer := byPeer(flags)
	switch err := checkPeer(o.peer); {
	case peerSource != byDefault && peerSource == serverSource:
		return nil, network, badFlag(flags, "peer", "it cannot be combined with %s", server)
	case byPeer && err != nil:
		return nil, network, badFlag(flags, "peer", "%w", err)
	case q.Form && !byPeer:
		return nil, network, usageError{errors.New("say with --peer which server is to form the cluster: its client port serves nobody yet")}
	}
	if err := needPositive(flags, "timeout"); err != nil {
		return nil, network, err
	}
	var servers []string
	if !byPeer {
		if servers, _, err = serversIn(flags, "server"); err != nil {
			return nil, network, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	peers := []string{o.peer}
	if !byPeer {
		waits := func(why error) { sayTrying(stderr, why, o.timeout, "timeout") }
		if peers, err = peersOf(ctx, dialer, servers, waits); err != nil {
			return nil, network, err
		}
	}
	var down []error
	for _, addr := range peers {
		s, err = request.Ask(ctx, network, addr, q)
		if dial := (*net.OpError)(nil); !errors.As(err, &dial) || dial.Op != "dial" {
			return s, network, explainPeer(ctx, network.TLS, addr, err)
		}
		down = append(down, fmt.Errorf("%s: %w", addr, err))
	}
	return nil, network, errors.Join(down...)
}

// ask sends q to a member and prints the answer.
func (o *clusterOptions) ask(c *cobra.Command, q request.Request) error {
	ctx, cancel := interruptible()
	defer cancel()
	if (q.Remove != 0 || q.Add != nil) && (o.dryRun || !o.yes) {
		if err := o.weigh(ctx, c, q); err != nil || o.dryRun {
			return err
		}
	}
	waiting, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	s, network, err := o.send(waiting, c.Flags(), q, c.ErrOrStderr())
	if err != nil {
		return err
	}
	x := clusterStatus{Status: s}
	x.Answers, x.apart = ownStatus(ctx, network, s)
	switch {
	case !q.Status:
		waiting, cancel = context.WithTimeout(ctx, settleTime)
		defer cancel()
		x.settle(waiting, network, x.changed)
	case !byPeer(c.Flags()):
		x.settle(waiting, network, x.started)
	}
	x.judge()
	if o.json {
		err = json.NewEncoder(c.OutOrStdout()).Encode(&x)
	} else {
		err = x.print(c.OutOrStdout())
	}
	if err != nil || !q.Status {
		return err
	}
	switch x.Health {
	case healthy:
		return nil
	case degraded:
		return &exitError{code: exitDegraded}
	}
	return &exitError{code: exitFault}
}

// weigh says what a change of the members would leave of the cluster, with --dry-run, or if it takes a vote and leaves no
// voting member to lose. Then it asks whether to go on, and returns an error if not.
func (o *clusterOptions) weigh(ctx context.Context, c *cobra.Command, q request.Request) error {
	s, network, err := o.send(ctx, c.Flags(), request.Request{Status: true}, c.ErrOrStderr())
	if err != nil {
		return err
	}
	x := clusterStatus{Status: s}
	x.Answers, _ = ownStatus(ctx, network, s)
	left, taken := x.leaves(q)
	switch says := left.String(); {
	case q.Remove != 0 && memberOf(s.Members, q.Remove) == nil && o.dryRun:
		return fmt.Errorf("server %d is not a member", q.Remove)
	case left.Voters == 0 && o.dryRun:
		return errors.New("the last voting member cannot be removed")
	case o.dryRun && o.json:
		return json.NewEncoder(c.OutOrStdout()).Encode(left)
	case o.dryRun:
		_, err := fmt.Fprintf(c.OutOrStdout(), "The cluster would have %s. Nothing was changed.\n", says)
		return err
	case !taken || left.Spare > 0 || left.Voters == 0: // or the server refuses
		return nil
	default:
		in, isFile := c.InOrStdin().(*os.File)
		if !isFile || !term.IsTerminal(int(in.Fd())) {
			return usageError{fmt.Errorf("the cluster would have %s; to go on all the same, give --yes", says)}
		}
		return confirm(ctx, in, c.ErrOrStderr(), fmt.Sprintf("The cluster will have %s.\nGo on? Type yes: ", says), "changed")
	}
}

// A remainder is what a change of the members leaves of a cluster.
type remainder struct {
	Voters   int `json:"voters"`   // voting members
	Answer   int `json:"answer"`   // those of them that answer, and follow the leader
	Majority int `json:"majority"` // how many the cluster needs
	Spare    int `json:"spare"`    // how many of those that answer it can lose; less than 0 if they are too few already
}

func (r *remainder) String() string {
	then := "can lose " + strconv.Itoa(r.Spare)
	switch {
	case r.Spare == 0:
		then = "stops when it loses one more"
	case r.Spare < 0:
		then = "stops"
	}
	return fmt.Sprintf("%d voting members, of which %d answer; it needs %d, so it %s", r.Voters, r.Answer, r.Majority, then)
}

// leaves returns what a change of the members leaves, and whether it takes a vote.
func (x *clusterStatus) leaves(q request.Request) (r remainder, taken bool) {
	id := q.Remove
	if q.Add != nil {
		id = q.Add.ID
	}
	was := memberOf(x.Members, id)
	voter := q.Add != nil && !q.Add.Observer
	for _, m := range x.Members {
		if a := x.answerOf(m.ID); m.ID != id && !m.Observer {
			r.Voters++
			if a != nil && a.Cluster == x.Cluster && a.Leader == x.Leader {
				r.Answer++
			}
		}
	}
	if voter { // it gets its vote only when it has caught up
		r.Voters++
		r.Answer++
	}
	r.Majority = r.Voters/2 + 1
	r.Spare = r.Answer - r.Majority
	return r, was != nil && !was.Observer && !voter
}

// settleTime is how long after a change the command waits until the members know of it.
const settleTime = 2 * time.Second

// settle asks the members again until what they say is settled, or ctx ends.
func (x *clusterStatus) settle(ctx context.Context, network peer.Network, settled func() bool) {
	for !settled() {
		select {
		case <-ctx.Done():
			return
		case <-time.After(20 * time.Millisecond):
		}
		s := x.Status
		if m := memberOf(s.Members, s.ID); m != nil { // otherwise it has removed itself
			if now, err := request.Ask(ctx, network, m.Addr, request.Request{Status: true}); err == nil && now != nil && now.ID == s.ID {
				s = now
			}
		}
		own, apart := ownStatus(ctx, network, s)
		if ctx.Err() != nil {
			return // not all could answer
		}
		if x.Status = s; len(own) > 0 {
			x.Answers, x.apart = own, apart
		}
	}
}

// changed reports whether all members that answer know what a change has made of them.
func (x *clusterStatus) changed() bool {
	s, own := x.Status, x.Answers
	if len(own) > 0 && s.Leader != own[0].Leader && memberOf(s.Members, s.ID) != nil {
		return false // s is of a moment before these answers
	}
	for _, a := range own {
		m := memberOf(s.Members, a.ID)
		if m == nil || (a.Role == "observer") == !m.Observer || a.Leader != own[0].Leader || memberOf(s.Members, a.Leader) == nil {
			return false
		}
	}
	return true
}

// started reports whether no member looks as if it had just been started, and would soon serve clients.
// Without a leader none would.
func (x *clusterStatus) started() bool {
	return x.Leader == 0 || !slices.ContainsFunc(x.Answers, func(a memberStatus) bool {
		differs := slices.ContainsFunc(x.Differs, func(d election.Difference) bool { return d.ID == a.ID })
		return !a.Serving && !differs && (a.Cluster == 0 || a.Cluster == x.Cluster)
	})
}

func memberOf(members []proto.Peer, id uint64) *proto.Peer {
	if i := slices.IndexFunc(members, func(m proto.Peer) bool { return m.ID == id }); i >= 0 {
		return &members[i]
	}
	return nil
}

// explainPeer finds out whether a peer port did not answer because it speaks TLS and the client
// does not, or the reverse.
func explainPeer(ctx context.Context, config *tls.Config, addr string, err error) error {
	closed := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
	if !closed && !errors.As(err, new(tls.RecordHeaderError)) {
		return err
	}
	if config == nil {
		if secure, ok := connect.Speaks(ctx, addr); ok && secure {
			return fmt.Errorf("%s speaks TLS: ask it with --peer-tls-cert and --peer-tls-ca", addr)
		}
		return err
	}
	if _, plain := request.Ask(ctx, peer.TCP{}, addr, request.Request{Status: true}); plain == nil {
		return fmt.Errorf("%s does not speak TLS: ask it without --peer-tls-cert and --peer-tls-ca", addr)
	}
	return err
}

type health string

const (
	healthy    health = "ok"
	degraded   health = "degraded"
	noMajority health = "no majority"
)

// clusterStatus is what cluster status prints.
type clusterStatus struct {
	*request.Status
	Answers  []memberStatus `json:"answers"`
	Health   health         `json:"health"`
	Problems []string       `json:"problems"`

	apart map[uint64]*peer.TLSError // why TLS with a member fails
}

// answerOf returns what a member says about itself; nil if it does not answer.
func (x *clusterStatus) answerOf(id uint64) *memberStatus {
	if i := slices.IndexFunc(x.Answers, func(a memberStatus) bool { return a.ID == id }); i >= 0 {
		return &x.Answers[i]
	}
	return nil
}

// wrong returns what is wrong with a member, "" if nothing is.
func (x *clusterStatus) wrong(id uint64) string {
	says := ""
	switch a := x.answerOf(id); {
	case a == nil && x.apart[id] != nil:
		says = "cannot be asked: " + x.apart[id].Error()
	case a == nil:
		says = "does not answer"
	case a.Cluster == 0:
		says = "in no cluster yet"
	case a.Cluster != x.Cluster:
		says = fmt.Sprintf("belongs to cluster %v", a.Cluster)
	case !a.Serving:
		says = "serves no clients"
	case a.NoVote != "": // with one voter less, the cluster may not outlast the loss of another
		says = a.NoVote
	}
	if i := slices.IndexFunc(x.Differs, func(d election.Difference) bool { return d.ID == id }); i >= 0 {
		differs := fmt.Sprintf("its state differs at entry %d", x.Differs[i].Index)
		says = strings.TrimPrefix(says+", "+differs, ", ")
	}
	return says
}

// judge finds out how well the cluster works, and what is wrong.
func (x *clusterStatus) judge() {
	x.Health, x.Problems = healthy, []string{}
	follow, voters, most := map[uint64]int{}, 0, 0 // by leader, those that follow it
	for _, m := range membersOf(x.Status) {
		if a := x.answerOf(m.ID); !m.Observer && a != nil && a.Cluster == x.Cluster && a.Leader != 0 {
			follow[a.Leader]++
			most = max(most, follow[a.Leader])
		}
		if !m.Observer {
			voters++
		}
		if why := x.wrong(m.ID); why != "" {
			x.Problems = append(x.Problems, fmt.Sprintf("server %d at %s: %s", m.ID, m.Addr, why))
		}
	}
	switch {
	case !x.Formed, 2*most <= voters:
		x.Health = noMajority
	case len(x.Problems) > 0:
		x.Health = degraded
	}
}

// print prints what a member says about the cluster, and what the members say about
// themselves.
func (x *clusterStatus) print(w io.Writer) error {
	s := x.Status
	if s.Formed {
		fmt.Fprintf(w, "server %d is %s, in term %d at entry %d, zxid 0x%x, digest %s, cluster %v\n", s.ID, s.Role, s.Term, s.Index, s.Zxid, s.Digest, s.Cluster)
	} else {
		data := ""
		if s.Data {
			data = ", and has data without the id of a cluster"
		}
		fmt.Fprintf(w, "server %d is in no cluster yet%s\n", s.ID, data)
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ID\tPEER PORT\tCLIENT PORT\tROLE\tENTRY\tPEER TLS\tVERSION\tSTATE")
	for _, m := range membersOf(s) {
		port, role, entry, peerTLS, version, vote := "-", "-", "-", "-", "-", ""
		if a := x.answerOf(m.ID); a != nil {
			role, entry, vote = a.Role, strconv.FormatUint(a.Index, 10), a.NoVote
			port, version = cmp.Or(a.ClientPort, a.SecurePort, "-"), cmp.Or(a.Version, "-")
			peerTLS = cmp.Or(a.PeerTLS, "-")
		}
		fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", m.ID, m.Addr, port, role, entry, peerTLS, version, cmp.Or(x.wrong(m.ID), vote, "ok"))
	}
	table.Flush() // an error shows again below
	if s.Waiting != "" {
		fmt.Fprintf(w, "reason: %s\n", strings.ReplaceAll(s.Waiting, "\n", "; "))
	}
	why := ""
	if len(x.Problems) > 0 {
		why = ": " + strings.Join(x.Problems, "; ")
	}
	_, err := fmt.Fprintf(w, "health: %s%s\n", x.Health, why)
	return err
}

// memberStatus is what a member says about itself.
type memberStatus struct {
	ID      uint64            `json:"id"`
	Role    string            `json:"role"`
	Leader  uint64            `json:"leader"`
	Cluster request.ClusterID `json:"cluster"`
	Term    uint64            `json:"term"`
	Index   uint64            `json:"index"`
	Zxid    int64             `json:"zxid"`
	NoVote  string            `json:"noVote,omitempty"`
	request.About
}

// membersOf returns the members of the cluster that s is about, or is to be about.
func membersOf(s *request.Status) []proto.Peer {
	if !s.Formed {
		return s.Configured
	}
	return s.Members
}

// ownStatus asks each member that s names for its own status, all at once, and returns those
// that answer in time, sorted by id, and why TLS fails with others. It adds to s the members that
// differ, which only the leader knows.
func ownStatus(ctx context.Context, network peer.Network, s *request.Status) (all []memberStatus, apart map[uint64]*peer.TLSError) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	members := membersOf(s)
	answers, errs := make([]*request.Status, len(members)), make([]error, len(members))
	var asking sync.WaitGroup
	for i, m := range members {
		asking.Go(func() { answers[i], errs[i] = request.Ask(ctx, network, m.Addr, request.Request{Status: true}) })
	}
	asking.Wait()
	apart = map[uint64]*peer.TLSError{}
	for i, x := range answers {
		if errs[i] != nil || x == nil || x.ID != members[i].ID { // another server may have that address now
			if why, ok := errors.AsType[*peer.TLSError](errs[i]); ok {
				apart[members[i].ID] = why
			}
			continue
		}
		all = append(all, memberStatus{x.ID, x.Role, x.Leader, x.Cluster, x.Term, x.Index, x.Zxid, x.NoVote, x.About})
		if x.Cluster == s.Cluster && len(x.Differs) > 0 {
			s.Differs = x.Differs
		}
	}
	slices.SortFunc(all, func(a, b memberStatus) int { return cmp.Compare(a.ID, b.ID) })
	return all, apart
}

// peersOf asks servers at their client ports for the peer ports of all members, until
// one answers: they may just have been started. The peer port of that server comes first. After a
// moment, if ctx does not end before, it calls waits once with what is wrong with each server. The error says the same, and
// names the peer ports of those that serve no clients.
func peersOf(ctx context.Context, dialer *connect.Dialer, servers []string, waits func(why error)) ([]string, error) {
	said := make([]error, len(servers))
	late := time.After(silentFor)
	if end, ok := ctx.Deadline(); ok && time.Until(end) <= silentFor {
		late = nil // the error says it
	}
	for {
		again := false
		for i, addr := range servers {
			peers, err := peersBy(ctx, dialer, addr)
			if err == nil {
				return peers, nil
			}
			// An earlier error says more than that the last attempt was cut short.
			if timeout := net.Error(nil); said[i] == nil || ctx.Err() == nil && !(errors.As(err, &timeout) && timeout.Timeout()) {
				said[i] = err
			}
			again = again || errors.Is(err, syscall.ECONNREFUSED) || errors.As(err, new(*connect.NotServing))
		}
		if again && ctx.Err() == nil {
			select {
			case <-time.After(100 * time.Millisecond):
				continue
			case <-late:
				waits(errors.Join(dialer.Explain(ctx, said)...))
				continue
			case <-ctx.Done():
			}
		}
		return nil, errors.Join(dialer.Explain(ctx, said)...)
	}
}

// peersBy reads /zookeeper/config, which everyone may read, even in read-only mode.
func peersBy(ctx context.Context, dialer *connect.Dialer, addr string) (peers []string, err error) {
	c, end, err := meet(ctx, dialer, addr)
	switch {
	case errors.As(err, new(*noMeeting)):
		return nil, fmt.Errorf("%w; name a member's client port with --server", err)
	case errors.As(err, new(connect.Hopeless)), errors.As(err, new(*connect.NotServing)):
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("cannot get the members from %s: %w", addr, err)
	}
	defer end()
	config, err := c.Get(znode.ConfigPath, false)
	c.Call(proto.OpCloseSession, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("cannot get the members from %s: %w", addr, err)
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
