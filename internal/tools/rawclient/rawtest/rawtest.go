// Package rawtest has what tests of several packages do with clients of a server:
// connect, ask four-letter words, and see whether a connection lives. Only tests
// import it.
package rawtest

import (
	"encoding/binary"
	"errors"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

// Dialer opens connections to a server.
type Dialer func() (net.Conn, error)

// Connect opens a session with a timeout of 30 seconds. Its connection is closed at
// the end of the test.
func Connect(t testing.TB, dial Dialer) *rawclient.Client {
	t.Helper()
	return ConnectFor(t, dial, 30*time.Second)
}

// ConnectFor is Connect with another session timeout.
func ConnectFor(t testing.TB, dial Dialer, timeout time.Duration) *rawclient.Client {
	t.Helper()
	nc, err := dial()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	c, err := rawclient.Open(nc, timeout)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Closed reads until the server closes the connection. It fails the test if the
// server sends anything before, or does not close it.
func Closed(t testing.TB, c *rawclient.Client) {
	t.Helper()
	f, err := c.Read()
	if err == nil {
		t.Fatalf("a frame instead of the end of the connection: %+v", f.ReplyHeader)
	}
	var late net.Error
	if errors.As(err, &late) && late.Timeout() {
		t.Fatal("the connection stays open")
	}
}

// Alive fails the test if a ping of c is not answered.
func Alive(t testing.TB, c *rawclient.Client) {
	t.Helper()
	if err := c.Ping(); err != nil {
		t.Fatalf("a healthy connection: %v", err)
	}
}

// Exists reports whether there is a znode.
func Exists(t testing.TB, c *rawclient.Client, path string) bool {
	t.Helper()
	_, err := c.Exists(path, false)
	if err != nil && err != proto.NoNode {
		t.Fatal(err)
	}
	return err == nil
}

// Names returns the types and paths of events.
func Names(events []rawclient.Event) (list []string) {
	for _, e := range events {
		list = append(list, e.Type.String()+" "+e.Path)
	}
	return list
}

// Frame returns a payload as it is sent, after its length.
func Frame(payload []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(payload))), payload...)
}

// Ints returns the encoding of numbers.
func Ints(v ...int32) (b []byte) {
	for _, x := range v {
		b = jute.AppendInt(b, x)
	}
	return b
}

// Words are all four-letter words.
var Words = []string{"ruok", "isro", "srvr", "stat", "mntr", "conf", "cons", "dirs", "envi", "wchs", "wchc", "wchp", "crst", "srst", "dump", "hash", "gtmk", "stmk"}

// Word asks a four-letter word.
func Word(t testing.TB, dial Dialer, w string) string {
	t.Helper()
	nc, err := dial()
	if err != nil {
		t.Fatal(err)
	}
	answer, err := rawclient.Word(nc, w, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

// Counts parses the answer to the word mntr.
func Counts(t testing.TB, text string) map[string]string {
	t.Helper()
	m := map[string]string{}
	for i, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		key, value, ok := strings.Cut(line, "\t")
		key, prefixed := strings.CutPrefix(key, "zk_")
		if _, twice := m[key]; !ok || !prefixed || twice || i == 0 && key != "version" || i == 1 && key != "server_state" {
			t.Fatalf("mntr line %d is %q", i, line)
		}
		m[key] = value
	}
	return m
}

// Number is one of the Counts.
func Number(t testing.TB, m map[string]string, key string) int {
	t.Helper()
	n, err := strconv.Atoi(m[key])
	if err != nil {
		t.Fatalf("%s is %q", key, m[key])
	}
	return n
}
