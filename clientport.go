package lockkeeper

import (
	"cmp"
	"context"
	"net"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/znode"
)

// A reconfig may name the client port of a member. That server then takes new
// connections there, and closes the port that it had; the connections that there
// are stay (QuorumPeer.processReconfig).

// takePortAgain is how long a server waits before it tries again to take a port
// that is in use.
const takePortAgain = time.Second

// memberChanges has an element when the members may have changed.
type memberChanges chan struct{}

func (c memberChanges) Changed(_ *fsm.View, changes []proto.Change) {
	for i := range changes {
		if changes[i].Kind == proto.NodeDataChanged && changes[i].Path == znode.ConfigPath {
			c.Restored()
		}
	}
}

func (c memberChanges) Restored() {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (memberChanges) Restoring() {}

func (memberChanges) Applied(uint64, uint64, int) {}

func (memberChanges) Failed(error) {}

// followPort moves the client port to where the members have it, whenever that
// changes, until the server stops.
func (s *Server) followPort(id uint64, changes memberChanges) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s.wg.Go(func() {
		<-s.stop
		cancel()
	})
	select {
	case <-s.ready: // before that, the log has older ports
	case <-s.stop:
		return
	}
	configured := listenAddr(s.Addr().String())
	at, want := configured, configured
	taken := "" // the address of the last error
	for {
		s.replica.View(func(v *fsm.View) {
			if self, ok := v.Member(id); ok { // one that was removed keeps its port
				want = cmp.Or(listenAddr(self.Client), configured)
			}
		})
		var again <-chan time.Time
		if want != at {
			if err := s.movePort(ctx, want); err == nil {
				s.log.Warn("the client port has moved", "from", at, "to", want)
				at, taken = want, ""
			} else {
				if taken != want {
					s.log.Error("cannot take the client port that a reconfig named", "address", want, "error", err)
				}
				at, taken = "", want
				again = time.After(takePortAgain)
			}
		}
		select {
		case <-changes:
		case <-again:
		case <-s.stop:
			return
		}
	}
}

// movePort closes the client port and opens it at addr. After an error there is
// none, as in ZooKeeper: the members say that it is elsewhere.
func (s *Server) movePort(ctx context.Context, addr string) error {
	s.portMu.Lock()
	s.plain.Close()
	s.portMu.Unlock()
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	s.portMu.Lock()
	defer s.portMu.Unlock()
	s.plain = l
	select {
	case <-s.stop:
		l.Close()
	default:
		s.wg.Go(func() { s.clients.Serve(l) })
	}
	return nil
}

// listenAddr writes every address of this host in one form, :PORT.
func listenAddr(addr string) string {
	host, port, _ := net.SplitHostPort(addr)
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		return ":" + port
	}
	return addr
}
