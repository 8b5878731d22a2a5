package admin_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/internal/core/testhooks"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient/rawtest"
	"github.com/lockkeeper/lockkeeper/proto"
)

const (
	setPath    = "/console/znodes/set"
	createPath = "/console/znodes/create"
	deletePath = "/console/znodes/delete"
)

func setBody(path string, czxid int64, version int32, text string) string {
	b, _ := json.Marshal(map[string]any{"path": path, "czxid": fmt.Sprintf("0x%x", czxid), "version": version, "text": text})
	return string(b)
}

func deleteBody(path string, czxid int64, version int32) string {
	b, _ := json.Marshal(map[string]any{"path": path, "czxid": fmt.Sprintf("0x%x", czxid), "version": version})
	return string(b)
}

// editor edits znodes through a handler, and sees them as a client.
type editor struct {
	testing.TB
	h http.Handler
	c *rawclient.Client
}

func (e *editor) stat(path string) proto.Stat {
	e.Helper()
	return must(e.c.Exists(path, false))(e)
}

// set sets data in the version that the znode has now, and del deletes it.
func (e *editor) set(path, text string) (int, string) {
	e.Helper()
	s := e.stat(path)
	return post(e, e.h, setPath, setBody(path, s.Czxid, s.Version, text))
}

func (e *editor) del(path string) (int, string) {
	e.Helper()
	s := e.stat(path)
	return post(e, e.h, deletePath, deleteBody(path, s.Czxid, s.Version))
}

