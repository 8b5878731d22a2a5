//go:build interop

package interop

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// This load client knows only four requests and encodes them itself, because the costs of
// an ordinary client (a lock, a map and two goroutines per request) would be measured
// together with those of the server, on the same cores.

const (
	loadParents   = 8                // number of parents of the created znodes
	loadDataBytes = 100              // in each znode
	loadNodes     = 1000             // number of znodes that are read
	loadDeadline  = 10 * time.Minute // after which a run is given up
)

// loadOp is one request of a load.
type loadOp struct {
	read bool // getData; otherwise create
	path string
}

// loadCreates creates total znodes of 100 bytes below a few new parents, on conns
// connections with that many outstanding requests each.
func loadCreates(addr string, conns, outstanding, total int) (opsPerSecond float64, err error) {
	root, err := loadRoot(addr)
	if err != nil {
		return 0, err
	}
	return runLoad(addr, conns, outstanding, total, func(worker, i int) loadOp {
		return loadOp{path: loadPath(root, worker, i)}
	})
}

// loadReads sends total getData requests for a thousand new znodes.
func loadReads(addr string, conns, outstanding, total int) (opsPerSecond float64, err error) {
	return loadMix(addr, conns, outstanding, total, 0)
}

// loadMix is like loadReads, but every n-th request is a create, where n is every. If
// every is 0, there are only reads.
func loadMix(addr string, conns, outstanding, total, every int) (opsPerSecond float64, err error) {
	root, err := loadRoot(addr)
	if err != nil {
		return 0, err
	}
	const maker = -1 // no worker of the mix has this number
	_, err = runLoad(addr, 1, outstanding, loadNodes, func(_, i int) loadOp {
		return loadOp{path: loadPath(root, maker, i)}
	})
	if err != nil {
		return 0, err
	}
	return runLoad(addr, conns, outstanding, total, func(worker, i int) loadOp {
		if every > 0 && i%every == every-1 {
			return loadOp{path: loadPath(root, worker, i)}
		}
		// Workers start at different places; 7 has no factor in common with the
		// number of nodes, so each walks over all of them.
		return loadOp{read: true, path: loadPath(root, maker, (worker*31+i*7)%loadNodes)}
	})
}

func loadPath(root string, worker, i int) string {
	return root + "/p" + strconv.Itoa(i%loadParents) + "/" + strconv.Itoa(worker) + "-" + strconv.Itoa(i)
}

// loadRoot creates a new root and its parents, and returns its path.
func loadRoot(addr string) (string, error) {
	root := "/load-" + strconv.FormatInt(time.Now().UnixNano(), 36)
	_, err := runLoad(addr, 1, 1, 1+loadParents, func(_, i int) loadOp {
		if i == 0 {
			return loadOp{path: root}
		}
		return loadOp{path: root + "/p" + strconv.Itoa(i-1)}
	})
	return root, err
}

// runLoad opens connections with sessions, spread over the servers in addr, and then
// measures how long they take for total requests. The requests of worker w are op(w, 0),
// op(w, 1) and so on.
func runLoad(addr string, conns, outstanding, total int, op func(worker, i int) loadOp) (opsPerSecond float64, err error) {
	clients := make([]*loadClient, 0, conns)
	defer func() {
		for _, c := range clients {
			c.nc.Close()
		}
	}()
	addrs := strings.Split(addr, ",")
	for i := range conns {
		c, err := dialLoad(addrs[i%len(addrs)])
		if err != nil {
			return 0, err
		}
		clients = append(clients, c)
	}
	errs := make([]error, conns)
	var workers sync.WaitGroup
	start := time.Now()
	for w, c := range clients {
		n := total / conns
		if w < total%conns {
			n++
		}
		workers.Go(func() {
			errs[w] = c.run(outstanding, n, func(i int) loadOp { return op(w, i) })
		})
	}
	workers.Wait()
	took := time.Since(start)
	for _, c := range clients {
		workers.Go(c.endSession)
	}
	workers.Wait()
	for w, err := range errs {
		if err != nil {
			return 0, fmt.Errorf("connection %d of %d: %w", w, conns, err)
		}
	}
	return float64(total) / took.Seconds(), nil
}

// loadClient is one connection with a session.
type loadClient struct {
	nc  net.Conn
	r   *bufio.Reader
	out []byte // requests that have not been sent yet
	in  []byte // the last reply, without its length
}

// dialLoad connects and opens a session.
func dialLoad(addr string) (*loadClient, error) {
	nc, err := net.DialTimeout("tcp", addr, rawTimeout)
	if err != nil {
		return nil, err
	}
	nc.SetDeadline(time.Now().Add(loadDeadline))
	c := &loadClient{nc: nc, r: bufio.NewReaderSize(nc, 16<<10)}
	hello := make([]byte, 4+45) // with the readOnly byte, so that ZooKeeper does not log an old client
	binary.BigEndian.PutUint32(hello, 45)
	binary.BigEndian.PutUint32(hello[16:], 30_000) // session timeout
	binary.BigEndian.PutUint32(hello[28:], 16)     // length of the password, all zeros
	if _, err = nc.Write(hello); err == nil {
		err = c.receive()
	}
	if err == nil && (len(c.in) < 36 || binary.BigEndian.Uint32(c.in[4:]) == 0) {
		err = fmt.Errorf("no session: %x", c.in)
	}
	if err != nil {
		nc.Close()
		return nil, err
	}
	return c, nil
}

