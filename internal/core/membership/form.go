package membership

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/election"
	"github.com/lockkeeper/lockkeeper/internal/core/peer"
	"github.com/lockkeeper/lockkeeper/internal/core/request"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/internal/core/wake"
	"github.com/lockkeeper/lockkeeper/proto"
)

// joiner brings this server into its cluster: it forms a new one together with the others, or joins the one that exists. It carries
// out the rules of formation.go: it asks the other members, and stores what follows. When the cluster exists already, the leader
// adds a member without data like any other: the others first take its vote away, and it gets that back when it has caught up
// (docs/decisions/008-a-member-without-a-disk.md says why). Its goroutine is run.
type joiner struct {
	*Parts

	runID    uint64               // identifies this run of the server: a proposal holds for one run only
	again    wake.Signal          // for run: attempt it again at once
	caller   atomic.Pointer[call] // the last one of a member that takes this server, which is in no cluster, for a member
	hasAsked atomic.Bool          // this server has asked a cluster for a place
	// The ClusterID of the cluster whose leader has said that this server, which has no Join, is in a committed list: if it is no
	// member any more, it was removed. 0 if there is none.
	added atomic.Uint64

	why    atomic.Value // a string: why the last attempt did not succeed
	awaits atomic.Bool  // awaitPromotion is running

	// Only the goroutine that runs join uses these.
	warned  bool                         // it was logged that this server's data is empty
	askedAt map[request.ClusterID]uint64 // Request.AskedAt, by the cluster that was asked
	via     string                       // the address of the member through which this server was taken in

	deciding     wake.Turn // held while the identity is changed, and while a proposal is made
	acceptedAt   time.Time // when a proposal was accepted last; guarded by deciding
	acceptedFrom uint64    // whose that was; 0 if an earlier run has accepted it; guarded by deciding

	// What a member of a new cluster begins with.
	list     []proto.Peer       // the members
	first    []proto.Peer       // none if a snapshot was restored
	restored request.FirstState // without its digest
}

// call is a connection that a member of a cluster has made to this server, which it takes for a member.
type call struct {
	peer.Hello
	at int64 // running time
}

// callLasts is after how long a member that has not called again is asked whether this server is a member.
const callLasts = 10 * time.Second

// randomID returns a random number other than 0, for a run of a server or for a cluster.
func randomID() uint64 { return 1 + rand.Uint64N(math.MaxUint64) }

func newJoiner(parts *Parts) *joiner {
	return &joiner{
		Parts: parts, runID: randomID(), again: wake.NewSignal(), deciding: wake.NewTurn(), askedAt: map[request.ClusterID]uint64{},
	}
}

// own returns the cluster that this server has its place in, as far as it knows; 0 if in none.
func (j *joiner) own() request.ClusterID {
	if of := j.storage().Identity(); of.Agreed {
		return of.Cluster
	}
	return request.ClusterID(j.added.Load())
}

// elsewhere returns an error while this server may belong to another cluster than of, which is 0 for one that is to be formed:
// one that it has its place in, or of which a member has called it, which may be down by now (see forget). A server with data, which
// then comes from a snapshot, forms a new cluster although members of the earlier one may call it.
func (j *joiner) elsewhere(of request.ClusterID, data bool) error {
	if own := j.own(); own != 0 && own != of {
		return request.Refuse(proto.BadArguments, "cluster %v has this server as a member; if that cluster is gone for good, start this server again", own)
	}
	if c := j.caller.Load(); !data && c != nil && c.Cluster != of {
		return request.Refuse(proto.BadArguments, "server %d at %s, a member of cluster %v, calls this server as a member of that cluster; to join it, start this server without the list of members, and with %s as the server to join; otherwise remove server %d from it, or, if it is gone for good, start this server again", c.From, c.Addr, c.Cluster, c.Addr, j.ID)
	}
	return nil
}

// forget forgets the last caller if that does not call any more, and its leader says that this server is no member: it has none
// with this id, or that is another server, which answers at its address.
func (j *joiner) forget() {
	c := j.caller.Load()
	if c == nil || j.Now().Running-c.at < callLasts.Milliseconds() {
		return
	}
	ctx, cancel := context.WithTimeout(j.Port.Ctx, timing.PeerTimeout)
	defer cancel()
	has, err := request.ToLeader(ctx, request.Over(j.Port.Network), c.Addr, request.Request{Knows: j.ID, Cluster: c.Cluster})
	if err != nil || has.Status == nil {
		return
	}
	if x := election.Find(has.Status.Members, j.ID); x != nil {
		if s, err := request.StatusOf(ctx, j.Port.Network, *x); err != nil || s.Run == j.runID {
			return
		}
	} else if has.Known { // its removal may be undone
		return
	}
	j.caller.CompareAndSwap(c, nil)
}

