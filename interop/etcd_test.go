//go:build interop

package interop

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/tools/bench"
)

// startEtcd starts n members of etcd with empty directories and waits until they serve.
func startEtcd(t *testing.T, n int) *bench.Target {
	t.Helper()
	program, err := exec.LookPath("etcd")
	if err != nil {
		t.Fatalf("%v (interop/setup.sh etcd-server installs it)", err)
	}
	target := &bench.Target{Name: "etcd", Workloads: etcdWorkloads()}
	var members, peers []string
	for i := range n {
		target.Addrs = append(target.Addrs, freeAddr(t))
		peers = append(peers, "http://"+freeAddr(t))
		members = append(members, fmt.Sprintf("m%d=%s", i, peers[i]))
	}
	for i := range n {
		client := "http://" + target.Addrs[i]
		cmd := exec.Command(program, "--name", "m"+strconv.Itoa(i), "--data-dir", t.TempDir(), "--logger", "zap", "--log-level", "error",
			"--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peers[i],
			"--initial-advertise-peer-urls", peers[i], "--initial-cluster", strings.Join(members, ","))
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		var log bytes.Buffer
		cmd.Stderr = &log
		check(t, cmd.Start())
		target.PIDs = append(target.PIDs, cmd.Process.Pid)
		t.Cleanup(func() {
			cmd.Process.Kill()
			cmd.Wait()
			if t.Failed() {
				t.Logf("etcd's log ends with:\n%s", log.Bytes()[max(0, log.Len()-2000):])
			}
		})
	}
	for _, addr := range target.Addrs {
		c := newEtcd(addr)
		var err error
		for deadline := time.Now().Add(startDeadline); ; time.Sleep(2 * time.Millisecond) {
			if err = c.put(t.Context(), "ready", nil); err == nil {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("etcd at %s does not serve: %v", addr, err)
			}
		}
		c.close()
	}
	return target
}

// etcd is one connection to etcd. It speaks gRPC with the HTTP/2 client of the standard
// library and encodes the few messages that it needs itself.
type etcd struct {
	addr string
	http *http.Transport
}

func newEtcd(addr string) *etcd {
	t := &http.Transport{MaxIdleConnsPerHost: 1, DisableCompression: true, Protocols: new(http.Protocols)}
	t.Protocols.SetUnencryptedHTTP2(true)
	return &etcd{addr, t}
}

func (c *etcd) close() { c.http.CloseIdleConnections() }

// call calls a method and returns the encoding of its reply.
func (c *etcd) call(ctx context.Context, method string, message []byte) ([]byte, error) {
	body := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message)))
	q, err := http.NewRequestWithContext(ctx, "POST", "http://"+c.addr+method, bytes.NewReader(append(body, message...)))
	if err != nil {
		return nil, err
	}
	q.Header.Set("Content-Type", "application/grpc")
	q.Header.Set("Te", "trailers")
	r, err := c.http.RoundTrip(q)
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	reply, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	status := r.Trailer.Get("Grpc-Status")
	if status == "" {
		status = r.Header.Get("Grpc-Status")
	}
	if r.StatusCode != http.StatusOK || status != "0" || len(reply) < 5 {
		return nil, fmt.Errorf("etcd: HTTP status %d, gRPC status %q %s%s", r.StatusCode, status, r.Header.Get("Grpc-Message"), r.Trailer.Get("Grpc-Message"))
	}
	return reply[5:], nil
}

// field appends a field of bytes to a message; number a field with a number.
func field(b []byte, n int, v []byte) []byte {
	return append(binary.AppendUvarint(append(b, byte(n<<3|2)), uint64(len(v))), v...)
}

func number(b []byte, n int, v int64) []byte {
	return binary.AppendUvarint(append(b, byte(n<<3)), uint64(v))
}

// fieldOf returns a field of a message: its bytes, or its number.
func fieldOf(b []byte, want int) (bytes []byte, v uint64, err error) {
	for len(b) > 0 {
		key, n := binary.Uvarint(b)
		if n <= 0 {
			break
		}
		b = b[n:]
		x, n := binary.Uvarint(b)
		if n <= 0 {
			break
		}
		b = b[n:]
		switch {
		case key&7 == 0 && int(key>>3) == want:
			return nil, x, nil
		case key&7 == 2 && x <= uint64(len(b)):
			if int(key>>3) == want {
				return b[:x], 0, nil
			}
			b = b[x:]
		case key&7 != 0:
			return nil, 0, errors.New("etcd: malformed reply")
		}
	}
	return nil, 0, fmt.Errorf("etcd: no field %d in a reply", want)
}

func (c *etcd) put(ctx context.Context, key string, value []byte) error {
	_, err := c.call(ctx, "/etcdserverpb.KV/Put", field(field(nil, 1, []byte(key)), 2, value))
	return err
}

// get reads from the member itself, as ZooKeeper does (a serializable read).
func (c *etcd) get(ctx context.Context, key string) error {
	reply, err := c.call(ctx, "/etcdserverpb.KV/Range", number(field(nil, 1, []byte(key)), 7, 1))
	if err == nil {
		_, _, err = fieldOf(reply, 2) // the key and its value
	}
	return err
}

