package engine

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/internal/core/election"
	"github.com/lockkeeper/lockkeeper/internal/core/lifecycle"
	"github.com/lockkeeper/lockkeeper/internal/core/peer"
	"github.com/lockkeeper/lockkeeper/internal/core/raftlog"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/internal/core/wake"
)

// transport implements [raft.Transport] on the peer port. All of Raft's messages go over connections of peer.KindRaft, of
// which each carries one at a time, unless a [stream] has it. The goroutine of a connection at its receiver reads the messages,
// hands them to Raft's main goroutine, or handles them itself.
type transport struct {
	timing.Times
	life      *lifecycle.Lifecycle
	engine    *Engine
	peers     *peer.Port
	rpcs      chan raft.RPC  // for Raft's main goroutine
	conns     *peer.Conns    // that are open
	receiving wake.Turn      // held while a snapshot is received
	wg        sync.WaitGroup // of the transport's goroutines
	now       func() timing.Moment
	// doubts is incremented when another member may no longer be as it was when it last
	// accepted a message: it answers heartbeats over a new connection, so it may have
	// restarted, or it has begun a later term than this member's.
	doubts atomic.Uint64

	mu        sync.Mutex
	away      map[uint64]chan struct{} // see awaitReturn; by id, closed by hasReturned
	waiting   map[string][]*waiting    // what waits for Raft's main goroutine, by sender, the oldest first
	streams   map[raft.ServerID]*stream
	idle      map[raft.ServerAddress][]*peer.Conn // over which nothing is under way; the one used last is at the end
	dialing   map[raft.ServerAddress]bool         // see dialAnother
	snapshots map[raft.ServerID]sentSnapshot      // the last one that each member was sent

	heartbeat func(raft.RPC) // Raft's, for heartbeats that change nothing; see SetHeartbeatHandler
}

// sentSnapshot is a snapshot that was sent in a term, perhaps several times in a row.
type sentSnapshot struct {
	term, end uint64
	times     int
	last      time.Time
}

// waiting is a message, other than a snapshot, that waits for Raft's main goroutine.
type waiting struct {
	entries bool          // it has entries
	drop    chan struct{} // closed when it must wait no longer
}

// mostWaiting is how many messages of another member may wait for Raft's main goroutine.
// Only one of them may have entries. The member waits for the answers to its messages, so there
// are more only if it has given some up, or has restarted. Then the oldest is dropped. The vote requests
// of all members count as those of one: dispatch has cut off whose they are.
const mostWaiting = 8

func newTransport(e *Engine) *transport {
	times, port := e.cfg.Contacts.Times, e.cfg.Port
	t := &transport{
		Times: times, life: e.Lifecycle, engine: e, peers: port, rpcs: make(chan raft.RPC), receiving: wake.NewTurn(), now: e.cfg.Now,
		away: map[uint64]chan struct{}{}, waiting: map[string][]*waiting{},
		streams: map[raft.ServerID]*stream{}, idle: map[raft.ServerAddress][]*peer.Conn{}, dialing: map[raft.ServerAddress]bool{}, snapshots: map[raft.ServerID]sentSnapshot{},
	}
	t.conns = peer.NewConns(port, times.ElectionTimeout, e.cfg.Contacts.SeenAlive, e.idOf, &t.wg)
	return t
}

// header returns the header of a message that Raft here is to take for one of this member's own. A message that is sent has
// none: the receiver makes it (see raftwire.Read). And Raft does not look at that of an answer.
func (t *transport) header() raft.RPCHeader {
	id := storage.ServerID(t.engine.disk.ID)
	return raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(id), Addr: t.EncodePeer(id, t.LocalAddr())}
}

// dispatch handles a message that another member has sent: it is handed to Raft's main goroutine, or answered in the place of
// that. If dispatch returns an error, the rest of the message may be unread.
func (t *transport) dispatch(rpc raft.RPC) error {
	if t.engine.Abstains() && t.keepOut(rpc) {
		return nil
	}
	switch q := rpc.Command.(type) {
	case *raft.AppendEntriesRequest:
		if isHeartbeat(q) && t.takeHeartbeat(rpc, q) {
			return nil
		}
		t.engine.leaderCommit.Hear(q)
		if t.compactedAway(q) {
			t.answerFromSnapshot(rpc)
			return nil
		}
	case *raft.RequestVoteRequest:
		// Raft refuses a candidate that has no vote in the newest list that it has here. That
		// list may be old, and then a majority of the members might never elect a leader. It
		// is enough that the candidate has all that this member has. Raft does not look at
		// the list without the candidate's id.
		//
		// Raft stores the candidate's address as this member's vote, and confirms the vote to
		// whoever asks for it again from that address. With the id behind it (see DecodePeer) that
		// is not another server, which has got the address meanwhile.
		q.Addr = append(append(slices.Clip(q.Addr), 0), q.ID...)
		q.ID = nil
	case *raft.InstallSnapshotRequest:
		return t.install(rpc)
	case *raft.TimeoutNowRequest:
		t.engine.endElection(t.ElectionTimeout)
	}
	t.deliver(rpc)
	return nil
}