// run forms the cluster with the other members, or joins the one that exists. It ends when this member is in the cluster and
// has its vote, if it is to have one, or when it stops.
func (j *joiner) run() {
	const (
		first = 3 * time.Second // before that, the others may just be starting
		then  = 10 * time.Second
	)
	began := time.Now()
	warned := began.Add(first - then)
	for wait := request.AskSoon; ; wait = min(2*wait, time.Second) { // short at first: the others may be starting too
		done, err := j.step()
		if done && j.Gate.IsOpen() {
			if owed, err := j.owed(); err != nil {
				j.CannotWrite(j.storage(), err)
			} else if owed {
				j.awaitPromotion()
			}
		}
		if done || j.Port.Ctx.Err() != nil {
			return
		}
		j.why.Store(err.Error())
		if time.Since(warned) > then {
			warned = time.Now()
			j.Log.Warn("not in the cluster yet", "error", err, "for", time.Since(began).Round(time.Second))
		}
		select {
		case <-time.After(wait):
		case <-j.again:
			wait = request.AskSoon
		case <-j.Port.Ctx.Done():
			return
		}
	}
}

// owed reports whether this member waits for its vote since an earlier start. It gives it up
// when it is started as an observer.
func (j *joiner) owed() (bool, error) {
	rejoining, err := j.storage().Rejoining()
	if err == nil && rejoining && !j.Votes() {
		return false, j.storage().SetRejoining(false)
	}
	return rejoining, err
}

// step makes one attempt. It reports true if this member is in the cluster, or has failed for good.
func (j *joiner) step() (done bool, err error) {
	j.deciding.Take() // form, which an operator has asked for, may be forming the cluster
	formed, agreed := j.Gate.IsOpen(), j.storage().Identity().Agreed
	j.deciding.Give()
	switch {
	case formed:
		return true, nil
	case agreed || len(j.list) == 0:
		return j.follow()
	}
	j.forget()
	said, tlsErr := j.survey(j.list)
	j.deciding.Take()
	defer j.deciding.Give()
	if j.Gate.IsOpen() { // by form, meanwhile
		return true, nil
	}
	s := j.stance()
	if c := j.caller.Load(); c != nil && s.proposed != 0 && c.Cluster == s.proposed { // that member has agreed to it
		return j.agree(s.proposed)
	}
	switch next := s.decide(said); next.do {
	case toAgree:
		return j.agree(s.proposed)
	case toPropose:
		if err := j.elsewhere(0, s.state.Data()); err != nil {
			return false, err
		}
		return j.propose(s, said, s.required())
	case toJoin:
		j.deciding.Give()
		defer j.deciding.Take()
		for _, x := range j.list { // any of them may be cut off from the leader
			if st := said[x.ID]; st != nil && st.Formed {
				if done, err = j.join(x.Addr, next.cluster); done {
					break
				}
			}
		}
		return done, err
	case toStop:
		j.Fail(fmt.Errorf("%s: %w", j.storage().Name, next.err))
		return true, nil
	default:
		if tlsErr != nil && request.CodeOf(next.err) == proto.OK {
			return false, tlsErr
		}
		return false, next.err
	}
}

func (j *joiner) storage() *storage.Storage { return j.Engine.Storage() }

// stance is where this member stands.
func (j *joiner) stance() stance {
	s := stance{self: j.ID, members: j.list, state: j.restored}
	if x := j.storage().Identity(); !x.Agreed {
		s.proposed = x.Cluster
	}
	if s.state.Data() {
		var digest func() uint64
		j.Replica.View(func(v *fsm.View) { digest = v.DigestLater() })
		s.state.Digest = fmt.Sprintf("%016x", digest())
	}
	return s
}

// survey asks the other members where they stand. The error names voters with which TLS fails, and says why:
// waiting for them does not help.
func (j *joiner) survey(members []proto.Peer) (said map[uint64]*request.Status, tlsErr error) {
	ctx, cancel := context.WithTimeout(j.Port.Ctx, time.Second)
	defer cancel()
	others := election.Without(members, j.ID)
	said = map[uint64]*request.Status{}
	for _, x := range request.Poll(others, func(x proto.Peer) (*request.Status, error) { return request.StatusOf(ctx, j.Port.Network, x) }) {
		if x.Err == nil {
			said[x.ID] = x.Status
		} else if errors.As(x.Err, new(*peer.TLSError)) && !x.Observer {
			tlsErr = errors.Join(tlsErr, fmt.Errorf("server %d at %w", x.ID, x.Err))
		}
	}
	return said, tlsErr
}

