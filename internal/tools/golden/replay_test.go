package golden

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// against replays s against a fake that change has modified. It runs in virtual time, so
// that waiting takes no time and a goroutine that is left behind fails the test.
func against(t *testing.T, s *Scenario, opts Options, change func(*fake)) (err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := newFake(s)
		if change != nil {
			change(f)
		}
		f.start()
		err = s.Replay(t.Context(), f.dial, opts)
		f.stop()
		if err == nil && f.err != nil {
			t.Errorf("%s: no difference was found, but the fake failed: %v", s.Name, f.err)
		}
	})
	return err
}

// wantDiff checks that err is a difference at that offset of step st.
func wantDiff(t *testing.T, s *Scenario, err error, st *Step, offset int) {
	t.Helper()
	var d *Diff
	switch {
	case !errors.As(err, &d):
		t.Errorf("%s: line %d: got %v, want a difference", s.Name, st.Line, err)
	case d.Step.Line != st.Line || d.Offset != offset:
		t.Errorf("%s: line %d: want offset %d; found:\n%v", s.Name, st.Line, offset, err)
	}
}

func TestReplayAll(t *testing.T) {
	for _, s := range loadAll(t) {
		if err := against(t, s, Options{}, nil); err != nil {
			t.Error(err)
		}
	}
}

func TestReplaySplitReads(t *testing.T) {
	for _, name := range []string{"12-create-persistent", "56-pipeline", "60-4lw-whitelist"} {
		if err := against(t, load(t, name), Options{}, func(f *fake) { f.split = true }); err != nil {
			t.Error(err)
		}
	}
}

// varies reports whether a byte of a recorded frame belongs to a field that varies.
func varies(st *Step, at int) bool {
	for _, f := range st.Fields {
		if at >= f.Offset && at < f.Offset+f.Length {
			return true
		}
	}
	return false
}

// replacing makes the fake send another frame for step st.
func replacing(st *Step, edit func(frame []byte) []byte) func(*fake) {
	return func(f *fake) {
		f.frame = func(at *Step, frame []byte) []byte {
			if at == st {
				return edit(frame)
			}
			return frame
		}
	}
}

// TestReplayFindsWrongByte changes one byte in each frame of each file, which must be found at its offset.
func TestReplayFindsWrongByte(t *testing.T) {
	n := 0
	for _, s := range loadAll(t) {
		for i := range s.Steps {
			st := &s.Steps[i]
			if st.Kind != Receive {
				continue
			}
			// Choose another offset after the length prefix in each frame.
			at := 4 + n*7%(len(st.Bytes)-4)
			for varies(st, at) {
				at = 4 + (at-3)%(len(st.Bytes)-4)
			}
			n++
			err := against(t, s, Options{}, replacing(st, func(b []byte) []byte { b[at] ^= 0x10; return b }))
			wantDiff(t, s, err, st, at)
		}
	}
	if n < 400 {
		t.Errorf("only %d frames tried", n)
	}
}

func TestReplayFindsWrongLength(t *testing.T) {
	s := load(t, "12-create-persistent")
	for i := range s.Steps {
		st := &s.Steps[i]
		if st.Kind != Receive {
			continue
		}
		longer := func(b []byte) []byte {
			binary.BigEndian.PutUint32(b, uint32(len(b)-3))
			return append(b, 0)
		}
		wantDiff(t, s, against(t, s, Options{}, replacing(st, longer)), st, 3)
		shorter := func(b []byte) []byte { return b[:len(b)-1] }
		absurd := func(b []byte) []byte { b[0] = 0x80; return b }
		for _, edit := range []func([]byte) []byte{shorter, absurd} {
			var d *Diff
			if err := against(t, s, Options{}, replacing(st, edit)); !errors.As(err, &d) || d.Step.Line != st.Line {
				t.Errorf("line %d: %v", st.Line, err)
			}
		}
	}
}

func TestReplayFindsMissingFrame(t *testing.T) {
	for _, s := range loadAll(t) {
		for i := range s.Steps {
			st := &s.Steps[i]
			if st.Kind != Receive {
				continue
			}
			var d *Diff
			err := against(t, s, Options{}, replacing(st, func([]byte) []byte { return nil }))
			if !errors.As(err, &d) || d.Step.Line != st.Line {
				t.Errorf("line %d: %v", st.Line, err)
			}
		}
	}
}

