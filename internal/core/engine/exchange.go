package engine

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"syscall"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/internal/core/peer"
	"github.com/lockkeeper/lockkeeper/internal/core/raftlog"
	"github.com/lockkeeper/lockkeeper/internal/core/raftwire"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/core/timing"
)

// maxIdle is the number of idle connections kept to each member.
const maxIdle = 3

// exchange sends a message to a member over an idle connection, or a new one, and reads the answer. An idle connection may
// have ended, since the member was restarted, or since the connection was not used for long (see peer.Conns.Run). Then the
// message is sent again: a lost request for a vote can cost an election.
func (t *transport) exchange(target raft.ServerAddress, message, answer any) error {
	for {
		c := t.takeIdle(target, 0)
		used := c != nil
		if !used {
			var err error
			if c, err = t.dial(target); err != nil {
				return err
			}
		}
		err := c.Exchange(bytes.NewReader(raftwire.Append(nil, message)), func() error { return raftwire.ReadAnswer(c, answer) })
		if err == nil || err == raftwire.ErrFailed {
			t.putIdle(target, c)
			return err
		}
		c.Close()
		if !used || !raftlog.EndsWith(err, io.EOF, syscall.ECONNRESET, syscall.EPIPE, net.ErrClosed) {
			return err
		}
	}
}

// sendSnapshot sends a snapshot to a member over a connection of its own, and reads the answer.
func (t *transport) sendSnapshot(target raft.ServerAddress, q *raft.InstallSnapshotRequest, r *raft.InstallSnapshotResponse, data io.Reader) error {
	c, err := t.dial(target)
	if err != nil {
		return err
	}
	defer c.Close()
	c.Long.Store(true)
	return c.Exchange(io.MultiReader(bytes.NewReader(raftwire.Append(nil, q)), data), func() error { return raftwire.ReadAnswer(c, r) })
}

// dial opens a connection to a member. The member may still refuse it.
func (t *transport) dial(target raft.ServerAddress) (*peer.Conn, error) {
	to := t.engine.idOf(string(target))
	c, err := t.peers.DialTwice(t.peers.Ctx, string(target), peer.KindRaft, to, t.ElectionTimeout)
	if err != nil {
		return nil, err
	}
	return t.conns.NewConn(c, string(target)), nil
}

// takeIdle returns an idle connection to a member, which is not idle any more. It returns nil if that would leave fewer than leave.
func (t *transport) takeIdle(target raft.ServerAddress, leave int) *peer.Conn {
	t.mu.Lock()
	defer t.mu.Unlock()
	idle := slices.DeleteFunc(t.idle[target], (*peer.Conn).Closed)
	t.idle[target] = idle
	if len(idle) <= leave {
		return nil
	}
	c := idle[len(idle)-1]
	t.idle[target] = idle[:len(idle)-1]
	return c
}

func (t *transport) putIdle(target raft.ServerAddress, c *peer.Conn) {
	t.mu.Lock()
	enough := len(t.idle[target]) == maxIdle
	if !enough {
		t.idle[target] = append(t.idle[target], c)
	}
	t.mu.Unlock()
	if enough {
		c.Close()
	}
}

// dialAnother opens another connection to a member, beside what goes on, unless that is under way.
func (t *transport) dialAnother(target raft.ServerAddress) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.dialing[target] {
		return
	}
	t.dialing[target] = true
	t.wg.Go(func() {
		if c, err := t.dial(target); err == nil {
			t.putIdle(target, c)
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.dialing, target)
	})
}

// take handles a connection that another member has opened, until that is closed. While Raft's main goroutine
// handles entries, perhaps with a slow disk, the next message is read, so that this member knows
// early what is committed.
func (t *transport) take(nc net.Conn) {
	from := nc.(peer.Incoming)
	r := &receiver{
		t: t, conn: t.conns.NewConn(nc, ""), answers: make(chan raft.RPCResponse, mostOwed), owed: make(chan struct{}, mostOwed),
		commits: make(chan raft.RPC, 1), readEnded: make(chan struct{}), answerEnded: make(chan struct{}),
	}
	var answering sync.WaitGroup
	answering.Go(r.answer)
	header := raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(storage.ServerID(from.From)), Addr: []byte(from.Addr)}
	if err := r.read(header); !errors.Is(err, io.EOF) && !raftlog.OfConnection(err) {
		t.peers.Log.Info("a connection for Raft's messages ends", "peer", from.From, "error", err)
	}
	close(r.readEnded)
	answering.Wait()
}

// receiver is the end of a connection at which messages come, and answers are sent.
type receiver struct {
	t           *transport
	conn        *peer.Conn
	answers     chan raft.RPCResponse // from Raft's main goroutine, which never has to wait: there are at most mostOwed
	owed        chan struct{}         // holds one for each message that is not answered
	commits     chan raft.RPC         // the newest message that needs no answer, if Raft was busy when it came
	readEnded   chan struct{}         // closed by take
	answerEnded chan struct{}
}

// mostOwed is how many messages may be unanswered. A stream has fewer, and otherwise one is sent at a time.
const mostOwed = 2 * mostUnanswered

// read handles the messages until the connection ends. It returns why that was.
func (r *receiver) read(header raft.RPCHeader) error {
	in := bufio.NewReaderSize(r.conn, timing.MaxWrite)
	for {
		q, asks, err := raftwire.Read(in, header)
		if err != nil {
			return err
		}
		snapshot, long := q.(*raft.InstallSnapshotRequest)
		r.conn.MidMessage.Store(long || in.Buffered() > 0)
		if !asks {
			r.tell(q.(*raft.AppendEntriesRequest))
			continue
		}
		select {
		case r.owed <- struct{}{}:
		case <-r.answerEnded:
			return net.ErrClosed
		case <-r.t.peers.Ctx.Done():
			return net.ErrClosed
		}
		rpc := raft.RPC{Command: q, RespChan: r.answers}
		if long {
			rpc.Reader = io.LimitReader(in, snapshot.Size)
			err = r.t.dispatch(rpc)
			r.conn.Owed.Add(1) // only now: while the snapshot comes, this member waits for the sender, which may be gone
		} else {
			r.conn.Owed.Add(1)
			err = r.t.dispatch(rpc)
		}
		if err != nil {
			return err
		}
	}
}

// tell hands a message to Raft that says only what is committed.
func (r *receiver) tell(q *raft.AppendEntriesRequest) {
	r.t.engine.leaderCommit.Hear(q)
	rpc := raft.RPC{Command: q, RespChan: make(chan raft.RPCResponse, 1)}
	select {
	case r.t.rpcs <- rpc:
	default: // answer does it. An older one is not needed any more
		select {
		case <-r.commits:
		default:
		}
		r.commits <- rpc
	}
}

// answer sends Raft's answers, and hands to Raft what tell leaves to it, until the connection ends.
func (r *receiver) answer() {
	defer close(r.answerEnded)
	defer r.conn.Close()
	var (
		out  []byte
		next raft.RPC
		rpcs chan<- raft.RPC // nil if there is no next
	)
	for {
		select {
		case next = <-r.commits:
			rpcs = r.t.rpcs
		case rpcs <- next:
			rpcs = nil
		case <-r.readEnded:
			return
		case a := <-r.answers:
			out = raftwire.AppendAnswer(out[:0], a)
			if _, err := r.conn.Write(out); err != nil {
				return
			}
			<-r.owed
			r.conn.Owed.Add(-1)
		}
	}
}