// propose proposes an id to the members in required, which have all answered, and agrees to
// it if all accept it. j.deciding must be held.
func (j *joiner) propose(s stance, said map[uint64]*request.Status, required []proto.Peer) (bool, error) {
	id := s.proposed
	// A proposal that was made with another list may have been agreed to with that one.
	if id == 0 || !slices.Equal(j.storage().Identity().First, j.first) {
		id = request.ClusterID(randomID())
		if err := j.storage().SetIdentity(storage.Identity{Cluster: id, First: j.first}); err != nil {
			j.CannotWrite(j.storage(), err)
			return true, err
		}
	}
	ctx, cancel := context.WithTimeout(j.Port.Ctx, timing.PeerTimeout)
	defer cancel()
	var err error
	for _, x := range request.Poll(election.Without(required, j.ID), func(x proto.Peer) (*request.Status, error) {
		r, err := request.Send(ctx, j.Port.Network, x.Addr, request.Request{Propose: &request.Proposal{Cluster: id, From: j.ID, To: x.ID, Run: said[x.ID].Run, Members: j.list, State: s.state}})
		if err == nil && r.Error != "" {
			err = fmt.Errorf("server %d: %s", x.ID, r.Error)
		}
		return nil, err
	}) {
		err = errors.Join(err, x.Err)
	}
	if err != nil {
		return false, err
	}
	return j.agree(id) // the others hear of it when this member calls them
}

// agree makes id this member's cluster for good. j.deciding must be held.
func (j *joiner) agree(id request.ClusterID) (done bool, err error) {
	x := storage.Identity{Cluster: id, Agreed: true, First: j.storage().Identity().First}
	err = j.storage().SetIdentity(x)
	if err == nil && len(x.First) > 0 { // otherwise its data was restored
		// After an error the next start does it (see Membership.Belong).
		if err := j.Engine.Bootstrap(x.First); err != nil { // perhaps because there is a log already
			j.Fail(fmt.Errorf("%s: %w", j.storage().Name, err))
			return true, err
		}
		err = j.storage().SetRejoining(false) // since it asked another cluster for a place
	}
	if err != nil {
		j.CannotWrite(j.storage(), err)
		return true, err
	}
	j.Log.Info("the cluster is formed", "cluster", id, "members", j.list)
	j.openGate(id)
	return true, nil
}

func (j *joiner) openGate(id request.ClusterID) {
	j.Gate.Open(id)
	j.Look.Raise()
}

// accept answers a proposal. A proposal may replace an earlier one, but nothing replaces
// what was agreed.
func (j *joiner) accept(q *request.Proposal) error {
	if !j.deciding.TryTake() {
		return request.Refuse(proto.SystemError, "server %d is busy with a proposal of its own", j.ID)
	}
	defer j.deciding.Give()
	s := j.stance()
	if err := s.mayAccept(q, j.runID, j.storage().Identity()); err != nil {
		return err
	}
	if err := j.elsewhere(q.Cluster, s.state.Data()); err != nil {
		return err
	}
	// After `cluster form` two servers may propose at once, and one of them needs only a majority. This server keeps the
	// proposal that it has just accepted: if it took the other one's now, there might never be a majority for either.
	same := j.storage().Identity().Cluster == q.Cluster
	if !same && j.acceptedFrom != q.From && time.Since(j.acceptedAt) < 3*timing.PeerTimeout {
		return request.Refuse(proto.OK, "server %d has just accepted another proposal", j.ID)
	}
	if !same {
		if err := j.storage().SetIdentity(storage.Identity{Cluster: q.Cluster, First: j.first}); err != nil {
			j.CannotWrite(j.storage(), err)
			return err
		}
	}
	j.acceptedAt, j.acceptedFrom = time.Now(), q.From
	return nil
}