func TestReplayFindsMissingClose(t *testing.T) {
	for _, s := range loadAll(t) {
		for i := range s.Steps {
			st := &s.Steps[i]
			if st.Kind != Closed {
				continue
			}
			keepOpen := func(f *fake) { f.skipClose = func(at *Step) bool { return at == st } }
			wantDiff(t, s, against(t, s, Options{}, keepOpen), st, -1)
		}
	}
}

// TestReplayFindsWrongZxid increases and decreases each zxid by one, which must be found
// in that field.
func TestReplayFindsWrongZxid(t *testing.T) {
	for _, s := range loadAll(t) {
		based := false
		for i := range s.Steps {
			st := &s.Steps[i]
			for _, f := range st.Fields {
				if st.Kind != Receive || f.Kind != Zxid {
					continue
				}
				if !based { // the first zxid may have any value
					based = true
					continue
				}
				for _, by := range []uint64{1, ^uint64(0)} {
					err := against(t, s, Options{}, replacing(st, func(b []byte) []byte {
						z := b[f.Offset:]
						binary.BigEndian.PutUint64(z, binary.BigEndian.Uint64(z)+by)
						return b
					}))
					var d *Diff
					if !errors.As(err, &d) || d.Step.Line != st.Line || d.Offset < f.Offset || d.Offset >= f.Offset+8 {
						t.Errorf("%s: line %d offset %d: %v", s.Name, st.Line, f.Offset, err)
					}
				}
			}
		}
	}
}

func TestReplayFindsWrongTimeAndSession(t *testing.T) {
	s := load(t, "22-set-data")
	field := func(symbol string, nth int) (*Step, Field) {
		for i := range s.Steps {
			for _, f := range s.Steps[i].Fields {
				if s.Steps[i].Kind == Receive && f.Symbol == symbol {
					if nth--; nth < 0 {
						return &s.Steps[i], f
					}
				}
			}
		}
		t.Fatalf("no field %s", symbol)
		return nil, Field{}
	}
	set := func(f Field, v uint64) func([]byte) []byte {
		return func(b []byte) []byte { binary.BigEndian.PutUint64(b[f.Offset:], v); return b }
	}
	st, f := field("T+3", 0)
	wantDiff(t, s, against(t, s, Options{}, replacing(st, set(f, 1))), st, f.Offset) // before the first
	st, f = field("T+2", 1)
	wantDiff(t, s, against(t, s, Options{}, replacing(st, set(f, 1))), st, f.Offset+3) // the first byte of the fake's times that is not 0

	s = load(t, "14-create-ephemeral")
	st, f = field("S1", 1)
	wantDiff(t, s, against(t, s, Options{}, replacing(st, set(f, 0))), st, f.Offset) // another owner

	s = load(t, "03-connect-timeouts")
	st, f = field("S2", 0)
	wantDiff(t, s, against(t, s, Options{}, replacing(st, set(f, 0x2a<<56+1))), st, f.Offset) // the first session's id
}

func TestReplayFindsWhatWasNotRecorded(t *testing.T) {
	event := []byte{0, 0, 0, 16, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0, 0}
	more := func(b []byte) []byte { return append(b, event...) }

	s := load(t, "12-create-persistent")
	last := &s.Steps[len(s.Steps)-1]
	wantDiff(t, s, against(t, s, Options{}, replacing(last, more)), last, -1)

	s = load(t, "36-watch-children")
	for i := range s.Steps {
		if st := &s.Steps[i]; st.Kind == Silence {
			prev := st
			for j := i - 1; prev.Kind != Receive || prev.Conn != st.Conn; j-- {
				prev = &s.Steps[j]
			}
			err := against(t, s, Options{}, replacing(prev, more))
			wantDiff(t, s, err, st, -1)
		}
	}
}

func TestReplayEventZxid(t *testing.T) {
	s := load(t, "38-watch-recursive")
	as := func(zxid int64) func(*fake) {
		return func(f *fake) {
			f.frame = func(st *Step, frame []byte) []byte {
				if event(frame) {
					binary.BigEndian.PutUint64(frame[zxidAt:], uint64(zxid))
				}
				return frame
			}
		}
	}
	for _, c := range []struct {
		zxid  int64
		eager bool
		ok    bool
	}{{-1, false, true}, {-1, true, true}, {fakeBase, true, true}, {fakeBase, false, false}, {0, true, false}, {-2, true, false}} {
		if err := against(t, s, Options{EventZxid: c.eager}, as(c.zxid)); (err == nil) != c.ok {
			t.Errorf("event zxid %d, EventZxid %v: %v", c.zxid, c.eager, err)
		}
	}
}

