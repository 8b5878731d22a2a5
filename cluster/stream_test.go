package cluster

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math"
	"net"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// openTransport opens a peer port with Raft's transport on it, but without Raft. Votes
// for it are noted in contacts.
func openTransport(t *testing.T, network *memnet.Network, host string) openedTransport {
	t.Helper()
	return openTransportOn(t, network.Host(host), host)
}

func openTransportOn(t *testing.T, network Network, host string) (o openedTransport) {
	t.Helper()
	o.contacts = newContacts(1, timesFor(defaultElectionTimeout))
	clock := newClock(nil)
	peers := newPeerPort(network, 1, host+":1", lifted(), testkit.Quiet)
	if err := peers.open(); err != nil {
		t.Fatal(err)
	}
	o.transport = newTransport(newLifecycle(), newNode(1), peers, o.contacts.times, func() moment { return o.contacts.moment(clock.nowMs()) }, o.contacts.followed, o.contacts.lives)
	peers.serve = map[byte]func(net.Conn){kindRaft: peers.toRaft, kindStream: o.transport.takeStream}
	o.transport.open()
	peers.wg.Go(peers.accept)
	return o
}

// streamOf opens a stream from a leader to the member 2 at follower:1.
func streamOf(t *testing.T, leader openedTransport) *stream {
	t.Helper()
	var p raft.AppendPipeline
	until(t, "a stream", func() bool {
		var err error
		if p, err = leader.transport.AppendEntriesPipeline("2", "follower:1"); err != nil && err != raft.ErrPipelineReplicationNotSupported {
			t.Fatal(err)
		}
		return err == nil
	})
	return p.(*stream)
}

type openedTransport struct {
	*transport
	contacts *contacts
}

func closeTransport(o openedTransport) {
	o.peers.close()
	o.peers.wg.Wait()
	o.transport.Close()
	o.wg.Wait()
}

// TestStreamRefused: sending into a stream does not block forever when the other
// side has refused an entry and answers are no longer read.
func TestStreamRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := memnet.New()
		leader, follower := openTransport(t, net, "leader"), openTransport(t, net, "follower")
		stop := make(chan struct{})
		go func() { // the follower, which refuses all
			for {
				select {
				case rpc := <-follower.transport.Consumer():
					rpc.Respond(&raft.AppendEntriesResponse{}, nil)
				case <-stop:
					return
				}
			}
		}()
		p := streamOf(t, leader)
		sent := make(chan error, 1)
		refused := make(chan struct{})
		go func() {
			for left := 1000; left > 0; {
				if _, err := p.AppendEntries(&raft.AppendEntriesRequest{}, new(raft.AppendEntriesResponse)); err != nil {
					sent <- err
					return
				}
				select {
				case <-refused:
					left--
				default:
				}
			}
		}()
		<-p.Consumer() // the refusal, after which Raft takes no more
		close(refused)
		synctest.Wait()
		select {
		case <-sent:
		default:
			t.Error("the sender waits for ever, or learns nothing")
		}
		p.Close()
		close(stop)
		closeTransport(leader)
		closeTransport(follower)
	})
}