// errTermEnded is the error of a message that is not sent, or of a snapshot that is not received.
var errTermEnded = errors.New("cluster: this member has begun a later term than that of the message")

// termEnded reports whether this member has begun a later term than this one. If it led in this one, what Raft has just
// read from its log, or the snapshot, may be another leader's. If it were sent in the earlier term, the receiver would
// apply it without learning of the later term, and an earlier message of this member, which comes late, would replace
// it. If termEnded returns false, all was this leader's when Raft read it: Raft begins a term before it replaces entries.
func (t *transport) termEnded(term uint64) bool { return t.engine.disk.Terms.Newest.Load() > term }

// compactedAway reports whether the entry that a leader's message follows is one that this member has applied, and that is not
// in its log any more.
func (t *transport) compactedAway(q *raft.AppendEntriesRequest) bool {
	at := q.PrevLogEntry
	if at == 0 && len(q.Entries) > 0 && q.Entries[0].Index == 1 { // not a heartbeat, nor what InstallSnapshot sends
		at = 1
	}
	if at == 0 || at > t.engine.LastApplied() {
		return false
	}
	first, err := t.engine.disk.Storage.Log.FirstIndex()
	return err == nil && (first == 0 || at < first)
}

// answerFromSnapshot answers a message of which compactedAway is true. Raft would refuse it, and say where its log ends. That does not
// help the leader if those entries were never committed. So the answer says where this member's snapshot ends, and the
// leader continues there: see [transport.leap].
//
// A leader has all entries that were committed before, so it has the last one that the snapshot covers. If it has another
// one in that place, this member ends, as when an entry of the log that it has applied is to be replaced.
func (t *transport) answerFromSnapshot(rpc raft.RPC) {
	q := rpc.Command.(*raft.AppendEntriesRequest)
	newest, err := t.engine.disk.NewestSnapshot()
	if err != nil || newest.Index < q.PrevLogEntry || newest.Index > t.engine.LastApplied() || q.Term != t.engine.Term() || t.engine.Role() != Follower {
		t.deliver(rpc)
		return
	}
	term := newest.Term // of the leader's entry there, as far as the message says it
	if newest.Index == q.PrevLogEntry {
		term = q.PrevLogTerm
	} else if i := slices.IndexFunc(q.Entries, func(l *raft.Log) bool { return l.Index == newest.Index }); i >= 0 {
		term = q.Entries[i].Term
	}
	switch {
	case term != newest.Term:
		err := fmt.Errorf("%s: the leader has another entry %d than the one with which this member's snapshot ends: %w", t.engine.disk.Storage.Name, newest.Index, election.ErrDiffers)
		t.life.Fail(err)
		rpc.Respond(nil, err)
	case newest.Index == q.PrevLogEntry:
		t.deliver(rpc)
	default:
		t.replaceEnd(q.RPCHeader, q.Term, newest.Index, newest.Term) // its disk may have been stuck when it got the snapshot
		rpc.Respond(&raft.AppendEntriesResponse{Term: q.Term, LastLog: newest.Index, NoRetryBackoff: true}, nil)
	}
}

// keepOut answers a message about an election in the place of Raft (see Engine.AbstainUntil), and
// reports whether it is one.
func (t *transport) keepOut(rpc raft.RPC) bool {
	switch rpc.Command.(type) {
	case *raft.RequestVoteRequest:
		rpc.Respond(&raft.RequestVoteResponse{Term: t.engine.Term()}, nil)
	case *raft.RequestPreVoteRequest:
		rpc.Respond(&raft.RequestPreVoteResponse{Term: t.engine.Term()}, nil)
	case *raft.TimeoutNowRequest:
		rpc.Respond(nil, errors.New("cluster: this member has not caught up"))
	default:
		return false
	}
	return true
}