// grant returns a lease of 40 seconds.
func (c *etcd) grant(ctx context.Context) (int64, error) {
	reply, err := c.call(ctx, "/etcdserverpb.Lease/LeaseGrant", number(nil, 1, 40))
	if err != nil {
		return 0, err
	}
	_, id, err := fieldOf(reply, 2)
	return int64(id), err
}

// lock takes a lock and returns the key to unlock.
func (c *etcd) lock(ctx context.Context, name string, lease int64) ([]byte, error) {
	reply, err := c.call(ctx, "/v3lockpb.Lock/Lock", number(field(nil, 1, []byte(name)), 2, lease))
	if err != nil {
		return nil, err
	}
	key, _, err := fieldOf(reply, 2)
	return key, err
}

func (c *etcd) unlock(ctx context.Context, key []byte) error {
	_, err := c.call(ctx, "/v3lockpb.Lock/Unlock", field(nil, 1, key))
	return err
}

// etcdRoot returns a prefix of keys that no other run uses.
func etcdRoot() string { return "bench-" + strconv.FormatInt(time.Now().UnixNano(), 36) + "/" }

// etcdWorkloads are the workloads that etcd has: put, get, and its lock service.
func etcdWorkloads() (all []bench.Workload) {
	value := bytes.Repeat([]byte("x"), bench.DataBytes)
	type work func(ctx context.Context, c *etcd, root string, session, n int) error
	create := func(ctx context.Context, c *etcd, root string, session, n int) error {
		return c.put(ctx, fmt.Sprintf("%s%d/%08d", root, session, n), value)
	}
	set := func(ctx context.Context, c *etcd, root string, session, n int) error {
		return c.put(ctx, fmt.Sprintf("%s%d/%08d", root, session, n%16), value)
	}
	const keys = 1000
	get := func(ctx context.Context, c *etcd, root string, session, n int) error {
		return c.get(ctx, fmt.Sprintf("%s%08d", root, (session*31+n*7)%keys))
	}
	library := func(ctx context.Context, c *etcd, root string) error {
		for i := range keys {
			if err := c.put(ctx, fmt.Sprintf("%s%08d", root, i), value); err != nil {
				return err
			}
		}
		return nil
	}
	add := func(name string, sessions, outstanding int, prepare func(context.Context, *etcd, string) error, do work) {
		all = append(all, bench.Workload{Name: fmt.Sprintf("%s-%dx%d", name, sessions, outstanding), Run: func(r *bench.Run) error {
			root := etcdRoot()
			clients := etcdClients(r, sessions)
			defer closeEtcd(clients)
			if prepare != nil {
				if err := prepare(r.Context(), clients[0], root); err != nil {
					return err
				}
			}
			return r.Measured(sessions*outstanding, func(i int, w *bench.Worker) {
				for n := 0; w.More(); n++ {
					began := time.Now()
					if err := do(r.Context(), clients[i%sessions], root, i, n); err != nil {
						w.Fail(err)
						continue
					}
					w.Done(time.Since(began))
				}
			})
		}})
	}
	for _, s := range [][2]int{{1, 1}, {16, 1}, {64, 16}} {
		add("create", s[0], s[1], nil, create)
		add("set", s[0], s[1], nil, set)
	}
	add("read", 1, 1, library, get)
	add("read", 64, 16, library, get)
	for _, n := range []int{1, 32} {
		all = append(all, bench.Workload{Name: "lock-" + strconv.Itoa(n), Run: func(r *bench.Run) error { return etcdLocks(r, n, false) }})
	}
	for _, n := range []int{1, 8, 64} {
		all = append(all, bench.Workload{Name: "handover-" + strconv.Itoa(n), Run: func(r *bench.Run) error { return etcdLocks(r, n, true) }})
	}
	return all
}

func etcdClients(r *bench.Run, n int) []*etcd {
	clients := make([]*etcd, n)
	for i := range clients {
		clients[i] = newEtcd(r.Target.Addrs[i%len(r.Target.Addrs)])
	}
	return clients
}

func closeEtcd(clients []*etcd) {
	for _, c := range clients {
		c.close()
	}
}

// etcdLocks takes and releases locks: of its own for each client, measuring both together,
// or one that all want, measuring from the release until the next client knows.
func etcdLocks(r *bench.Run, n int, contended bool) error {
	clients := etcdClients(r, n)
	defer closeEtcd(clients)
	root, leases := etcdRoot(), make([]int64, n)
	for i, c := range clients {
		var err error
		if leases[i], err = c.grant(r.Context()); err != nil {
			return err
		}
	}
	var mu sync.Mutex
	var released time.Time
	return r.Measured(n, func(i int, w *bench.Worker) {
		name := root + "one"
		if !contended {
			name = root + strconv.Itoa(i)
		}
		for w.More() {
			began := time.Now()
			key, err := clients[i].lock(r.Context(), name, leases[i])
			if err != nil {
				w.Fail(err)
				return
			}
			if contended {
				mu.Lock()
				if !released.IsZero() {
					w.Done(time.Since(released))
				}
				released = time.Now()
				mu.Unlock()
			}
			switch err := clients[i].unlock(r.Context(), key); {
			case err != nil:
				w.Fail(err)
				return
			case !contended:
				w.Done(time.Since(began))
			}
		}
	})
}
