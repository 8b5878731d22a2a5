package lockkeeper

import (
	"cmp"
	"net"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/wake"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/znode"
)

// A reconfig can give a member another client address. That server then listens
// there and closes its previous port; existing connections stay open
// (QuorumPeer.processReconfig).

// takePortAgain is how long a server waits before it tries again to listen on an
// address that it could not get.
const takePortAgain = time.Second

// memberChanges is an fsm.Observer, which raises its signal when the members may have changed.
type memberChanges struct{ wake.Signal }

func (c memberChanges) Changed(_ *fsm.View, changes []proto.Change) {
	for i := range changes {
		if changes[i].Kind == proto.NodeDataChanged && changes[i].Path == znode.ConfigPath {
			c.Raise()
		}
	}
}

func (c memberChanges) Restored() { c.Raise() }

func (memberChanges) Restoring() {}

func (memberChanges) Applied(uint64, uint64, int) {}

func (memberChanges) Answered() {}

func (memberChanges) Failed(error) {}

// followPort keeps the client port at the address that the list of members gives
// for this server, until the server refuses clients. It stays where it is if the list has the address
// that the configuration tells clients, which may be another one than it listens on.
func (s *Server) followPort(id uint64, told string, changes memberChanges) {
	select {
	case <-s.ready: // until then, the log being replayed may name outdated addresses
	case <-s.open.Done():
		return
	}
	configured := listenAddr(s.Addr().String())
	at, want := configured, configured
	taken := "" // the address of the last error, so that each is logged once
	for {
		s.replica.View(func(v *fsm.View) {
			if self, ok := v.Member(id); ok { // a removed member keeps its port
				want = cmp.Or(listenAddr(self.ClientAddr), configured)
				if listenAddr(self.ClientAddr) == listenAddr(told) {
					want = configured
				}
			}
		})
		var again <-chan time.Time
		if want != at {
			if err := s.movePort(want); err == nil {
				s.log.Warn("the client port has moved", "from", at, "to", want)
				at, taken = want, ""
			} else {
				if taken != want {
					s.log.Error("cannot listen on the client address that a reconfig set", "address", want, "error", err)
				}
				at, taken = "", want
				again = time.After(takePortAgain)
			}
		}
		select {
		case <-changes.Signal:
		case <-again:
		case <-s.open.Done():
			return
		}
	}
}

// movePort closes the client port and listens on addr instead. After an error no
// client port is open, as in ZooKeeper: clients already look for it at addr.
func (s *Server) movePort(addr string) error {
	s.portMu.Lock()
	s.plain.Close()
	s.portMu.Unlock()
	l, err := new(net.ListenConfig).Listen(s.open, "tcp", addr)
	if err != nil {
		return err
	}
	s.portMu.Lock()
	defer s.portMu.Unlock()
	s.plain = l
	if s.open.Err() != nil {
		return l.Close()
	}
	s.clients.Announce(l.Addr(), s.SecureAddr())
	s.wg.Go(func() { s.clients.Serve(l, s.either) })
	return nil
}

// listenAddr returns addr, or :PORT if its host is any form of the unspecified
// address, so that such addresses compare equal.
func listenAddr(addr string) string {
	host, port, _ := net.SplitHostPort(addr)
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		return ":" + port
	}
	return addr
}
