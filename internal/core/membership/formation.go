package membership

import (
	"fmt"
	"slices"

	"github.com/lockkeeper/lockkeeper/internal/core/election"
	"github.com/lockkeeper/lockkeeper/internal/core/request"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/proto"
)

// These are the rules by which a cluster is formed: its members accept a proposal, and then agree to it
// (docs/decisions/019-formed-once.md). A proposal may be replaced by another one, an agreement never. The invariants:
//
//   - Two members never agree to different ids while no more than one of them has lost its disk.
//     Agreeing to an id needs a proposal that all have stored, and one that has agreed refuses
//     every other proposal.
//   - A member that agreed holds everything that it has acknowledged since the cluster was
//     formed, unless it has lost its disk. A member that lost its disk holds no proposal, and
//     a proposal is never made again once somebody has agreed to it. So it does not agree, but
//     joins, without a vote at first.
//   - All members that agree to an id begin with the same state. Each compares its own with the
//     proposer's, and a storage that holds a proposal is never restored again: a snapshot is only
//     restored to an empty one.
//
// Nothing in this file depends on time, messages or disks, so that TestFormationModel can
// explore all orders of what may happen with these very rules.

// stance is where a member stands that has no cluster yet.
type stance struct {
	self     uint64
	members  []proto.Peer      // of the cluster to be
	proposed request.ClusterID // the proposal that it holds; 0 if none
	state    request.FirstState
}

// The things that a member without a cluster can do next.
const (
	toWait    = iota
	toPropose // propose an id to the others
	toAgree   // agree to the proposal that it holds
	toJoin    // join the cluster that the others have formed without it
	toStop    // give up: the data is not of that cluster
)

type next struct {
	do      int
	err     error             // why toWait or toStop; its code is BadArguments if waiting alone does not help
	cluster request.ClusterID // to join
}

func wait(code proto.Code, format string, args ...any) next {
	return next{err: request.Refuse(code, format, args...)}
}

// decide returns what to do next, given what the other members say; those that do not answer
// are not in said.
func (s *stance) decide(said map[uint64]*request.Status) next {
	if n, ok := s.agreedTo(said); ok {
		return n
	}
	if err := s.conflict(said); err != nil {
		return next{err: err}
	}
	required := s.required()
	missing := slices.DeleteFunc(slices.Clone(required), func(x proto.Peer) bool { return x.ID == s.self || said[x.ID] != nil })
	switch {
	case len(missing) > 0:
		return wait(proto.OK, "waiting for %s: a cluster is formed when all of its voting servers have been started; if one can never be, see \"lockkeeper cluster form\" or Server.FormCluster", election.Named(missing))
	case required[0].ID != s.self:
		return wait(proto.OK, "server %d forms the cluster", required[0].ID)
	}
	return next{do: toPropose}
}

// agreedTo returns what to do if other members have agreed to an id, and false if none has.
func (s *stance) agreedTo(said map[uint64]*request.Status) (next, bool) {
	var of request.ClusterID
	var at proto.Peer
	for _, x := range s.members {
		switch st := said[x.ID]; {
		case st == nil || !st.Formed || st.Cluster == of:
		case of != 0:
			return wait(proto.BadArguments, "server %d belongs to cluster %v, but server %d to cluster %v: one of them has the wrong data directory, or the list of members a wrong address", at.ID, of, x.ID, st.Cluster), true
		default:
			of, at = st.Cluster, x
		}
	}
	switch {
	case of == 0:
		return next{}, false
	case of == s.proposed:
		return next{do: toAgree}, true
	case s.state.Data():
		in := election.CountVoters(slices.DeleteFunc(slices.Clone(s.members), func(x proto.Peer) bool {
			return said[x.ID] == nil || !said[x.ID].Formed
		}))
		why := fmt.Sprintf("its data was restored from a snapshot, but server %d at %s belongs to cluster %v already", at.ID, at.Addr, of)
		if in <= election.CountVoters(s.members)/2 { // that one server may be in the wrong
			return wait(proto.BadArguments, "%s; stop that server, unless most servers belong to that cluster", why), true
		}
		return next{do: toStop, err: request.Refuse(proto.BadArguments, "%s, as most do; if this server is to join that cluster, empty the directory and start it again; otherwise stop those servers", why)}, true
	}
	return next{do: toJoin, cluster: of}, true
}