// create creates a znode and returns the path in the answer.
func (e *editor) create(body string) (path string) {
	e.Helper()
	r := httptest.NewRequestWithContext(e.Context(), http.MethodPost, createPath, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	e.h.ServeHTTP(w, r)
	var reply struct{ Path string }
	if err := json.Unmarshal(w.Body.Bytes(), &reply); err != nil || w.Code != http.StatusCreated || reply.Path == "" {
		e.Errorf("%s: %d %s", body, w.Code, w.Body)
	}
	return reply.Path
}

func (e *editor) data(path string) string {
	e.Helper()
	return string(must(e.c.Get(path, false))(e).Data)
}

// acl creates a znode with permissions for some client, and all for user a of scheme digest.
func (e *editor) acl(path string, perms int32, scheme, id string) {
	e.Helper()
	list := []proto.ACL{{Perms: proto.PermAll, ID: proto.ID{Scheme: "auth"}}}
	if perms != 0 {
		list = append(list, proto.ACL{Perms: perms, ID: proto.ID{Scheme: scheme, ID: id}})
	}
	must(e.c.Call(proto.OpCreate, &proto.CreateRequest{Path: path, Data: []byte("old"), ACL: list}, nil))(e)
}

func newEditor(t testing.TB, cfg lockkeeper.Config, log *slog.Logger) (*lockkeeper.Server, *editor) {
	s := open(t, cfg)
	e := &editor{t, admin.New(s, admin.Options{EditZnodes: true, Log: log}), rawtest.Connect(t, inMemory(s))}
	must(e.c.Call(proto.OpAuth, &proto.AuthRequest{Scheme: "digest", Auth: []byte("a:a")}, nil))(t)
	return s, e
}

// TestEdit sets, creates and deletes znodes. The log says who did it, and the audit log has what every client's
// change has.
func TestEdit(t *testing.T) {
	var mu sync.Mutex
	var audit []string
	cfg := lockkeeper.Config{Audit: func(a lockkeeper.AuditEvent) {
		mu.Lock()
		audit = append(audit, fmt.Sprintf("%s %s %s %s", a.Operation, a.Path, a.IP, a.Result))
		mu.Unlock()
	}}
	var log bytes.Buffer
	s, e := newEditor(t, cfg, slog.New(slog.NewTextHandler(&log, nil)))
	says := func(texts ...string) {
		t.Helper()
		for _, text := range append(texts, "level=WARN", "operator=192.0.2.7:1234") {
			if got := log.String(); !strings.Contains(got, text) {
				t.Errorf("the log does not say %s: %s", text, got)
			}
		}
		log.Reset()
	}
	watcher := rawtest.Connect(t, inMemory(s))
	must(e.c.Create("/z", []byte("old"), 0))(t)
	must(watcher.Get("/z", true))(t)
	expect(t, 204, "")(e.set("/z", "new <b>ü\n"))
	says("an operator has set the data of a znode", "znode=/z", "version=0", "bytes=10")
	if data, st := e.data("/z"), e.stat("/z"); data != "new <b>ü\n" || st.Version != 1 {
		t.Errorf("%q, version %d", data, st.Version)
	}
	check(t, watcher.Ping())
	if len(watcher.Events) != 1 || watcher.Events[0].Path != "/z" {
		t.Errorf("a watcher was told %+v", watcher.Events)
	}
	expect(t, 204, "")(e.set("/z", ""))
	if r := must(e.c.Get("/z", false))(t); r.Data == nil || len(r.Data) != 0 {
		t.Errorf("data that was set to nothing is %v", r.Data)
	}
	st := e.stat("/z")
	expect(t, 204, "")(post(t, e.h, setPath, fmt.Sprintf(`{"path":"/z","czxid":"0x%x","version":%d,"hex":"00ffC0"}`, st.Czxid, st.Version)))
	if data := e.data("/z"); data != "\x00\xff\xc0" {
		t.Errorf("%q", data)
	}
	expect(t, 204, "")(e.set("/z", strings.Repeat("\x01", 64<<10))) // six times as long in JSON
	if data := e.data("/z"); data != strings.Repeat("\x01", 64<<10) {
		t.Errorf("%d bytes", len(data))
	}
	expect(t, 413, "65537 bytes; the console writes 65536 at most")(e.set("/z", strings.Repeat("x", 64<<10+1)))
	expect(t, 413, "the body is longer than 524288 bytes")(e.set("/z", strings.Repeat("x", 512<<10)))
	expect(t, 204, "")(e.set("/", "root"))

	log.Reset()
	r := httptest.NewRecorder()
	request := httptest.NewRequest(http.MethodPost, createPath, strings.NewReader(`{"path":"/z/child","text":"x"}`))
	request.Header.Set("Content-Type", "application/json")
	request.RemoteAddr = "192.0.2.7:1234"
	e.h.ServeHTTP(r, request)
	if r.Code != 201 || strings.TrimSpace(r.Body.String()) != `{"path":"/z/child"}` {
		t.Errorf("%d %s", r.Code, r.Body)
	}
	says("an operator has created a znode", "znode=/z/child", "bytes=1")
	var acl proto.ACLReply
	must(e.c.Call(proto.OpGetACL, &proto.Path{Path: "/z/child"}, &acl))(t)
	if st := e.stat("/z/child"); len(acl.ACL) != 1 || acl.ACL[0] != proto.OpenACL[0] || st.EphemeralOwner != 0 || e.data("/z/child") != "x" {
		t.Errorf("%v %+v", acl.ACL, st)
	}
	if at := e.create(`{"path":"/z/n-","text":"","sequential":true}`); at != "/z/n-0000000001" {
		t.Error(at)
	}
	if at := e.create(`{"path":"/z/","hex":"ff","sequential":true}`); at != "/z/0000000002" || e.data(at) != "\xff" {
		t.Error(at)
	}
	log.Reset()
	expect(t, 409, "nothing was created: there is such a znode already")(post(t, e.h, createPath, `{"path":"/z/child","text":"y"}`))
	says("an operator could not create a znode", "there is such a znode already", "znode=/z/child")
	expect(t, 404, "nothing was created: there is no znode /nowhere")(post(t, e.h, createPath, `{"path":"/nowhere/x","text":"y"}`))
	must(e.c.Create("/owned", nil, proto.FlagEphemeral))(t)
	expect(t, 409, "ephemeral")(post(t, e.h, createPath, `{"path":"/owned/x","text":"y"}`))
	for _, path := range []string{"/z/", "/z/.", "/z/a\\u0000", "/\ue000"} {
		expect(t, 400, "this is not a path")(post(t, e.h, createPath, `{"path":"`+path+`","text":"y"}`))
	}

	log.Reset()
	expect(t, 409, "nothing was deleted: the znode has children")(e.del("/z"))
	says("an operator could not delete a znode", "the znode has children")
	expect(t, 204, "")(e.del("/z/child"))
	says("an operator has deleted a znode", "znode=/z/child")
	expect(t, 204, "")(e.del("/owned"))
	expect(t, 400, "the root cannot be deleted")(e.del("/"))
	if n := s.Status().State.Sessions; n != 2 {
		t.Errorf("%d sessions, so the edits have left some", n)
	}
	check(t, s.Close()) // when all was told
	for _, want := range []string{"setData /z 127.0.0.1 success", "create /z/child 127.0.0.1 success", "create /z/child 127.0.0.1 failure", "delete /z/child 127.0.0.1 success", "delete /z 127.0.0.1 failure"} {
		if !strings.Contains(strings.Join(audit, "\n"), want) {
			t.Errorf("the audit log does not have %s: %s", want, audit)
		}
	}
}

// TestEditOlder: a server that behaves as an older release lets operators edit, too.
func TestEditOlder(t *testing.T) {
	for _, line := range []string{"3.4", "3.8"} {
		cfg := lockkeeper.Config{}
		cfg.Features.BehaveAs = line
		_, e := newEditor(t, cfg, nil)
		e.create(`{"path":"/z","text":"old"}`)
		expect(t, 204, "")(e.set("/z", "new"))
		expect(t, 204, "")(e.del("/z"))
	}
}

// TestEditConflict: what is not any more as the operator saw it stays as it is.
func TestEditConflict(t *testing.T) {
	_, e := newEditor(t, lockkeeper.Config{}, nil)
	must(e.c.Create("/z", []byte("old"), 0))(t)
	seen := e.stat("/z")
	set := func() (int, string) { return post(t, e.h, setPath, setBody("/z", seen.Czxid, seen.Version, "mine")) }
	del := func() (int, string) { return post(t, e.h, deletePath, deleteBody("/z", seen.Czxid, seen.Version)) }
	must(e.c.Set("/z", []byte("theirs")))(t)
	expect(t, 409, "nothing was changed: the data of the znode was changed in the meantime: it has version 1, not 0")(set())
	expect(t, 409, "nothing was deleted: the data of the znode was changed in the meantime: it has version 1, not 0")(del())
	check(t, e.c.Delete("/z"))
	expect(t, 404, "nothing was changed: the znode does not exist")(set())
	expect(t, 404, "nothing was deleted: the znode does not exist")(del())
	must(e.c.Create("/z", []byte("theirs"), 0))(t)
	expect(t, 409, "nothing was changed: the znode was deleted in the meantime, and replaced by one with the czxid")(set())
	expect(t, 409, "nothing was deleted: the znode was deleted in the meantime, and replaced by one with the czxid")(del())
	if data := e.data("/z"); data != "theirs" {
		t.Errorf("the data is %q", data)
	}
}

// TestEditRace: something happens after the console has compared the version, and before the znode is changed.
func TestEditRace(t *testing.T) {
	var cfg lockkeeper.Config
	var other *rawclient.Client
	var meanwhile func(net.Conn)
	testhooks.In(&cfg).Tap = func(nc net.Conn) net.Conn {
		return &beforeRequest{&beforeRequest{nc, proto.OpDelete, "/deleted", func(nc net.Conn) { meanwhile(nc) }}, proto.OpSetData, "mine", func(nc net.Conn) { meanwhile(nc) }}
	}
	s, e := newEditor(t, cfg, nil)
	other = rawtest.Connect(t, inMemory(s))
	for _, x := range []struct {
		status  int
		says    string
		happens func(net.Conn, string)
	}{
		{409, "the data of the znode was changed in the meantime", func(_ net.Conn, at string) { must(other.Set(at, []byte("theirs")))(t) }},
		{504, "or not, or may be", func(nc net.Conn, _ string) { nc.Close() }},
	} {
		for _, at := range []string{"/changed", "/deleted"} {
			if _, err := e.c.Exists(at, false); err == proto.NoNode {
				must(e.c.Create(at, []byte("old"), 0))(t)
			}
			meanwhile = func(nc net.Conn) { x.happens(nc, at) }
			if at == "/changed" {
				expect(t, x.status, x.says)(e.set(at, "mine"))
			} else {
				expect(t, x.status, x.says)(e.del(at))
			}
			if x.status == 409 && e.data(at) != "theirs" {
				t.Errorf("%s has the data %q", at, e.data(at))
			}
		}
	}
}

// TestEditReplaced: another client deletes the znode and creates it again, after the console has compared the czxid.
// ZooKeeper has no such condition, so the new one is changed, but nobody is told that all is well.
func TestEditReplaced(t *testing.T) {
	var cfg lockkeeper.Config
	var other *rawclient.Client
	testhooks.In(&cfg).Tap = func(nc net.Conn) net.Conn {
		return &beforeRequest{nc, proto.OpSetData, "mine", func(net.Conn) {
			check(t, other.Delete("/z"))
			must(other.Create("/z", []byte("theirs"), 0))(t)
		}}
	}
	s, e := newEditor(t, cfg, nil)
	other = rawtest.Connect(t, inMemory(s))
	must(e.c.Create("/z", []byte("old"), 0))(t)
	expect(t, 500, "another znode was changed: this one was deleted at that moment, and created again")(e.set("/z", "mine"))
}

// TestEditTwice: of many requests with the same version at the same time, one is done.
func TestEditTwice(t *testing.T) {
	_, e := newEditor(t, lockkeeper.Config{}, nil)
	must(e.c.Create("/z", nil, 0))(t)
	st := e.stat("/z")
	var done, refused atomic.Int64
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			switch status, why := post(t, e.h, setPath, setBody("/z", st.Czxid, 0, fmt.Sprint(i))); status {
			case 204:
				done.Add(1)
			case 409:
				refused.Add(1)
			default:
				t.Errorf("%d %s", status, why)
			}
		})
	}
	all.Wait()
	if done.Load() != 1 || refused.Load() != 15 || e.stat("/z").Version != 1 {
		t.Errorf("%d were done, %d refused, version %d", done.Load(), refused.Load(), e.stat("/z").Version)
	}
}

