package admin

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/tools/migrate"
)

// snapshotChunk is how many bytes of a snapshot are written at once. snapshotGrace is for each of them, so that a large snapshot
// may take long. But the reader takes snapshotRate bytes a second on average, and snapshotGrace longer at most: it keeps others
// from their snapshots, and what has changed since in memory.
//
// A reader that takes just snapshotRate all the time seems to stop for 23 s, again and again: Linux wants no more bytes from the
// server until a third of its socket's 4 MB is free.
const (
	snapshotChunk = 64 << 10
	snapshotRate  = 64 << 10
	snapshotGrace = time.Minute
)

// serveSnapshot sends the state that the server has applied. Options.Snapshots has to permit it:
// the state has what ACLs hide, and the passwords of sessions.
func (h *Handler) serveSnapshot(w http.ResponseWriter, r *http.Request) {
	unlock, err := h.mayHaveSnapshot(w, r, http.StatusServiceUnavailable)
	if err != nil {
		respond(w, nil, err)
		return
	}
	defer unlock()
	consoleHeaders(w.Header(), "application/octet-stream")
	if err := h.send(w, r, "a snapshot", h.server.WriteSnapshot); err != nil {
		respond(w, nil, refuse(http.StatusServiceUnavailable, "there is no snapshot: %v", err))
	}
}

// mayHaveSnapshot decides whether a request is answered with a snapshot. Until unlock is called, no other one is; such a
// one gets the status busy.
func (h *Handler) mayHaveSnapshot(w http.ResponseWriter, r *http.Request, busy int) (unlock func(), err error) {
	if r.Method != http.MethodGet { // HEAD would run through the whole state for nothing
		w.Header().Set("Allow", http.MethodGet)
		return nil, refuse(http.StatusMethodNotAllowed, "only GET is answered here")
	}
	if err := mayAct(r, grant{h.options.Snapshots, "snapshots"}); err != nil {
		return nil, err
	}
	if !h.snapshots.TryLock() {
		return nil, refuse(busy, "another snapshot is being sent; try again later")
	}
	return h.snapshots.Unlock, nil
}

// send answers a request with what write writes. An error before that is returned. If one ends it later, the connection is
// aborted, so that what was sent does not look complete.
func (h *Handler) send(w http.ResponseWriter, r *http.Request, what string, write func(io.Writer) error) error {
	out := &snapshotWriter{w: w, rc: http.NewResponseController(w)}
	w.Header().Set("Connection", "close") // so that no deadline stays for the next request
	err := write(out)
	if err == nil {
		h.options.Log.Warn("an operator has saved "+what, "bytes", out.sent, "operator", r.RemoteAddr)
		return nil
	}
	h.options.Log.Warn("an operator could not save "+what, "bytes", out.sent, "operator", r.RemoteAddr, "error", err)
	if out.sent > 0 {
		panic(http.ErrAbortHandler)
	}
	return err
}

// snapshotWriter writes to an operator who may read slowly, but not stop.
type snapshotWriter struct {
	w     http.ResponseWriter
	rc    *http.ResponseController
	began time.Time // when it wrote first
	sent  int64
}

func (s *snapshotWriter) Write(b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		now := time.Now()
		if s.began.IsZero() {
			s.began = now
		}
		until := s.began.Add(snapshotGrace + time.Duration(s.sent/snapshotRate)*time.Second)
		if stops := now.Add(snapshotGrace); stops.Before(until) {
			until = stops
		}
		s.rc.SetWriteDeadline(until) // an error means that w has none
		var k int
		k, err = s.w.Write(b[n:min(len(b), n+snapshotChunk)])
		n += k
		s.sent += int64(k)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("the reader has stopped, or takes less than %d KiB a second: %w", snapshotRate>>10, err)
	}
	return n, err
}

// serveZooKeeperSnapshot answers the command snapshot of ZooKeeper 3.9's AdminServer (class SnapshotCommand): with the state as
// a snapshot file of ZooKeeper. Whoever may have it may have that of serveSnapshot.
func (h *Handler) serveZooKeeperSnapshot(w http.ResponseWriter, r *http.Request) {
	answer := func(status int, err error) {
		if refused := (*refusal)(nil); errors.As(err, &refused) {
			status = refused.status
		}
		http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout)) // it may have taken long until here
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		w.Write(appendJSON(nil, complete("snapshot", nil, err), 0)) // an error means that the client is gone
	}
	unlock, err := h.mayHaveSnapshot(w, r, http.StatusTooManyRequests)
	if err != nil {
		answer(0, err)
		return
	}
	defer unlock()
	state, err := h.report.Snapshot()
	if err = cmp.Or(h.server.Err(), err); err != nil {
		answer(http.StatusServiceUnavailable, fmt.Errorf("there is no snapshot: %w", err))
		return
	}
	content, err := migrate.ForZooKeeper(r.Context(), state)
	if err != nil {
		answer(http.StatusInternalServerError, err)
		return
	}
	var size byteCount
	if err := content.WriteSent(&size); err != nil {
		answer(http.StatusInternalServerError, err)
		return
	}
	w.Header().Set("last_zxid", fmt.Sprintf("0x%x", content.Zxid))
	w.Header().Set("snapshot_size", strconv.FormatInt(int64(size), 10))
	if q := r.URL.Query(); q.Has("streaming") && !strings.EqualFold(q.Get("streaming"), "true") { // Boolean.parseBoolean
		answer(http.StatusOK, nil)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(int64(size), 10))
	if err := h.send(w, r, "a snapshot for ZooKeeper", content.WriteSent); err != nil {
		panic(http.ErrAbortHandler) // the headers may have been sent
	}
}

type byteCount int64

func (c *byteCount) Write(b []byte) (int, error) {
	*c += byteCount(len(b))
	return len(b), nil
}
