package differ

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/lockkeeper/lockkeeper/internal/releases"
	"github.com/lockkeeper/lockkeeper/internal/wire"
	"github.com/lockkeeper/lockkeeper/proto"
)

// Mask is a difference that is known, has a reason, and is not reported. It
// hides what it names and nothing else, or, where the two sides would go apart
// for good, keeps the requests that show it from being made.
type Mask struct {
	Name   string
	Reason string
	// applies says between which versions the difference is known.
	applies func(a, b Version) bool
	// hide makes two frames alike as far as the difference goes; nil if the
	// requests are not made. q is the request, or nil. It may be called with frames
	// to which it does not apply.
	hide func(r *run, q, a, b *wire.Frame)
}

func always(Version, Version) bool { return true }

// either says that one of the two, or both, is so.
func either(is func(Version) bool) func(a, b Version) bool {
	return func(a, b Version) bool { return is(a) || is(b) }
}

// one says that one is so and the other is not.
func one(is func(Version) bool) func(a, b Version) bool {
	return func(a, b Version) bool { return is(a) != is(b) }
}

func isLockkeeper(v Version) bool { return v.Lockkeeper }
func isZooKeeper(v Version) bool  { return !v.Lockkeeper }

// lacks says that the version is known and has not what those of a range have (see
// package releases).
func lacks(have string) func(Version) bool {
	return func(v Version) bool { return v.Text != "" && !v.In(have) }
}

