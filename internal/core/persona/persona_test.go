package persona

import (
	"reflect"
	"slices"
	"testing"

	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

// TestTable checks the rows.
func TestTable(t *testing.T) {
	traits := map[Trait]bool{}
	for i, r := range Table {
		kinds := 0
		for _, is := range []bool{len(r.Ops) > 0, len(r.Codes) > 0, len(r.Words) > 0, len(r.Commands) > 0, len(r.Monitor) > 0, r.Trait != 0} {
			if is {
				kinds++
			}
		}
		if kinds != 1 || r.Since <= Oldest || r.Since > Newest || r.From >= r.Since || r.Before == "" || (r.Trait != 0) != (r.Says != "") {
			t.Errorf("row %d: %+v", i, r)
		}
		if r.Trait != 0 && traits[r.Trait] {
			t.Errorf("trait %d has two rows", r.Trait)
		}
		traits[r.Trait] = true
		for _, op := range r.Ops {
			if proto.OpByCode(op) == nil {
				t.Errorf("operation %d does not exist", op)
			}
		}
	}
	for trait := CreateModes; trait <= IPv6InACL; trait++ {
		if !traits[trait] {
			t.Errorf("trait %d has no row", trait)
		}
	}
	if len(releases) != int(Newest-Oldest)+1 {
		t.Errorf("%d releases", len(releases))
	}
}

func TestOf(t *testing.T) {
	for _, name := range []string{"3.3", "3.10", "3.5.10", "4", "x"} {
		if _, ok := Of(name); ok {
			t.Errorf("%q is a line", name)
		}
	}
	for _, name := range []string{"", "3.9"} {
		if p, ok := Of(name); !ok || p != nil || p.Line() != Newest || !p.Does(EventZxid) || !p.KnowsOp(proto.OpWhoAmI) {
			t.Errorf("%q is not the newest line: %v, %v", name, p, ok)
		}
	}
	p, ok := Of("3.5")
	if !ok || p.Line() != 5 || !p.KnowsOp(proto.OpCreate2) || p.KnowsOp(proto.OpAddWatch) || !p.KnowsWord("dirs") || p.KnowsWord("hash") ||
		!p.KnowsCode(proto.NoWatcher) || p.KnowsCode(proto.ThrottledOp) || !p.Does(OwnWatches) || p.Does(EventZxid) || !p.KnowsCommand("ruok") || p.KnowsCommand("leader") {
		t.Errorf("3.5 is %v", p)
	}
	if key, ok := p.MonitorKey("learners"); key != "followers" || !ok {
		t.Errorf("learners are %q, %v", key, ok)
	}
	if _, ok := p.MonitorKey("a_quota_count_limit_per_namespace"); ok {
		t.Error("3.5 shows quotas")
	}
}

func create(path string, flags int32, acl []proto.ACL) *proto.CreateRequest {
	return &proto.CreateRequest{Path: path, Data: []byte("x"), ACL: acl, Flags: flags}
}

func multi(ops ...proto.MultiOp) *proto.MultiRequest { return &proto.MultiRequest{Ops: ops} }

var authEntry = proto.ACL{Perms: proto.PermAll, ID: proto.ID{Scheme: proto.SchemeAuth}}

// TestWrite checks which write stands for which in each line.
func TestWrite(t *testing.T) {
	ip := func(id string) []proto.ACL {
		return []proto.ACL{proto.OpenACL[0], {Perms: 1, ID: proto.ID{Scheme: proto.SchemeIP, ID: id}}}
	}
	invalid := ip(noAddress)
	open := proto.OpenACL
	for _, x := range []struct {
		name     string
		line     Line
		op       proto.OpCode
		q        proto.Record
		then     proto.OpCode
		proposed proto.Record // nil for the same
	}{
		{"usual", 4, proto.OpCreate, create("/a", 3, open), proto.OpCreate, nil},
		{"container mode", 4, proto.OpCreate, create("/a", proto.FlagContainer, open), proto.OpCreate, create("/.", 0, open)},
		{"unknown mode", 4, proto.OpCreate, create("/a/b", -1, open), proto.OpCreate, create("/a/.", 0, open)},
		{"unknown mode, no slash", 4, proto.OpCreate, create("a", 5, open), proto.OpCreate, create("a", 0, open)},
		{"unknown mode", 5, proto.OpCreate, create("/a/b", -1, open), proto.OpCreate, nil},
		{"container mode in a multi", 4, proto.OpMulti, multi(proto.MultiOp{Op: proto.OpCreate, Request: create("/a", proto.FlagContainer, open)}),
			proto.OpMulti, multi(proto.MultiOp{Op: proto.OpCreate, Request: create("/.", 0, open)})},
		{"container mode", 5, proto.OpCreate, create("/a", proto.FlagContainer, open), proto.OpCreate, nil},
		{"null ACL", 5, proto.OpCreate, create("/a", 0, nil), proto.OpMulti, multi()},
		{"null ACL, invalid path", 5, proto.OpCreate, create("a", 0, nil), proto.OpCreate, nil},
		{"null ACL", 6, proto.OpCreate, create("/a", 0, nil), proto.OpCreate, nil},
		{"null ACL in setACL", 4, proto.OpSetACL, &proto.SetACLRequest{Path: "/a"}, proto.OpMulti, multi()},
		{"mask", 4, proto.OpCreate, create("/a", 0, ip("10.0.0.0/8")), proto.OpCreate, create("/a", 0, invalid)},
		{"mask", 5, proto.OpCreate, create("/a", 0, ip("10.0.0.0/8")), proto.OpCreate, nil},
		{"auth", 4, proto.OpCreate, create("/a", 0, []proto.ACL{authEntry, open[0]}), proto.OpCreate, create("/a", 0, []proto.ACL{open[0], authEntry})},
		{"auth", 5, proto.OpCreate, create("/a", 0, []proto.ACL{authEntry, open[0]}), proto.OpCreate, nil},
		{"IPv6", 8, proto.OpSetACL, &proto.SetACLRequest{Path: "/a", ACL: ip("::1")}, proto.OpSetACL, &proto.SetACLRequest{Path: "/a", ACL: invalid}},
		{"IPv6", 9, proto.OpSetACL, &proto.SetACLRequest{Path: "/a", ACL: ip("::1")}, proto.OpSetACL, nil},
		{"IPv6 in a multi", 8, proto.OpMulti, multi(proto.MultiOp{Op: proto.OpCreate2, Request: create("/a", 0, ip("::1"))}),
			proto.OpMulti, multi(proto.MultiOp{Op: proto.OpCreate2, Request: create("/a", 0, invalid)})},
		{"create2 in a multi", 4, proto.OpMulti, multi(proto.MultiOp{Op: proto.OpCreate2, Request: create("/a", 0, open)}), proto.OpMulti, multi()},
		{"create2 in a multi", 6, proto.OpMulti, multi(proto.MultiOp{Op: proto.OpCreate2, Request: create("/a", 0, open)}),
			proto.OpMulti, multi(proto.MultiOp{Op: proto.OpCreate, Request: create("/a", 0, open)})},
		{"create2 in a multi", 7, proto.OpMulti, multi(proto.MultiOp{Op: proto.OpCreate2, Request: create("/a", 0, open)}), proto.OpMulti, nil},
		{"unknown mode in a multi", 5, proto.OpMulti, multi(proto.MultiOp{Op: proto.OpCreate, Request: create("/a", 77, open)}),
			proto.OpMulti, multi(proto.MultiOp{Op: proto.OpCreate, Request: create("", 0, open)})},
		{"null ACL in a multi", 6, proto.OpMulti, multi(proto.MultiOp{Op: proto.OpCreate, Request: create("/a", 0, nil)}),
			proto.OpMulti, multi(proto.MultiOp{Op: proto.OpCreate, Request: create("/a", 0, []proto.ACL{})})},
		{"null ACL in a multi", 5, proto.OpMulti, multi(proto.MultiOp{Op: proto.OpCreate, Request: create("/a", 0, nil)}),
			proto.OpMulti, multi(proto.MultiOp{Op: proto.OpCreate, Request: create("/a", 0, unreadableACL)})},
		{"TTL mode without a TTL in a multi", 5, proto.OpMulti, multi(proto.MultiOp{Op: proto.OpCreate2, Request: create("/a", 5, open)}),
			proto.OpMulti, multi(proto.MultiOp{Op: proto.OpCreate2, Request: create("/-", 0, unreadableACL)})},
		{"sync", 4, proto.OpSync, &proto.Path{Path: "/a"}, proto.OpSync, nil},
	} {
		body := x.q.Append(nil)
		want := body
		if x.proposed != nil {
			if want = x.proposed.Append(nil); x.then == proto.OpMulti && len(x.proposed.(*proto.MultiRequest).Ops) == 0 {
				want = nil // it fails with MarshallingError
			}
		}
		if op, got := For(x.line).Write(x.op, body); op != x.then || !slices.Equal(got, want) {
			t.Errorf("%s in %s: %d %x, want %d %x", x.name, x.line, op, got, x.then, want)
		}
	}
	if len(proto.OpenACL) != 1 || proto.OpenACL[0].Scheme != proto.SchemeWorld {
		t.Error("a shared list was changed")
	}
	// What cannot be decoded.
	for line, op := range map[Line]proto.OpCode{8: proto.OpMulti, 9: proto.OpDelete} {
		if got, body := For(line).Write(proto.OpDelete, []byte{0, 0}); got != op || reflect.DeepEqual(body, []byte{0, 0}) != (line == 9) {
			t.Errorf("a delete cut short in %s: %d %x", line, got, body)
		}
	}
	d := jute.NewDecoder(nil)
	new(proto.MultiRequest).Decode(&d)
	if d.Err() == nil {
		t.Error("the multi that must not be readable is")
	}
}

// FuzzWrite checks that no request makes Write panic, and that the newest line's are unchanged.
func FuzzWrite(f *testing.F) {
	f.Add(int32(proto.OpMulti), multi(proto.MultiOp{Op: proto.OpCreate, Request: create("/a", 77, nil)}).Append(nil))
	f.Add(int32(proto.OpCreate), create("/a", 4, nil).Append(nil))
	f.Fuzz(func(t *testing.T, op int32, body []byte) {
		for line := Oldest; line < Newest; line++ {
			sent := slices.Clone(body)
			For(line).Write(proto.OpCode(op), sent)
			if !slices.Equal(sent, body) {
				t.Fatal("the client's bytes were changed")
			}
		}
	})
}
