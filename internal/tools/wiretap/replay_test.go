package wiretap

import (
	"bytes"
	"encoding/hex"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/tools/golden"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/proto"
)

// TestDifference changes a recording and checks the Difference that its replay returns.
func TestDifference(t *testing.T) { synctest.Test(t, testDifference) }

func testDifference(t *testing.T) {
	var recording bytes.Buffer
	server, _, through, stop := inMemory(t, capturedTick, NewRecorder(&recording, "test"))
	c, err := rawclient.Open(through(), 5*time.Second)
	ok(t, err)
	_, err = c.Create("/d", []byte("old"), proto.FlagEphemeral)
	ok(t, err)
	_, err = c.Set("/d", []byte("new"))
	ok(t, err)
	_, err = c.Get("/d", false)
	ok(t, err)
	_, err = c.Call(proto.OpGetChildren, &proto.PathWatch{Path: "/zookeeper"}, nil)
	ok(t, err)
	_, err = c.Call(proto.OpCloseSession, nil, nil)
	ok(t, err)
	if f, err := c.Read(); err == nil {
		t.Errorf("received after the session was closed: %+v", f)
	}
	c.Close()
	stop()

	dial := func() (net.Conn, error) { return server.Dial("", "", far) }
	lines := slices.Collect(strings.Lines(recording.String()))
	// line finds the step whose comment has all the words, and returns where its hex is.
	line := func(sign string, words ...string) int {
		for i := range lines {
			if strings.HasPrefix(lines[i], "C1 "+sign) {
				all := true
				for _, w := range words {
					all = all && strings.Contains(lines[i+1], w)
				}
				if all {
					return i
				}
			}
		}
		t.Fatalf("no step %s %q in\n%s", sign, words, recording.String())
		return 0
	}
	play := func(change func(lines []string) []string) error {
		edited := change(append([]string(nil), lines...))
		s, err := golden.Parse(strings.NewReader(strings.Join(edited, "")))
		ok(t, err)
		s.Name = "it"
		return Replay(t.Context(), s, dial, golden.Options{Timeout: 2 * time.Second})
	}
	ok(t, play(func(l []string) []string { return l }))
	swapped := strings.NewReplacer("00000006636f6e666967", "0000000571756f7461", "0000000571756f7461", "00000006636f6e666967")
	ok(t, play(func(l []string) []string { // the order of names does not matter
		i := line("<", "getChildren")
		was := l[i]
		if l[i] = swapped.Replace(l[i]); l[i] == was {
			t.Fatal("no names in ", was)
		}
		return l
	}))

	hexOf := func(text string) string { return hex.EncodeToString([]byte(text)) }
	for _, x := range []struct {
		name   string
		change func(l []string) []string
		field  string
		says   []string
	}{
		{"another value", func(l []string) []string {
			i := line("<", "getData", "new")
			l[i] = strings.Replace(l[i], hexOf("new"), hexOf("odd"), 1)
			return l
		}, "data", []string{`data is "new", expected "odd"`, "\n  asked:    getData xid=3 {path=\"/d\" watch=false}\n  expected: getData xid=3 zxid=", "\n  came:     getData xid=3 zxid="}},
		{"another code", func(l []string) []string {
			i := line("<", "create xid=1")
			l[i] = "C1 < 000000100000000100000000000000ffffffff92\n"
			l[i+1] = "  # \n"
			return l
		}, "code", []string{"code is Ok, expected NodeExists", "asked:    create xid=1"}},
		{"a version in a Stat", func(l []string) []string {
			i := line("<", "setData")
			l[i] = strings.Replace(l[i], "00000001000000000000000001", "00000004000000000000000001", 1)
			return l
		}, "version", []string{"version is 1, expected 4"}},
		{"a name", func(l []string) []string {
			i := line("<", "getChildren")
			l[i] = strings.Replace(l[i], hexOf("quota"), hexOf("quoda"), 1)
			return l
		}, "names[", []string{`"quoda"`}},
		{"a zxid", func(l []string) []string {
			i := line("<", "closeSession")
			for !strings.Contains(l[i], "base+4") {
				i++
			}
			l[i] = strings.Replace(l[i], "base+4", "base+5", 1)
			return l
		}, "zxid", []string{"zxid is 0x", "came:     closeSession"}},
		{"a reply that does not come", func(l []string) []string {
			i := line(">", "closeSession")
			return append(l[:i:i], l[i+2:]...)
		}, "", []string{"nothing more came in time", "expected: "}},
		{"a reply too many", func(l []string) []string {
			i := line("<", "closeSession")
			return append(l[:i:i], l[i+3:]...)
		}, "", []string{"something came where the server closed the connection", "came:     closeSession xid=5"}},
	} {
		err := play(x.change)
		var d *Difference
		var diff *golden.Diff
		if !errors.As(err, &d) || !errors.As(err, &diff) {
			t.Errorf("%s: %v", x.name, err)
			continue
		}
		if !strings.HasPrefix(d.Field, x.field) || (x.field == "") != (d.Field == "") || !strings.HasPrefix(err.Error(), "it: line ") {
			t.Errorf("%s: field %q, want %q\n%v", x.name, d.Field, x.field, err)
		}
		for _, say := range x.says {
			if !strings.Contains(err.Error(), say) {
				t.Errorf("%s: does not say %q:\n%v", x.name, say, err)
			}
		}
	}
	word := "zk-golden 1\ntitle: t\nserver: s, config x\n\n4LW > ruok\n4LW <\n  | imnot\n"
	s, err := golden.Parse(strings.NewReader(word))
	ok(t, err)
	if err := Replay(t.Context(), s, dial, golden.Options{}); err == nil || !strings.Contains(err.Error(), `expected: "imnot"`) || !strings.Contains(err.Error(), `came:     "imok"`) {
		t.Error(err)
	}
}
