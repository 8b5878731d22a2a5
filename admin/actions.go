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

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/core/locks"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// This file has what Options.EndSessions and BreakLocks permit. Each action is a POST with
// a JSON object as its body, and is answered with status 204, or with the reason why not:
// {"error": "…"}.

// Limits of an action.
const (
	maxBody       = 8 << 10 // bytes
	bodyTimeout   = 10 * time.Second
	actionTimeout = 10 * time.Second // after which its outcome is unknown
)

// actions adds the actions to the mux.
func (h *Handler) actions() {
	h.mux.HandleFunc("POST /console/sessions/{id}/end", h.serveEndSession)
	h.mux.HandleFunc("POST /console/locks/break", h.serveBreak)
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

// read decides whether a request may act, and reads its body into q. It requires a content
// type that a form on another site's page cannot send.
func (h *Handler) read(w http.ResponseWriter, r *http.Request, g grant, q any) error {
	if err := mayAct(r, g); err != nil {
		return err
	}
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind != "application/json" {
		return refuse(http.StatusUnsupportedMediaType, "the body must be JSON: Content-Type: application/json")
	}
	rc := http.NewResponseController(w)
	rc.SetReadDeadline(time.Now().Add(bodyTimeout)) // an error means that w has none
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if long := (*http.MaxBytesError)(nil); errors.As(err, &long) {
		return refuse(http.StatusRequestEntityTooLarge, "the body is longer than %d bytes", maxBody)
	} else if err != nil {
		return refuse(http.StatusRequestTimeout, "the body did not arrive: %v", err)
	}
	rc.SetReadDeadline(time.Time{}) // the end of the wait for the body must not end the action
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

// respond ends an action. A nil error stands for success.
func respond(w http.ResponseWriter, err error) {
	consoleHeaders(w.Header(), "application/json")
	if err == nil {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	status := http.StatusInternalServerError
	if r := (*refusal)(nil); errors.As(err, &r) {
		status = r.status
	}
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(map[string]string{"error": err.Error()}) // an error means that the client is gone
}

// serveEndSession ends the session whose id is in the path, in hexadecimal (0x…) or decimal.
func (h *Handler) serveEndSession(w http.ResponseWriter, r *http.Request) {
	if err := h.read(w, r, grant{h.grants.EndSessions, "sessions"}, &struct{}{}); err != nil {
		respond(w, err)
		return
	}
	id, err := session.ParseID(r.PathValue("id"))
	if err != nil {
		respond(w, refuse(http.StatusBadRequest, "%v", err))
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), actionTimeout)
	defer cancel()
	if err = h.endSession(ctx, id); err == nil {
		h.log.Warn("an operator has ended a session", "session", locks.ID(id), "operator", r.RemoteAddr)
	} else {
		h.log.Warn("an operator could not end a session", "session", locks.ID(id), "operator", r.RemoteAddr, "error", err)
	}
	respond(w, err)
}

func (h *Handler) endSession(ctx context.Context, id int64) error {
	err := h.server.EndSession(ctx, id)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, lockkeeper.ErrNoSession):
		return refuse(http.StatusNotFound, "there is no session %s", locks.ID(id))
	}
	return refuse(http.StatusGatewayTimeout, "there was no answer: the session may have ended or not, or may end later")
}

// serveBreak deletes the znode of a holder or of one who waits, if it has this token.
func (h *Handler) serveBreak(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Path  string `json:"path"`
		Token string `json:"token"`
	}
	if err := h.read(w, r, grant{h.grants.BreakLocks, "locks"}, &q); err != nil {
		respond(w, err)
		return
	}
	token, err := strconv.ParseInt(q.Token, 10, 64)
	switch {
	case err != nil:
		respond(w, refuse(http.StatusBadRequest, "%q is not a fencing token", q.Token))
		return
	case !locks.Interesting(path.Base(q.Path)):
		respond(w, refuse(http.StatusBadRequest, "%q is not the znode of a session in the queue of a lock", q.Path))
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), actionTimeout)
	defer cancel()
	if err = h.breakLock(ctx, q.Path, token); err == nil {
		h.log.Warn("an operator has broken a lock", "znode", q.Path, "token", token, "operator", r.RemoteAddr)
	} else {
		h.log.Warn("an operator could not break a lock", "znode", q.Path, "token", token, "operator", r.RemoteAddr, "error", err)
	}
	respond(w, err)
}

// breakLock deletes the znode at a path if it is the one with this token, as a client
// without permissions.
//
// ZooKeeper has no delete on the condition of a czxid. So breakLock first reads the newest
// state, and then deletes the znode on the condition of its version. Libraries do not use a
// name for a second znode; without protection they could, but only in a directory that was
// deleted and created again, which would have to happen between these two requests.
func (h *Handler) breakLock(ctx context.Context, at string, token int64) error {
	c, err := connect(h.server, actionTimeout)
	if err != nil {
		return undone(ctx, err)
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	defer c.CloseSession() // if that fails, the session expires
	if _, err := c.Call(proto.OpSync, &proto.Path{Path: at}, nil); err != nil {
		return undone(ctx, err)
	}
	stat, err := c.Exists(at, false)
	switch {
	case err != nil:
		return undone(ctx, err)
	case stat.Czxid != token:
		return refuse(http.StatusConflict, "nothing was deleted: this znode was replaced by one with the token %d", stat.Czxid)
	}
	_, err = c.Call(proto.OpDelete, &proto.PathVersion{Path: at, Version: stat.Version}, nil)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, proto.NoAuth):
		return refuse(http.StatusForbidden, "nothing was deleted: the ACL of %s does not let everybody delete its children, and the console has no permissions of its own", path.Dir(at))
	case errors.As(err, new(proto.Code)):
		return undone(ctx, err)
	}
	return refuse(http.StatusGatewayTimeout, "there was no answer: the znode may have been deleted or not, or may be deleted later")
}

// undone returns the refusal for an error before which nothing was deleted.
func undone(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, proto.NoNode):
		return refuse(http.StatusNotFound, "nothing was deleted: the znode does not exist; it was probably released in the meantime")
	case errors.Is(err, proto.BadVersion):
		return refuse(http.StatusConflict, "nothing was deleted: the data of the znode was changed in the meantime")
	case errors.Is(err, proto.NotEmpty):
		return refuse(http.StatusConflict, "nothing was deleted: the znode has children, so it is not that of a lock")
	case errors.Is(err, proto.BadArguments):
		return refuse(http.StatusBadRequest, "nothing was deleted: %s", reason(err))
	case errors.Is(err, proto.NoAuth), errors.Is(err, proto.SessionClosedRequireSASLAuth):
		return refuse(http.StatusForbidden, "nothing was deleted: %s", reason(err))
	case errors.As(err, new(proto.Code)):
		return refuse(http.StatusInternalServerError, "nothing was deleted: the server answers %v", err)
	case ctx.Err() != nil, errors.Is(err, os.ErrDeadlineExceeded):
		return refuse(http.StatusGatewayTimeout, "nothing was deleted: there was no answer within %v", actionTimeout)
	}
	return refuse(http.StatusServiceUnavailable, "nothing was deleted: this server does not serve clients: %v", err)
}