// TestStreamRepeatsLittle: what the follower has accepted is sent again only after
// tellAgain, or in doubt.
func TestStreamRepeatsLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := memnet.New()
		leader, follower := openTransport(t, net, "leader"), openTransport(t, net, "follower")
		stop, hold := make(chan struct{}), make(chan struct{}, 1)
		got := 0
		go func() {
			for {
				select {
				case rpc := <-follower.transport.Consumer():
					got++
					hold <- struct{}{}
					rpc.Respond(&raft.AppendEntriesResponse{Success: true}, nil)
					<-hold
				case <-stop:
					return
				}
			}
		}()
		p := streamOf(t, leader)
		go func() { // Raft, which takes the answers
			for {
				select {
				case <-p.Consumer():
				case <-stop:
					return
				}
			}
		}()
		send := func(what string, want int, q raft.AppendEntriesRequest) {
			t.Helper()
			synctest.Wait()
			before := got
			if _, err := p.AppendEntries(&q, new(raft.AppendEntriesResponse)); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if got-before != want {
				t.Errorf("%s: %d messages, want %d", what, got-before, want)
			}
		}
		empty := raft.AppendEntriesRequest{Term: 1, PrevLogEntry: 5, LeaderCommitIndex: 4}
		send("the first message", 1, empty)
		send("the same", 0, empty)
		empty.LeaderCommitIndex = 5
		send("another commit index", 1, empty)
		send("the same", 0, empty)
		entries := empty
		entries.Entries = []*raft.Log{{Index: 6, Term: 1}}
		send("an entry", 1, entries)
		empty.PrevLogEntry = 6
		send("nothing new", 0, empty)
		send("the entry again", 1, entries)
		leader.doubts.Add(1)
		send("in doubt", 1, empty)
		send("the same", 0, empty)
		time.Sleep(tellAgain - time.Millisecond)
		send("the same", 0, empty)
		time.Sleep(time.Millisecond)
		send("after some time", 1, empty)
		empty.LeaderCommitIndex = 6
		hold <- struct{}{} // the follower does not answer
		send("a commit index", 1, empty)
		go p.AppendEntries(&empty, new(raft.AppendEntriesResponse)) // waits for the answer
		synctest.Wait()
		<-hold
		synctest.Wait()
		if got != 8 {
			t.Errorf("%d messages, want 8: one that is not answered must be repeated", got)
		}
		p.Close()
		close(stop)
		closeTransport(leader)
		closeTransport(follower)
	})
}

// TestRestartWhileQuiet: a follower that restarts while nothing is written learns soon what
// is committed.
func TestRestartWhileQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members, lead := threeMembers(t, memnet.New(), new(testkit.Log))
		time.Sleep(time.Minute)
		i := (lead + 1) % 3
		for range 3 {
			cfg := members[i].cfg
			if err := members[i].Kill(); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			m, err := openMember(cfg, fsm.NewReplica())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { m.Close() })
			members[i] = m
			<-m.Ready()
			if took := time.Since(began); took > 250*time.Millisecond {
				t.Errorf("a member that has restarted serves after %v", took)
			}
			time.Sleep(time.Minute)
		}
	})
}

// TestLaterTermWhileQuiet: when a follower begins a later term while nothing is written, the
// leader learns that with the next heartbeat, and steps down soon after.
func TestLaterTermWhileQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members, lead := threeMembers(t, memnet.New(), new(testkit.Log))
		for range 5 {
			time.Sleep(time.Minute)
			leader, follower := members[lead], members[(lead+1)%3]
			term, _ := leader.raft.term()
			doubts := leader.transport.doubts.Load()
			leads := func() bool {
				now, leads := leader.raft.term()
				return leads && now == term
			}
			follower.transport.give(&raft.RequestVoteRequest{RPCHeader: follower.transport.header(), Term: term + 1, LeadershipTransfer: true}, time.Second)
			time.Sleep(leader.contacts.beat + time.Millisecond)
			if leads() && leader.transport.doubts.Load() == doubts {
				t.Error("the leader has not learned of the term")
			}
			time.Sleep(100 * time.Millisecond) // Raft's time until the next message without entries
			if leads() {
				t.Error("the leader has not stepped down")
			}
			until(t, "a leader", func() bool {
				for i, m := range members {
					if m.Role() == "leader" {
						lead = i
						return true
					}
				}
				return false
			})
		}
	})
}

// TestHeartbeatOfNewTerm: a heartbeat of a new term that waits for the disk does
// not take a member back from a term after that.
func TestHeartbeatOfNewTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members, lead := threeMembers(t, memnet.New(), new(testkit.Log))
		other, m := members[(lead+1)%3], members[(lead+2)%3]
		hold, first := make(chan struct{}), true
		m.cfg.Memory.SetFault(func() error {
			if first {
				first = false
				<-hold
			}
			return nil
		})
		term := m.raft.CurrentTerm()
		head := func(m *Member) raft.RPCHeader {
			return raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(serverID(m.cfg.ID)), Addr: m.transport.EncodePeer("", m.transport.LocalAddr())}
		}
		var sent sync.WaitGroup
		sent.Go(func() {
			other.transport.appendEntries(serverID(m.cfg.ID), m.transport.LocalAddr(), &raft.AppendEntriesRequest{RPCHeader: head(other), Term: term + 5}, new(raft.AppendEntriesResponse))
		})
		synctest.Wait()
		sent.Go(func() {
			other.transport.RequestVote(serverID(m.cfg.ID), m.transport.LocalAddr(),
				&raft.RequestVoteRequest{RPCHeader: head(other), Term: term + 6, LeadershipTransfer: true}, new(raft.RequestVoteResponse))
		})
		synctest.Wait()
		reached := m.raft.CurrentTerm()
		close(hold)
		sent.Wait()
		if got := m.raft.CurrentTerm(); got < reached || got < term+6 {
			t.Errorf("term %d, after %d", got, reached)
		}
	})
}