func TestReplayMask(t *testing.T) {
	s := load(t, "05-connect-resume")
	for i := range s.Steps {
		st := &s.Steps[i]
		mask := Options{Mask: func(in *Scenario, at *Step) bool { return in == s && at == st }}
		var change func(*fake)
		switch st.Kind {
		case Receive:
			if i < 3 {
				continue // what makes the session is needed later
			}
			change = replacing(st, func([]byte) []byte { return []byte{0, 0, 0, 2, 1, 2} })
		case Closed:
			change = func(f *fake) { f.skipClose = func(at *Step) bool { return at == st } }
		default:
			continue
		}
		if err := against(t, s, Options{}, change); err == nil {
			t.Errorf("line %d: not found without the mask", st.Line)
		}
		if err := against(t, s, mask, change); err != nil {
			t.Errorf("line %d: found behind the mask: %v", st.Line, err)
		}
	}
}

func TestReplayText(t *testing.T) {
	s := load(t, "60-4lw-whitelist")
	edited := *s
	edited.Steps = append([]Step(nil), s.Steps...)
	edited.Steps[1].Text += "x"
	other := func(f *fake) { f.s = &edited }
	wantDiff(t, s, against(t, s, Options{}, other), &s.Steps[1], len(s.Steps[1].Text))

	var asked []string
	judge := func(st *Step, got string) error {
		asked = append(asked, st.Request)
		if got != st.Text && got != st.Text+"x" {
			return errors.New("no")
		}
		return nil
	}
	if err := against(t, s, Options{Text: judge}, other); err != nil {
		t.Error(err)
	}
	if got := strings.Join(asked, " "); got != "srvr ruok zzzz" {
		t.Errorf("judged %q", got)
	}
	refuse := func(*Step, string) error { return errors.New("not so") }
	if err := against(t, s, Options{Text: refuse}, nil); err == nil || !strings.Contains(err.Error(), "not so") {
		t.Errorf("a refused text gives %v", err)
	}
}

func TestReplayRefusesHTTP(t *testing.T) {
	s, err := Parse(strings.NewReader("zk-golden 1\ntitle: t\nserver: s, config admin\n\nHTTP > GET /\nHTTP <\n  | 200 -\n"))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Replay(t.Context(), nil, Options{}); !errors.Is(err, errors.ErrUnsupported) {
		t.Error(err)
	}
	all := Options{Mask: func(*Scenario, *Step) bool { return true }}
	if err := s.Replay(t.Context(), nil, all); err != nil {
		t.Error(err)
	}
}

// TestReplayEndsSessions checks that every session that a scenario opens is closed, by
// the scenario or after it.
func TestReplayEndsSessions(t *testing.T) {
	for _, name := range []string{"03-connect-timeouts", "05-connect-resume", "42-watches-die-with-connection", "51-session-expiry"} {
		s := load(t, name)
		made := map[string]bool{}
		for _, st := range s.Steps {
			for _, f := range st.Fields {
				made[f.Symbol] = made[f.Symbol] || f.Kind == Sid
			}
		}
		want := 0
		for _, sid := range made {
			if sid {
				want++
			}
		}
		var f *fake
		if err := against(t, s, Options{}, func(g *fake) { f = g }); err != nil {
			t.Error(err)
		}
		if f.ended != want {
			t.Errorf("%s: %d sessions ended, want %d", name, f.ended, want)
		}
	}
}

func TestReplayStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := load(t, "12-create-persistent")
		f := newFake(s)
		f.frame = func(*Step, []byte) []byte { return nil } // never answers
		f.start()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		err := s.Replay(ctx, f.dial, Options{Timeout: time.Hour})
		f.stop()
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
	})
}

