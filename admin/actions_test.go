package admin_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/internal/core/testhooks"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient/rawtest"
	"github.com/lockkeeper/lockkeeper/proto"
)

// post asks a handler for an action, as the page does. The headers are added to those of
// the page; an empty one is removed.
func post(t testing.TB, h http.Handler, path, body string, headers ...string) (status int, why string) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader(body))
	r.Host, r.RemoteAddr = "127.0.0.1:8080", "192.0.2.7:1234"
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code == http.StatusNoContent {
		return w.Code, w.Body.String()
	}
	var reply struct{ Error string }
	if err := json.Unmarshal(w.Body.Bytes(), &reply); err != nil || reply.Error == "" || w.Header().Get("Content-Type") != "application/json" {
		return w.Code, "not JSON: " + w.Body.String() // Protect answers with text
	}
	return w.Code, reply.Error
}

func endPath(c *rawclient.Client) string { return "/console/sessions/" + idOf(c) + "/end" }

const breakPath = "/console/locks/break"

func breakBody(path string, token int64) string {
	b, _ := json.Marshal(map[string]string{"path": path, "token": fmt.Sprint(token)})
	return string(b)
}

// expect checks an answer. It is a function of the two results of post.
func expect(t testing.TB, status int, says string) func(int, string) {
	return func(got int, why string) {
		t.Helper()
		if got != status || !strings.Contains(why, says) || status == http.StatusNoContent && why != "" {
			t.Errorf("%d %q, not %d %q", got, why, status, says)
		}
	}
}

// TestEndSession: the session ends, with its locks, and the log says who did it.
func TestEndSession(t *testing.T) {
	s := open(t, lockkeeper.Config{})
	var log bytes.Buffer
	h := admin.New(s, admin.Options{EndSessions: true, BreakLocks: true, Log: slog.New(slog.NewTextHandler(&log, nil))})
	a, b, other := rawtest.Connect(t, inMemory(s)), rawtest.Connect(t, inMemory(s)), rawtest.Connect(t, inMemory(s))
	must(other.Create("/l", nil, 0))(t)
	held, next := enqueue(t, a, "/l"), enqueue(t, b, "/l")
	must(other.Exists(held, true))(t)
	expect(t, 204, "")(post(t, h, endPath(a), "{}"))
	if _, err := other.Exists(held, false); err != proto.NoNode {
		t.Errorf("the lock is still held: %v", err)
	}
	must(other.Exists(next, false))(t)
	if _, err := a.Read(); err == nil {
		t.Error("the connection of the session continues")
	}
	if got := log.String(); !strings.Contains(got, "level=WARN") || !strings.Contains(got, "session="+idOf(a)) || !strings.Contains(got, "operator=192.0.2.7:1234") {
		t.Errorf("the log: %s", got)
	}
	log.Reset()
	expect(t, 404, "there is no session "+idOf(a))(post(t, h, endPath(a), "{}"))
	if got := log.String(); !strings.Contains(got, "could not end a session") || !strings.Contains(got, "there is no session") {
		t.Errorf("the log: %s", got)
	}
	expect(t, 204, "")(post(t, h, fmt.Sprintf("/console/sessions/%d/end", b.Session.SessionID), " {} \n"))
	for _, id := range []string{"x", "0", "0x", "0x1ffffffffffffffff", "%2e"} {
		expect(t, 400, "is not the id of a session")(post(t, h, "/console/sessions/"+id+"/end", "{}"))
	}
}

