package wire

import (
	"encoding/binary"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/golden"
)

// captured calls f with every frame of the captured exchanges.
func captured(t *testing.T, f func(s *golden.Scenario, step *golden.Step, frame *Frame)) {
	t.Helper()
	scenarios := testkit.Must(golden.LoadAll(os.DirFS("../../../testdata/golden")))(t)
	for _, s := range scenarios {
		talks := map[string]*Conversation{}
		for i := range s.Steps {
			step := &s.Steps[i]
			if step.Kind == golden.Open {
				talks[step.Conn] = &Conversation{}
			}
			if len(step.Bytes) < 4 {
				continue
			}
			frame := Frame{}
			if step.Kind == golden.Send {
				frame = talks[step.Conn].FromClient(step.Bytes[4:])
			} else {
				frame = talks[step.Conn].FromServer(step.Bytes[4:])
			}
			f(s, step, &frame)
		}
	}
}

// TestFields checks that the fields of every captured frame cover it completely, and
// that they agree with the fields marked in the files.
func TestFields(t *testing.T) {
	frames, marked := 0, 0
	captured(t, func(s *golden.Scenario, step *golden.Step, f *Frame) {
		if f.Err != nil {
			return
		}
		frames++
		at := map[int]Field{}
		end := 0
		for _, x := range f.Fields() {
			gap := x.Offset - end // a multi's flags and repeated codes are not fields
			if gap != 0 && gap != 1 && gap != 4 && gap != 5 || gap < 0 {
				t.Errorf("%s:%d: field %s starts at %d, but the previous one ends at %d", s.Name, step.Line, x.Name, x.Offset, end)
			}
			end = x.Offset + x.Length
			at[x.Offset] = x
		}
		if want := len(f.Payload) - len(f.Rest); end != want {
			t.Errorf("%s:%d: the fields end at %d of %d\n%s", s.Name, step.Line, end, want, f)
		}
		for _, m := range step.Fields {
			if m.Kind == golden.Nonce { // a part of a token; TestRetape checks where
				continue
			}
			x := at[m.Offset-4]
			v := f.Payload[x.Offset:][:x.Length]
			if m.Kind == golden.Passwd { // marked without its length
				x, v = at[m.Offset-8], nil
			}
			theirs, ours := strings.ToLower(m.Name), strings.ToLower(x.Name)
			theirs = strings.NewReplacer("res[", "results[", "passwd", "password", "].stat", "]", "stat.", "", "setwatches.", "").Replace(theirs)
			ours = strings.NewReplacer("].stat", "]", "stat.", "").Replace(ours)
			if theirs != ours {
				t.Errorf("%s:%d: %d is %q here and %q in the file", s.Name, step.Line, m.Offset, x.Name, m.Name)
			}
			if n, ok := x.Value.(int64); ok && v != nil && uint64(n) != binary.BigEndian.Uint64(v) {
				t.Errorf("%s:%d: %s is %d", s.Name, step.Line, x.Name, n)
			}
			marked++
		}
	})
	if frames < 800 || marked < 850 {
		t.Errorf("only %d frames and %d marked fields", frames, marked)
	}
}

// TestPlain writes every captured frame's body as JSON.
func TestPlain(t *testing.T) {
	seen := map[string]bool{}
	captured(t, func(s *golden.Scenario, step *golden.Step, f *Frame) {
		if f.Body == nil {
			return
		}
		b, err := json.Marshal(Plain(f.Body))
		if err != nil {
			t.Fatalf("%s:%d: %v", s.Name, step.Line, err)
		}
		seen[s.Name+" "+string(b)] = true
	})
	for _, want := range []string{
		`01-connect-ping-close {"hasReadOnly":true,"lastZxidSeen":"0x0",`,
		`23-children {"names":["only"],"stat":{"aversion":0,`,
		`30-multi-edge {"results":[{"code":"BadArguments"}]}`,
		`30-multi-edge {"results":[{"code":"Ok","op":"create2","reply":{"path":"/g30c","stat":{`,
		`44-auth-bad-scheme {"auth":"x","scheme":"bogus","type":0}`,
		`34-watch-exists-other-conn {"path":"/g34","state":3,"type":"NodeCreated"}`,
		`26-sync {"path":"`,
	} {
		found := false
		for s := range seen {
			found = found || strings.HasPrefix(s, want)
		}
		if !found {
			t.Errorf("no frame starts with %s", want)
		}
	}
	if got, want := Plain([]byte{255}), "map[hex:ff]"; got.(map[string]any)["hex"] != "ff" {
		t.Errorf("%v, not %s", got, want)
	}
}
