package spec

import (
	"slices"
	"strconv"
	"time"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/cluster"
	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/alive"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// Follow returns what a member has to be started with, as cluster.Config.Trace, so that its steps are passed to tell. now is
// the time since some moment, the same for all members. tell must not block; it is called concurrently.
func Follow(member uint64, now func() time.Duration, tell func(Event)) cluster.Trace {
	return &follower{member: member, now: now, told: tell}
}

type follower struct {
	member uint64
	now    func() time.Duration
	told   func(Event)
	term   uint64 // of the vote that is being stored
}

func (f *follower) tell(step Step, e Event) {
	e.At, e.Member, e.Step = f.now(), f.member, step
	f.told(e)
}

func (f *follower) Visible(index, term uint64, entry []byte) {
	f.tell(Visible, Event{Last: index, Term: term, Commands: onSessions(entry)})
}

// onSessions returns those commands of an entry that open, resume or end sessions.
func onSessions(entry []byte) (some []Command) {
	e, rest, err := fsm.OpenEntry(entry)
	if err != nil {
		return nil // it is a list of members, or the member will say so
	}
	for range e.Count {
		d := jute.NewDecoder(rest) // see fsm.AppendCommand
		c := Command{Op: proto.OpCode(d.Int()), Session: d.Long(), Owner: session.Conn{Server: e.Origin, Number: uint64(d.Long())}}
		d.Int()
		d.Buffer()
		body := jute.NewDecoder(d.Buffer())
		rest = d.Rest()
		switch c.Op {
		case proto.OpCreateSession:
			c.Session = body.Long()
		case fsm.OpExpireSession:
			c.Owner, c.Term = session.Conn{Server: uint64(body.Long()), Number: uint64(body.Long())}, uint64(body.Long())
		case proto.OpCloseSession, fsm.OpResumeSession, fsm.OpPutBack:
		default:
			continue
		}
		some = append(some, c)
	}
	return some
}

func (f *follower) Restored(index uint64) { f.tell(Restored, Event{Last: index}) }
func (f *follower) Anew(index uint64)     { f.tell(Anew, Event{Last: index}) }
func (f *follower) Leads(term uint64)     { f.tell(Leads, Event{Term: term}) }

func (f *follower) Session(step alive.SessionStep, id int64, timeout, ago time.Duration) {
	e := Event{Session: id, Timeout: timeout}
	if slices.Contains([]alive.SessionStep{alive.Touched, alive.Heard, alive.Answered}, step) {
		e.Asked = f.now() - ago // at once: it may take a while to be told
	}
	steps := []Step{alive.Touched: Touched, alive.Heard: Heard, alive.Restarts: Restarts, alive.Late: Late, alive.Answered: Answered, alive.Ended: Ended}
	f.tell(steps[step], e)
}

// Opened says what is on the disk, and has all that is written to it from now on passed on.
func (f *follower) Opened(s *storage.Storage) {
	var e Event
	first, _ := s.Log.FirstIndex()
	last, _ := s.Log.LastIndex()
	for i := max(first, 1); i <= last; i++ {
		var l raft.Log
		if s.Log.GetLog(i, &l) == nil {
			e.add(&l)
		}
	}
	if newest, err := s.NewestSnapshot(); err == nil && newest.Index > 0 {
		e.Snapshot = covers(&newest)
	}
	e.Term, _ = s.Term()
	candidate, _ := s.Stable.Get([]byte("LastVoteCand"))
	e.Candidate = string(candidate)
	e.Last, _ = s.Stable.GetUint64([]byte("LastVoteTerm")) // of the vote
	e.Of = of(s.Identity())
	e.Rejoining, _ = s.Rejoining()
	f.tell(Opened, e)
	s.Log, s.Stable, s.Snapshots = &followedLog{s.Log, f}, &followedStable{s.Stable, f}, followedSnapshots{s.Snapshots, f}
	store := s.StoreIdentity
	s.StoreIdentity = func(x storage.Identity) error {
		err := store(x)
		if err == nil {
			f.tell(Identity, Event{Of: of(x)})
		}
		return err
	}
}

// add notes that an entry is in the log.
func (e *Event) add(l *raft.Log) {
	if n := len(e.Log); n > 0 && e.Log[n-1].Term == l.Term && e.Log[n-1].Last+1 == l.Index {
		e.Log[n-1].Last = l.Index
	} else {
		e.Log = append(e.Log, Run{l.Index, l.Index, l.Term})
	}
	if l.Type == raft.LogConfiguration {
		e.Lists = append(e.Lists, List{l.Index, servers(raft.DecodeConfiguration(l.Data))})
	}
}

func servers(c raft.Configuration) (all []Server) {
	for _, s := range c.Servers {
		id, _ := strconv.ParseUint(string(s.ID), 10, 64)
		all = append(all, Server{id, string(s.Address), s.Suffrage == raft.Voter})
	}
	return all
}

func covers(m *raft.SnapshotMeta) *Covers {
	return &Covers{m.Index, m.Term, List{m.ConfigurationIndex, servers(m.Configuration)}}
}

func of(x storage.Identity) Of {
	return Of{uint64(x.Cluster), x.Agreed, servers(storage.Configuration(x.First)), x.Since}
}

type followedLog struct {
	raft.LogStore
	f *follower
}

func (l *followedLog) StoreLog(entry *raft.Log) error { return l.StoreLogs([]*raft.Log{entry}) }

func (l *followedLog) StoreLogs(logs []*raft.Log) error {
	err := l.LogStore.StoreLogs(logs)
	if err == nil {
		var e Event
		for _, entry := range logs {
			e.add(entry)
		}
		l.f.tell(Stored, e)
	}
	return err
}

func (l *followedLog) DeleteRange(first, last uint64) error {
	// What is being deleted may be gone at any moment from now on.
	l.f.tell(Deleted, Event{First: first, Last: last})
	return l.LogStore.DeleteRange(first, last)
}

type followedStable struct {
	raft.StableStore
	f *follower
}

func (s *followedStable) SetUint64(key []byte, v uint64) error {
	if err := s.StableStore.SetUint64(key, v); err != nil {
		return err
	}
	switch string(key) {
	case storage.TermKey:
		s.f.tell(Term, Event{Term: v})
	case "LastVoteTerm":
		s.f.term = v // Raft stores the candidate next, on the same goroutine
	case "Rejoining":
		s.f.tell(Rejoining, Event{Rejoining: v != 0})
	}
	return nil
}

func (s *followedStable) Set(key, v []byte) error {
	err := s.StableStore.Set(key, v)
	if err == nil && string(key) == "LastVoteCand" {
		s.f.tell(Voted, Event{Term: s.f.term, Candidate: string(v)})
	}
	return err
}

type followedSnapshots struct {
	raft.SnapshotStore
	f *follower
}

func (s followedSnapshots) Create(version raft.SnapshotVersion, index, term uint64, c raft.Configuration, at uint64,
	trans raft.Transport) (raft.SnapshotSink, error) {
	sink, err := s.SnapshotStore.Create(version, index, term, c, at, trans)
	if err != nil {
		return nil, err
	}
	meta := raft.SnapshotMeta{Index: index, Term: term, Configuration: c, ConfigurationIndex: at}
	return &followedSink{SnapshotSink: sink, f: s.f, covers: covers(&meta)}, nil
}

type followedSink struct {
	raft.SnapshotSink
	f      *follower
	covers *Covers
	ended  bool
}

func (s *followedSink) Cancel() error {
	s.ended = true
	return s.SnapshotSink.Cancel()
}

func (s *followedSink) Close() error {
	err := s.SnapshotSink.Close()
	if err == nil && !s.ended {
		s.ended = true
		s.f.tell(Snapshot, Event{Snapshot: s.covers})
	}
	return err
}