// TestEditACL: the ACLs decide as for a client on this machine that has not authenticated.
func TestEditACL(t *testing.T) {
	cfg := lockkeeper.Config{}
	cfg.Features.EnforceQuota = true
	_, e := newEditor(t, cfg, nil)
	const read = proto.PermRead
	create := func(at string) (int, string) {
		return post(t, e.h, createPath, fmt.Sprintf(`{"path":%q,"text":""}`, at))
	}
	e.acl("/hidden", proto.PermAll&^read, "world", "anyone")
	expect(t, 403, "nothing was changed: its ACL does not let the console read it")(e.set("/hidden", "new"))
	e.acl("/shown", read, "world", "anyone")
	must(e.c.Create("/shown/child", []byte("old"), 0))(t)
	expect(t, 403, "nothing was changed: the ACL of /shown does not let everybody write it, and the console has no permissions of its own")(e.set("/shown", "new"))
	expect(t, 403, "nothing was created: the ACL of /shown does not let everybody create children")(create("/shown/new"))
	expect(t, 403, "nothing was deleted: the ACL of /shown does not let everybody delete its children")(e.del("/shown/child"))
	e.acl("/far", proto.PermAll, "ip", "192.0.2.7") // the operator's address
	expect(t, 403, "its ACL does not let the console read it")(e.set("/far", "new"))
	expect(t, 403, "the ACL of /far")(create("/far/new"))
	e.acl("/secret", 0, "", "")
	e.acl("/secret/open", proto.PermAll, "world", "anyone")
	expect(t, 403, "the ACL of /secret")(e.del("/secret/open"))
	for _, at := range []string{"/hidden", "/shown", "/shown/child", "/far", "/secret/open"} {
		if data := e.data(at); data != "old" {
			t.Errorf("%s has the data %q", at, data)
		}
	}
	e.acl("/near", proto.PermAll, "ip", "127.0.0.1")
	expect(t, 204, "")(e.set("/near", "new"))
	e.create(`{"path":"/near/new","text":""}`)
	expect(t, 204, "")(e.del("/near/new"))

	// What is ZooKeeper's own is not changed here, whatever its ACL says.
	expect(t, 403, "/zookeeper")(e.set("/zookeeper", "new"))
	expect(t, 403, "/zookeeper")(e.set("/zookeeper/quota", "new"))
	expect(t, 403, "/zookeeper")(e.del("/zookeeper/quota"))
	expect(t, 403, "/zookeeper")(create("/zookeeper/quota/x"))
	expect(t, 403, "/zookeeper")(create("/zookeeper/x"))
	e.create(`{"path":"/zookeeper2","text":""}`)

	rawtest.SetQuota(t, e.c, "byteHardLimit=3")
	expect(t, 409, "nothing was changed: it would exceed a quota")(e.set("/q", "four"))

	_, e = newEditor(t, lockkeeper.Config{Auth: lockkeeper.Auth{Enforce: []string{"digest"}}}, nil)
	must(e.c.Create("/z", nil, 0))(t)
	expect(t, 403, "--enforce-auth")(e.set("/z", "new"))
	expect(t, 403, "--enforce-auth")(create("/new"))
	expect(t, 403, "--enforce-auth")(e.del("/z"))
}