// TestBreak: only the znode with the token that the operator saw is deleted.
func TestBreak(t *testing.T) {
	s := open(t, lockkeeper.Config{})
	var log bytes.Buffer
	h := admin.New(s, admin.Options{EndSessions: true, BreakLocks: true, Log: slog.New(slog.NewTextHandler(&log, nil))})
	a, b := rawtest.Connect(t, inMemory(s)), rawtest.Connect(t, inMemory(s))
	token := func(path string) int64 { return must(a.Exists(path, false))(t).Czxid }
	must(a.Create("/l", nil, 0))(t)
	held, next := enqueue(t, a, "/l"), enqueue(t, b, "/l")
	was := token(held)
	must(b.Set(held, []byte("other data")))(t) // does not change who holds the lock
	expect(t, 409, fmt.Sprintf("czxid %d", was))(post(t, h, breakPath, breakBody(held, token(next))))
	must(a.Exists(held, false))(t)
	expect(t, 204, "")(post(t, h, breakPath, breakBody(held, was)))
	if _, err := a.Exists(held, false); err != proto.NoNode {
		t.Errorf("the znode of the holder: %v", err)
	}
	if got := log.String(); !strings.Contains(got, "has broken a lock") || !strings.Contains(got, "znode="+held) || !strings.Contains(got, fmt.Sprint("token=", was)) || !strings.Contains(got, "operator=192.0.2.7:1234") {
		t.Errorf("the log: %s", got)
	}
	expect(t, 404, "nothing was deleted")(post(t, h, breakPath, breakBody(held, was)))
	expect(t, 204, "")(post(t, h, breakPath, breakBody(next, token(next)))) // also of one who waits

	// A newer holder under the same name, in a directory that was created again.
	again := func() (path string) {
		must(a.Create("/again", nil, 0))(t)
		return must(a.Create("/again/lock-", nil, proto.FlagEphemeral|proto.FlagSequential))(t)
	}
	before := again()
	was = token(before)
	check(t, a.Delete(before))
	check(t, a.Delete("/again"))
	if now := again(); now != before {
		t.Fatalf("%s is not %s", now, before)
	}
	expect(t, 409, "replaced by one with the czxid")(post(t, h, breakPath, breakBody(before, was)))
	must(a.Exists(before, false))(t)

	// What is not a lock's, and what the ACLs forbid.
	data := must(a.Create("/data", nil, 0))(t)
	expect(t, 400, "is not the znode of a session")(post(t, h, breakPath, breakBody(data, token(data))))
	parent := must(a.Create("/l/lock-", nil, proto.FlagSequential))(t)
	must(a.Create(parent+"/x", nil, 0))(t)
	expect(t, 409, "has children")(post(t, h, breakPath, breakBody(parent, token(parent))))
	expect(t, 400, "not a path")(post(t, h, breakPath, breakBody("/l/\x00/lock-0000000001", 1)))
	acl := func(path string, perms int32) {
		_, err := a.Call(proto.OpCreate, &proto.CreateRequest{Path: path, ACL: []proto.ACL{{Perms: perms, ID: proto.ID{Scheme: "world", ID: "anyone"}}}}, nil)
		check(t, err)
	}
	acl("/guarded", proto.PermAll&^proto.PermDelete)
	kept := enqueue(t, a, "/guarded")
	expect(t, 403, "the ACL of /guarded does not let everybody delete its children")(post(t, h, breakPath, breakBody(kept, token(kept))))
	must(a.Exists(kept, false))(t)
	acl("/l/lock-0000000777", proto.PermWrite)
	expect(t, 403, "its ACL does not let the console read it")(post(t, h, breakPath, breakBody("/l/lock-0000000777", 1)))

	for _, body := range []string{
		``, `{`, `[]`, `"x"`, `{"path":"/l","token":7}`, `{"path":"/l/lock-0000000001","token":"x"}`, `{"path":"/l/lock-0000000001"}`,
		`{"path":"/l/lock-0000000001","token":"1","more":true}`, `{"path":"/l/lock-0000000001","token":"1"} {}`, `{"path":"/l/lock-0000000001","token":"1"}}`,
	} {
		if status, why := post(t, h, breakPath, body); status != 400 || strings.HasPrefix(why, "not JSON") {
			t.Errorf("%s: %d %s", body, status, why)
		}
	}
	if n := s.Status().State.Sessions; n != 2 {
		t.Errorf("%d sessions, so the actions have left some", n)
	}
}

// TestBreakAuth: with --enforce-auth the console, which cannot authenticate, is refused.
func TestBreakAuth(t *testing.T) {
	s := open(t, lockkeeper.Config{Auth: lockkeeper.Auth{Enforce: []string{"digest"}}})
	h := admin.New(s, admin.Options{EndSessions: true, BreakLocks: true})
	expect(t, 403, "--enforce-auth")(post(t, h, breakPath, breakBody("/l/lock-0000000001", 1)))
}

