package zkshell_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/tools/zkshell"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

// dialer returns a dialer for servers without ports: the host is ignored.
func dialer(server *lockkeepertest.Server) func(context.Context, string, string) (net.Conn, error) {
	return func(_ context.Context, network, address string) (net.Conn, error) {
		return server.Dial(network, address, time.Minute)
	}
}

// interactive is a shell that executes lines as a test writes them.
type interactive struct {
	*output
	lines *io.PipeWriter
	done  chan int
}

func startShell(server *lockkeepertest.Server, change func(*zkshell.Config)) *interactive {
	r, w := io.Pipe()
	i := &interactive{newShell(server, change), w, make(chan int, 1)}
	go func() { i.done <- i.shell.Run(context.Background(), r) }()
	return i
}

// do executes a line and returns what was printed until everything is quiet.
func (i *interactive) do(line string) string {
	synctest.Wait() // for whatever prints now
	i.out.Reset()
	i.err.Reset()
	io.WriteString(i.lines, line+"\n")
	synctest.Wait()
	return i.out.String() + i.err.String()
}

// TestReconnect checks that a session survives the loss of its connection with its watches,
// its identities and its ephemeral znodes, and that a request in progress then fails.
func TestReconnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := lockkeepertest.Start(t)
		i := startShell(server, nil)
		i.do("addauth digest user:secret")
		i.do("create -e /e x auth::cdrwa")
		i.do("addWatch /e")
		i.do("ls -w /")
		server.Disconnect(server.Sessions()[0].ID)
		time.Sleep(2 * time.Second) // in virtual time
		if got := i.do("get /e"); withoutEvents(got) != "x\n" {
			t.Errorf("the znode of the identity cannot be read: %q", got)
		}
		if got := i.do("set /e y"); !strings.Contains(got, "type:NodeDataChanged path:/e") {
			t.Errorf("the permanent watch is gone: %q", got)
		}
		if got := i.do("create /new"); !strings.Contains(got, "type:NodeChildrenChanged path:/ ") {
			t.Errorf("the watch is gone: %q", got)
		}
		if got := i.do("getEphemerals"); got != "[/e]\n" {
			t.Errorf("the session has the ephemeral znodes %q", got)
		}
		i.do("quit")
		<-i.done
	})
}

// TestExpired checks that an expired session is reported, that commands say so, and that
// connect opens a new one.
func TestExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := lockkeepertest.Start(t)
		i := startShell(server, nil)
		i.do("create -e /e")
		i.out.Reset()
		server.ExpireSession(server.Sessions()[0].ID)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if got := i.out.String(); !strings.Contains(got, "state:Disconnected") || !strings.HasSuffix(got, "WatchedEvent state:Expired type:None path:null zxid: -1\n") {
			t.Errorf("printed %q", got)
		}
		if got := i.do("ls /"); got != "Not connected\n" {
			t.Errorf("without a session ls prints %q", got)
		}
		i.do("connect")
		if got := i.do("ls /"); got != "[zookeeper]\n" {
			t.Errorf("with a new session ls prints %q", got)
		}
		i.do("quit")
		<-i.done
	})
}

// TestUnreachable checks that a command fails when all servers were tried, and that the
// session is lost when no server could be reached for too long.
func TestUnreachable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := lockkeepertest.Start(t)
		dial, up, tried := dialer(server), false, map[string]int{}
		o := newShell(server, func(cfg *zkshell.Config) {
			cfg.Servers = "a,b:1,[::1]/app"
			cfg.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
				tried[address]++
				if !up {
					return nil, errors.New("connection refused")
				}
				return dial(ctx, network, address)
			}
		})
		if exit := o.shell.Once(context.Background(), []string{"ls", "/"}); exit != 1 ||
			!strings.HasPrefix(o.err.String(), "cannot connect to ") || !strings.HasSuffix(o.err.String(), ": connection refused\nKeeperErrorCode = ConnectionLoss for /\n") {
			t.Errorf("without a server: exit code %d, %q", exit, o.err.String())
		}
		if tried["a:2181"] != 1 || tried["b:1"] != 1 || tried["[::1]:2181"] != 1 {
			t.Errorf("tried %v", tried)
		}
		up = true
		if exit := o.shell.Once(context.Background(), []string{"ls", "/"}); exit != 1 || !strings.HasSuffix(o.err.String(), "Node does not exist: /\n") {
			t.Errorf("without the chroot: exit code %d, %q", exit, o.err.String())
		}
	})
}

// TestIdle checks that pings keep the session of an idle shell.
func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := lockkeepertest.Start(t)
		i := startShell(server, nil)
		i.do("create -e /e")
		i.out.Reset()
		time.Sleep(time.Hour)
		if got := i.do("ls /"); got != "[e, zookeeper]\n" {
			t.Errorf("after an hour ls prints %q", got)
		}
		i.do("quit")
		<-i.done
	})
}

// TestNotAuthenticated checks that a refused identity ends the session.
func TestNotAuthenticated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := startShell(lockkeepertest.Start(t), nil)
		i.do("sync /")
		if got := i.do("addauth none x"); !strings.Contains(got, "state:AuthFailed type:None") {
			t.Errorf("printed %q", got)
		}
		if got := i.do("ls /"); got != "Not connected\n" {
			t.Errorf("afterwards ls prints %q", got)
		}
		i.do("quit")
		<-i.done
	})
}