// form carries out `cluster form`: an operator says that the cluster is new, or that its members may be
// given an id, although not all of them are there. Those that answer must be a majority.
func (j *joiner) form() error {
	if !j.Clustered() {
		return request.Refuse(proto.BadArguments, "a standalone server forms no cluster")
	}
	if len(j.list) == 0 && !j.storage().Identity().Agreed {
		return request.Refuse(proto.BadArguments, "server %d was started without a list of members, and waits to be added to a cluster", j.ID)
	}
	said, tlsErr := j.survey(j.list)
	j.deciding.Take()
	defer j.deciding.Give()
	if of := j.storage().Identity(); of.Agreed { // perhaps since it was asked
		return request.Refuse(proto.BadArguments, "server %d belongs to cluster %v already", j.ID, of.Cluster)
	}
	s := j.stance()
	if err := j.elsewhere(0, s.state.Data()); err != nil {
		return err
	}
	required, err := s.majority(said)
	switch {
	case err != nil && tlsErr != nil:
		return request.Refuse(request.CodeOf(err), "%v; %v", err, tlsErr)
	case err != nil:
		return err
	}
	done, err := j.propose(s, said, required)
	if done && err != nil { // a write has failed, perhaps after the one that counts
		err = request.Unsure{Err: err}
	}
	return err
}

// follow brings a member without data into the cluster that exists: the one that its list
// or Server.Join names, the one of its identity, or the one that calls it.
func (j *joiner) follow() (bool, error) {
	own := j.own()
	addrs := []string{j.Join}
	if j.Join == "" || own != 0 { // the member at Join may be down when this one has a place already
		addrs = j.addrsToAsk()
	}
	err := error(request.Refuse(proto.OK, "no cluster has called this server; add it on a member, with \"lockkeeper cluster add\" or Server.AddMember"))
	for _, addr := range addrs {
		var s *request.Status
		ctx, cancel := context.WithTimeout(j.Port.Ctx, timing.PeerTimeout)
		s, _, err = request.AskStatus(ctx, j.Port.Network, addr, nil)
		cancel()
		switch {
		case err != nil:
		case !s.Formed:
			err = fmt.Errorf("the server at %s is in no cluster yet", addr)
		case own != 0 && s.Cluster != own:
			err = request.Refuse(proto.BadArguments, "%s belongs to cluster %v, but %s is a server of cluster %v; start this server with an empty directory, or with the address of a server of its own cluster", j.storage().Name, own, addr, s.Cluster)
		default:
			var done bool
			if done, err = j.join(addr, s.Cluster); done {
				return true, nil
			}
		}
	}
	return false, err
}

// addrsToAsk returns the addresses at which there may be other members: those in first, those of the list and of the newest members
// that this one knows, and that of the member that has called it. They are asked in this order, and one whose host is down
// takes a while, so it stays the same, and those in first are those that are most likely up.
func (j *joiner) addrsToAsk(first ...proto.Peer) []string {
	all := slices.Concat(first, []proto.Peer{{Addr: j.Join}}, j.list, j.Engine.Members())
	if c := j.caller.Load(); c != nil {
		all = append(all, proto.Peer{Addr: c.Addr})
	}
	var addrs []string
	for _, x := range all {
		if x.ID != j.ID && x.Addr != "" && !slices.Contains(addrs, x.Addr) {
			addrs = append(addrs, x.Addr)
		}
	}
	return addrs
}

// join has the leader of a cluster, one of whose members is at addr, take in this server, which
// has no data. It reports true when this server is in the cluster, or has failed for good. j.deciding must not be held.
func (j *joiner) join(addr string, of request.ClusterID) (bool, error) {
	if !j.hasAsked.Load() { // asking takes half a minute if there is no leader; after that its answers say more
		j.why.Store(fmt.Sprintf("waiting for the leader of the cluster that %s belongs to: it must take this server in, whose data is empty", addr))
	}
	has, err := j.askLeader(addr, request.Request{Knows: j.ID, At: j.Address(), Run: j.runID, Cluster: of})
	if err != nil {
		return false, err
	}
	invited := j.Join == "" // the cluster must already have it as a member
	if has.Surely && invited {
		j.added.Store(uint64(of))
	}
	placed := j.own() == of
	switch {
	case invited && !has.Known && placed:
		j.wasRemoved()
		return true, nil
	case invited && !has.Known:
		return false, request.Refuse(proto.OK, "the cluster that %s belongs to does not have this server as a member; add it on a member, with \"lockkeeper cluster add\" or Server.AddMember", addr)
	case invited && !j.warned: // join may be retried many times a second
		j.warned = true
		j.Log.Warn("the cluster is already running, but this member's data is empty: it does not vote until it has caught up", "known", addr, "cluster", of)
	}
	if err := j.noteOwedVote(has); err != nil {
		j.CannotWrite(j.storage(), err)
		return true, nil
	}
	// With Rejoin set the leader does not add it: once it was taken in, it may have been removed. One with a Join that has had no
	// answer may have been, too; see Request.AskedAt.
	r, err := j.askForPlace(addr, of, has, invited || placed)
	if errors.Is(err, request.ErrNoMember) && !invited {
		j.wasRemoved()
		return true, nil
	}
	if err != nil {
		return false, err
	}
	if !j.Gate.IsOpen() && !j.Engine.AdvanceTerm(r.Status.Term, j.Contacts.ElectionTimeout) {
		return false, errors.New("the disk of this member is slow")
	}
	j.via = addr
	j.enter(r.Status.Index, of)
	return true, nil
}

