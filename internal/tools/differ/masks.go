package differ

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/lockkeeper/lockkeeper/internal/tools/releases"
	"github.com/lockkeeper/lockkeeper/internal/tools/wire"
	"github.com/lockkeeper/lockkeeper/proto"
)

// Mask is a known difference that is not reported. It hides only that difference or, if
// the states of the two servers would diverge, prevents the requests that show it.
type Mask struct {
	Name   string
	Reason string
	// applies reports whether the difference is known between two versions.
	applies func(a, b Version) bool
	// hide removes the difference from two frames; it is nil if the mask prevents
	// requests. q is the request, or nil. hide may be called with frames that do not have
	// the difference.
	hide func(r *run, q, a, b *wire.Frame)
}

func always(Version, Version) bool { return true }

// either reports whether is holds for at least one of the two versions.
func either(is func(Version) bool) func(a, b Version) bool {
	return func(a, b Version) bool { return is(a) || is(b) }
}

// one reports whether is holds for exactly one of the two versions.
func one(is func(Version) bool) func(a, b Version) bool {
	return func(a, b Version) bool { return is(a) != is(b) }
}

func isLockkeeper(v Version) bool { return v.Lockkeeper }
func isZooKeeper(v Version) bool  { return !v.Lockkeeper }

// lacks reports whether the version is known and outside a range of package releases.
func lacks(have string) func(Version) bool {
	return func(v Version) bool { return v.Text != "" && !v.In(have) }
}

// kept reports a difference between ZooKeeper before a line and lockkeeper, which does not
// behave so as any line (persona.Kept).
func kept(before string) func(a, b Version) bool {
	older := func(v Version) bool { return v.Text != "" && !v.Lockkeeper && v.In("<"+before) }
	return func(a, b Version) bool { return a.Lockkeeper != b.Lockkeeper && (older(a) || older(b)) }
}

// lacksEventRead is lacks of EventsNeedRead, which lockkeeper has as any line.
func lacksEventRead(v Version) bool { return !v.Lockkeeper && lacks(releases.EventsNeedRead)(v) }

