package fsm

import (
	"bytes"
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
	switch _, err := ParseReconfig(&r); {
	case m.settings&Reconfig == 0:
		return proto.ReconfigDisabled
	case len(m.members) == 0: // a server alone
		return proto.Unimplemented
	case r.ConfigID != -1 && r.ConfigID != m.membersZxid:
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

// SetMembers sets the members of the cluster and writes them to
// /zookeeper/config, in a transaction of its own. The changes that it returns
// are valid until the next command.
func (m *Machine) SetMembers(index uint64, members []proto.QuorumServer) []proto.Change {
	m.index = index
	m.txn = znode.Txn{Changes: m.txn.Changes[:0]}
	if m.zxid == 0 { // the first members get the first zxid of the first epoch (Leader.lead)
		m.zxid = 1<<32 - 1
	}
	m.setMembers(described(members, m.members))
	return m.txn.Changes
}

// describe records what a reconfig said about members and Raft does not keep:
// the election port, which nobody uses, and the address for clients. It also
// restores /zookeeper/config if a client has written there.
func (m *Machine) describe(servers []proto.QuorumServer) {
	now := described(slices.Clone(m.members), servers)
	written := m.tree.Lookup(znode.ConfigPath).Record().Data
	if len(now) > 0 && (!slices.Equal(now, m.members) || !bytes.Equal(written, configText(m.members, m.membersZxid))) {
		m.setMembers(now)
	}
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

// setMembers also writes the members to /zookeeper/config, over whatever a client
// has written there.
func (m *Machine) setMembers(members []proto.QuorumServer) {
	m.members, m.membersZxid = members, m.begin()
	m.tree.SetConfig(&m.txn, configText(m.members, m.membersZxid))
}

// configText is the form of /zookeeper/config (QuorumMaj.toString); nil without members.
func configText(members []proto.QuorumServer, zxid int64) (b []byte) {
	if len(members) == 0 {
		return nil
	}
	for _, s := range members {
		b = fmt.Appendf(b, "%v\n", s)
	}
	return fmt.Appendf(b, "version=%x", zxid)
}

// appendMembers appends the encoding of the members and the zxid of their last
// change; nothing without members.
func appendMembers(b []byte, members []proto.QuorumServer, zxid int64) []byte {
	if len(members) == 0 {
		return b
	}
	b = jute.AppendLong(b, zxid)
	for _, s := range members {
		b = jute.AppendString(jute.AppendLong(b, int64(s.ID)), s.Addr)
		b = jute.AppendBool(jute.AppendInt(b, int32(s.ElectionPort)), s.Observer)
		b = jute.AppendString(b, s.Client)
	}
	return b
}

// decodeMembers reads what appendMembers wrote.
func decodeMembers(b []byte) (members []proto.QuorumServer, zxid int64, err error) {
	d := jute.NewDecoder(b)
	zxid = d.Long()
	for d.Err() == nil && len(d.Rest()) > 0 {
		members = append(members, proto.QuorumServer{ID: uint64(d.Long()), Addr: d.String(), ElectionPort: int(d.Int()), Observer: d.Bool(), Client: d.String()})
	}
	return members, zxid, d.Err()
}

// HasMembers reports whether the members of the cluster are these, in order of their ids.
func (m *Machine) HasMembers(members []proto.QuorumServer) bool {
	return slices.Equal(described(slices.Clone(members), m.members), m.members)
}

// Member returns the member of the cluster of that id; false if there is none.
func (v *View) Member(id uint64) (s proto.QuorumServer, ok bool) {
	i := slices.IndexFunc(v.m.members, func(s proto.QuorumServer) bool { return s.ID == id })
	if i < 0 {
		return s, false
	}
	return v.m.members[i], true
}

// Members are the members of the cluster, by id, in the form of /zookeeper/config.
func (v *View) Members() []byte { return configText(v.m.members, v.m.membersZxid) }

// MembersZxid is the zxid of the transaction that last changed the members.
func (v *View) MembersZxid() int64 { return v.m.membersZxid }

// Config appends the reply to a reconfig that was carried out: the data and
// the Stat of /zookeeper/config.
func (v *View) Config(b []byte) []byte {
	n := v.m.tree.Lookup(znode.ConfigPath)
	r := proto.DataReply{Data: n.Record().Data, Stat: n.Stat()}
	return r.Append(b)
}