// TestVoteNotStored: a member that cannot store its vote does not send it, not even
// while it closes.
func TestVoteNotStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members, lead := threeMembers(t, memnet.New(), new(testkit.Log))
		other, m := members[(lead+1)%3], members[(lead+2)%3]
		m.cfg.Memory.SetFault(func() error { return syscall.ENOSPC })
		var r raft.RequestVoteResponse
		var sent sync.WaitGroup
		sent.Go(func() {
			last := other.raft.LastIndex()
			other.transport.NetworkTransport.RequestVote(serverID(m.cfg.ID), m.transport.LocalAddr(), &raft.RequestVoteRequest{
				RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(serverID(other.cfg.ID)), Addr: other.transport.EncodePeer("", other.transport.LocalAddr())},
				Term:      m.raft.CurrentTerm() + 1, LastLogIndex: last + 1, LastLogTerm: m.raft.CurrentTerm(), LeadershipTransfer: true,
			}, &r)
		})
		synctest.Wait()
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		sent.Wait()
		if r.Granted {
			t.Error("it has voted, and nothing is stored")
		}
	})
}

// TestStreamMessages: a message is read as it was sent.
func TestStreamMessages(t *testing.T) {
	at := time.Unix(1700000000, 123456789)
	for _, q := range []raft.AppendEntriesRequest{
		{Term: 1},
		{Term: math.MaxUint64, PrevLogEntry: 1 << 60, PrevLogTerm: 1 << 50, LeaderCommitIndex: 1 << 40},
		{Term: 7, PrevLogEntry: 4, PrevLogTerm: 6, LeaderCommitIndex: 5, Entries: []*raft.Log{
			{Index: 5, Term: 6, Type: raft.LogCommand, Data: []byte("data"), AppendedAt: at},
			{Index: 6, Term: 7, Type: raft.LogNoop, Data: []byte{}},
			{Index: 7, Term: 7, Type: raft.LogConfiguration, Data: bytes.Repeat([]byte("x"), 1<<18), Extensions: []byte("more")},
		}},
	} {
		in := bufio.NewReader(bytes.NewReader(append(appendEntries(nil, &q), appendCommit(nil, &q)...)))
		got, asks, err := readAppend(in)
		if err != nil || !asks || !reflect.DeepEqual(got, &q) {
			t.Errorf("%+v, %v, %v, want %+v", got, asks, err, q)
		}
		commit := &raft.AppendEntriesRequest{Term: q.Term, PrevLogEntry: q.PrevLogEntry, PrevLogTerm: q.PrevLogTerm, LeaderCommitIndex: q.PrevLogEntry}
		got, asks, err = readAppend(in)
		if err != nil || asks || !reflect.DeepEqual(got, commit) {
			t.Errorf("%+v, %v, %v, want %+v", got, asks, err, commit)
		}
		if _, _, err := readAppend(in); err != io.EOF {
			t.Error(err)
		}
	}
	for _, want := range []raft.AppendEntriesResponse{{}, {Term: 1, LastLog: 2, Success: true}, {Term: 1 << 63, LastLog: 1 << 62, NoRetryBackoff: true}} {
		var got raft.AppendEntriesResponse
		if err := readAnswer(bytes.NewReader(appendAnswer(nil, &want)), &got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%+v, %v, want %+v", got, err, want)
		}
	}
}

