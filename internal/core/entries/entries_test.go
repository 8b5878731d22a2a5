package entries

import (
	"bufio"
	"bytes"
	"io"
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

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
		in := bufio.NewReader(bytes.NewReader(append(Append(nil, &q), AppendCommit(nil, &q)...)))
		got, asks, err := Read(in)
		if err != nil || !asks || !reflect.DeepEqual(got, &q) {
			t.Errorf("%+v, %v, %v, want %+v", got, asks, err, q)
		}
		commit := &raft.AppendEntriesRequest{Term: q.Term, PrevLogEntry: q.PrevLogEntry, PrevLogTerm: q.PrevLogTerm, LeaderCommitIndex: q.PrevLogEntry}
		got, asks, err = Read(in)
		if err != nil || asks || !reflect.DeepEqual(got, commit) {
			t.Errorf("%+v, %v, %v, want %+v", got, asks, err, commit)
		}
		if _, _, err := Read(in); err != io.EOF {
			t.Error(err)
		}
	}
	for _, want := range []raft.AppendEntriesResponse{{}, {Term: 1, LastLog: 2, Success: true}, {Term: 1 << 63, LastLog: 1 << 62, NoRetryBackoff: true}} {
		var got raft.AppendEntriesResponse
		if err := ReadAnswer(bytes.NewReader(AppendAnswer(nil, &want)), &got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%+v, %v, want %+v", got, err, want)
		}
	}
}

// FuzzReadAppend: no bytes make a follower panic, and a message that can be read is written as the
// same bytes.
func FuzzReadAppend(f *testing.F) {
	f.Add(AppendCommit(nil, &raft.AppendEntriesRequest{Term: 1, PrevLogEntry: 2, PrevLogTerm: 3}))
	f.Add(Append(nil, &raft.AppendEntriesRequest{Term: 1, Entries: []*raft.Log{{Index: 1, Term: 1, Data: []byte("x"), AppendedAt: time.Unix(1, 1)}}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		q, asks, err := Read(bufio.NewReader(bytes.NewReader(b)))
		if err != nil {
			return
		}
		again := AppendCommit(nil, q)
		if asks {
			again = Append(nil, q)
		}
		if !bytes.HasPrefix(b, again) {
			t.Errorf("%x was read as %x", b, again)
		}
	})
}