// TestEditRefused checks with which requests nothing can be changed.
func TestEditRefused(t *testing.T) {
	s, e := newEditor(t, lockkeeper.Config{}, nil)
	must(e.c.Create("/z", []byte("old"), 0))(t)
	st := e.stat("/z")
	bodies := map[string]string{setPath: setBody("/z", st.Czxid, 0, "new"), createPath: `{"path":"/new","text":""}`, deletePath: deleteBody("/z", st.Czxid, 0)}
	others := admin.New(s, admin.Options{EndSessions: true, BreakLocks: true, Snapshots: true})
	for path, body := range bodies {
		expect(t, 403, "not permitted: the server was started without --admin-write=znodes")(post(t, others, path, body))
		expect(t, 403, "another site")(post(t, e.h, path, body, "Sec-Fetch-Site", "cross-site"))
		expect(t, 403, "another site")(post(t, e.h, path, body, "Origin", "null"))
		expect(t, 415, "application/json")(post(t, e.h, path, body, "Content-Type", "text/plain"))
		expect(t, 401, "needs a token")(post(t, admin.Protect(e.h, "s3cret"), path, body))
		expect(t, 400, "more in the body")(post(t, e.h, path, body+"{}"))
		expect(t, 400, "JSON")(post(t, e.h, path, strings.Replace(body, "{", `{"more":1,`, 1)))
		expect(t, 400, `"z" is not a path`)(post(t, e.h, path, strings.NewReplacer(`"/z"`, `"z"`, `"/new"`, `"z"`).Replace(body)))
		expect(t, 400, "the path has more than 4096 bytes")(post(t, e.h, path, strings.NewReplacer(`"/z"`, `"/`+strings.Repeat("x", 4096)+`"`, `"/new"`, `"/`+strings.Repeat("x", 4096)+`"`).Replace(body)))
		if status, _ := ask(e.h, path); status != http.StatusMethodNotAllowed {
			t.Errorf("GET %s: %d", path, status)
		}
	}
	for body, says := range map[string]string{
		`{"path":"/z","czxid":"0x1","version":0}`:                                  "the data must be given",
		`{"path":"/z","czxid":"0x1","version":0,"text":"","hex":""}`:               "either as text or in hex",
		`{"path":"/z","czxid":"0x1","version":0,"hex":"0"}`:                        "hexadecimal",
		`{"path":"/z","czxid":"0x1","version":0,"hex":"0g"}`:                       "hexadecimal",
		`{"path":"/z","czxid":"0x1","text":""}`:                                    "the version",
		`{"path":"/z","czxid":"0x1","version":-1,"text":""}`:                       "the version",
		`{"path":"/z","version":0,"text":""}`:                                      "is not a czxid",
		`{"path":"/z","czxid":"x","version":0,"text":""}`:                          "is not a czxid",
		`{"path":"/z","czxid":"0x1","version":4294967296,"text":""}`:               "JSON",
		fmt.Sprintf(`{"path":"/z","czxid":"0x%x","version":0,"text":7}`, st.Czxid): "JSON",
	} {
		expect(t, 400, says)(post(t, e.h, setPath, body))
	}
	if now := e.stat("/z"); now != st || e.data("/z") != "old" {
		t.Errorf("%+v", now)
	}
	if _, err := e.c.Exists("/new", false); err != proto.NoNode {
		t.Errorf("/new: %v", err)
	}
}