// run sends n requests with up to outstanding of them unanswered, and checks each reply.
// Requests that can be sent at the same time are sent in one write.
func (c *loadClient) run(outstanding, n int, op func(i int) loadOp) error {
	sent, done := 0, 0
	window := make([]loadOp, outstanding) // request i is at i%outstanding until its reply
	for done < n {
		for sent < n && sent-done < outstanding {
			o := op(sent)
			window[sent%outstanding] = o
			c.add(int32(sent+1), o)
			sent++
		}
		if _, err := c.nc.Write(c.out); err != nil {
			return err
		}
		c.out = c.out[:0]
		for {
			if err := c.receive(); err != nil {
				return fmt.Errorf("reply %d of %d: %w", done+1, n, err)
			}
			if err := c.check(int32(done+1), window[done%outstanding]); err != nil {
				return err
			}
			done++
			if c.r.Buffered() < 4 || done == sent {
				break
			}
		}
	}
	return nil
}

var loadData = make([]byte, loadDataBytes)

// add appends a request to those that are sent next.
func (c *loadClient) add(xid int32, o loadOp) {
	at := len(c.out)
	b := append(c.out, 0, 0, 0, 0)
	b = binary.BigEndian.AppendUint32(b, uint32(xid))
	if o.read {
		b = binary.BigEndian.AppendUint32(b, 4) // getData
		b = appendBuffer(b, []byte(o.path))
		b = append(b, 0) // no watch
	} else {
		b = binary.BigEndian.AppendUint32(b, 1) // create
		b = appendBuffer(b, []byte(o.path))
		b = appendBuffer(b, loadData)
		b = append(b, 0, 0, 0, 1, 0, 0, 0, 31) // one ACL, all permissions
		b = appendBuffer(b, []byte("world"))
		b = appendBuffer(b, []byte("anyone"))
		b = append(b, 0, 0, 0, 0) // flags: persistent
	}
	binary.BigEndian.PutUint32(b[at:], uint32(len(b)-at-4))
	c.out = b
}

func appendBuffer(b, v []byte) []byte {
	return append(binary.BigEndian.AppendUint32(b, uint32(len(v))), v...)
}

// receive reads the next frame into c.in.
func (c *loadClient) receive() (err error) {
	c.in, err = readFrame(c.r, c.in)
	return err
}

// check checks the reply in c.in.
func (c *loadClient) check(xid int32, o loadOp) error {
	if len(c.in) < 16 {
		return fmt.Errorf("reply to %s: %x", o.path, c.in)
	}
	if got := int32(binary.BigEndian.Uint32(c.in)); got != xid {
		return fmt.Errorf("reply to %s has xid %d, want %d", o.path, got, xid)
	}
	if code := int32(binary.BigEndian.Uint32(c.in[12:])); code != 0 {
		return fmt.Errorf("reply to %s has error %d", o.path, code)
	}
	body := c.in[16:]
	want := 4 + len(o.path)
	if o.read {
		want = 4 + loadDataBytes + 68 // data and Stat
	}
	if len(body) != want || !o.read && string(body[4:]) != o.path {
		return fmt.Errorf("reply to %s has the body %x", o.path, body)
	}
	return nil
}

// endSession closes the session and waits until the server has closed the connection, so
// that it does not disturb the next measurement.
func (c *loadClient) endSession() {
	c.nc.SetDeadline(time.Now().Add(10 * time.Second))
	c.nc.Write([]byte{0, 0, 0, 8, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xf5})
	io.Copy(io.Discard, c.r)
}

// TestLoad checks that the load client counts only requests that succeeded.
func TestLoad(t *testing.T) {
	addr := startZooKeeper(t, zk38, nil, merged(withWords, anyClients)).addr
	before := countNodes(t, addr)
	if ops, err := loadCreates(addr, 8, 16, 1003); err != nil || ops <= 0 {
		t.Fatalf("creates: %v/s, %v", ops, err)
	}
	if n, want := countNodes(t, addr)-before, 1003+1+loadParents; n != want {
		t.Errorf("%d znodes more, want %d", n, want)
	}
	before = countNodes(t, addr)
	if ops, err := loadReads(addr, 8, 16, 3000); err != nil || ops <= 0 {
		t.Fatalf("reads: %v/s, %v", ops, err)
	}
	if ops, err := loadMix(addr, 8, 16, 8000, 10); err != nil || ops <= 0 {
		t.Fatalf("mix: %v/s, %v", ops, err)
	}
	if n, want := countNodes(t, addr)-before, 2*(loadNodes+1+loadParents)+800; n != want {
		t.Errorf("%d znodes more, want %d", n, want)
	}
	// A second create of the same path must be reported, whichever reply it is.
	_, err := runLoad(addr, 2, 4, 20, func(worker, i int) loadOp { return loadOp{path: "/same"} })
	if err == nil {
		t.Error("creating a znode 20 times succeeds")
	}
}

// countNodes asks the server how many znodes it has.
func countNodes(t testing.TB, addr string) int {
	t.Helper()
	answer, err := fourLetterWord(addr, "srvr", rawTimeout)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(answer) {
		var n int
		if _, err := fmt.Sscanf(line, "Node count: %d", &n); err == nil {
			return n
		}
	}
	t.Fatalf("no node count in %q", answer)
	return 0
}
