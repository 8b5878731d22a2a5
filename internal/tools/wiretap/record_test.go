package wiretap

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/golden"
	"github.com/lockkeeper/lockkeeper/internal/tools/wire"
)

// retape passes a captured exchange to a recorder as a proxy would.
func retape(s *golden.Scenario) (text []byte, r *Recorder) {
	var b bytes.Buffer
	r = NewRecorder(&b, "somewhere")
	now := time.Unix(1, 0)
	talks := map[int]*wire.Conversation{}
	last := 1000
	for i := range s.Steps {
		st := &s.Steps[i]
		e := Event{Time: now, FromClient: st.Kind == golden.Send || st.Kind == golden.Close}
		if len(st.Conn) > 1 {
			e.Conn, _ = strconv.Atoi(st.Conn[1:])
		}
		e.Bytes, e.Size = st.Bytes, len(st.Bytes)
		switch st.Kind {
		case golden.Open:
			talks[e.Conn] = &wire.Conversation{}
			e.Kind = Opened
		case golden.Send, golden.Receive:
			if e.FromClient && (len(st.Bytes) < 4 || int(st.Bytes[3])+int(st.Bytes[2])<<8+int(st.Bytes[1])<<16 != len(st.Bytes)-4) {
				e.Kind = Raw
				break
			}
			var f wire.Frame
			if e.FromClient {
				f = talks[e.Conn].FromClient(st.Bytes[4:])
			} else {
				f = talks[e.Conn].FromServer(st.Bytes[4:])
			}
			e.Kind, e.Frame = Framed, &f
		case golden.Close: // then the server closes it, too
			e.Kind = Finished
			r.Handle(e)
			e.FromClient = false
		case golden.Closed:
			e.Kind = Finished
		case golden.Silence, golden.Wait:
			now = now.Add(st.Pause)
			continue
		case golden.Word:
			last++
			e.Conn = last
			e.Kind = Opened
			r.Handle(e)
			e.Kind, e.FromClient, e.Bytes, e.Size = Text, true, []byte(st.Request), len(st.Request)
			r.Handle(e)
			e.FromClient, e.Bytes, e.Size = false, []byte(st.Text), len(st.Text)
			r.Handle(e)
			e.Kind = Finished
		}
		r.Handle(e)
	}
	return b.Bytes(), r
}

// TestRetape records the captured exchanges again. Every step must be the same as in
// the file, with the same marked fields.
func TestRetape(t *testing.T) {
	scenarios := testkit.Must(golden.LoadAll(os.DirFS("../../../testdata/golden")))(t)
	fields, waits := 0, map[string]time.Duration{}
	for _, s := range scenarios {
		text, r := retape(s)
		if r.Err() != nil || r.Lost() > 0 || len(r.conns) > 4 {
			t.Errorf("%s: %v, %d lost, %d connections left", s.Name, r.Err(), r.Lost(), len(r.conns))
		}
		again, err := golden.Parse(bytes.NewReader(text))
		if err != nil {
			t.Errorf("%s: %v\n%s", s.Name, err, text)
			continue
		}
		got, want := again.Steps, s.Steps
		for len(want) > 0 && len(got) > 0 {
			g, w := &got[0], &want[0]
			switch {
			case w.Kind == golden.Silence || w.Kind == golden.Wait:
				want = want[1:]
				continue
			case g.Kind == golden.Wait:
				waits[s.Name] += g.Pause
				got = got[1:]
				continue
			}
			// The recorder writes "open" only when the connection is used.
			if w.Kind == golden.Open && (g.Kind != golden.Open || g.Conn != w.Conn) {
				want = append(append(want[1:len(want):len(want)][:0:0], want[1]), append([]golden.Step{*w}, want[2:]...)...)
				continue
			}
			if g.Kind != w.Kind || g.Conn != w.Conn || !bytes.Equal(g.Bytes, w.Bytes) || g.Request != w.Request || g.Text != w.Text {
				t.Errorf("%s:%d: %s %s was recorded as %s %s", s.Name, w.Line, w.Conn, w.Kind, g.Conn, g.Kind)
				break
			}
			fields += len(g.Fields)
			if gs, ws := marks(g.Fields), marks(w.Fields); gs != ws {
				t.Errorf("%s:%d: marked %s, in the file %s\n%s", s.Name, w.Line, gs, ws, w.Comment)
			}
			got, want = got[1:], want[1:]
		}
		for len(want) > 0 && want[0].Kind == golden.Silence {
			want = want[1:]
		}
		if len(got) > 0 || len(want) > 0 {
			t.Errorf("%s: %d steps too many, %d missing", s.Name, len(got), len(want))
		}
	}
	if fields < 850 {
		t.Errorf("only %d fields", fields)
	}
	t.Log(waits)
}

func marks(fields []golden.Field) string {
	var b strings.Builder
	for _, f := range fields {
		b.WriteString(string(f.Kind) + " " + f.Symbol + " at " + strconv.Itoa(f.Offset) + "+" + strconv.Itoa(f.Length) + "; ")
	}
	return b.String()
}
