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

// reconfig only makes those checks of a reconfig that depend on the replicated state
// (PrepRequestProcessor). If it returns OK, the server that proposed the command asks the
// leader to change the members.
func reconfig(m *Machine, _ proto.OpCode, d *jute.Decoder) proto.Code {
	var r proto.ReconfigRequest
	if r.Decode(d); d.Err() != nil {
		return proto.MarshallingError
	}
	switch c, err := ParseReconfig(&r); {
	case m.settings&Reconfig == 0:
		return proto.ReconfigDisabled
	case len(m.members) == 0: // a standalone server
		return proto.Unimplemented
	case r.ConfigID != -1 && r.ConfigID != m.membersZxid:
		return proto.BadVersion
	case err != nil:
		return proto.BadArguments
	case !m.tree.MayConfigure(&m.txn):
		return proto.NoAuth
	default:
		m.expected = slices.DeleteFunc(c.Joining, func(s proto.Peer) bool { return s.ID == 0 || s.ID > 254 })
	}
	return proto.OK
}

// MemberChange is the change of members that a reconfig requests.
type MemberChange struct {
	Joining []proto.Peer
	Leaving []uint64
	Whole   bool // Joining is the whole new list: members not in it leave
}

// ParseReconfig parses the lists of servers in a reconfig, which are separated by commas or
// newlines.
func ParseReconfig(r *proto.ReconfigRequest) (c MemberChange, err error) {
	list := r.Joining.Path
	if c.Whole = r.NewMembers.Path != jute.Null; c.Whole { // the other lists are ignored
		list = r.NewMembers.Path
	}
	if list != jute.Null {
		if c.Joining, err = proto.ParseServers(list); err != nil {
			return c, err
		}
	}
	if c.Whole && len(c.Joining) == 0 {
		return c, fmt.Errorf("no member would be left")
	}
	if !c.Whole && r.Leaving.Path != jute.Null {
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

// firstZxid is the version of the first members: the first zxid of epoch 1 (Leader.lead).
const firstZxid = 1 << 32

// SetMembers sets the members of the cluster and writes them to /zookeeper/config, in a
// transaction of its own. The changes that it returns are valid only until the next command.
func (m *Machine) SetMembers(index uint64, members []proto.Peer) []proto.Change {
	m.index = index
	m.txn = znode.Txn{Changes: m.txn.Changes[:0]}
	if m.zxid == 0 {
		m.zxid = firstZxid - 1
	}
	was := m.members
	m.setMembers(completed(completed(members, m.expected), m.members))
	for _, x := range was {
		if !slices.ContainsFunc(m.members, func(y proto.Peer) bool { return y.ID == x.ID && y.Addr == x.Addr }) {
			m.removed = slices.DeleteFunc(m.removed, func(r removal) bool { return r.id == x.ID && r.addr == x.Addr })
			m.removed = append(m.removed, removal{x.ID, x.Addr, index})
		}
	}
	m.removed = m.removed[max(0, len(m.removed)-maxRemoved):]
	return m.txn.Changes
}

// removal says that the server with an id at an address is no member since an entry of the log.
type removal struct {
	id    uint64
	addr  string
	index uint64
}

// maxRemoved is how many removals the state remembers: the last ones. They matter only while the server
// waits to be added.
const maxRemoved = 1000

// Removed returns the index of the entry that has removed the member with this id at this address, the last
// time. It returns 0 if there is none.
func (v *View) Removed(id uint64, addr string) uint64 {
	for _, x := range v.m.removed {
		if x.id == id && x.addr == addr {
			return x.index
		}
	}
	return 0
}

// epochGap is by how many epochs Restart raises the zxid. Every leader begins an epoch.
const epochGap = 1 << 16

// Restart makes m, which is the state of a snapshot, the first state of new servers: those
// with these members, or a standalone one if there are none. It does so in an entry's place.
//
// The zxid becomes higher than all that clients have got from the old servers, even if these
// have gone on for a while after the snapshot. Otherwise the new servers would refuse
// those clients as long as their own zxid is lower, and would give out fencing tokens a
// second time. The command Restored raises it once more. The error, after which m is as before, means that too few epochs
// are left.
func (m *Machine) Restart(index uint64, members []proto.Peer) error {
	epoch := max(m.zxid>>32, int64(m.term)) + epochGap
	if epoch > 1<<31-epochGap { // as many are left to elections
		return fmt.Errorf("fsm: no zxid is far enough above 0x%x", m.zxid)
	}
	m.zxid = epoch << 32
	m.cluster = 0 // they form a cluster of their own
	if m.index = index; !m.HasMembers(members) {
		m.SetMembers(index, members)
	}
	m.removed = nil // from another cluster
	return nil
}

// Epochs by the time of day: one in 2 s since 1970, which is enough until 2105.
const (
	epochMs   = 2000
	lastEpoch = 1<<31 - 1<<20 // by the time of day; those above are left to elections
)

// restored raises the zxid of servers that were restored, and of which this is one of the first
// entries, to the epoch of the time of day; see Restored. Servers that were restored from the
// same snapshot at an earlier time are behind that, if they have elected fewer leaders than one
// in 4 s since, and clocks are right.
//
// Restart has added epochGap to the epoch of the snapshot. If the time of day is not that far
// ahead of the snapshot, half of what it is ahead is added, so that a later time gives a higher
// epoch there too.
func (m *Machine) restored(ms int64) {
	epoch, now := m.zxid>>32, ms/epochMs
	if m.cluster == 0 && epoch >= epochGap && now <= lastEpoch {
		if now = max(now, (epoch+now+epochGap)/2); now > epoch {
			m.zxid = now << 32
		}
	}
}

// describe records what a reconfig or a configuration said about members that Raft does not
// store: the election port, which nothing uses, and the address for clients. If a client has
// overwritten /zookeeper/config, describe restores it. If the list of members still has the
// version was, it gets a new one anyway.
func (m *Machine) describe(servers []proto.Peer, was int64) {
	now := completed(slices.Clone(m.members), servers)
	written := m.tree.Lookup(znode.ConfigPath).Record().Data
	m.expected = nil
	switch {
	case len(now) == 0 || len(servers) == 0 && was == 0:
	case m.membersZxid != was && slices.Equal(now, m.members) && bytes.Equal(written, configText(m.members, m.membersZxid)):
	case m.membersZxid == firstZxid && m.cluster == 0 && m.sessions.Len() == 0:
		// No client has seen the first members yet, so this is still the first version.
		m.members, m.txn.Zxid = now, firstZxid
		m.tree.SetConfig(&m.txn, configText(m.members, m.membersZxid))
	default:
		m.setMembers(now)
	}
}

// Undescribed returns, of the servers that a configuration describes, those members whose
// election port or address for clients is missing in the list of members, with what is
// missing. What is there may be newer, from a reconfig, and counts; but not for the server
// with the id sure.
func (v *View) Undescribed(known []proto.Peer, sure uint64) (missing []proto.Peer) {
	for _, k := range known {
		is, ok := v.Member(k.ID)
		if !ok || is.Addr != k.Addr {
			continue
		}
		now := is
		if k.ClientAddr != "" && (is.ClientAddr == "" || k.ID == sure) {
			now.ClientAddr = k.ClientAddr
		}
		if k.ElectionPort != 0 && (is.ElectionPort == ElectionPort(is.Addr) || k.ID == sure) {
			now.ElectionPort = k.ElectionPort
		}
		if now != is {
			missing = append(missing, now)
		}
	}
	return missing
}

// completed returns members, changed to have the election port and client address of the
// server in known with the same id and address, if there is one.
func completed(members, known []proto.Peer) []proto.Peer {
	for i := range members {
		x := &members[i]
		for _, k := range known {
			if k.ID == x.ID && k.Addr == x.Addr {
				x.ElectionPort, x.ClientAddr = k.ElectionPort, k.ClientAddr
			}
		}
	}
	return members
}

// setMembers sets the members in a new transaction, and overwrites /zookeeper/config.
func (m *Machine) setMembers(members []proto.Peer) {
	m.members, m.membersZxid = members, m.begin()
	m.tree.SetConfig(&m.txn, configText(m.members, m.membersZxid))
}

// configText is the form of the members in /zookeeper/config (QuorumMaj.toString). It
// returns nil if there are no members.
func configText(members []proto.Peer, zxid int64) (b []byte) {
	if len(members) == 0 {
		return nil
	}
	for _, s := range members {
		b = fmt.Appendf(b, "%v\n", s)
	}
	return fmt.Appendf(b, "version=%x", zxid)
}

// appendMembers appends the encoding of the members, the zxid of their last change, the
// expected servers and the removed ones to b. Expected servers have negative ids, and removed ones come after
// an id of 0. If there are no members, it appends nothing.
func (m *Machine) appendMembers(b []byte) []byte {
	if len(m.members) == 0 {
		return b
	}
	b = jute.AppendLong(b, m.membersZxid)
	for i, s := range slices.Concat(m.members, m.expected) {
		id := int64(s.ID)
		if i >= len(m.members) {
			id = -id
		}
		b = jute.AppendString(jute.AppendLong(b, id), s.Addr)
		b = jute.AppendBool(jute.AppendInt(b, int32(s.ElectionPort)), s.Observer)
		b = jute.AppendString(b, s.ClientAddr)
	}
	for _, x := range m.removed {
		b = jute.AppendString(jute.AppendLong(b, 0), x.addr)
		b = jute.AppendLong(jute.AppendLong(b, int64(x.id)), int64(x.index))
	}
	return b
}

// decodeMembers decodes what appendMembers has encoded.
func (m *Machine) decodeMembers(b []byte) error {
	d := jute.NewDecoder(b)
	m.membersZxid = d.Long()
	for d.Err() == nil && len(d.Rest()) > 0 {
		id := d.Long()
		if id == 0 {
			m.removed = append(m.removed, removal{addr: d.String(), id: uint64(d.Long()), index: uint64(d.Long())})
			continue
		}
		s, to := proto.Peer{Addr: d.String(), ElectionPort: int(d.Int()), Observer: d.Bool(), ClientAddr: d.String()}, &m.members
		if s.ID = uint64(id); id < 0 {
			s.ID, to = uint64(-id), &m.expected
		}
		*to = append(*to, s)
	}
	return d.Err()
}

// HasMembers reports whether the cluster has exactly these members, which must be in order
// of their ids. It ignores election ports and client addresses.
func (m *Machine) HasMembers(members []proto.Peer) bool {
	return slices.Equal(completed(slices.Clone(members), m.members), m.members)
}

// Member returns the member of the cluster with the given id. ok is false if there is none.
func (v *View) Member(id uint64) (s proto.Peer, ok bool) {
	i := slices.IndexFunc(v.m.members, func(s proto.Peer) bool { return s.ID == id })
	if i < 0 {
		return s, false
	}
	return v.m.members[i], true
}

// Members returns the members of the cluster in the form of /zookeeper/config.
func (v *View) Members() []byte { return configText(v.m.members, v.m.membersZxid) }

// MembersZxid returns the zxid of the last transaction that changed the members.
func (v *View) MembersZxid() int64 { return v.m.membersZxid }

// Config appends the body of the reply to a successful reconfig, which is the data and the
// Stat of /zookeeper/config, to b.
func (v *View) Config(b []byte) []byte {
	n := v.m.tree.Lookup(znode.ConfigPath)
	r := proto.DataReply{Data: n.Record().Data, Stat: n.Stat()}
	return r.Append(b)
}