// TestActionsRefused checks who may act, and with which requests. Nothing happens to the
// session if the request is refused.
func TestActionsRefused(t *testing.T) {
	s := open(t, lockkeeper.Config{})
	readOnly, handler := admin.New(s, admin.Options{}), admin.New(s, admin.Options{EndSessions: true, BreakLocks: true})
	at := func(h http.Handler, addr string) http.Handler {
		local := must(net.ResolveTCPAddr("tcp", addr))(t)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, local)))
		})
	}
	named := func(h http.Handler, host string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.Host = host
			h.ServeHTTP(w, r)
		})
	}
	open, closed := at(admin.Protect(handler, ""), "127.0.0.1:8080"), at(admin.Protect(handler, "s3cret"), "192.0.2.1:8080")
	auth := []string{"Authorization", "Bearer s3cret"}
	c := rawtest.Connect(t, inMemory(s))
	for _, x := range []struct {
		name    string
		h       http.Handler
		headers []string
		body    string
		want    int
		says    string
	}{
		{"read-only", readOnly, nil, "{}", 403, "--admin-write"},
		{"read-only, with the token", at(admin.Protect(readOnly, "s3cret"), "192.0.2.1:8080"), auth, "{}", 403, "--admin-write"},
		{"another site", open, []string{"Sec-Fetch-Site", "cross-site"}, "{}", 403, "another site"},
		{"another port of this host", open, []string{"Sec-Fetch-Site", "same-site"}, "{}", 403, "another site"},
		{"another site, without Protect", handler, []string{"Sec-Fetch-Site", "cross-site"}, "{}", 403, "another site"},
		{"another site, with the token", closed, append([]string{"Sec-Fetch-Site", "cross-site"}, auth...), "{}", 403, "another site"},
		{"an old browser", open, []string{"Origin", "https://evil.example"}, "{}", 403, "another site"},
		{"an old browser, another port", open, []string{"Origin", "http://127.0.0.1:9"}, "{}", 403, "another site"},
		{"an old browser in a sandbox", open, []string{"Origin", "null"}, "{}", 403, "another site"},
		{"DNS rebinding", named(open, "evil.example:8080"), []string{"Sec-Fetch-Site", "same-origin"}, "{}", 403, "does not stand for this machine"},
		{"a form", open, []string{"Content-Type", "application/x-www-form-urlencoded"}, "{}", 415, "application/json"},
		{"a form of this site", open, []string{"Content-Type", "text/plain", "Sec-Fetch-Site", "same-origin"}, "{}", 415, "application/json"},
		{"a form with JSON in the type", open, []string{"Content-Type", "text/plain; application/json"}, "{}", 415, "application/json"},
		{"no type", open, []string{"Content-Type", ""}, "{}", 415, "application/json"},
		{"no token", closed, nil, "{}", 401, "needs a token"},
		{"another token", closed, []string{"Authorization", "Bearer x"}, "{}", 401, "needs a token"},
		{"too long", open, nil, "{" + strings.Repeat(" ", 8<<10) + "}", 413, "longer than 8192 bytes"},
		{"not an object", open, nil, "[]", 400, "JSON"},
	} {
		status, why := post(t, x.h, endPath(c), x.body, x.headers...)
		if status != x.want || !strings.Contains(why, x.says) {
			t.Errorf("%s: %d %q", x.name, status, why)
		}
	}
	if err := c.Ping(); err != nil || s.Status().State.Sessions != 1 {
		t.Fatalf("a refused request has ended the session: %v", err)
	}
	for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodOptions} {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(method, endPath(c), nil))
		if w.Code != http.StatusMethodNotAllowed {
			t.Errorf("%s: %d", method, w.Code)
		}
	}
	for i, headers := range [][]string{
		nil, {"Sec-Fetch-Site", "same-origin", "Origin", "http://127.0.0.1:8080"}, {"Origin", "http://127.0.0.1:8080"}, {"Content-Type", "application/json; charset=utf-8"},
	} {
		expect(t, 204, "")(post(t, open, endPath(rawtest.Connect(t, inMemory(s))), "{}", headers...))
		if i == 0 {
			expect(t, 204, "")(post(t, closed, endPath(rawtest.Connect(t, inMemory(s))), "{}", auth...))
		}
	}
}

// TestActionsWithoutMajority: a member that is cut off answers in time. At first it does not
// know that it is cut off, so it does not know what becomes of the session.
func TestActionsWithoutMajority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := startMembers(t, 3, func(c *lockkeeper.Config) { c.ElectionTimeout = time.Minute })
		_, follower := m.roles(t)
		h := admin.New(follower, admin.Options{EndSessions: true, BreakLocks: true, EditZnodes: true})
		c, ended := rawtest.ConnectFor(t, inMemory(follower), time.Minute), rawtest.ConnectFor(t, inMemory(follower), time.Minute)
		must(c.Create("/l", nil, 0))(t)
		held := enqueue(t, c, "/l")
		token := must(c.Exists(held, false))(t).Czxid
		expect(t, 204, "")(post(t, h, endPath(ended), "{}")) // through a follower
		expect(t, 409, "replaced")(post(t, h, breakPath, breakBody(held, token+1)))
		for i, s := range m.servers {
			if s != follower {
				m.net.Cut(host(i), host(int(follower.Status().ID)-1), true)
				m.net.Cut(host(int(follower.Status().ID)-1), host(i), true)
			}
		}
		began := time.Now()
		expect(t, 504, "nothing was deleted: there was no answer within 10s")(post(t, h, breakPath, breakBody(held, token)))
		expect(t, 504, "may have ended or not")(post(t, h, endPath(c), "{}"))
		expect(t, 504, "nothing was changed: there was no answer within 10s")(post(t, h, setPath, setBody("/l", token, 0, "x")))
		expect(t, 504, "nothing was created: there was no answer within 10s")(post(t, h, createPath, `{"path":"/new","text":""}`))
		if took := time.Since(began); took != 40*time.Second {
			t.Errorf("answered after %v", took)
		}
		time.Sleep(4 * time.Minute)
		expect(t, 503, "nothing was done")(post(t, h, endPath(c), "{}"))
		expect(t, 503, "nothing was done")(post(t, h, breakPath, breakBody(held, token)))
		expect(t, 503, "nothing was done")(post(t, h, setPath, setBody("/l", token, 0, "x")))
		expect(t, 503, "nothing was done")(post(t, h, deletePath, deleteBody("/l", token, 0)))
		check(t, follower.Close())
		expect(t, 503, "nothing was done")(post(t, h, endPath(c), "{}"))
	})
}