// errBusy is the answer to a message that has waited too long for Raft's main goroutine, or
// behind which newer ones of the same member wait.
var errBusy = errors.New("cluster: too busy")

// deliver gives a message to Raft's main goroutine. That may be writing to a stuck disk:
// entries and snapshots wait for as long as it takes, since sending them again would not
// make it faster, and the connection's signs of life say that they wait (see peer.Conn).
// Other messages wait for an election timeout.
func (t *transport) deliver(rpc raft.RPC) {
	if wake.Offer(t.rpcs, rpc) {
		return
	}
	var drop <-chan struct{}
	var late <-chan time.Time
	if _, snapshot := rpc.Command.(*raft.InstallSnapshotRequest); !snapshot { // install gives Raft one at a time
		w, done := t.enqueue(rpc.Command)
		defer done()
		drop = w.drop
		if _, entries := rpc.Command.(*raft.AppendEntriesRequest); !entries {
			timer := time.NewTimer(t.ElectionTimeout)
			defer timer.Stop()
			late = timer.C
		}
	}
	select {
	case t.rpcs <- rpc:
	case <-drop:
		rpc.Respond(nil, errBusy)
	case <-late:
		rpc.Respond(nil, errBusy)
	case <-t.peers.Ctx.Done():
		rpc.Respond(nil, lifecycle.ErrClosed)
	}
}

// enqueue notes that a message waits for Raft's main goroutine, until done is called. It
// drops older ones of the same sender; see mostWaiting.
func (t *transport) enqueue(message any) (w *waiting, done func()) {
	w = &waiting{drop: make(chan struct{})}
	if q, ok := message.(*raft.AppendEntriesRequest); ok {
		w.entries = len(q.Entries) > 0
	}
	from := string(message.(raft.WithRPCHeader).GetRPCHeader().ID)
	t.mu.Lock()
	defer t.mu.Unlock()
	list := slices.DeleteFunc(t.waiting[from], func(old *waiting) bool {
		dropped := w.entries && old.entries
		if dropped {
			close(old.drop)
		}
		return dropped
	})
	if len(list) == mostWaiting {
		close(list[0].drop)
		list = list[1:]
	}
	t.waiting[from] = append(list, w)
	return w, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		list := slices.DeleteFunc(t.waiting[from], func(x *waiting) bool { return x == w })
		if t.waiting[from] = list; len(list) == 0 {
			delete(t.waiting, from)
		}
	}
}

// install reads a snapshot that another member sends, and gives it to Raft when it is
// complete. Raft's main goroutine would read it from the network, and could not vote
// meanwhile: if the sender, the leader, fell silent, it could not be replaced. One snapshot
// at a time is received. As long as Raft installs it, this member cannot vote, as if its
// disk were stuck, so it counts as that. install returns an error if Raft was not given the snapshot. The sender sends it
// again if it still leads.
func (t *transport) install(rpc raft.RPC) error {
	if !t.receiving.TakeWithin(t.ElectionTimeout) {
		return errBusy
	}
	defer t.receiving.Give()
	spool, err := t.engine.disk.Storage.Spool()
	if t.checkDisk(err) != nil {
		t.peers.Log.Error("cannot store a snapshot from the leader", "error", err)
		return err
	}
	defer spool.Close()
	complete, err := t.fill(spool, rpc)
	if err != nil {
		return err
	}
	q := rpc.Command.(*raft.InstallSnapshotRequest)
	if !t.awaitOwn(q.LastLogIndex) {
		return lifecycle.ErrClosed
	}
	defer t.engine.disk.Saving.Turn.Give()
	t.engine.disk.Saving.Installing.Store(true)
	defer t.engine.disk.Saving.Installing.Store(false)
	answered := make(chan raft.RPCResponse, 1)
	t.deliver(raft.RPC{Command: rpc.Command, Reader: complete, RespChan: answered})
	t.engine.disk.Stall.During(t.now(), func() error {
		select {
		case a := <-answered:
			if r, ok := a.Response.(*raft.InstallSnapshotResponse); ok && r.Success {
				t.replaceEnd(q.RPCHeader, q.Term, q.LastLogIndex, q.LastLogTerm)
			}
			if a.Error != nil && raftlog.EndsWith(a.Error, raftlog.ErrNeedless) {
				rpc.Respond(&raft.InstallSnapshotResponse{Term: t.engine.Term(), Success: true}, nil)
				return nil
			}
			rpc.Respond(a.Response, a.Error)
		case <-t.peers.Ctx.Done():
			rpc.Respond(nil, lifecycle.ErrClosed)
		}
		return nil
	})
	return nil
}