// Masks is the table of all known differences.
var Masks = []Mask{
	// What ZooKeeper leaves open.
	{"children-order", "the names in getChildren, getChildren2 and getEphemerals come in no promised order", always,
		func(_ *run, _, a, b *wire.Frame) {
			sortNames(a)
			sortNames(b)
		}},
	{"identities-order", "the identities in whoAmI come in no promised order", always,
		func(_ *run, _, a, b *wire.Frame) {
			for _, f := range []*wire.Frame{a, b} {
				if r, ok := f.Body.(*proto.WhoAmIReply); ok {
					slices.SortFunc(r.IDs, func(x, y proto.ID) int { return cmp.Or(cmp.Compare(x.Scheme, y.Scheme), cmp.Compare(x.ID, y.ID)) })
				}
			}
		}},
	{"acl-order", "scheme auth stands for a connection's identities in no promised order", always,
		func(_ *run, _, a, b *wire.Frame) {
			for _, f := range []*wire.Frame{a, b} {
				if r, ok := f.Body.(*proto.ACLReply); ok {
					sortDigests(r.ACL)
				}
			}
		}},
	{"close-order", "the ephemeral znodes of a session that is closed go in no promised order", always, nil},
	{"outside", "znodes that are not the run's own have a history of their own", always,
		func(r *run, q, a, b *wire.Frame) {
			forgetHistory(r, q, a)
			forgetHistory(r, q, b)
		}},

	// Versions of ZooKeeper.
	{"event-zxid", "an event's header has the zxid of the change since 3.9, and -1 before", one(lacks(releases.EventZxid)),
		func(_ *run, _, a, b *wire.Frame) {
			if a.Kind == wire.Event && b.Kind == wire.Event && (a.Zxid == -1) != (b.Zxid == -1) {
				a.Zxid, b.Zxid = -1, -1
			}
		}},
	{"create2-in-multi", "a create2 in a multi is answered as a create before 3.8.2", one(lacks(releases.Create2InMulti)),
		func(_ *run, _, a, b *wire.Frame) {
			x, ok := a.Body.(*proto.MultiReply)
			y, ok2 := b.Body.(*proto.MultiReply)
			if ok && ok2 && len(x.Results) == len(y.Results) {
				for i := range x.Results {
					downgrade(&x.Results[i], &y.Results[i])
					downgrade(&y.Results[i], &x.Results[i])
				}
			}
		}},
	{"exists-read", "exists needs READ since 3.8.4 and 3.9.2", one(lacks(releases.ExistsNeedsRead)),
		func(_ *run, _, a, b *wire.Frame) {
			for _, x := range [][2]*wire.Frame{{a, b}, {b, a}} {
				if x[0].Op == proto.OpExists && x[1].Op == proto.OpExists && x[0].Code == proto.OK && x[1].Code == proto.NoAuth {
					x[0].Code, x[0].Body = x[1].Code, x[1].Body
				}
			}
		}},
	{"exists-watch", "exists watches a znode without READ before 3.8.4 and 3.9.2", one(lacks(releases.ExistsNeedsRead)), nil},
	{"event-read", "an event needs READ since 3.8.4 and 3.9.2, and in Debian's 3.8.0", one(lacks(releases.EventsNeedRead)), nil},
	{"check-anybody", "checkWatches is content with anybody's watch before 3.9", one(lacks(releases.CheckOwnWatches)),
		func(_ *run, _, a, b *wire.Frame) {
			for _, x := range [][2]*wire.Frame{{a, b}, {b, a}} {
				if x[0].Op == proto.OpCheckWatches && x[0].Code == proto.OK && x[1].Code == proto.NoWatcher {
					x[0].Code = x[1].Code
				}
			}
		}},
	{"check-odd-path", "checkWatches of what is no path is malformed before 3.9, and a path without a watch since", one(lacks(releases.CheckOwnWatches)),
		func(_ *run, _, a, b *wire.Frame) {
			for _, x := range [][2]*wire.Frame{{a, b}, {b, a}} {
				if x[0].Op == proto.OpCheckWatches && x[0].Code == proto.MarshallingError && x[1].Code == proto.NoWatcher {
					x[0].Code = x[1].Code
				}
			}
		}},
	{"watch-modes", "watches of several modes on one znode overwrite each other before 3.9", one(lacks(releases.WatchesSideBySide)), nil},
	{"watcher-types", "checkWatches and removeWatches know no persistent watches before 3.9", one(lacks(releases.PersistentTypes)), nil},
	{"malformed-zxid", "a write that cannot be read takes a zxid before 3.9", one(lacks(releases.UnreadableTakesNone)),
		func(r *run, _, a, b *wire.Frame) { oneSkips(r, a, b) }},
	{"multi-create", "a multi looks at modes, null ACLs and null paths while it is read since 3.8.2, and at opcodes instead of modes before", one(lacks(releases.MultiReadsModes)), nil},
	{"ip6-acl", "an ACL of scheme ip takes IPv6 since 3.9.4", one(lacks(releases.IPv6InACL)), nil},
	{"check-alone", "a check outside of a multi may hang the connection before 3.8.5 and 3.9.3", either(lacks(releases.CheckAloneRefused)), nil},
	{"create-session", "ZooKeeper answers a client's createSession with a handshake in mid-session", either(isZooKeeper), nil},
	{"delete-container", "a client's deleteContainer is refused before 3.9, carried out since, and unknown to lockkeeper",
		func(a, b Version) bool {
			return a.Lockkeeper != b.Lockkeeper || one(lacks(releases.ClientsDeleteContainers))(a, b)
		}, nil},

	// Faults of ZooKeeper.
	{"pipelined", "a write right behind a setACL may be checked against the old ACL, and one behind a createContainer of an ephemeral mode against an ephemeral znode", either(isZooKeeper), nil},

	// What lockkeeper does otherwise on purpose.
	{"overtaking", "ZooKeeper's replies to auth, sasl and unknown operations overtake those before them", either(isZooKeeper), nil},
	{"wrong-password", "a resume with a wrong password cuts the session's healthy connection in ZooKeeper", one(isLockkeeper), nil},
	{"astral", "ZooKeeper writes a character above U+FFFF as two surrogates, which is no UTF-8, to clients and to its log", one(isLockkeeper),
		func(_ *run, _, a, b *wire.Frame) {
			for _, f := range []*wire.Frame{a, b} {
				switch r := f.Body.(type) {
				case *proto.WatcherEvent:
					r.Path = noAstral(r.Path)
				case *proto.Path:
					r.Path = noAstral(r.Path)
				case *proto.ACLReply:
					for i := range r.ACL {
						r.ACL[i].ID.ID = noAstral(r.ACL[i].ID.ID)
					}
				case *proto.WhoAmIReply:
					for i := range r.IDs {
						r.IDs[i].ID = noAstral(r.IDs[i].ID)
					}
				default:
					continue
				}
				if f.Err == errOdd {
					f.Err = nil
				}
			}
		}},
	{"multiread-body", "behind ZooKeeper's refusal of a multiRead come the results so far, which no client reads", either(isZooKeeper),
		func(_ *run, _, a, b *wire.Frame) {
			if a.Op == proto.OpMultiRead && a.Code == proto.MarshallingError && b.Code == a.Code {
				a.Rest, b.Rest = nil, nil
			}
		}},
	{"null-in-setwatches", "a null path or list stops ZooKeeper's setWatches halfway; lockkeeper refuses it whole", one(isLockkeeper), nil},
}