// FuzzReadAppend: no bytes make a follower panic, and a message that can be read is written as the
// same bytes.
func FuzzReadAppend(f *testing.F) {
	f.Add(appendCommit(nil, &raft.AppendEntriesRequest{Term: 1, PrevLogEntry: 2, PrevLogTerm: 3}))
	f.Add(appendEntries(nil, &raft.AppendEntriesRequest{Term: 1, Entries: []*raft.Log{{Index: 1, Term: 1, Data: []byte("x"), AppendedAt: time.Unix(1, 1)}}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		q, asks, err := readAppend(bufio.NewReader(bytes.NewReader(b)))
		if err != nil {
			return
		}
		again := appendCommit(nil, q)
		if asks {
			again = appendEntries(nil, q)
		}
		if !bytes.HasPrefix(b, again) {
			t.Errorf("%x was read as %x", b, again)
		}
	})
}

// streamTo opens a stream between two hosts, of which the follower's Raft is answer. It calls f, and then
// closes everything.
func streamTo(t *testing.T, answer func(q *raft.AppendEntriesRequest) raft.AppendEntriesResponse, f func(leader, follower openedTransport, s *stream)) {
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New()
		leader, follower := openTransport(t, network, "leader"), openTransport(t, network, "follower")
		stop := make(chan struct{})
		go func() {
			for {
				select {
				case rpc := <-follower.transport.Consumer():
					r := answer(rpc.Command.(*raft.AppendEntriesRequest))
					rpc.Respond(&r, nil)
				case <-stop:
					return
				}
			}
		}()
		p := streamOf(t, leader)
		go func() { // Raft, which takes the answers
			for {
				select {
				case <-p.Consumer():
				case <-stop:
					return
				}
			}
		}()
		f(leader, follower, p)
		p.Close()
		close(stop)
		closeTransport(leader)
		closeTransport(follower)
	})
}

func success(*raft.AppendEntriesRequest) raft.AppendEntriesResponse {
	return raft.AppendEntriesResponse{Success: true}
}

// entryAt returns a message of term 1 with one entry.
func entryAt(index, commit uint64) *raft.AppendEntriesRequest {
	return &raft.AppendEntriesRequest{Term: 1, PrevLogEntry: index - 1, PrevLogTerm: 1, LeaderCommitIndex: commit, Entries: []*raft.Log{{Index: index, Term: 1}}}
}

// TestStreamCommits: the follower is told once what is committed, when it has the entry: with
// an entry if one is on its way anyway, otherwise at once.
func TestStreamCommits(t *testing.T) {
	var got []string
	streamTo(t, func(q *raft.AppendEntriesRequest) raft.AppendEntriesResponse {
		got = append(got, fmt.Sprintf("%d+%d commit %d", q.PrevLogEntry, len(q.Entries), q.LeaderCommitIndex))
		return raft.AppendEntriesResponse{Success: true}
	}, func(leader, follower openedTransport, s *stream) {
		expect := func(want ...string) {
			t.Helper()
			synctest.Wait()
			if !slices.Equal(got, want) {
				t.Errorf("%q, want %q", got, want)
			}
			got = nil
		}
		commit := func(term, index uint64, want bool) {
			t.Helper()
			if s.committed(term, index, 1) != want {
				t.Errorf("term %d, index %d: not %v", term, index, want)
			}
		}
		send := func(q *raft.AppendEntriesRequest) {
			t.Helper()
			if _, err := s.AppendEntries(q, new(raft.AppendEntriesResponse)); err != nil {
				t.Fatal(err)
			}
		}
		commit(1, 4, false) // it has sent nothing, and may be of another term
		send(entryAt(5, 3))
		expect("4+1 commit 3")
		commit(2, 5, false)
		commit(1, 4, true)
		expect("4+0 commit 4")
		commit(1, 4, true)
		commit(1, 3, true)
		expect()
		commit(1, 7, true) // the entry has not been sent
		expect()
		send(entryAt(6, 4))
		expect("5+1 commit 6")
		send(entryAt(7, 4))
		expect("6+1 commit 7")
		send(&raft.AppendEntriesRequest{Term: 1, PrevLogEntry: 7, PrevLogTerm: 1, LeaderCommitIndex: 7})
		expect() // it has been told
		s.Close()
		commit(1, 7, false)
	})
}

