package admin

import (
	"net/http"
	"time"
)

// snapshotChunk is how many bytes of a snapshot are written at once. writeTimeout is for each
// of them, so that a large snapshot may take long.
const snapshotChunk = 64 << 10

// serveSnapshot sends the state that the server has applied. Options.Snapshots has to permit it:
// the state has what ACLs hide, and the passwords of sessions.
//
// If an error ends it, the connection is aborted, so that what was sent does not look
// complete.
func (h *Handler) serveSnapshot(w http.ResponseWriter, r *http.Request) {
	if err := mayAct(r, grant{h.grants.Snapshots, "snapshots"}); err != nil {
		respond(w, err)
		return
	}
	if !h.snapshots.TryLock() {
		respond(w, refuse(http.StatusServiceUnavailable, "another snapshot is being sent; try again later"))
		return
	}
	defer h.snapshots.Unlock()
	out := &snapshotWriter{w: w, rc: http.NewResponseController(w)}
	consoleHeaders(w.Header(), "application/octet-stream")
	w.Header().Set("Connection", "close") // so that no deadline stays for the next request
	err := h.server.WriteSnapshot(out)
	if err == nil {
		h.log.Warn("an operator has saved a snapshot", "bytes", out.sent, "operator", r.RemoteAddr)
		return
	}
	h.log.Warn("an operator could not save a snapshot", "bytes", out.sent, "operator", r.RemoteAddr, "error", err)
	if out.sent > 0 {
		panic(http.ErrAbortHandler)
	}
	respond(w, refuse(http.StatusServiceUnavailable, "there is no snapshot: %v", err))
}

// snapshotWriter writes to an operator who may read slowly, but not stop.
type snapshotWriter struct {
	w    http.ResponseWriter
	rc   *http.ResponseController
	sent int64
}

func (s *snapshotWriter) Write(b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		s.rc.SetWriteDeadline(time.Now().Add(writeTimeout)) // an error means that w has none
		var k int
		k, err = s.w.Write(b[n:min(len(b), n+snapshotChunk)])
		n += k
		s.sent += int64(k)
	}
	return n, err
}