// awaitOwn takes the turn of saving, to install a snapshot that ends with the entry end. It returns false if this member
// is closed first.
func (t *transport) awaitOwn(end uint64) bool {
	t.engine.disk.Saving.Superseded.Store(end > t.engine.LastApplied())
	defer t.engine.disk.Saving.Superseded.Store(false)
	select {
	case t.engine.disk.Saving.Turn <- struct{}{}:
		return true
	case <-t.peers.Ctx.Done():
		return false
	}
}

// replaceEnd does what the leader of a term does after its snapshot (see InstallSnapshot), if the log of this member has another
// entry where the snapshot ends: that leader may be gone, and the next one would be refused what it sends.
func (t *transport) replaceEnd(leader raft.RPCHeader, term, index, entryTerm uint64) {
	var end raft.Log
	if t.engine.disk.Storage.Log.GetLog(index, &end) == nil && end.Term != entryTerm {
		t.inject(lastOf(leader, term, index, entryTerm), t.ElectionTimeout)
	}
}

// fill receives a snapshot into a spool, and returns what reads it from there. It gives up
// when a later term begins than the sender's: Raft would refuse the snapshot, and the next
// leader may have to send its own. A read does not block for long, since the connection of
// a sender that is silent is closed.
func (t *transport) fill(spool storage.Spool, rpc raft.RPC) (io.Reader, error) {
	q := rpc.Command.(*raft.InstallSnapshotRequest)
	in := peer.ReadFunc(func(p []byte) (int, error) {
		if t.termEnded(q.Term) {
			return 0, errTermEnded
		}
		return rpc.Reader.Read(p)
	})
	out := peer.WriteFunc(func(p []byte) (n int, err error) {
		err = t.engine.disk.Stall.During(t.now(), func() error {
			n, err = spool.Write(p)
			return err
		})
		return n, t.checkDisk(err)
	})
	n, err := io.Copy(out, in)
	if err == nil && n < q.Size {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		t.peers.Log.Info("a snapshot from the leader did not arrive", "bytes", n, "of", q.Size, "error", err)
		return nil, err
	}
	complete, err := spool.Reader()
	return complete, t.checkDisk(err)
}

// checkDisk reports an error of the spool, if it is one, as this member's fault, and
// returns it. That there is no file descriptor is no fault: the leader sends the snapshot again.
func (t *transport) checkDisk(err error) error {
	if err != nil && !storage.OutOfFiles(err) {
		t.life.CannotWrite(t.engine.disk.Storage, err)
	}
	return err
}

// inject has Raft handle a message as if another member had sent it. It gives up after
// patience.
func (t *transport) inject(message any, patience time.Duration) {
	answered := make(chan raft.RPCResponse, 1)
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case t.rpcs <- raft.RPC{Command: message, RespChan: answered}:
	case <-late.C:
		return
	case <-t.peers.Ctx.Done():
		return
	}
	select {
	case <-answered:
	case <-late.C:
	case <-t.peers.Ctx.Done():
	}
}

func (t *transport) Consumer() <-chan raft.RPC { return t.rpcs }

func (t *transport) LocalAddr() raft.ServerAddress { return raft.ServerAddress(t.peers.Addr) }

func (t *transport) EncodePeer(_ raft.ServerID, addr raft.ServerAddress) []byte { return []byte(addr) }

// DecodePeer implements raft.Transport. It leaves out what dispatch appends.
func (t *transport) DecodePeer(b []byte) raft.ServerAddress {
	addr, _, _ := bytes.Cut(b, []byte{0})
	return raft.ServerAddress(addr)
}

// SetHeartbeatHandler implements raft.Transport. It is called before any message can come.
func (t *transport) SetHeartbeatHandler(handle func(raft.RPC)) { t.heartbeat = handle }

// isHeartbeat reports whether a message is one of Raft's own heartbeats.
func isHeartbeat(q *raft.AppendEntriesRequest) bool {
	return q.PrevLogEntry == 0 && len(q.Entries) == 0 && q.LeaderCommitIndex == 0
}