func TestReplayDialErrors(t *testing.T) {
	s := load(t, "08-connect-zxid-ahead") // the server closes at once
	for err, ok := range map[error]bool{
		errFakeGone: false,
		&net.OpError{Op: "dial", Err: syscall.EPIPE}:      true,
		&net.OpError{Op: "dial", Err: syscall.ECONNRESET}: true,
	} {
		got := s.Replay(t.Context(), func() (net.Conn, error) { return nil, err }, Options{})
		if (got == nil) != ok || !ok && !errors.Is(got, err) {
			t.Errorf("dial error %v: replay gives %v", err, got)
		}
	}
}

// TestReplayOverTCP uses real sockets, where a server that closes a connection with unread bytes resets it.
func TestReplayOverTCP(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			io.ReadFull(c, make([]byte, 3))
			c.Close()
		}
	}()
	dial := func() (net.Conn, error) { return net.Dial("tcp", l.Addr().String()) }
	if err := load(t, "08-connect-zxid-ahead").Replay(t.Context(), dial, Options{}); err != nil {
		t.Error(err)
	}
	s := load(t, "01-connect-ping-close")
	err = s.Replay(t.Context(), dial, Options{})
	wantDiff(t, s, err, &s.Steps[2], -1)
}

func ExampleScenario_Replay() {
	s, err := Parse(strings.NewReader(`zk-golden 1
title: A bad frame
server: config ext

C1 open
C1 > ffffffff
C1 closed
`))
	if err != nil {
		panic(err)
	}
	dial := func() (net.Conn, error) {
		client, server := net.Pipe()
		server.Close()
		return client, nil
	}
	if err := s.Replay(context.Background(), dial, Options{}); err != nil {
		panic(err)
	}
	// Output:
}

// TestReplayOld checks that values from before the recording are not compared, and that
// an old zxid in a request is replaced by one that the endpoint knows.
func TestReplayOld(t *testing.T) {
	s, err := Parse(strings.NewReader(`zk-golden 1
title: t
server: s, config ext

C1 open
C1 > 000000080000000000000099
  @ 4 8 zxid old  lastZxidSeen
C1 < 00000010000000010000000000000007fffffff0
  @ 8 8 zxid base+2  zxid
C1 > 000000080000000000000098
  @ 4 8 zxid old  relativeZxid
C1 < 00000018000000020000000000000003000000000000000000000004
  @ 8 8 zxid old  zxid
  @ 20 8 sid old  owner
C1 < 00000018000000030000000000000007000000000000000000000004
  @ 8 8 zxid base+2  zxid
  @ 20 8 time old  ctime
`))
	if err != nil {
		t.Fatal(err)
	}
	client, server := net.Pipe()
	var asked [2]uint64
	done := make(chan error, 1)
	go func() {
		done <- func() error {
			for i, answer := range [][]byte{
				{0, 0, 0, 16, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 52, 255, 255, 255, 240},
				append(append([]byte{0, 0, 0, 24, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0}, 9, 9, 9, 9, 9, 9, 9, 9),
					0, 0, 0, 24, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 52, 0, 0, 0, 0, 8, 8, 8, 8, 8, 8, 8, 8),
			} {
				var q [12]byte
				if _, err := io.ReadFull(server, q[:]); err != nil {
					return err
				}
				asked[i] = binary.BigEndian.Uint64(q[4:])
				if _, err := server.Write(answer); err != nil {
					return err
				}
			}
			return server.Close()
		}()
	}()
	if err := s.Replay(t.Context(), func() (net.Conn, error) { return client, nil }, Options{}); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil || asked != [2]uint64{0, 50} {
		t.Errorf("asked with %v, want 0 and the base 50; %v", asked, err)
	}
}

// TestReplayEventZxidRecorded replays a recording that has the zxid of events, as one of 3.9, against a server that sends -1.
func TestReplayEventZxidRecorded(t *testing.T) {
	s := load(t, "38-watch-recursive")
	for i := range s.Steps {
		if st := &s.Steps[i]; st.Kind == Receive && event(st.Bytes) {
			st.Fields = append(st.Fields, Field{zxidAt, 8, Zxid, "base+3", "zxid", 3})
		}
	}
	without := func(f *fake) {
		f.frame = func(_ *Step, frame []byte) []byte {
			if event(frame) {
				binary.BigEndian.PutUint64(frame[zxidAt:], ^uint64(0))
			}
			return frame
		}
	}
	if err := against(t, s, Options{EventZxid: true}, without); err != nil {
		t.Error(err)
	}
	if err := against(t, s, Options{}, without); err == nil {
		t.Error("not found without EventZxid")
	}
}