// TestEditUTF8: nothing is done by a request whose text is not UTF-8. A decoder of JSON would put U+FFFD in the place
// of what is not, and so write other data than it was given.
func TestEditUTF8(t *testing.T) {
	_, e := newEditor(t, lockkeeper.Config{}, nil)
	must(e.c.Create("/z", []byte("old"), 0))(t)
	st := e.stat("/z")
	seen := fmt.Sprintf(`"czxid":"0x%x","version":%d`, st.Czxid, st.Version)
	for _, text := range []string{"\xff", "\xed\xa0\x80"} {
		expect(t, 400, "is not UTF-8")(post(t, e.h, setPath, `{"path":"/z",`+seen+`,"text":"`+text+`"}`))
		expect(t, 400, "is not UTF-8")(post(t, e.h, deletePath, `{"path":"/z`+text+`",`+seen+`}`))
		expect(t, 400, "is not UTF-8")(post(t, e.h, createPath, `{"path":"/new","text":"`+text+`"}`))
	}
	if now := e.stat("/z"); now != st || e.data("/z") != "old" || e.stat("/").NumChildren != 2 {
		t.Errorf("%+v", now)
	}
	for text, want := range map[string]string{
		`\ud83d\uDE00`: "😀", `\\ud800`: `\ud800`, `\ufffd`: "\ufffd", "\ufeff😀\u2028\ufffd": "\ufeff😀\u2028\ufffd", `a\r\n\u0000\"`: "a\r\n\x00\"",
	} {
		at := e.create(`{"path":"/n-","sequential":true,"text":"` + text + `"}`)
		if got := e.data(at); got != want {
			t.Errorf("%s: %q", text, got)
		}
	}
}