// beforeRequest is a server's end of a connection. It calls a function when the server is
// about to read a request with this operation that contains a text.
type beforeRequest struct {
	net.Conn
	op   proto.OpCode
	text string
	call func(net.Conn)
}

func (c *beforeRequest) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n >= 12 && proto.OpCode(binary.BigEndian.Uint32(b[8:])) == c.op && bytes.Contains(b[:n], []byte(c.text)) { // after the length and the xid
		c.call(c.Conn)
	}
	return n, err
}

// TestBreakRace: something happens after the token was read, and before the znode is deleted.
func TestBreakRace(t *testing.T) {
	var cfg lockkeeper.Config
	var meanwhile func(net.Conn)
	testhooks.In(&cfg).Tap = func(nc net.Conn) net.Conn {
		return &beforeRequest{nc, proto.OpDelete, "/l/", func(nc net.Conn) { meanwhile(nc) }}
	}
	s := open(t, cfg)
	h := admin.New(s, admin.Options{EndSessions: true, BreakLocks: true})
	c := rawtest.Connect(t, inMemory(s))
	must(c.Create("/l", nil, 0))(t)
	var other *rawclient.Client
	held := ""
	for _, x := range []struct {
		status  int
		says    string
		happens func(net.Conn)
	}{
		{409, "the data of the znode was changed", func(net.Conn) { must(other.Set(held, []byte("x")))(t) }},
		{404, "the znode does not exist", func(net.Conn) { check(t, other.CloseSession()) }},
		{504, "may have been deleted or not", func(nc net.Conn) { nc.Close() }},
	} {
		other = rawtest.Connect(t, inMemory(s))
		held = enqueue(t, other, "/l")
		token := must(c.Exists(held, false))(t).Czxid
		meanwhile = x.happens // only the action deletes
		expect(t, x.status, x.says)(post(t, h, breakPath, breakBody(held, token)))
	}
}

// TestEndConnectionsAction: the connections of an identity end, the answer says whose they were, and the log who asked.
func TestEndConnectionsAction(t *testing.T) {
	s := open(t, lockkeeper.Config{})
	var log bytes.Buffer
	h := admin.New(s, admin.Options{EndSessions: true, Log: slog.New(slog.NewTextHandler(&log, nil))})
	const path, ann = "/console/connections/end", `{"identity": "digest:ann"}`
	a, other := rawtest.Connect(t, inMemory(s)), rawtest.Connect(t, inMemory(s))
	must(a.Call(proto.OpAuth, &proto.AuthRequest{Scheme: "digest", Auth: []byte("ann:x")}, nil))(t)
	must(other.Create("/l", nil, 0))(t)
	held := enqueue(t, a, "/l")
	for want, h := range map[string]http.Handler{
		"403 not permitted": admin.New(s, admin.Options{BreakLocks: true, EditZnodes: true, Snapshots: true}),
		"401 not JSON":      admin.Protect(h, "s3cret"),
	} {
		if status, why := post(t, h, path, ann); !strings.HasPrefix(fmt.Sprint(status, " ", why), want) {
			t.Errorf("%d %s, not %s", status, why, want)
		}
	}
	expect(t, 400, "is not the identity of a client")(post(t, h, path, `{"identity": "ann"}`))
	expect(t, 400, "JSON object")(post(t, h, path, `{"session": "0x1"}`))
	check(t, a.Ping())
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader(ann))
	r.RemoteAddr = "192.0.2.7:1234"
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if want := fmt.Sprintf(`{"connections":1,"sessions":[%q]}`+"\n", idOf(a)); w.Code != http.StatusOK || w.Body.String() != want {
		t.Errorf("%d %s, not %s", w.Code, w.Body, want)
	}
	if _, err := a.Read(); err == nil {
		t.Error("the connection continues")
	}
	must(other.Exists(held, false))(t) // the session continues, with its lock
	if got := log.String(); !strings.Contains(got, "level=WARN") || !strings.Contains(got, "identity=digest:ann connections=1 operator=192.0.2.7:1234") {
		t.Errorf("the log: %s", got)
	}
}
