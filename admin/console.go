package admin

import (
	"cmp"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/lockkeeper/lockkeeper/internal/core/locks"
	"github.com/lockkeeper/lockkeeper/internal/core/report"
	"github.com/lockkeeper/lockkeeper/proto"
)

// The console is one page, which shows what a stream of events tells it: each event is the
// whole state, in JSON, so a browser that misses some misses nothing. The files are served
// as they are here.
//
//go:embed console
var consoleFiles embed.FS

// consolePages are the files of the console by their paths. They show nothing of the
// server, so Protect lets everybody read them; the page asks its user for the token.
var consolePages = map[string]struct{ file, kind string }{
	"/":            {"console/index.html", "text/html; charset=utf-8"},
	"/console.css": {"console/console.css", "text/css; charset=utf-8"},
	"/console.js":  {"console/console.js", "text/javascript; charset=utf-8"},
	"/icon.svg":    {"console/icon.svg", "image/svg+xml"},
}

// consolePolicy forbids the page everything that it does not need. In particular, no script
// or style can come from anywhere but the files above, and no string can become HTML.
const consolePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

func consoleHeaders(h http.Header, kind string) {
	h.Set("Content-Type", kind)
	h.Set("Content-Security-Policy", consolePolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
}

func (h *Handler) console() {
	for path, page := range consolePages {
		text, err := consoleFiles.ReadFile(page.file)
		if err != nil {
			panic(err) // it is embedded
		}
		if path == "/" {
			path = "/{$}"
		}
		h.mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			consoleHeaders(w.Header(), page.kind)
			w.Write(text)
		})
	}
	r := reader{h.report}
	h.stream = newStream(&survey{
		server: h.server, report: h.report, reader: r, may: h.options,
		others: others{peers: poll[peerStatus]{timeout: time.Second}, clients: poll[told]{timeout: clientsTimeout}, askMember: report.Beside(h.server)},
	})
	h.mux.HandleFunc("GET /console/events", h.stream.serve)
	h.mux.HandleFunc("GET /console/znode", r.serveZnode)
	h.search = newSearcher(r)
	h.mux.HandleFunc("GET /console/search", h.search.serve)
}

// Limits of what the console shows of a znode.
const (
	shownData     = 4 << 10 // bytes
	shownChildren = 200     // in one answer; the page asks for more
	maxChildren   = 20_000  // longer lists are not read, since that takes the server long
)

type znodeAnswer struct {
	Path     string       `json:"path"`
	Stat     znodeStat    `json:"stat"`
	Text     *string      `json:"text,omitempty"` // the data, if it is UTF-8
	Hex      string       `json:"hex,omitempty"`  // the data, if it is not
	Cut      bool         `json:"cut,omitempty"`  // only the beginning of the data is shown
	NoData   string       `json:"noData,omitempty"`
	ACL      []znodeACL   `json:"acl"`
	Children []znodeChild `json:"children"`
	More     int          `json:"more"` // children after these
	NoList   string       `json:"noList,omitempty"`
}

// znodeStat is a Stat. Numbers that may exceed the precision of JavaScript are text.
type znodeStat struct {
	Czxid       string `json:"czxid"`
	Mzxid       string `json:"mzxid"`
	Pzxid       string `json:"pzxid"`
	Ctime       int64  `json:"ctime"`
	Mtime       int64  `json:"mtime"`
	Version     int32  `json:"version"`
	Cversion    int32  `json:"cversion"`
	Aversion    int32  `json:"aversion"`
	Owner       string `json:"ephemeralOwner"`
	DataLength  int32  `json:"dataLength"`
	NumChildren int32  `json:"numChildren"`
}

type znodeACL struct {
	Scheme string `json:"scheme"`
	ID     string `json:"id"`
	Perms  string `json:"perms"`
}

type znodeChild struct {
	Name string `json:"name"`
	inShort
}

// inShort is what a list shows of a znode.
type inShort struct {
	Children  int32 `json:"children"`
	Bytes     int32 `json:"bytes"`
	Ephemeral bool  `json:"ephemeral"`
	Hidden    bool  `json:"hidden"` // its ACL hides all of this
}

// inShort returns false if the znode has just gone.
func (r reader) inShort(path string) (inShort, bool) {
	s, err := r.exists(path)
	return inShort{s.NumChildren, s.DataLength, locks.IsSession(s.EphemeralOwner), err != nil}, err == nil || err == proto.NoAuth
}

