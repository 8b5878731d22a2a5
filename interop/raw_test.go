//go:build interop

package interop

import (
	"errors"
	"io"
	"net"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/proto"
)

// rawTimeout limits every wait for the server on a raw connection.
const rawTimeout = time.Minute

// dialRaw connects and opens a session, or resumes the given one. lastZxid is the highest
// zxid that the client has seen: a server that is behind it must close the connection.
func dialRaw(addr string, timeout time.Duration, lastZxid int64, resume proto.ConnectReply) (*rawclient.Client, error) {
	nc, err := net.DialTimeout("tcp", addr, rawTimeout)
	if err != nil {
		return nil, err
	}
	q := rawclient.NewSession(timeout)
	if resume.SessionID != 0 {
		q = rawclient.Resumption(resume)
	}
	q.LastZxidSeen = lastZxid
	c := rawclient.New(nc)
	if err := c.Handshake(q); err != nil {
		nc.Close()
		return nil, err
	}
	return c, nil
}

// dialRawSoon is like dialRaw, but retries, because a cluster member closes the
// connection while it knows no leader or is behind.
func dialRawSoon(t testing.TB, addr string, timeout time.Duration, lastZxid int64) *rawclient.Client {
	t.Helper()
	for deadline := time.Now().Add(startDeadline); ; time.Sleep(5 * time.Millisecond) {
		conn, err := dialRaw(addr, timeout, lastZxid, proto.ConnectReply{})
		if err == nil {
			return conn
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// connectionEnded reports whether an error means that the server or the test has closed a connection.
func connectionEnded(err error) bool {
	return errors.As(err, new(*net.OpError)) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

var zxidLine = regexp.MustCompile(`(?m)^Zxid: 0x([0-9a-f]+)$`)

// serverZxid asks the server for its last zxid, with the four-letter word srvr.
func serverZxid(t testing.TB, addr string) int64 {
	t.Helper()
	text, err := fourLetterWord(addr, "srvr", rawTimeout)
	if err != nil {
		t.Fatalf("srvr: %v", err)
	}
	found := zxidLine.FindStringSubmatch(text)
	if found == nil {
		t.Fatalf("srvr shows no zxid:\n%s", text)
	}
	zxid := must(strconv.ParseInt(found[1], 16, 64))(t)
	return zxid
}
