package wiretap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/lockkeeper/lockkeeper/internal/tools/golden"
	"github.com/lockkeeper/lockkeeper/internal/tools/wire"
	"github.com/lockkeeper/lockkeeper/proto"
)

// Difference is a golden.Diff with its frames decoded.
type Difference struct {
	*golden.Diff
	Asked    string // the request that the frame answers, "" if there is none
	Expected string
	Came     string // "" for nothing
	Field    string // the first field that differs; "" if the difference is not in a field
	Values   [2]string
}

// Unwrap returns the difference with its bytes.
func (d *Difference) Unwrap() error { return d.Diff }

// Error describes the difference in a few lines.
func (d *Difference) Error() string {
	var b strings.Builder
	if d.Scenario != "" {
		fmt.Fprintf(&b, "%s: ", d.Scenario)
	}
	fmt.Fprintf(&b, "line %d: %s", d.Step.Line, d.Summary())
	for _, x := range []struct{ name, text string }{{"asked", d.Asked}, {"expected", d.Expected}, {"came", d.Came}} {
		if x.text != "" {
			fmt.Fprintf(&b, "\n  %-9s %s", x.name+":", x.text)
		}
	}
	return b.String()
}

// Summary describes the difference in one line, without its position.
func (d *Difference) Summary() string {
	if d.Field != "" {
		return fmt.Sprintf("%s is %s, expected %s", d.Field, d.Values[1], d.Values[0])
	}
	return d.Why
}

// Replay plays a recording against an endpoint, as [golden.Scenario.Replay] does. A
// difference is returned as a *Difference. Unless opts say otherwise, Replay ignores the
// order of names in a list, because ZooKeeper returns them in no particular order, and
// compares the answers to four-letter words with [golden.SameShape].
func Replay(ctx context.Context, s *golden.Scenario, dial func() (net.Conn, error), opts golden.Options) error {
	if opts.Text == nil {
		opts.Text = golden.SameShape
	}
	if opts.Equal == nil {
		opts.Equal = func(st *golden.Step, want, got []byte) bool {
			if len(want) != len(got) {
				return false
			}
			ours, theirs, _ := follow(s, st)
			w, g := ours.FromServer(want[4:]), theirs.FromServer(got[4:])
			return w.Err == nil && g.Err == nil && w.Code == g.Code && sorted(&w) && sorted(&g) && bytes.Equal(w.Payload, g.Payload)
		}
	}
	err := s.Replay(ctx, dial, opts)
	var d *golden.Diff
	if !errors.As(err, &d) || ctx.Err() != nil {
		return err
	}
	return explain(s, d)
}

func explain(s *golden.Scenario, d *golden.Diff) *Difference {
	x := &Difference{Diff: d}
	if d.Step.Kind == golden.Word {
		x.Asked = d.Step.Request
		x.Expected, x.Came = fmt.Sprintf("%q", d.Want), fmt.Sprintf("%q", d.Got)
		return x
	}
	ours, theirs, asked := follow(s, d.Step)
	var want, came *wire.Frame
	if len(d.Want) >= 4 && d.Step.Kind == golden.Receive {
		f := ours.FromServer(d.Want[4:])
		want, x.Expected = &f, f.String()
		if f.Kind == wire.Reply {
			x.Asked = asked[key(&f)]
		}
	}
	if len(d.Got) >= 4 {
		f := theirs.FromServer(d.Got[4:])
		came, x.Came = &f, f.String()
	}
	if want != nil && came != nil {
		sorted(want)
		sorted(came)
		x.compare(want, came)
	}
	return x
}

// follow returns the conversation on a step's connection up to that step, twice, so
// that the recorded and the received frame can both be decoded. asked has the requests
// as text, by key.
func follow(s *golden.Scenario, until *golden.Step) (ours, theirs wire.Conversation, asked map[string]string) {
	asked = map[string]string{}
	for i := range s.Steps {
		st := &s.Steps[i]
		if st == until && st.Kind == golden.Receive {
			break
		}
		switch {
		case st.Conn != until.Conn:
		case st.Kind == golden.Open:
			ours, theirs = wire.Conversation{}, wire.Conversation{}
		case len(st.Bytes) < 4:
		case st.Kind == golden.Send:
			f := ours.FromClient(st.Bytes[4:])
			theirs.FromClient(st.Bytes[4:])
			asked[key(&f)] = f.String()
		default:
			ours.FromServer(st.Bytes[4:])
			theirs.FromServer(st.Bytes[4:])
		}
		if st == until {
			break
		}
	}
	return ours, theirs, asked
}

// key returns the same string for a request and its reply.
func key(f *wire.Frame) string {
	if f.Op == proto.OpPing {
		return "ping" // its reply has another xid
	}
	return fmt.Sprint(f.Op, f.Xid)
}

// sorted sorts the lists of names in a reply, whose order does not matter, and encodes
// its payload again. It reports whether there are any such lists.
func sorted(f *wire.Frame) (found bool) {
	var visit func(r proto.Record)
	visit = func(r proto.Record) {
		switch r := r.(type) {
		case *proto.ChildrenReply:
			slices.Sort(r.Names)
			found = true
		case *proto.Children2Reply:
			slices.Sort(r.Names)
			found = true
		case *proto.MultiReply:
			for _, result := range r.Results {
				visit(result.Reply)
			}
		}
	}
	if visit(f.Body); found {
		h := proto.ReplyHeader{Xid: f.Xid, Zxid: f.Zxid, Code: f.Code}
		f.Payload = append(f.Body.Append(h.Append(nil)), f.Rest...)
	}
	return found
}

// compare finds the first field of two frames that differs.
func (d *Difference) compare(want, came *wire.Frame) {
	if want.Kind != came.Kind {
		return // such as a reply in place of an event: this is not a difference of a field
	}
	theirs := came.Fields()
	for i, f := range want.Fields() {
		if i == len(theirs) || theirs[i].Name != f.Name {
			d.Field, d.Values = f.Name, [2]string{f.Text(), "not there"}
			return
		}
		ours, other := want.Payload[f.Offset:][:f.Length], came.Payload[theirs[i].Offset:][:theirs[i].Length]
		if string(ours) != string(other) {
			d.Field, d.Values = f.Name, [2]string{f.Text(), theirs[i].Text()}
			return
		}
	}
	if i := len(want.Fields()); i < len(theirs) {
		d.Field, d.Values = theirs[i].Name, [2]string{"none", theirs[i].Text()}
	}
}