// takeHeartbeat has Raft handle a heartbeat in the goroutine of the connection, so that it need not wait for the disk. But a
// heartbeat that changes the term could then set an earlier term than the main goroutine has just
// begun, and may even lead in (hashicorp/raft, issue 695). So only heartbeats that
// change nothing are handled like this; of the others takeHeartbeat returns false.
func (t *transport) takeHeartbeat(rpc raft.RPC, q *raft.AppendEntriesRequest) bool {
	if t.heartbeat == nil { // tests have no Raft here
		return false
	}
	return t.engine.disk.Terms.During(q.Term, func() bool {
		if q.Term != t.engine.Term() || t.engine.Role() != Follower {
			return false
		}
		t.heartbeat(rpc)
		return true
	})
}

// AppendEntries implements raft.Transport. If it cannot send entries, it returns when the
// member has returned; see awaitReturn.
func (t *transport) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	heartbeat := isHeartbeat(args)
	err := t.appendEntries(id, target, args, resp)
	switch {
	case heartbeat:
	case err != nil:
		t.awaitReturn(storage.MemberID(id), args.Term)
	case !resp.Success && resp.Term == args.Term && args.PrevLogEntry < resp.LastLog:
		t.leap(id, target, args, resp)
	}
	return err
}

// leap is called when a member has refused entries although its log is longer than what they follow. That
// happens when its disk has refused some: each time, Raft goes back by one entry, and if the member has a snapshot in
// place of the earlier ones, Raft goes back to the beginning of this leader's log. There it stays, or it sends
// a snapshot, which may be older than the member's. So leap asks the member whether its log is this leader's up to
// its end. If so, Raft gets the answer to a message with the last entry that the member has, and continues after that.
func (t *transport) leap(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) {
	last := new(raft.Log)
	if t.engine.log.GetLog(resp.LastLog, last) != nil {
		return
	}
	r, err := t.compare(id, target, args.Term, last.Index, last.Term)
	if err != nil || !r.Success {
		return
	}
	args.Entries, *resp = []*raft.Log{last}, *r
	select { // its disk may fail again, and Raft pauses only after several failures in a row
	case <-time.After(t.ElectionTimeout / 2):
	case <-t.peers.Ctx.Done():
	}
}

// compare asks a member whether its log is this leader's up to an entry.
func (t *transport) compare(id raft.ServerID, target raft.ServerAddress, term, index, entryTerm uint64) (*raft.AppendEntriesResponse, error) {
	r := new(raft.AppendEntriesResponse)
	return r, t.appendEntries(id, target, &raft.AppendEntriesRequest{Term: term, PrevLogEntry: index, PrevLogTerm: entryTerm}, r)
}

// appendEntries is AppendEntries for callers that need the error at once. It takes entries
// out of args if they are too long for one message. Raft sends those next: it looks in args
// for the last one that was accepted.
func (t *transport) appendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	if t.termEnded(args.Term) {
		return errTermEnded
	}
	args.Entries = shorten(args)
	args.LeaderCommitIndex = t.engine.log.Committed(args.LeaderCommitIndex)
	err := t.exchange(target, args, resp)
	if err == nil && resp.Success {
		t.engine.log.Acks.Accepted(id, args)
	}
	return err
}

// maxEntryBytes is how many bytes of entries are sent in a message that has several.
const maxEntryBytes = 1 << 20

// shorten returns the first entries of a message, at least one, as many as fit into one. It
// limits the commit index in the message to the last of them, or to the entry before them if
// there are none. That far the receiver's log is the leader's when it accepts the message.
// The receiver's Raft takes a higher index for its log's end, which it has not compared.
func shorten(q *raft.AppendEntriesRequest) []*raft.Log {
	n, bytes := 0, 0
	for n < len(q.Entries) {
		if bytes += len(q.Entries[n].Data) + len(q.Entries[n].Extensions); n > 0 && bytes > maxEntryBytes {
			break
		}
		n++
	}
	q.LeaderCommitIndex = min(q.LeaderCommitIndex, q.PrevLogEntry+uint64(n))
	return q.Entries[:n]
}

// awaitReturn blocks until a member answers a heartbeat, or this one stops leading in term,
// or the other is removed or moves. Raft calls it between a failure to replicate to that
// member and the next attempt. By itself it would wait longer after each failure, up to
// 10 s, and send a member that is back nothing for that long: there might be no majority
// without it. Now Raft sees one failure in an absence, and after one it pauses for only 10 ms.
func (t *transport) awaitReturn(id, term uint64) {
	t.mu.Lock()
	back := t.away[id]
	if back == nil {
		back = make(chan struct{})
		t.away[id] = back
	}
	t.mu.Unlock()
	// HasReturned is called after either of these has changed.
	if now, leads := t.engine.LeaderTerm(); !leads || now != term {
		return
	}
	if election.Find(t.engine.Members(), id) == nil {
		return
	}
	select {
	case <-back:
	case <-t.peers.Ctx.Done():
	}
}