func zxid(z int64) string { return fmt.Sprintf("0x%x", uint64(z)) }

// serveZnode answers with a znode and those of its children that follow the name "after"; with "whole"
// with the znode alone, and as much of its data as an operator may write.
func (r reader) serveZnode(w http.ResponseWriter, q *http.Request) {
	asked := q.URL.Query() // not FormValue, which reads a form in the body of a GET, too
	path := cmp.Or(asked.Get("path"), "/")
	var answer *znodeAnswer
	var err error
	if asked.Get("whole") != "" {
		answer, err = r.alone(path, maxEdit)
	} else {
		answer, err = r.znode(path, asked.Get("after"))
	}
	respond(w, answer, unread(err))
}

// alone returns a znode without children, and at most so many bytes of its data. The Stat is not newer than
// the data, so whoever changes the data on the condition of that version knows what it was.
func (r reader) alone(path string, bytes int) (*znodeAnswer, error) {
	s, err := r.exists(path)
	if err != nil {
		return nil, err
	}
	z := &znodeAnswer{Path: path, ACL: []znodeACL{}, Children: []znodeChild{}, Stat: znodeStat{
		zxid(s.Czxid), zxid(s.Mzxid), zxid(s.Pzxid), s.Ctime, s.Mtime, s.Version, s.Cversion, s.Aversion,
		locks.ID(s.EphemeralOwner), s.DataLength, s.NumChildren,
	}}
	if data, err := r.data(path); err != nil {
		z.NoData = reason(err)
	} else {
		z.show(data, bytes)
	}
	return z, nil
}

func (r reader) znode(path, after string) (*znodeAnswer, error) {
	z, err := r.alone(path, shownData)
	if err != nil {
		return nil, err
	}
	var acl proto.ACLReply
	r.from.Read(proto.OpGetACL, &proto.Path{Path: path}, &acl) // without it, none is shown
	for _, e := range acl.ACL {
		z.ACL = append(z.ACL, znodeACL{e.ID.Scheme, e.ID.ID, proto.PermLetters(e.Perms)})
	}
	if n := z.Stat.NumChildren; n > maxChildren {
		z.NoList = fmt.Sprintf("%d children are too many to list here; the search finds them, and lockkeeper zk lists them", n)
		return z, nil
	}
	names, err := r.children(path)
	if err != nil {
		z.NoList = reason(err)
		return z, nil
	}
	slices.Sort(names)
	from, found := slices.BinarySearch(names, after)
	if found {
		from++
	}
	names = names[from:]
	z.More = max(0, len(names)-shownChildren)
	for _, name := range names[:min(len(names), shownChildren)] {
		if s, ok := r.inShort(join(path, name)); ok {
			z.Children = append(z.Children, znodeChild{name, s})
		}
	}
	return z, nil
}

// show sets the data as text if it is legible, otherwise as hexadecimal digits. If it has more bytes than
// most, it is cut.
func (z *znodeAnswer) show(data []byte, most int) {
	text := utf8.Valid(data) && !strings.ContainsFunc(string(data), func(c rune) bool {
		return unicode.IsControl(c) && c != '\n' && c != '\t' && c != '\r'
	})
	if z.Cut = len(data) > most; z.Cut {
		data = data[:most]
		for text && !utf8.Valid(data) {
			data = data[:len(data)-1]
		}
	}
	if text {
		z.Text = new(string(data))
		return
	}
	z.Hex = hex.EncodeToString(data)
}

func join(parent, name string) string { return strings.TrimSuffix(parent, "/") + "/" + name }

// unread returns the refusal for an error of a read.
func unread(err error) error {
	status := http.StatusServiceUnavailable
	switch {
	case err == nil || errors.As(err, new(*refusal)):
		return err
	case errors.Is(err, proto.NoNode), errors.Is(err, proto.BadArguments):
		status = http.StatusNotFound
	case errors.As(err, new(proto.Code)):
		status = http.StatusForbidden
	}
	return refuse(status, "%s", reason(err))
}

// reason says in the page's words why a request has failed.
func reason(err error) string {
	switch {
	case errors.Is(err, proto.NoNode):
		return "it does not exist"
	case errors.Is(err, proto.NoAuth):
		return "its ACL does not let the console read it"
	case errors.Is(err, proto.BadArguments):
		return "this is not a path"
	case errors.Is(err, proto.SessionClosedRequireSASLAuth):
		return "the server serves only clients that authenticate (--enforce-auth)"
	}
	return err.Error()
}
