package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"path"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/core/locks"
	"github.com/lockkeeper/lockkeeper/internal/core/report"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// This file has what Options.EndSessions and BreakLocks permit, and edit.go what EditZnodes does. Each action
// is a POST with a JSON object as its body, and is answered with status 204 or what was done, or with the reason why not:
// {"error": "…"}.

// Limits of an action.
const (
	maxBody       = 8 << 10 // bytes, of actions without data
	bodyTimeout   = 10 * time.Second
	actionTimeout = 10 * time.Second // after which its outcome is unknown
)

func (h *Handler) actions() {
	sessions := grant{h.options.EndSessions, "sessions"}
	h.mux.HandleFunc("POST /console/sessions/{id}/end", action(h, sessions, maxBody, "ended a session", "end a session", h.endSession))
	h.mux.HandleFunc("POST /console/connections/end", action(h, sessions, maxBody, "ended the connections of an identity", "end the connections of an identity", h.endConnections))
	h.mux.HandleFunc("POST /console/locks/break", action(h, grant{h.options.BreakLocks, "locks"}, maxBody, "broken a lock", "break a lock", h.breakLock))
	h.edits()
	h.mux.HandleFunc("GET /snapshot", h.serveSnapshot)
}

// refusal is an error with an HTTP status.
type refusal struct {
	status int
	text   string
}

func (r *refusal) Error() string { return r.text }

func refuse(status int, text string, args ...any) error {
	return &refusal{status, fmt.Sprintf(text, args...)}
}

// grant is an option, with its name in the flag --admin-write.
type grant struct {
	given bool
	name  string
}

// mayAct decides whether a request may do what an option permits.
func mayAct(r *http.Request, g grant) error {
	if !g.given {
		return refuse(http.StatusForbidden, "not permitted: the server was started without --admin-write=%s", g.name)
	}
	if fromOtherSite(r) {
		return refuse(http.StatusForbidden, "a browser sent this request for another site")
	}
	return nil
}

// read decides whether a request may act, and reads its body, of at most so many bytes, into q. It requires a
// content type that a form on another site's page cannot send.
func (h *Handler) read(w http.ResponseWriter, r *http.Request, g grant, most int64, q any) error {
	if err := mayAct(r, g); err != nil {
		return err
	}
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind != "application/json" {
		return refuse(http.StatusUnsupportedMediaType, "the body must be JSON: Content-Type: application/json")
	}
	rc := http.NewResponseController(w)
	rc.SetReadDeadline(time.Now().Add(bodyTimeout)) // an error means that w has none
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, most))
	if long := (*http.MaxBytesError)(nil); errors.As(err, &long) {
		return refuse(http.StatusRequestEntityTooLarge, "the body is longer than %d bytes", most)
	} else if err != nil {
		return refuse(http.StatusRequestTimeout, "the body did not arrive: %v", err)
	}
	rc.SetReadDeadline(time.Time{}) // the end of the wait for the body must not end the action
	if !utf8.Valid(body) {          // a decoder would write U+FFFD instead of what is not
		return refuse(http.StatusBadRequest, "a text in the body is not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(q); err != nil {
		return refuse(http.StatusBadRequest, "the body is not the JSON object that it must be: %v", err)
	}
	if err := d.Decode(&struct{}{}); err != io.EOF {
		return refuse(http.StatusBadRequest, "there is more in the body than one JSON object")
	}
	if st := h.server.Status(); !st.Serving {
		return refuse(http.StatusServiceUnavailable, "nothing was done: this server does not serve clients that write at the moment")
	}
	return nil
}

// action returns the handler of an action. do does what the body, of at most so many bytes, asks for, and returns what
// to answer, nil for nothing, and what the log is to have of it. Without that, the request was wrong, and nothing is logged.
func action[Q any](h *Handler, g grant, most int64, did, not string, do func(ctx context.Context, r *http.Request, q *Q) (answer any, about []any, err error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var q Q
		if err := h.read(w, r, g, most, &q); err != nil {
			respond(w, nil, err)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), actionTimeout)
		defer cancel()
		answer, about, err := do(ctx, r, &q)
		log := h.options.Log.With(about...).With("operator", r.RemoteAddr)
		switch {
		case about == nil:
		case err == nil:
			log.Warn("an operator has " + did)
		default:
			log.Warn("an operator could not "+not, "error", err)
		}
		respond(w, answer, err)
	}
}

// respond answers a request of the page: with what was done or read, or with the reason why not.
func respond(w http.ResponseWriter, answer any, err error) {
	consoleHeaders(w.Header(), "application/json")
	status := http.StatusOK
	if _, created := answer.(creating); created {
		status = http.StatusCreated
	}
	switch r := (*refusal)(nil); {
	case errors.As(err, &r):
		status = r.status
	case err != nil:
		status = http.StatusInternalServerError
	case answer == nil:
		w.WriteHeader(http.StatusNoContent)
		return
	}
	if err != nil {
		answer = map[string]string{"error": err.Error()}
	}
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(answer) // an error means that the client is gone
}