// TestWhole: what an operator edits is all of the data, never only its beginning.
func TestWhole(t *testing.T) {
	s, e := newEditor(t, lockkeeper.Config{}, nil)
	whole := func(path string) (z struct {
		Text     *string
		Hex      string
		Cut      bool
		Children []any
		Stat     struct{ Czxid string }
		Error    string
	}) {
		t.Helper()
		_, body := ask(e.h, "/console/znode?"+url.Values{"path": {path}, "whole": {"true"}}.Encode())
		check(t, json.Unmarshal([]byte(body), &z))
		return z
	}
	for _, n := range []int{0, 4096, 4097, 64 << 10} {
		at := must(e.c.Create(fmt.Sprint("/", n), []byte(strings.Repeat("x", n)), 0))(t)
		if z := whole(at); z.Text == nil || *z.Text != strings.Repeat("x", n) || z.Cut || z.Stat.Czxid == "" {
			t.Errorf("%s: %+v", at, z)
		}
	}
	must(e.c.Create("/0/child", nil, 0))(t)
	if z := whole("/0"); len(z.Children) != 0 {
		t.Errorf("%+v", z)
	}
	must(e.c.Create("/long", []byte(strings.Repeat("x", 64<<10+1)), 0))(t)
	if z := whole("/long"); !z.Cut {
		t.Error("it does not say that the data is cut")
	}
	must(e.c.Create("/hex", bytes.Repeat([]byte{0xff}, 5000), 0))(t)
	if z := whole("/hex"); z.Hex != strings.Repeat("ff", 5000) {
		t.Errorf("%d digits", len(z.Hex))
	}
	e.acl("/secret", 0, "", "")
	if z := whole("/secret"); z.Error == "" || z.Text != nil {
		t.Errorf("%+v", z)
	}

	// The page knows that it may edit.
	for _, may := range []bool{true, false} {
		b := browse(t, admin.New(s, admin.Options{EditZnodes: may}))
		if st := b.next(); st.EditZnodes != may {
			t.Errorf("the page is told %v, not %v", st.EditZnodes, may)
		}
		b.stop()
	}
}