// forgetHistory leaves of a reply about a znode that is not the run's own only that it is one.
func forgetHistory(r *run, q, f *wire.Frame) {
	if q == nil {
		return
	}
	reads, _ := q.Body.(*proto.MultiReadRequest)
	switch reply := f.Body.(type) {
	case *proto.Stat, *proto.DataReply, *proto.ACLReply, *proto.ChildrenReply, *proto.Children2Reply, *proto.IntReply:
		if !r.owns(q.Body) {
			f.Body = nil
		}
	case *proto.MultiReply:
		for i := range reply.Results {
			if reads != nil && i < len(reads.Ops) && !r.owns(reads.Ops[i].Request) {
				reply.Results[i].Reply = nil
			}
		}
	}
}

// oneSkips allows that a write that could not be read has taken a zxid on one
// side alone.
func oneSkips(r *run, a, b *wire.Frame) {
	if a.Code != proto.MarshallingError || b.Code != proto.MarshallingError || a.Op != b.Op {
		return
	}
	if row := proto.OpByCode(a.Op); row == nil || row.Class != proto.Write {
		return
	}
	for i, x := range [][2]*wire.Frame{{a, b}, {b, a}} {
		if x[0].Zxid == x[1].Zxid+1 {
			r.ends[i].skip(r.zxids[i])
			x[0].Zxid = x[1].Zxid
			return
		}
	}
}

// noAstral has what surrogates decode to for each character above U+FFFF.
func noAstral(s string) string {
	var b strings.Builder
	for _, r := range s {
		if r > 0xffff {
			b.WriteString("\uFFFD\uFFFD")
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

func sortNames(f *wire.Frame) {
	switch r := f.Body.(type) {
	case *proto.ChildrenReply: // StringsReply too
		slices.Sort(r.Names)
	case *proto.Children2Reply:
		slices.Sort(r.Names)
	case *proto.MultiReply:
		for i := range r.Results {
			if c, ok := r.Results[i].Reply.(*proto.ChildrenReply); ok {
				slices.Sort(c.Names)
			}
		}
	}
}

// sortDigests sorts neighbours of scheme digest with the same permissions.
func sortDigests(acl []proto.ACL) {
	for i := 0; i < len(acl); {
		j := i
		for j < len(acl) && acl[j].Scheme == proto.SchemeDigest && acl[j].Perms == acl[i].Perms {
			j++
		}
		slices.SortFunc(acl[i:j], func(x, y proto.ACL) int { return cmp.Compare(x.ID.ID, y.ID.ID) })
		i = max(j, i+1)
	}
}

// downgrade makes the result of a create2 that of a create, if that is what
// the other side has.
func downgrade(x, other *proto.MultiResult) {
	r, ok := x.Reply.(*proto.PathStatReply)
	if ok && other.Op == proto.OpCreate && x.Op != proto.OpError {
		x.Op, x.Reply = other.Op, &proto.PathReply{Path: r.Path}
	}
}

// MaskNames are the names of all masks.
func MaskNames() (names []string) {
	for i := range Masks {
		names = append(names, Masks[i].Name)
	}
	return names
}

// choose says which masks are on: those that apply and those asked for.
func choose(a, b Version, asked []string, none bool) (on map[string]bool, err error) {
	on = map[string]bool{}
	for _, m := range Masks {
		if !none && m.applies(a, b) {
			on[m.Name] = true
		}
	}
	for _, name := range asked {
		if !slices.ContainsFunc(Masks, func(m Mask) bool { return m.Name == name }) {
			return nil, fmt.Errorf("%w: there is no mask %q", ErrOptions, name)
		}
		on[name] = true
	}
	return on, nil
}