// TestToldWhileBusy: a follower knows what is committed while its Raft is busy with an entry, and that
// is handed on when it no longer is, however much has come meanwhile. The leader does not take the
// follower for dead.
func TestToldWhileBusy(t *testing.T) {
	var busy chan struct{}
	last := uint64(0)
	streamTo(t, func(q *raft.AppendEntriesRequest) raft.AppendEntriesResponse {
		if len(q.Entries) > 0 {
			<-busy
		}
		last = q.LeaderCommitIndex
		return raft.AppendEntriesResponse{Success: true}
	}, func(leader, follower openedTransport, s *stream) {
		busy = make(chan struct{})
		if _, err := s.AppendEntries(entryAt(9, 0), new(raft.AppendEntriesResponse)); err != nil {
			t.Fatal(err)
		}
		for index := range uint64(9) {
			s.committed(1, index+1, 1)
			synctest.Wait()
			if told := follower.raft.told.index.Load(); told != index+1 {
				t.Errorf("it knows of %d, want %d", told, index+1)
			}
		}
		time.Sleep(10 * follower.silence)
		close(busy)
		synctest.Wait()
		if last != 9 {
			t.Errorf("Raft knows of %d", last)
		}
		if err := s.err(); err != nil {
			t.Error(err)
		}
	})
}

// TestStreamOfEarlierVersion: a server that knows no streams is asked for one only every
// streamless, and Raft sends it single messages.
func TestStreamOfEarlierVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New()
		leader, follower := openTransport(t, network, "leader"), openTransport(t, network, "follower")
		takes := follower.peers.serve[kindStream]
		asked := 0
		delete(follower.peers.serve, kindStream)
		for range 30 {
			if _, err := leader.transport.AppendEntriesPipeline("2", "follower:1"); err != raft.ErrPipelineReplicationNotSupported {
				t.Error(err)
			}
			leader.mu.Lock()
			if d := leader.dials["follower:1"]; d.ended.IsZero() {
				asked++
			}
			leader.mu.Unlock()
			time.Sleep(streamless / 10)
		}
		if asked != 3 {
			t.Errorf("it was asked %d times, want 3", asked)
		}
		follower.peers.serve[kindStream] = takes
		began := time.Now()
		streamOf(t, leader).Close()
		if took := time.Since(began); took > streamless+time.Second {
			t.Errorf("it gets a stream after %v", took)
		}
		closeTransport(leader)
		closeTransport(follower)
	})
}

// TestStreamAnswers: an answer counts for the oldest message that has none yet.
func TestStreamAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New()
		leader, follower := openTransport(t, network, "leader"), openTransport(t, network, "follower")
		s := streamOf(t, leader)
		for i := range uint64(2) { // the second waits for an answer
			go s.AppendEntries(entryAt(5+i, 0), new(raft.AppendEntriesResponse))
			synctest.Wait()
		}
		for i := range uint64(2) {
			rpc := <-follower.transport.Consumer()
			rpc.Respond(&raft.AppendEntriesResponse{Success: true}, nil)
			if f := <-s.Consumer(); f.Request().PrevLogEntry != 4+i || leader.raft.log.acks.upTo["2"] != 5+i {
				t.Errorf("the answer to entry %d counts for that after %d, and members have entries up to %v", 5+i, f.Request().PrevLogEntry, leader.raft.log.acks.upTo)
			}
		}
		s.Close()
		closeTransport(leader)
		closeTransport(follower)
	})
}

// TestStreamMalformed: bytes that are no message end only their own connection.
func TestStreamMalformed(t *testing.T) {
	streamTo(t, success, func(leader, follower openedTransport, s *stream) {
		for _, b := range []string{
			"\x00\x01aX",
			"\x00\x01aE" + strings.Repeat("\x00", 32) + "\xff\xff\xff\xff",
			"\x00\x01aE" + strings.Repeat("\x00", 32) + "\x00\x00\x00\x01" + strings.Repeat("\x00", 17) + "\xff\xff\xff\xff\x00\x00\x00\x00",
		} {
			c, err := leader.peers.dial(leader.peers.ctx, "follower:1", kindStream, 0)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.Write([]byte(b)); err != nil {
				t.Fatal(err)
			}
			c.SetReadDeadline(time.Now().Add(time.Second))
			if n, err := io.Copy(io.Discard, c); err != nil || n%4 != 0 {
				t.Errorf("%q: %d bytes, %v", b, n, err)
			}
			c.Close()
		}
		if _, err := s.AppendEntries(entryAt(1, 0), new(raft.AppendEntriesResponse)); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if err := s.err(); err != nil {
			t.Error(err)
		}
	})
}
