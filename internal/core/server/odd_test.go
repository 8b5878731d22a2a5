package server_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/core/server"
	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

// TestOddRequests sends requests that no usual client sends, and expects ZooKeeper 3.9's
// answers. The differential run found each of them.
func TestOddRequests(t *testing.T) {
	c := connect(t, open(t, server.Config{}).dial)
	must(c.Create("/a", nil, 0))(t)
	acl := func(scheme, id string) []proto.ACL {
		return []proto.ACL{{Perms: 31, ID: proto.ID{Scheme: scheme, ID: id}}}
	}
	create := func(path string, acl []proto.ACL, flags int32) *proto.CreateRequest {
		return &proto.CreateRequest{Path: path, ACL: acl, Flags: flags}
	}
	multi := func(op proto.OpCode, r proto.Record) *proto.MultiRequest {
		return &proto.MultiRequest{Ops: []proto.MultiOp{
			{Op: proto.OpCheck, Request: &proto.PathVersion{Path: "/a", Version: -1}},
			{Op: op, Request: r},
		}}
	}
	for i, x := range []struct {
		op   proto.OpCode
		body proto.Record
		want string
	}{
		// Each operation treats a null path in its own way.
		{proto.OpSetData, &proto.SetDataRequest{Path: jute.Null, Version: -1}, "BadArguments"},
		{proto.OpSetACL, &proto.SetACLRequest{Path: jute.Null, Version: -1}, "BadArguments"},
		{proto.OpDelete, &proto.PathVersion{Path: jute.Null}, "MarshallingError"},
		{proto.OpCreate, create(jute.Null, proto.OpenACL, 0), "MarshallingError"},
		{proto.OpCreate, create(jute.Null, proto.OpenACL, 7), "BadArguments"},
		{proto.OpGetData, &proto.PathWatch{Path: jute.Null}, "MarshallingError"},
		// A null id is noticed when the ACL is checked.
		{proto.OpCreate, create("/b", acl("digest", jute.Null), 0), "MarshallingError"},
		{proto.OpCreate, create("b", acl("world", jute.Null), 0), "BadArguments"},
		{proto.OpCreate, create("/b", acl("nope", jute.Null), 0), "InvalidACL"},
		{proto.OpCreate, create("/b", acl(jute.Null, "anyone"), 0), "InvalidACL"},
		{proto.OpSetACL, &proto.SetACLRequest{Path: "/a", ACL: acl("ip", jute.Null), Version: -1}, "MarshallingError"},
		// A multi checks for null paths and ACLs first.
		{proto.OpMulti, multi(proto.OpSetData, &proto.SetDataRequest{Path: jute.Null}), "MarshallingError"},
		{proto.OpMulti, multi(proto.OpCheck, &proto.PathVersion{Path: jute.Null}), "MarshallingError"},
		{proto.OpMulti, multi(proto.OpCreate, create("/b", nil, 0)), "MarshallingError"},
		{proto.OpMulti, multi(proto.OpCreate, create("/b", acl("world", jute.Null), 0)), "MarshallingError"},
		{proto.OpMulti, multi(proto.OpCreate, create("/b", []proto.ACL{}, 0)), "Ok: Ok InvalidACL"},
		// The mode decides what is created.
		{proto.OpMulti, multi(proto.OpCreate, create("/container", proto.OpenACL, 4)), "Ok: check create2"},
		{proto.OpMulti, multi(proto.OpCreateTTL, &proto.CreateTTLRequest{CreateRequest: *create("/plain", proto.OpenACL, 0), TTL: -1}), "Ok: check create"},
		{proto.OpMulti, multi(proto.OpCreateTTL, &proto.CreateTTLRequest{CreateRequest: *create("/container2", proto.OpenACL, 4), TTL: 5}), "Ok: check create2"},
		{proto.OpMulti, multi(proto.OpCreateTTL, &proto.CreateTTLRequest{CreateRequest: *create("/c", proto.OpenACL, 7), TTL: 5}), "Ok: Ok BadArguments"},
		{proto.OpMulti, multi(proto.OpCreateTTL, &proto.CreateTTLRequest{CreateRequest: *create("/c", nil, 5), TTL: 5}), "Ok: Ok InvalidACL"},
		// Addresses are parsed as ZooKeeper does.
		{proto.OpSetACL, &proto.SetACLRequest{Path: "/a", ACL: acl("ip", "::ffff:127.0.0.1"), Version: -1}, "InvalidACL"},
		{proto.OpSetACL, &proto.SetACLRequest{Path: "/a", ACL: acl("ip", "fe80::1%lo"), Version: -1}, "InvalidACL"},
		{proto.OpSetACL, &proto.SetACLRequest{Path: "/a", ACL: acl("ip", "127.0.0.01/08"), Version: -1}, "Ok"},
		{proto.OpSetData, &proto.SetDataRequest{Path: "/a", Version: -1}, "Ok"}, // which the ACL permits for 127.0.0.1
		{proto.OpReconfig, &proto.PathVersion{Path: "cut short"}, "MarshallingError"},
	} {
		f, err := c.Call(x.op, x.body, nil)
		got := proto.OK.String()
		if err != nil {
			var code proto.Code
			if !errors.As(err, &code) {
				t.Fatalf("%d: %v", i, err)
			}
			got = code.String()
		}
		if x.op == proto.OpMulti && err == nil {
			var r proto.MultiReply
			check(t, f.Decode(&r))
			got += ":"
			for _, res := range r.Results {
				if res.Op == proto.OpError {
					got += " " + res.Code.String()
				} else {
					got += " " + proto.OpByCode(res.Op).Name
				}
			}
		}
		if got != x.want {
			t.Errorf("%d, %s %+v: %s, want %s", i, proto.OpByCode(x.op).Name, x.body, got, x.want)
		}
	}
}

// TestDigestOfAnyBytes: the user and password are converted to text, as in Java, before
// they are hashed.
func TestDigestOfAnyBytes(t *testing.T) {
	c := connect(t, open(t, server.Config{}).dial)
	_, err := c.Call(proto.OpAuth, &proto.AuthRequest{Scheme: "digest", Auth: []byte("\xff\xfe:p")}, nil)
	check(t, err)
	_, err = c.Call(proto.OpCreate, &proto.CreateRequest{Path: "/a", ACL: []proto.ACL{{Perms: 31, ID: proto.ID{Scheme: "auth"}}}}, nil)
	check(t, err)
	var r proto.ACLReply
	_, err = c.Call(proto.OpGetACL, &proto.Path{Path: "/a"}, &r)
	check(t, err)
	if got := fmt.Sprint(r.ACL); got != "[{31 {digest \ufffd\ufffd:CHAajMjCV+FUX0fRvRN/qglqzJ0=}}]" {
		t.Errorf("the ACL is %s", got)
	}
}