// endSession ends the session whose id is in the path, in hexadecimal (0x…) or decimal.
func (h *Handler) endSession(ctx context.Context, r *http.Request, _ *struct{}) (any, []any, error) {
	id, err := session.ParseID(r.PathValue("id"))
	if err != nil {
		return nil, nil, refuse(http.StatusBadRequest, "%v", err)
	}
	switch err = h.server.EndSession(ctx, id); {
	case errors.Is(err, lockkeeper.ErrNoSession):
		err = refuse(http.StatusNotFound, "there is no session %s", locks.ID(id))
	case err != nil:
		err = refuse(http.StatusGatewayTimeout, "there was no answer: the session may have ended or not, or may end later")
	}
	return nil, []any{"session", locks.ID(id)}, err
}

type ofIdentity struct {
	Identity string `json:"identity"`
}

// endConnections ends the connections to this server of an identity, and answers how many there were, and whose.
func (h *Handler) endConnections(_ context.Context, _ *http.Request, q *ofIdentity) (any, []any, error) {
	ended, err := h.report.EndConnections(q.Identity)
	if err != nil {
		return nil, nil, refuse(http.StatusBadRequest, "%v", err)
	}
	sessions := []string{}
	for _, id := range ended.Sessions[:min(len(ended.Sessions), report.MaxClients)] {
		sessions = append(sessions, locks.ID(id))
	}
	return map[string]any{"connections": ended.Connections, "sessions": sessions}, []any{"identity", q.Identity, "connections", ended.Connections}, nil
}

type ofHolder struct {
	Path  string `json:"path"`
	Token string `json:"token"`
}

// breakLock deletes the znode of a holder or of one who waits, if it has this token.
func (h *Handler) breakLock(ctx context.Context, _ *http.Request, q *ofHolder) (any, []any, error) {
	token, err := strconv.ParseInt(q.Token, 10, 64)
	switch {
	case err != nil:
		return nil, nil, refuse(http.StatusBadRequest, "%q is not a fencing token", q.Token)
	case !locks.Interesting(path.Base(q.Path)):
		return nil, nil, refuse(http.StatusBadRequest, "%q is not the znode of a session in the queue of a lock", q.Path)
	}
	return nil, []any{"znode", q.Path, "token", token}, h.remove(ctx, &seen{Path: q.Path, czxid: token})
}

// remove deletes the znode that an operator saw, if it still is there, as a client without permissions.
//
// ZooKeeper has no delete on the condition of a czxid. So remove first reads the newest
// state, and then deletes the znode on the condition of its version. Libraries do not use a
// name for a second znode; without protection they could, but only in a directory that was
// deleted and created again, which would have to happen between these two requests.
func (h *Handler) remove(ctx context.Context, z *seen) error {
	return h.asClient(ctx, wasDeleted, z.Path, func(c *rawclient.Client) error {
		version, err := z.find(ctx, c, wasDeleted)
		if err != nil {
			return err
		}
		_, err = c.Call(proto.OpDelete, &proto.PathVersion{Path: z.Path, Version: version}, nil)
		return outcome(ctx, wasDeleted, err, path.Dir(z.Path), "delete its children")
	})
}

// What an action does to a znode, as its errors say it.
const (
	wasCreated = "created"
	wasChanged = "changed"
	wasDeleted = "deleted"
)

// asClient calls f with the session of a client without permissions, which has seen all that was written to
// a znode before, if it reads. The session ends with asClient.
func (h *Handler) asClient(ctx context.Context, what, at string, f func(*rawclient.Client) error) error {
	c, err := connect(h.server, actionTimeout)
	if err != nil {
		return undone(ctx, what, err)
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	defer c.CloseSession() // if that fails, the session expires
	if _, err := c.Call(proto.OpSync, &proto.Path{Path: at}, nil); err != nil {
		return undone(ctx, what, err)
	}
	return f(c)
}

// undone returns the refusal for an error before which nothing was done.
func undone(ctx context.Context, what string, err error) error {
	no := func(status int, text string, args ...any) error {
		return refuse(status, "nothing was %s: %s", what, fmt.Sprintf(text, args...))
	}
	switch {
	case errors.Is(err, proto.NoNode):
		return no(http.StatusNotFound, "the znode does not exist")
	case errors.Is(err, proto.BadVersion):
		return no(http.StatusConflict, "the data of the znode was changed in the meantime")
	case errors.Is(err, proto.NotEmpty):
		return no(http.StatusConflict, "the znode has children")
	case errors.Is(err, proto.NodeExists):
		return no(http.StatusConflict, "there is such a znode already")
	case errors.Is(err, proto.NoChildrenForEphemerals):
		return no(http.StatusConflict, "the parent is ephemeral, so it cannot have children")
	case errors.Is(err, proto.QuotaExceeded):
		return no(http.StatusConflict, "it would exceed a quota")
	case errors.Is(err, proto.BadArguments):
		return no(http.StatusBadRequest, "%s", reason(err))
	case errors.Is(err, proto.NoAuth), errors.Is(err, proto.SessionClosedRequireSASLAuth):
		return no(http.StatusForbidden, "%s", reason(err))
	case errors.As(err, new(proto.Code)):
		return no(http.StatusInternalServerError, "the server answers %v", err)
	case ctx.Err() != nil, errors.Is(err, os.ErrDeadlineExceeded):
		return no(http.StatusGatewayTimeout, "there was no answer within %v", actionTimeout)
	}
	return no(http.StatusServiceUnavailable, "this server does not serve clients: %v", err)
}