// askLeader has the leader of the cluster of the member at addr answer q with its status.
func (j *joiner) askLeader(addr string, q request.Request) (request.Reply, error) {
	r, err := request.ToLeader(j.Port.Ctx, request.Over(j.Port.Network), addr, q)
	if err == nil && r.Status == nil {
		err = fmt.Errorf("%s does not say what its cluster has", addr)
	}
	return r, err
}

// wasRemoved ends this server, which was removed from its cluster.
func (j *joiner) wasRemoved() {
	j.Fail(fmt.Errorf("server %d was %w; to have it back, empty %s and join again", j.ID, request.ErrRemoved, j.storage().Name))
}

// noteOwedVote stores that this server is owed a vote, if it is to get one in the cluster that has it as has says.
// Whatever comes next, the leader forgets that when it takes the vote away.
func (j *joiner) noteOwedVote(has request.Reply) error {
	owed, err := j.owed()                   // since an earlier start
	told := j.Join != "" || len(j.list) > 0 // otherwise nobody has told this server whether it votes
	if err == nil && j.Votes() && (owed || told || has.Votes) {
		err = j.storage().SetRejoining(true)
	}
	return err
}

// askForPlace asks for a place without a vote in cluster of, which has this server as has says. With rejoin it must
// be a member already.
func (j *joiner) askForPlace(addr string, of request.ClusterID, has request.Reply, rejoin bool) (request.Reply, error) {
	askedAt := j.askedAt[of]
	if askedAt == 0 {
		askedAt = has.Status.Index
	}
	j.hasAsked.Store(true)
	r, err := j.askLeader(addr, request.Request{Add: j.self(false), Rejoin: rejoin, Run: j.runID, AskedAt: askedAt, Cluster: of})
	if has.Known || err == nil || errors.Is(err, request.ErrUnknownOutcome) {
		j.askedAt[of] = askedAt
	}
	return r, err
}

// enter stores that this server belongs to the cluster of, which has taken it in, and whose leader's state was at index,
// unless form has formed a cluster meanwhile.
func (j *joiner) enter(index uint64, of request.ClusterID) {
	j.deciding.Take()
	defer j.deciding.Give()
	if j.Gate.IsOpen() {
		return
	}
	// Whatever was proposed meanwhile, the others have agreed to this id.
	if err := j.storage().SetIdentity(storage.Identity{Cluster: of, Agreed: true, Since: index}); err != nil {
		j.CannotWrite(j.storage(), err)
		return
	}
	j.Engine.AbstainUntil(index)
	j.openGate(of)
}

// self describes this member, for a request to add it.
func (j *joiner) self(voter bool) *proto.Peer {
	return &proto.Peer{ID: j.ID, Addr: j.Address(), Observer: !voter}
}

// awaitPromotion asks to be made a voter again until it is one, or no member any more. It asks
// each of the other members in turn, first the one through which it was taken in.
func (j *joiner) awaitPromotion() {
	ctx := j.Port.Ctx
	j.awaits.Store(true)
	defer j.awaits.Store(false)
	for wait, try := request.AskSoon, 0; ; wait, try = min(2*wait, time.Second), try+1 {
		to := j.addrsToAsk(proto.Peer{Addr: j.via})
		err := errors.New("this member has not heard of any other yet")
		if len(to) > 0 {
			_, err = j.askLeader(to[try%len(to)], request.Request{Add: j.self(true), Rejoin: true, Run: j.runID, Cluster: j.Gate.Cluster()})
		}
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			break
		}
		if errors.Is(err, request.ErrNoMember) {
			j.wasRemoved()
			return
		}
		j.Log.Info("this member does not vote yet", "error", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
	// If it asked again after the next start, it could undo a later change.
	if err := j.storage().SetRejoining(false); err != nil {
		j.CannotWrite(j.storage(), err)
	}
}
