package wiretap

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/lockkeeper/lockkeeper/internal/tools/wire"
	"github.com/lockkeeper/lockkeeper/proto"
)

// Printer writes one line for each event, as text or JSON. Its method Handle can serve
// as Proxy.Handle.
type Printer struct {
	W     io.Writer
	Start time.Time // times are shown relative to it
	JSON  bool
	Hex   bool     // write the bytes, too
	Only  []string // operations and words of Selectors to write; nil means everything
}

// Selectors are the words in Printer.Only that are not operations. They select
// handshakes, watch events, four-letter words, bytes that are not frames, and the start
// and end of connections.
var Selectors = []string{"connect", "event", "4lw", "raw", "conn"}

// selector returns the word of Printer.Only that selects an event.
func selector(e *Event) string {
	switch e.Kind {
	case Framed:
		switch {
		case e.Frame.Kind == wire.ConnectRequest || e.Frame.Kind == wire.ConnectReply:
			return "connect"
		case e.Frame.Kind == wire.Event:
			return "event"
		case e.Frame.Kind == wire.Request || e.Frame.Known:
			return wire.OpName(e.Frame.Op)
		}
		return "reply"
	case Text:
		return "4lw"
	case Raw:
		return "raw"
	}
	return "conn"
}

// Handle writes an event.
func (p *Printer) Handle(e Event) {
	if p.Only != nil && !slices.Contains(p.Only, selector(&e)) {
		return
	}
	if p.JSON {
		b, err := json.Marshal(p.object(&e))
		if err != nil {
			b = fmt.Appendf(nil, `{"error":%q}`, err)
		}
		p.W.Write(append(b, '\n'))
		return
	}
	arrow := "<-"
	if e.FromClient {
		arrow = "->"
	}
	b := fmt.Appendf(nil, "%12.6f C%d %s %s\n", e.Time.Sub(p.Start).Seconds(), e.Conn, arrow, e.words())
	if p.Hex && len(e.Bytes) > 0 {
		b = fmt.Appendf(b, "             %x", e.Bytes)
		if e.Size > len(e.Bytes) {
			b = fmt.Appendf(b, "… (%d bytes)", e.Size)
		}
		b = append(b, '\n')
	}
	p.W.Write(b)
}

// words formats the event without its time and connection.
func (e *Event) words() string {
	switch e.Kind {
	case Opened:
		return "open"
	case Framed:
		if e.Frame.Err == errTooLong {
			return fmt.Sprintf("%s (%d bytes)", e.Frame, e.Size)
		}
		return e.Frame.String()
	case Text:
		if e.FromClient {
			return "4lw " + string(e.Bytes)
		}
		text := "4lw answer"
		for line := range strings.Lines(string(e.Bytes)) {
			text += "\n" + strings.Repeat(" ", 13) + "| " + strings.Map(harmless, strings.TrimSuffix(line, "\n"))
		}
		return text
	case Raw:
		const shown = 64
		text := fmt.Sprintf("%d bytes, no frame: %x", e.Size, e.Bytes[:min(shown, len(e.Bytes))])
		if e.Size > shown {
			text += "…"
		}
		return text
	case Failed:
		return "cannot reach the server: " + e.Err.Error()
	}
	if e.Err != nil {
		return "reset: " + e.Err.Error()
	}
	return "close"
}

// harmless replaces control characters, which a terminal would interpret.
func harmless(r rune) rune {
	if unicode.IsControl(r) && r != '\t' {
		return unicode.ReplacementChar
	}
	return r
}

func (p *Printer) object(e *Event) map[string]any {
	o := map[string]any{
		"time": e.Time.Sub(p.Start).Seconds(), "conn": e.Conn,
		"from": map[bool]string{true: "client", false: "server"}[e.FromClient],
		"kind": map[Kind]string{Opened: "open", Text: "4lw", Raw: "raw", Finished: "close", Failed: "unreachable"}[e.Kind],
	}
	if e.Size > 0 {
		o["size"] = e.Size
	}
	if e.Kind == Text {
		o["text"] = string(e.Bytes)
	}
	if (p.Hex || e.Kind == Raw) && len(e.Bytes) > 0 {
		o["hex"] = fmt.Sprintf("%x", e.Bytes)
	}
	if e.Err != nil {
		o["error"] = e.Err.Error()
	}
	if e.Kind == Framed {
		for k, v := range frameObject(e.Frame) {
			o[k] = v
		}
	}
	return o
}

func frameObject(f *wire.Frame) map[string]any {
	o := map[string]any{"kind": map[wire.Kind]string{
		wire.ConnectRequest: "connect", wire.ConnectReply: "connect",
		wire.Request: "request", wire.Reply: "reply", wire.Event: "event",
	}[f.Kind]}
	switch f.Kind {
	case wire.Request, wire.Reply, wire.Event:
		o["xid"] = f.Xid
	}
	if f.Kind == wire.Request || f.Known {
		o["op"] = wire.OpName(f.Op)
	}
	if f.Kind == wire.Reply || f.Kind == wire.Event {
		o["zxid"], o["code"] = wire.Zxid(f.Zxid), f.Code.String()
	}
	if f.Body != nil {
		o["body"] = wire.Plain(f.Body)
	}
	if f.Err != nil {
		o["error"] = f.Err.Error()
	}
	if len(f.Rest) > 0 {
		o["rest"] = fmt.Sprintf("%x", f.Rest)
	}
	return o
}

// ParseOnly parses a list for Printer.Only: ZooKeeper's names of operations, and words
// of Selectors, separated by commas.
func ParseOnly(text string) (only []string, err error) {
	for word := range strings.SplitSeq(text, ",") {
		word = strings.TrimSpace(word)
		known := slices.Contains(Selectors, word)
		for i := range proto.Ops {
			known = known || proto.Ops[i].Name == word
		}
		if !known {
			return nil, fmt.Errorf("%q is neither an operation nor one of %s", word, strings.Join(Selectors, ", "))
		}
		only = append(only, word)
	}
	return only, nil
}
