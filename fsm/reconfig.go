package fsm

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/znode"
)

// reconfig finds out whether the members may be changed so, in the checks that
// the state decides (PrepRequestProcessor). It changes nothing: the leader does,
// when the server that proposed it asks for that.
func reconfig(m *Machine, _ proto.OpCode, d *jute.Decoder) proto.Code {
	var r proto.ReconfigRequest
	if r.Decode(d); d.Err() != nil {
		return proto.MarshallingError
	}
	config := m.tree.Lookup(znode.ConfigPath).Record()
	switch _, err := ParseReconfig(&r); {
	case m.settings&Reconfig == 0:
		return proto.ReconfigDisabled
	case len(config.Data) == 0: // a server alone
		return proto.Unimplemented
	case r.ConfigID != -1 && r.ConfigID != config.Mzxid:
		return proto.BadVersion
	case err != nil:
		return proto.BadArguments
	case !m.tree.MayConfigure(&m.txn):
		return proto.NoAuth
	}
	return proto.OK
}

// Reconfigured are the servers that a reconfig names.
type Reconfigured struct {
	Joining []proto.QuorumServer
	Leaving []uint64
	Whole   bool // who is not joining is leaving
}

// ParseReconfig reads the lists of a reconfig: commas or line ends separate the
// servers.
func ParseReconfig(r *proto.ReconfigRequest) (c Reconfigured, err error) {
	list := r.Joining
	if c.Whole = !r.NewMembers.Null; c.Whole { // then the other lists do not count
		list = r.NewMembers
	}
	if !list.Null {
		if c.Joining, err = proto.ParseServers(list.Path); err != nil {
			return c, err
		}
	}
	if c.Whole && len(c.Joining) == 0 {
		return c, fmt.Errorf("nobody is left")
	}
	if !c.Whole && !r.Leaving.Null {
		for id := range strings.FieldsFuncSeq(r.Leaving.Path, func(c rune) bool { return c == ',' || c == '\n' }) {
			n, err := strconv.ParseUint(strings.TrimSpace(id), 10, 64)
			if err != nil {
				return c, err
			}
			c.Leaving = append(c.Leaving, n)
		}
	}
	return c, nil
}

// SetMembers has /zookeeper/config tell of members, in a transaction of its own,
// and returns the change. It is valid until the next command.
func (m *Machine) SetMembers(index uint64, members []proto.QuorumServer) []proto.Change {
	m.index = index
	m.txn = znode.Txn{Changes: m.txn.Changes[:0]}
	m.setConfig(described(members, m.told()))
	return m.txn.Changes
}

// describe has /zookeeper/config tell what a reconfig said of members and Raft
// does not keep: the election port, which is of no use, and where clients come
// in, which is for them.
func (m *Machine) describe(servers []proto.QuorumServer) {
	told := m.told()
	if now := described(slices.Clone(told), servers); !slices.Equal(now, told) {
		m.setConfig(now)
	}
}

// told are the servers that /zookeeper/config tells of.
func (m *Machine) told() []proto.QuorumServer {
	servers, _ := proto.ParseServers(string(m.tree.Lookup(znode.ConfigPath).Record().Data))
	return servers
}

// described gives members what is known of those of the same id and address.
func described(members, known []proto.QuorumServer) []proto.QuorumServer {
	for i := range members {
		x := &members[i]
		for _, k := range known {
			if k.ID == x.ID && k.Addr == x.Addr {
				x.ElectionPort, x.Client = k.ElectionPort, k.Client
			}
		}
	}
	return members
}

// setConfig writes /zookeeper/config in the form of QuorumVerifier.
func (m *Machine) setConfig(servers []proto.QuorumServer) {
	zxid := m.begin()
	var b []byte
	for _, s := range servers {
		b = fmt.Appendf(b, "%v\n", s)
	}
	m.tree.SetConfig(&m.txn, fmt.Appendf(b, "version=%x", zxid))
}

// Tells reports whether /zookeeper/config tells of these members, by id.
func (m *Machine) Tells(members []proto.QuorumServer) bool {
	told := m.told()
	return slices.Equal(described(slices.Clone(members), told), told)
}

// HasMember reports whether /zookeeper/config tells of a server of that id.
func (v *View) HasMember(id uint64) bool {
	return slices.ContainsFunc(v.m.told(), func(s proto.QuorumServer) bool { return s.ID == id })
}

// Config appends the reply to a reconfig that was carried out: what
// /zookeeper/config tells, and its Stat.
func (v *View) Config(b []byte) []byte {
	n := v.m.tree.Lookup(znode.ConfigPath)
	r := proto.DataReply{Data: n.Record().Data, Stat: n.Stat()}
	return r.Append(b)
}
