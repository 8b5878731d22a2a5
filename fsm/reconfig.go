package fsm

import (
	"fmt"
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

// Config appends the reply to a reconfig that was carried out: what
// /zookeeper/config tells, and its Stat.
func (v *View) Config(b []byte) []byte {
	n := v.m.tree.Lookup(znode.ConfigPath)
	r := proto.DataReply{Data: n.Record().Data, Stat: n.Stat()}
	return r.Append(b)
}
