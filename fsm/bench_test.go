package fsm

import (
	"bytes"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// filled returns a machine with the given numbers of znodes and sessions.
func filled(b testing.TB, znodes, sessions int) *Machine {
	m := NewMachine()
	var commands []*Command
	flush := func() {
		one(b, m, 1, commands...)
		commands = commands[:0]
	}
	for i := range sessions {
		if commands = append(commands, OpenSession(1, int64(i+1), 10000, session.Password{byte(i)})); len(commands) == 4096 {
			flush()
		}
	}
	flush()
	for i := range znodes {
		path := fmt.Sprintf("/n%03d", i%1000)
		if i >= 1000 {
			path += fmt.Sprintf("/%07d", i)
		}
		if commands = append(commands, createCommand(1, path, 0)); len(commands) == 4096 {
			flush()
		}
	}
	flush()
	if m.Tree().Len() != znodes+4 {
		b.Fatalf("%d znodes, want %d", m.Tree().Len(), znodes+4)
	}
	return m
}

// BenchmarkApply measures applying one command, in entries of 256 commands as under load.
func BenchmarkApply(b *testing.B) {
	const batch = 256
	lock := func(i int) []*Command {
		del := proto.PathVersion{Path: fmt.Sprintf("/n000/lock-%010d", i), Version: -1}
		return []*Command{
			createCommand(1, "/n000/lock-", proto.FlagEphemeralSeq),
			{Op: proto.OpDelete, Session: 1, Conn: 1, Body: del.Append(nil)},
		}
	}
	set := (&proto.SetDataRequest{Path: "/n001", Data: make([]byte, 100), Version: -1}).Append(nil)
	multi := proto.MultiRequest{Ops: []proto.MultiOp{
		{Op: proto.OpCheck, Request: &proto.PathVersion{Path: "/n001", Version: -1}},
		{Op: proto.OpSetData, Request: &proto.SetDataRequest{Path: "/n002", Data: make([]byte, 100), Version: -1}},
	}}
	multiBody := multi.Append(nil)
	ids := AppendIDs(nil, someIDs[:1])
	for name, commands := range map[string]func(i int) []*Command{
		"lock": lock, // two commands: create an ephemeral sequential znode and delete it
		"setData": func(int) []*Command {
			return []*Command{{Op: proto.OpSetData, Session: 1, Conn: 1, IDs: ids, Body: set}}
		},
		"multi": func(int) []*Command {
			return []*Command{{Op: proto.OpMulti, Session: 1, Conn: 1, IDs: ids, Body: multiBody}}
		},
		"failed create": func(int) []*Command { return []*Command{createCommand(1, "/n001", 0)} },
	} {
		b.Run(name, func(b *testing.B) {
			m := filled(b, 2000, 10)
			next := int(m.Tree().Lookup("/n000").Record().Creates)
			index, n := m.Index(), 0
			b.ReportAllocs()
			for n < b.N {
				b.StopTimer()
				entry, count := BeginEntry(nil), 0
				for count < batch {
					for _, c := range commands(next) {
						entry = AppendCommand(entry, c)
						count++
					}
					next++
				}
				entry = EndEntry(entry, &Envelope{Origin: 1, Batch: index + 1, Time: 1000, Count: count})
				index++
				b.StartTimer()
				if err := m.Apply(index, 1, entry, nil); err != nil {
					b.Fatal(err)
				}
				n += count
			}
		})
	}
}

// BenchmarkSnapshot measures how long taking a snapshot of many znodes or sessions blocks
// Apply. It should be less than 5 ms.
func BenchmarkSnapshot(b *testing.B) {
	for _, size := range []struct{ znodes, sessions int }{{1_000_000, 1000}, {1_000_000, 10_000}, {10_000, 100_000}} {
		b.Run(fmt.Sprintf("%dznodes/%dsessions", size.znodes, size.sessions), func(b *testing.B) {
			m := filled(b, size.znodes, size.sessions)
			b.ResetTimer()
			var worst time.Duration
			for b.Loop() {
				start := time.Now()
				m.Snapshot()
				worst = max(worst, time.Since(start))
			}
			b.ReportMetric(float64(worst.Microseconds())/1000, "worst-ms")
		})
	}
}

// BenchmarkWriteRead measures writing and reading a snapshot of 100,000 znodes.
func BenchmarkWriteRead(b *testing.B) {
	m := filled(b, 100_000, 1000)
	s := m.Snapshot()
	var buf bytes.Buffer
	if err := s.Write(&buf); err != nil {
		b.Fatal(err)
	}
	b.Run("write", func(b *testing.B) {
		b.SetBytes(int64(buf.Len()))
		for b.Loop() {
			if err := s.Write(io.Discard); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("read", func(b *testing.B) {
		b.SetBytes(int64(buf.Len()))
		for b.Loop() {
			if _, err := ReadSnapshot(bytes.NewReader(buf.Bytes())); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkRead measures one getData.
func BenchmarkRead(b *testing.B) {
	r := NewReplica()
	r.Load(filled(b, 100_000, 10))
	body := (&proto.PathWatch{Path: "/n000/0005000"}).Append(nil)
	reader := &Reader{Watcher: &watcher{}, Session: 1, IDs: someIDs[:1]}
	var out []byte
	b.ReportAllocs()
	for b.Loop() {
		r.View(func(v *View) { out, _ = v.Read(reader, proto.OpGetData, body, out[:0]) })
	}
}