// hasReturned ends the calls of awaitReturn for a member.
func (t *transport) hasReturned(id uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if back := t.away[id]; back != nil {
		close(back)
		delete(t.away, id)
	}
}

// RequestVote implements raft.Transport. It counts a vote for this member as
// accepting it as the leader, in case it is elected.
func (t *transport) RequestVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	asked := t.now()
	err := t.exchange(target, args, resp)
	if err == nil && resp.Granted {
		t.engine.cfg.Contacts.Accepted(storage.MemberID(id), asked, 0)
	}
	return err
}

// RequestPreVote implements raft.WithPreVote.
func (t *transport) RequestPreVote(_ raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	return t.exchange(target, args, resp)
}

// TimeoutNow implements raft.Transport. It returns when the answer has been missing for
// timing.Times.Lease: Raft refuses entries while it waits for that.
func (t *transport) TimeoutNow(_ raft.ServerID, target raft.ServerAddress, args *raft.TimeoutNowRequest, _ *raft.TimeoutNowResponse) error {
	answered := make(chan error, 1)
	// It ends after two election timeouts at most, or with the connection.
	t.wg.Go(func() { answered <- t.exchange(target, args, new(raft.TimeoutNowResponse)) })
	late := time.NewTimer(t.Lease)
	defer late.Stop()
	select {
	case err := <-answered:
		return err
	case <-late.C:
		return os.ErrDeadlineExceeded
	}
}

// InstallSnapshot implements raft.Transport. After the snapshot it sends an empty entry with the index and term of the last
// entry that the snapshot covers. If the receiver's log is at least as long as the snapshot, Raft there does not take that
// term from the snapshot but looks in its log; with a different term in it, it would refuse everything that follows, and be
// sent the snapshot again and again.
//
// After a failure InstallSnapshot waits for the member's return (see awaitReturn), and tells Raft that the snapshot was
// installed. So Raft sends what follows the snapshot, without a pause. The member refuses that, and is sent the snapshot again;
// or it answers with a later term, as one does that has hung up for that reason (see fill). What Raft then takes
// the member to have is committed anyway.
func (t *transport) InstallSnapshot(id raft.ServerID, target raft.ServerAddress, q *raft.InstallSnapshotRequest, r *raft.InstallSnapshotResponse, data io.Reader) error {
	t.pauseBefore(id, q)
	if t.termEnded(q.Term) {
		return errTermEnded
	}
	if err := t.sendSnapshot(target, q, r, data); err != nil {
		t.awaitReturn(storage.MemberID(id), q.Term)
		r.Term, r.Success = q.Term, true
		return nil
	}
	if !r.Success {
		return nil
	}
	// If this fails, the next entries are refused and the snapshot is sent again.
	t.appendEntries(id, target, lastOf(q.RPCHeader, q.Term, q.LastLogIndex, q.LastLogTerm), new(raft.AppendEntriesResponse))
	return nil
}

// lastOf returns a message of the leader of a term with an empty entry in place of the last one that a snapshot covers.
func lastOf(leader raft.RPCHeader, term, index, entryTerm uint64) *raft.AppendEntriesRequest {
	return &raft.AppendEntriesRequest{RPCHeader: leader, Term: term, Entries: []*raft.Log{{Index: index, Term: entryTerm, Type: raft.LogNoop}}}
}

// pauseBefore is called before a snapshot is sent. If the member was sent the same one just before, that did not arrive or
// did not help, and pauseBefore waits, longer each time, but no longer than an election timeout.
func (t *transport) pauseBefore(id raft.ServerID, q *raft.InstallSnapshotRequest) {
	t.mu.Lock()
	s := t.snapshots[id]
	if s.term != q.Term || s.end != q.LastLogIndex || time.Since(s.last) > 10*t.ElectionTimeout {
		s = sentSnapshot{term: q.Term, end: q.LastLogIndex}
	}
	pause := t.ElectionTimeout >> max(0, 8-s.times)
	if s.times++; s.times == 1 {
		pause = 0
	}
	s.last = time.Now().Add(pause)
	t.snapshots[id] = s
	t.mu.Unlock()
	select {
	case <-time.After(pause):
	case <-t.peers.Ctx.Done():
	}
}
