package golden

import (
	"bytes"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

func loadAll(t testing.TB) []*Scenario {
	t.Helper()
	all := testkit.Must(LoadAll(os.DirFS("../../../testdata/golden")))(t)
	return all
}

func load(t testing.TB, name string) *Scenario {
	t.Helper()
	s := testkit.Must(Load(os.DirFS("../../../testdata/golden"), name+".txt"))(t)
	return s
}

func TestFilesParse(t *testing.T) {
	configs := map[string]int{}
	kinds := map[Kind]int{}
	for _, s := range loadAll(t) {
		configs[s.Config]++
		for _, st := range s.Steps {
			kinds[st.Kind]++
		}
	}
	if want := map[string]int{"ext": 58, "default": 4, "admin": 1, "sasl": 1}; !maps.Equal(configs, want) {
		t.Errorf("scenarios by configuration: %v, want %v", configs, want)
	}
	for k := Open; k <= Word; k++ {
		if kinds[k] == 0 {
			t.Errorf("no file has a step %v", k)
		}
	}
}

// TestFilesAreConsistent checks that in each file every symbol stands for one value, and
// that times are in order.
func TestFilesAreConsistent(t *testing.T) {
	for _, s := range loadAll(t) {
		b := newBindings()
		for i := range s.Steps {
			st := &s.Steps[i]
			switch st.Kind {
			case Receive:
				if d := b.reply(st, st.Bytes, false); d != nil {
					t.Errorf("%s: %v", s.Name, d)
				}
			case Send:
				if got, err := b.request(st); err != nil || !bytes.Equal(got, st.Bytes) {
					t.Errorf("%s: line %d: request becomes %x, %v", s.Name, st.Line, got, err)
				}
			}
		}
	}
}

func TestParse(t *testing.T) {
	s, err := Parse(strings.NewReader(`zk-golden 1
title: a title: with a colon
server: Apache ZooKeeper 3.8.0, standalone, config ext
note: one
note: two

C1 open
C1 > 0000000800000001fffffff5
  # closeSession request: xid=1
C1 < 0000001000000001000000000000013400000000
  # closeSession reply: xid=1
  @ 8 8 zxid base+12  zxid
C1 silence 300
wait 200
C1 closed
C1 open
C1 close
4LW > stat
4LW <
  | Clients:
  |  /127.0.0.1:47050[1]
  | 
HTTP > GET /commands/ruok
HTTP <
  | 200 application/json
  | {}
`))
	if err != nil {
		t.Fatal(err)
	}
	if s.Title != "a title: with a colon" || s.Config != "ext" || len(s.Notes) != 2 || s.Notes[1] != "two" {
		t.Errorf("header: %+v", s)
	}
	var kinds []string
	for _, st := range s.Steps {
		kinds = append(kinds, st.Kind.String())
	}
	if got, want := strings.Join(kinds, " "), "open > < silence wait closed open close 4LW HTTP"; got != want {
		t.Errorf("steps %q, want %q", got, want)
	}
	if st := s.Steps[1]; st.Line != 8 || st.Conn != "C1" || len(st.Bytes) != 12 || st.Comment != "closeSession request: xid=1" {
		t.Errorf("request: %+v", st)
	}
	want := Field{Offset: 8, Length: 8, Kind: Zxid, Symbol: "base+12", Name: "zxid", n: 12}
	if st := s.Steps[2]; len(st.Fields) != 1 || st.Fields[0] != want {
		t.Errorf("fields %+v, want %+v", st.Fields, want)
	}
	if s.Steps[3].Pause != 300*time.Millisecond || s.Steps[4].Pause != 200*time.Millisecond {
		t.Errorf("pauses: %v, %v", s.Steps[3].Pause, s.Steps[4].Pause)
	}
	if st := s.Steps[8]; st.Request != "stat" || st.Text != "Clients:\n /127.0.0.1:47050[1]\n" {
		t.Errorf("four letter word: %+v", st)
	}
	if st := s.Steps[9]; st.Request != "GET /commands/ruok" || st.Text != "200 application/json\n{}" {
		t.Errorf("HTTP: %+v", st)
	}
}

func TestParseRefuses(t *testing.T) {
	const head = "zk-golden 1\ntitle: t\nserver: s, config ext\n\n"
	for name, text := range map[string]string{
		"nothing":              "",
		"another file":         "hello\n",
		"no config":            "zk-golden 1\ntitle: t\nserver: s\n\n",
		"unknown header":       "zk-golden 1\nauthor: t\n\n",
		"unknown step":         head + "C1 open\nC1 jump\n",
		"not a step":           head + "what\n",
		"not open":             head + "C1 > 00\n",
		"open twice":           head + "C1 open\nC1 open\n",
		"closed before":        head + "C1 open\nC1 closed\nC1 silence 3\n",
		"bad hex":              head + "C1 open\nC1 > 0g\n",
		"lying length":         head + "C1 open\nC1 < 0000000400\n",
		"short frame":          head + "C1 open\nC1 < 0000\n",
		"field outside":        head + "C1 open\nC1 < 0000000400000000\n  @ 4 8 zxid base+1  zxid\n",
		"field of wrong size":  head + "C1 open\nC1 < 0000000400000000\n  @ 4 4 zxid base+1  zxid\n",
		"field of wrong kind":  head + "C1 open\nC1 < 0000000400000000\n  @ 4 4 int I1  i\n",
		"field of bad symbol":  head + "C1 open\nC1 < 000000080000000000000000\n  @ 4 8 sid T+1  i\n",
		"field of no frame":    head + "C1 open\n  @ 4 8 sid S1  i\n",
		"detail of nothing":    head + "  # what\n",
		"text without request": head + "C1 open\n  | text\n",
		"answer alone":         head + "4LW <\n",
		"no answer":            head + "4LW > ruok\n",
		"interrupted":          head + "4LW > ruok\nwait 3\n4LW <\n",
		"bad pause":            head + "wait -1\n",
	} {
		if _, err := Parse(strings.NewReader(text)); err == nil {
			t.Errorf("%s: parsed", name)
		}
	}
}

// TestFramesKnowTheirOpcode compares opcodes with the comments in the files, which name the request that a frame is or answers.
func TestFramesKnowTheirOpcode(t *testing.T) {
	ops := map[string]int32{}
	total := 0
	for _, s := range loadAll(t) {
		for _, f := range s.Frames() {
			total++
			name, _, ok := strings.Cut(f.Comment, " ")
			name = strings.TrimSuffix(name, ":")
			switch {
			case !ok:
				if !f.FromClient {
					t.Errorf("%s: line %d: an answer without a comment", s.Name, f.Line)
				}
			case name == "ConnectRequest" || name == "ConnectResponse":
				if !f.Handshake || f.Op != 0 || f.FromClient != (name == "ConnectRequest") {
					t.Errorf("%s: line %d: %+v", s.Name, f.Line, f)
				}
			case name == "op": // an unknown one
			case name == "event":
				if f.Handshake || f.Op != 0 || f.FromClient {
					t.Errorf("%s: line %d: %+v", s.Name, f.Line, f)
				}
			default:
				if op, known := ops[name]; known && op != f.Op {
					t.Errorf("%s: line %d: %s has opcode %d, and %d elsewhere", s.Name, f.Line, name, f.Op, op)
				}
				ops[name] = f.Op
			}
		}
	}
	for name, op := range map[string]int32{
		"create": 1, "multi": 14, "ping": 11, "auth": 100, "setWatches": 101, "setWatches2": 105,
		"addWatch": 106, "closeSession": -11, "createTTL": 21, "whoAmI": 107,
	} {
		if ops[name] != op {
			t.Errorf("%s has opcode %d, want %d", name, ops[name], op)
		}
	}
	if total < 800 {
		t.Errorf("only %d frames", total)
	}
}
