package raftwire

import (
	"bufio"
	"bytes"
	"io"
	"math"
	"reflect"
	"testing"

	"github.com/hashicorp/raft"
)

// read reads a message, without a header.
func read(r *bufio.Reader) (any, bool, error) { return Read(r, raft.RPCHeader{}) }

// TestMessages: a message is read as it was sent.
func TestMessages(t *testing.T) {
	for _, q := range []any{
		&raft.AppendEntriesRequest{Term: 1},
		&raft.AppendEntriesRequest{Term: math.MaxUint64, PrevLogEntry: 1 << 60, PrevLogTerm: 1 << 50, LeaderCommitIndex: 1 << 40},
		&raft.AppendEntriesRequest{Term: 7, PrevLogEntry: 4, PrevLogTerm: 6, LeaderCommitIndex: 5, Entries: []*raft.Log{
			{Index: 5, Term: 6, Type: raft.LogCommand, Data: []byte("data")},
			{Index: 6, Term: 7, Type: raft.LogNoop, Data: []byte{}},
			{Index: 7, Term: 7, Type: raft.LogConfiguration, Data: bytes.Repeat([]byte("x"), 1<<18), Extensions: []byte("more")},
		}},
		&raft.AppendEntriesRequest{Term: 7, Entries: []*raft.Log{{Index: 9, Term: 6, Type: raft.LogNoop, Data: []byte{}}}}, // behind a snapshot
		&raft.RequestVoteRequest{Term: 1, LastLogIndex: 2, LastLogTerm: 3},
		&raft.RequestVoteRequest{Term: 1, LastLogIndex: 2, LastLogTerm: 3, LeadershipTransfer: true},
		&raft.RequestPreVoteRequest{Term: 1, LastLogIndex: 2, LastLogTerm: 3},
		&raft.TimeoutNowRequest{},
		&raft.InstallSnapshotRequest{
			SnapshotVersion: raft.SnapshotVersionMax, Term: 1, LastLogIndex: 2, LastLogTerm: 3, ConfigurationIndex: 4, Size: 1 << 40, Configuration: []byte("list"),
		},
	} {
		in := bufio.NewReader(bytes.NewReader(Append(nil, q)))
		if got, asks, err := read(in); err != nil || !asks || !reflect.DeepEqual(got, q) {
			t.Errorf("%+v, %v, %v, want %+v", got, asks, err, q)
		}
		if _, _, err := read(in); err != io.EOF {
			t.Error(err)
		}
	}
	q := &raft.AppendEntriesRequest{Term: 1, PrevLogEntry: 2, PrevLogTerm: 3, LeaderCommitIndex: 2}
	if got, asks, err := read(bufio.NewReader(bytes.NewReader(AppendCommit(nil, q)))); err != nil || asks || !reflect.DeepEqual(got, q) {
		t.Errorf("%+v, %v, %v, want %+v", got, asks, err, q)
	}
	h := raft.RPCHeader{ProtocolVersion: 3, ID: []byte("1"), Addr: []byte("a")}
	for _, q := range []any{&raft.AppendEntriesRequest{}, &raft.RequestVoteRequest{}, &raft.RequestPreVoteRequest{}, &raft.TimeoutNowRequest{}, &raft.InstallSnapshotRequest{}} {
		got, _, err := Read(bufio.NewReader(bytes.NewReader(Append(nil, q))), h)
		if err != nil || !reflect.DeepEqual(got.(raft.WithRPCHeader).GetRPCHeader(), h) {
			t.Errorf("%+v, %v: not with the header", got, err)
		}
	}
}

// TestAnswers: an answer is read as it was sent.
func TestAnswers(t *testing.T) {
	for _, want := range []any{
		&raft.AppendEntriesResponse{},
		&raft.AppendEntriesResponse{Term: 1, LastLog: 2, Success: true},
		&raft.AppendEntriesResponse{Term: 1 << 63, LastLog: 1 << 62, NoRetryBackoff: true},
		&raft.RequestVoteResponse{Term: 1, Granted: true},
		&raft.RequestVoteResponse{Term: 2},
		&raft.RequestPreVoteResponse{Term: 1, Granted: true},
		&raft.InstallSnapshotResponse{Term: 1, Success: true},
		&raft.TimeoutNowResponse{},
	} {
		got := reflect.New(reflect.TypeOf(want).Elem()).Interface()
		if err := ReadAnswer(bytes.NewReader(AppendAnswer(nil, raft.RPCResponse{Response: want})), got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%+v, %v, want %+v", got, err, want)
		}
		if err := ReadAnswer(bytes.NewReader(AppendAnswer(nil, raft.RPCResponse{Response: want, Error: io.EOF})), got); err != ErrFailed {
			t.Error(err)
		}
	}
}

// FuzzRead: no bytes make a follower panic, and a message that can be read can be written.
func FuzzRead(f *testing.F) {
	f.Add(AppendCommit(nil, &raft.AppendEntriesRequest{Term: 1, PrevLogEntry: 2, PrevLogTerm: 3}))
	f.Add(Append(nil, &raft.AppendEntriesRequest{Term: 1, Entries: []*raft.Log{{Index: 1, Term: 1, Data: []byte("x")}}}))
	f.Add(Append(nil, &raft.RequestVoteRequest{Term: 1, LeadershipTransfer: true}))
	f.Add(Append(nil, &raft.InstallSnapshotRequest{Term: 1, Size: 5, Configuration: []byte("list")}))
	f.Fuzz(func(t *testing.T, b []byte) {
		q, asks, err := read(bufio.NewReader(bytes.NewReader(b)))
		if err != nil {
			return
		}
		again := Append(nil, q)
		if !asks {
			again = AppendCommit(nil, q.(*raft.AppendEntriesRequest))
		}
		if got, _, err := read(bufio.NewReader(bytes.NewReader(again))); err != nil || !reflect.DeepEqual(got, q) || len(again) > len(b) {
			t.Errorf("%x was read as %x: %v", b, again, err)
		}
	})
}