// Masks lists all known differences.
var Masks = []Mask{
	// Behaviour that ZooKeeper does not define.
	{"children-order", "the order of the names in getChildren, getChildren2 and getEphemerals is undefined", always,
		each(sortNames)},
	{"identities-order", "the order of the identities in whoAmI is undefined", always,
		each(func(f *wire.Frame) {
			if r, ok := f.Body.(*proto.WhoAmIReply); ok {
				slices.SortFunc(r.IDs, func(x, y proto.ID) int { return cmp.Or(cmp.Compare(x.Scheme, y.Scheme), cmp.Compare(x.ID, y.ID)) })
			}
		})},
	{"acl-order", "the order of the entries that replace one of scheme auth is undefined", always,
		each(func(f *wire.Frame) {
			if r, ok := f.Body.(*proto.ACLReply); ok {
				sortDigests(r.ACL)
			}
		})},
	{"close-order", "the order in which the ephemeral znodes of a closed session are deleted is undefined", always, nil},
	{"outside", "znodes outside the run's root have other contents and zxids on each server", always,
		func(r *run, q, a, b *wire.Frame) {
			forgetHistory(r, q, a)
			forgetHistory(r, q, b)
		}},

	// Versions of ZooKeeper.
	{"event-zxid", "an event's header has the zxid of the change since 3.9, and -1 before", one(lacks(releases.EventZxid)),
		func(_ *run, _, a, b *wire.Frame) {
			if a.Kind == wire.Event && b.Kind == wire.Event && (a.Zxid == -1 || b.Zxid == -1) {
				a.Zxid, b.Zxid = -1, -1
			}
		}},
	{"create2-in-multi", "before 3.8.2, a create2 in a multi has a result of type create", one(lacks(releases.Create2InMulti)),
		bothWays(func(x, y *wire.Frame) { eachResult(x, y, downgrade) })},
	{"exists-read", "exists needs READ since 3.8.4 and 3.9.2", one(lacks(releases.ExistsNeedsRead)),
		answers(proto.OpExists, proto.OK, proto.NoAuth)},
	{"exists-watch", "before 3.8.4 and 3.9.2, exists sets a watch on a znode without READ", one(lacks(releases.ExistsNeedsRead)), nil},
	{"event-read", "an event needs READ since 3.8.4 and 3.9.2, and in Debian's 3.8.0", one(lacksEventRead), nil},
	{"check-anybody", "before 3.9, checkWatches finds the watches of other connections", one(lacks(releases.CheckOwnWatches)),
		answers(proto.OpCheckWatches, proto.OK, proto.NoWatcher)},
	{"check-odd-path", "before 3.9, checkWatches of an invalid path fails with MarshallingError while there are recursive watches; otherwise, and since, with NoWatcher", either(lacks(releases.CheckOwnWatches)),
		answers(proto.OpCheckWatches, proto.MarshallingError, proto.NoWatcher)},
	{"watch-modes", "before 3.9, watches of several modes on one znode replace each other", one(lacks(releases.WatchesSideBySide)), nil},
	{"watcher-types", "before 3.9, checkWatches and removeWatches do not know persistent watches", one(lacks(releases.PersistentTypes)), nil},
	{"malformed-zxid", "before 3.9, a write that cannot be decoded consumes a zxid", one(lacks(releases.UnreadableTakesNone)),
		oneSkips},
	{"multi-create", "since 3.8.2, a multi checks modes, null ACLs and null paths while it is decoded; before, it goes by opcodes instead of modes", one(lacks(releases.MultiReadsModes)), nil},
	{"ip6-acl", "since 3.9.4, ACL entries of scheme ip may have IPv6 addresses", one(lacks(releases.IPv6InACL)), nil},
	{"check-alone", "before 3.8.5 and 3.9.3, a check outside of a multi may hang the connection", either(lacks(releases.CheckAloneRefused)), nil},
	{"create-session", "ZooKeeper answers a createSession from a client with the answer to a handshake", either(isZooKeeper), nil},
	{"delete-container", "a deleteContainer from a client is refused before 3.9 and carried out since; lockkeeper does not know it",
		func(a, b Version) bool {
			return a.Lockkeeper != b.Lockkeeper || one(lacks(releases.ClientsDeleteContainers))(a, b)
		}, nil},

	// What lockkeeper keeps of the newest line when it behaves as an older one.
	{"delete-order", "before 3.6, a delete of a missing znode fails with NoNode even if its parent does not permit it", kept("3.6"),
		bothWays(func(x, y *wire.Frame) {
			if x.Op == proto.OpDelete && x.Code == proto.NoNode && y.Code == proto.NoAuth {
				y.Code = x.Code
			}
			eachResult(x, y, func(x, y *proto.MultiResult) {
				if x.Code == proto.NoNode && y.Code == proto.NoAuth {
					y.Code = x.Code
				}
			})
		})},
	{"null-in-multi", "before 3.9, a multi with a null fails with the zxid before its own and a body behind the error", kept("3.9"), nil},
	{"null-watch", "before 3.9, an addWatch of a null path keeps the connection from ending", kept("3.9"), nil},
	{"quotas", "before 3.7, limits and stats of quotas have another form", kept("3.7"), nil},
	{"null-password", "before 3.5, a handshake with a null password is not answered", kept("3.5"), nil},
	{"null-scheme", "before 3.5, a null scheme in an ACL fails with MarshallingError", kept("3.5"), nil},
	{"odd-names", "before 3.5, names may contain some more control characters", kept("3.5"), nil},
	{"config-node", "before 3.5, there is no /zookeeper/config; lockkeeper as 3.4 hides it only from reads", kept("3.5"), nil},

	// Bugs of ZooKeeper.
	{"pipelined", "ZooKeeper may check a write right after a setACL against the old ACL, and one right after a createContainer with the ephemeral flag against an ephemeral znode", either(isZooKeeper), nil},

	// What lockkeeper does differently on purpose.
	{"overtaking", "ZooKeeper may send the replies to auth, sasl and unknown operations before earlier replies", either(isZooKeeper), nil},
	{"wrong-password", "in ZooKeeper, resuming a session with a wrong password closes its working connection", one(isLockkeeper), nil},
	{"astral", "ZooKeeper encodes a character above U+FFFF as two surrogates, which is not valid UTF-8, for clients and in its log", one(isLockkeeper),
		each(func(f *wire.Frame) {
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
				return
			}
			if f.Err == errOdd {
				f.Err = nil
			}
		})},
	{"multiread-body", "ZooKeeper's reply to a multiRead that it refuses ends with the results so far, which no client reads", either(isZooKeeper),
		func(_ *run, _, a, b *wire.Frame) {
			if a.Op == proto.OpMultiRead && a.Code == proto.MarshallingError && b.Code == a.Code {
				a.Rest, b.Rest = nil, nil
			}
		}},
	{"null-in-setwatches", "a null path or list stops ZooKeeper's setWatches halfway; lockkeeper refuses it whole", one(isLockkeeper), nil},
}