// conflict returns the reason if the members that answer cannot form a cluster with this one.
func (s *stance) conflict(said map[uint64]*request.Status) error {
	for _, x := range s.members {
		st := said[x.ID]
		switch {
		case st == nil:
		case st.Data && !s.state.Data():
			return request.Refuse(proto.BadArguments, "server %d has data without the id of a cluster, and this server has none", x.ID)
		case !st.Data && s.state.Data():
			return request.Refuse(proto.BadArguments, "this server has data without the id of a cluster, and server %d has none; if all are to begin with the same snapshot, restore it there too; if that server has lost its disk, see \"lockkeeper cluster form\"", x.ID)
		case x.Observer && !s.state.Data() && len(st.Configured) == 0: // it was started only to join, which it does later
		case !slices.Equal(st.Configured, s.members):
			if s.state.Data() {
				return request.Refuse(proto.BadArguments, "server %d has another list of members in its data than server %d: %v, not %v; see \"lockkeeper cluster form\", on a server with the newest list", x.ID, s.self, st.Configured, s.members)
			}
			return request.Refuse(proto.BadArguments, "server %d was started with other members than server %d: %v, not %v", x.ID, s.self, st.Configured, s.members)
		case s.state.Data() && (st.Index != s.state.Index || st.Digest != s.state.Digest):
			return request.Refuse(proto.BadArguments, "server %d has another state (entry %d, digest %s) than server %d (entry %d, digest %s): restore the same snapshot on all", x.ID, st.Index, st.Digest, s.self, s.state.Index, s.state.Digest)
		}
	}
	return nil
}

// required returns the members that must accept a proposal, in order: all of
// them, except that an observer without data can join a new cluster later.
func (s *stance) required() []proto.Peer {
	return slices.DeleteFunc(slices.Clone(s.members), func(x proto.Peer) bool { return x.Observer && !s.state.Data() })
}

// majority returns those that an operator lets form the cluster: the members that
// answer. It fails if they are no majority of the voters, or if there is a cluster.
func (s *stance) majority(said map[uint64]*request.Status) (here []proto.Peer, err error) {
	if n, ok := s.agreedTo(said); ok {
		if n.do == toWait || n.do == toStop {
			return nil, n.err
		}
		return nil, request.Refuse(proto.BadArguments, "the cluster exists already, and this server is about to join it")
	}
	there := map[uint64]*request.Status{}
	for id, st := range said {
		// A server that has lost its disk, or was restored with another list, joins later.
		if st.Data == s.state.Data() && (!s.state.Data() || slices.Equal(st.Configured, s.members)) {
			there[id] = st
		}
	}
	if err := s.conflict(there); err != nil {
		return nil, err
	}
	var missing []proto.Peer
	for _, x := range s.required() {
		switch {
		case x.ID == s.self || there[x.ID] != nil:
			here = append(here, x)
		case !x.Observer:
			missing = append(missing, x)
		}
	}
	if election.Find(here, s.self) == nil {
		return nil, request.Refuse(proto.BadArguments, "server %d does not vote; ask one that does", s.self)
	}
	if votes, most := election.CountVoters(here), election.CountVoters(s.members); votes <= most/2 {
		return nil, request.Refuse(proto.NewConfigNoQuorum, "only %d of %d voting servers are here, and a cluster needs a majority; missing: %s", votes, most, election.Named(missing))
	}
	return here, nil
}

// mayAccept fails if this member, in its run with the number run and with the identity of,
// must not accept a proposal.
func (s *stance) mayAccept(q *request.Proposal, run uint64, of storage.Identity) error {
	switch {
	case of.Agreed:
		return request.Refuse(proto.BadArguments, "server %d belongs to cluster %v", s.self, of.Cluster)
	case q.Cluster == 0 || q.To != s.self || q.Run != run:
		return request.Refuse(proto.BadArguments, "the proposal is for server %d, or for an earlier run of it", q.To)
	case !slices.Equal(q.Members, s.members):
		return request.Refuse(proto.BadArguments, "server %d was started with other members than server %d: %v, not %v", s.self, q.From, s.members, q.Members)
	case q.State != s.state:
		return request.Refuse(proto.BadArguments, "server %d begins with %v, and server %d with %v: restore the same snapshot on all", s.self, s.state, q.From, q.State)
	}
	return nil
}