// forgetHistory removes the bodies of replies about znodes outside the run's root.
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

// oneSkips allows that a write that cannot be decoded has consumed a zxid on only one
// server.
func oneSkips(r *run, _, a, b *wire.Frame) {
	if a.Code != proto.MarshallingError || b.Code != proto.MarshallingError || a.Op != b.Op {
		return
	}
	if row := proto.OpByCode(a.Op); row == nil || row.Class != proto.Write {
		return
	}
	for i, x := range [][2]*wire.Frame{{a, b}, {b, a}} {
		if x[0].Zxid == x[1].Zxid+1 {
			e := r.ends[i]
			at, _ := slices.BinarySearch(e.skipped, r.zxids[i])
			e.skipped = slices.Insert(e.skipped, at, r.zxids[i])
			x[0].Zxid = x[1].Zxid
			return
		}
	}
}

// each, bothWays and answers make functions that hide a difference: f changes each of the two
// frames, or is called with the one and the other in both orders; a reply with the code one becomes
// as the other server's.
func each(f func(*wire.Frame)) func(_ *run, _, a, b *wire.Frame) {
	return func(_ *run, _, a, b *wire.Frame) {
		f(a)
		f(b)
	}
}

func bothWays(f func(x, y *wire.Frame)) func(_ *run, _, a, b *wire.Frame) {
	return func(_ *run, _, a, b *wire.Frame) {
		f(a, b)
		f(b, a)
	}
}

func answers(op proto.OpCode, one, other proto.Code) func(_ *run, _, a, b *wire.Frame) {
	return bothWays(func(x, y *wire.Frame) {
		if x.Op == op && y.Op == op && x.Code == one && y.Code == other {
			x.Code, x.Body = y.Code, y.Body
		}
	})
}

// eachResult calls f with the results of two multis of the same length.
func eachResult(x, y *wire.Frame, f func(x, y *proto.MultiResult)) {
	a, ok := x.Body.(*proto.MultiReply)
	b, ok2 := y.Body.(*proto.MultiReply)
	if ok && ok2 && len(a.Results) == len(b.Results) {
		for i := range a.Results {
			f(&a.Results[i], &b.Results[i])
		}
	}
}

// noAstral replaces each character above U+FFFF with what its two surrogates are decoded to.
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
	case *proto.ChildrenReply:
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

// sortDigests sorts adjacent entries of scheme digest with the same permissions.
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

// downgrade turns the result of a create2 into one of a create, if the other server sent
// such a result.
func downgrade(x, other *proto.MultiResult) {
	r, ok := x.Reply.(*proto.PathStatReply)
	if ok && other.Op == proto.OpCreate && x.Op != proto.OpError {
		x.Op, x.Reply = other.Op, &proto.PathReply{Path: r.Path}
	}
}

// MaskNames returns the names of all masks.
func MaskNames() (names []string) {
	for i := range Masks {
		names = append(names, Masks[i].Name)
	}
	return names
}

// choose returns the masks to use: those that apply, unless none is set, and those asked for.
func choose(a, b Version, asked []string, none bool) (on map[string]bool, err error) {
	on = map[string]bool{}
	for _, m := range Masks {
		if !none && m.applies(a, b) {
			on[m.Name] = true
		}
	}
	for _, name := range asked {
		if !slices.ContainsFunc(Masks, func(m Mask) bool { return m.Name == name }) {
			return nil, fmt.Errorf("%w: unknown mask %q", ErrOptions, name)
		}
		on[name] = true
	}
	return on, nil
}
