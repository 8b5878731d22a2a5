package znode

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/proto"
)

// TestTranscripts runs the transcripts in testdata. Each command that is an operation or a multi is
// a transaction, with the zxids 1, 2, 3 and so on, and a time of 1000 ms times the zxid unless
// time= gives another one:
//
//	create /a data=x flags=2 acl=world:anyone:31 as=digest:u:h session=1
//
// After each command the whole tree is checked.
func TestTranscripts(t *testing.T) {
	testkit.Transcripts(t, func(*testing.T) func([]string) string {
		s := &transcript{tree: New()}
		return func(command []string) string {
			out := s.run(command)
			if err := s.tree.Check(func(int64) bool { return true }); err != nil {
				out += err.Error() + "\n"
			}
			return out
		}
	})
}

// transcript is the state of a transcript that is being run.
type transcript struct {
	tree     *Tree
	zxid     int64
	snapshot *Snapshot
	bytes    []byte // encoding of snapshot, when it was taken
}

// args is the arguments of a command: a path and words of the form key=value.
type args struct {
	path string
	kv   map[string]string
}

func parse(words []string) (a args) {
	a.kv = map[string]string{}
	for _, w := range words {
		if k, v, ok := strings.Cut(w, "="); ok && !strings.Contains(k, "/") {
			a.kv[k] = v
		} else if s, err := strconv.Unquote(w); err == nil {
			a.path = s
		} else {
			a.path = w
		}
	}
	return a
}

// num returns the number after key=, or def if it is missing.
func (a args) num(key string, def int64) int64 {
	n, err := strconv.ParseInt(cmp.Or(a.kv[key], strconv.FormatInt(def, 10)), 0, 64)
	if err != nil {
		panic(err)
	}
	return n
}

// data returns the text after data=, or nil if it is missing.
func (a args) data() []byte {
	if v, ok := a.kv["data"]; ok {
		return []byte(v)
	}
	return nil
}

// acl parses the list after acl=, which has the form scheme:id:perms,... Without acl= it returns
// the open ACL, and for acl=none an empty list.
func (a args) acl() (acl []proto.ACL) {
	v, ok := a.kv["acl"]
	if !ok {
		return proto.OpenACL
	}
	for _, e := range strings.Split(v, ",") {
		if e == "none" {
			continue
		}
		scheme, rest, _ := strings.Cut(e, ":")
		i := strings.LastIndexByte(rest, ':')
		perms, err := strconv.Atoi(rest[i+1:])
		if err != nil {
			panic(err)
		}
		acl = append(acl, proto.ACL{Perms: int32(perms), ID: proto.ID{Scheme: scheme, ID: rest[:max(i, 0)]}})
	}
	return acl
}

// ids parses the list of identities after as=.
func (a args) ids() (ids []proto.ID) {
	if v, ok := a.kv["as"]; ok {
		for _, e := range strings.Split(v, ",") {
			scheme, id, _ := strings.Cut(e, ":")
			ids = append(ids, proto.ID{Scheme: scheme, ID: id})
		}
	}
	return ids
}

var createOps = map[string]proto.OpCode{
	"create": proto.OpCreate, "create2": proto.OpCreate2,
	"create-container": proto.OpCreateContainer, "create-ttl": proto.OpCreateTTL,
}

// run runs a command and returns what it prints.
func (s *transcript) run(command []string) string {
	words := strings.Fields(command[0])
	a := parse(words[1:])
	switch words[0] {
	case "tree":
		return s.show(a)
	case "ephemerals":
		return fmt.Sprintln(s.tree.EphemeralsOf(a.num("session", 1), ""))
	case "reapable":
		return fmt.Sprintln(reapable(s.tree, a.num("time", 0)))
	case "acl": // as getACL shows it
		return fmt.Sprintln(showACL(s.tree.Lookup(a.path).MaskedACL(a.ids())))
	case "children":
		names := slices.Sorted(s.tree.Children(s.tree.Lookup(a.path)))
		return fmt.Sprintln(names, s.tree.Lookup(a.path).Descendants(), "below")
	case "snapshot":
		s.snapshot = s.tree.Snapshot()
		s.bytes = encodeAll(s.snapshot)
		return fmt.Sprintf("%d znodes\n", s.snapshot.Len())
	case "unchanged?": // whether the snapshot is as it was when it was taken
		return fmt.Sprintln(bytes.Equal(encodeAll(s.snapshot), s.bytes))
	case "restore": // continue with a tree restored from the snapshot
		tree, err := Restore(decodeAll(s.bytes))
		if err != nil {
			return fmt.Sprintln(err)
		}
		s.tree = tree
		return fmt.Sprintln("same digest:", tree.Digest() == s.snapshot.Digest())
	case "patch": // changes a record as only very many operations could
		records := decodeAll(encodeAll(s.tree.Snapshot()))
		for i := range records {
			if r := &records[i]; r.Path == a.path {
				r.Creates, r.Version, r.Aversion = a.num("creates", r.Creates), int32(a.num("version", int64(r.Version))), int32(a.num("aversion", int64(r.Aversion)))
			}
		}
		var err error
		if s.tree, err = Restore(records); err != nil {
			return fmt.Sprintln(err)
		}
		return ""
	}

	s.zxid++
	x := &Txn{Zxid: s.zxid, Time: a.num("time", 1000*s.zxid), Session: a.num("session", 1), IDs: a.ids(), NoTTL: a.kv["nottl"] != ""}
	digest, size := s.tree.Digest(), s.tree.DataSize()
	var out string
	if words[0] == "multi" {
		ok := s.tree.Multi(x, func() bool {
			for _, line := range command[1:] {
				w := strings.Fields(line)
				code, text := s.op(x, w[0], parse(w[1:]))
				out += fmt.Sprintf("%v %s", code, text)
				out = strings.TrimRight(out, " ") + "\n"
				if code != proto.OK {
					return false
				}
			}
			return true
		})
		if !ok {
			out += "rolled back\n"
		}
	} else {
		code, text := s.op(x, words[0], a)
		out = strings.TrimRight(fmt.Sprintf("%v %s", code, text), " ") + "\n"
	}
	for _, c := range x.Changes {
		out += showChange(&c) + "\n"
	}
	if len(x.Changes) == 0 && (s.tree.Digest() != digest || s.tree.DataSize() != size) {
		out += "changed without a Change\n"
	}
	return out
}

// op runs one operation, which may be part of a multi.
func (s *transcript) op(x *Txn, word string, a args) (code proto.Code, text string) {
	version := int32(a.num("version", -1))
	switch word {
	case "create", "create2", "create-container", "create-ttl":
		path, _, code := s.tree.Create(x, createOps[word], &proto.CreateRequest{
			Path: a.path, Data: a.data(), ACL: a.acl(), Flags: int32(a.num("flags", 0)),
		}, a.num("ttl", -1))
		return code, path
	case "delete":
		return s.tree.Delete(x, a.path, version), ""
	case "set":
		n, code := s.tree.SetData(x, &proto.SetDataRequest{Path: a.path, Data: a.data(), Version: version})
		if n != nil {
			text = fmt.Sprint("version ", n.version)
		}
		return code, text
	case "setacl":
		n, code := s.tree.SetACL(x, &proto.SetACLRequest{Path: a.path, ACL: a.acl(), Version: version})
		if n != nil {
			text = fmt.Sprint("aversion ", n.aversion())
		}
		return code, text
	case "check":
		return s.tree.CheckVersion(x, a.path, version), ""
	case "reap":
		return s.tree.Reap(x, a.path), ""
	case "close-session":
		s.tree.CloseSession(x, x.Session)
		return proto.OK, ""
	}
	panic("unknown command " + word)
}

var kinds = map[proto.ChangeKind]string{
	proto.NodeCreated: "created", proto.NodeDeleted: "deleted", proto.NodeDataChanged: "data", proto.NodeACLChanged: "acl",
}

func showChange(c *proto.Change) string {
	s := "  " + kinds[c.Kind] + " " + c.Path
	if acl := c.Access.(*access).list; !isOpen(acl) {
		s += " acl=" + showACL(acl)
	}
	if c.ParentAccess != nil && !isOpen(c.ParentAccess.(*access).list) {
		s += " parent-acl=" + showACL(c.ParentAccess.(*access).list)
	}
	if c.Session != 0 {
		s += fmt.Sprint(" session=", c.Session)
	}
	return s
}

func showACL(acl []proto.ACL) string {
	var s []string
	for _, a := range acl {
		s = append(s, fmt.Sprintf("%s:%s:%d", a.Scheme, a.ID.ID, a.Perms))
	}
	return strings.Join(s, ",")
}

// show prints the znodes and their data, with stat=1 also their metadata. It leaves out /zookeeper
// and the znodes below it unless the path / is given.
func (s *transcript) show(a args) string {
	var out strings.Builder
	paths := make([]string, 0, s.tree.Len())
	for i := range s.tree.Len() {
		p := s.tree.nodes.at(uint32(i)).Path()
		if a.path == "" && (p == SystemPath || strings.HasPrefix(p, SystemPath+"/")) {
			continue
		}
		paths = append(paths, p)
	}
	slices.Sort(paths)
	for _, p := range paths {
		n := s.tree.Lookup(p)
		fmt.Fprintf(&out, "%s", p)
		if n.null() {
			out.WriteString(" null")
		} else if n.data() != "" {
			fmt.Fprintf(&out, " %q", n.data())
		}
		if a.kv["stat"] != "" {
			st := n.Stat()
			fmt.Fprintf(&out, " c=%d m=%d p=%d t=%d,%d v=%d,%d,%d owner=%d len=%d children=%d",
				st.Czxid, st.Mzxid, st.Pzxid, st.Ctime, st.Mtime, st.Version, st.Cversion, st.Aversion, st.EphemeralOwner, st.DataLength, st.NumChildren)
		}
		out.WriteString("\n")
	}
	return out.String()
}

// encodeAll returns the encoded znodes of a snapshot, in the order of their bytes.
func encodeAll(s *Snapshot) []byte {
	all := make([][]byte, s.Len())
	for i := range all {
		all[i] = s.Append(nil, i)
	}
	slices.SortFunc(all, bytes.Compare)
	return bytes.Join(all, nil)
}

func decodeAll(b []byte) (records []Record) {
	for len(b) > 0 {
		r, rest, err := DecodeRecord(b)
		if err != nil {
			panic(err)
		}
		records, b = append(records, r), rest
	}
	return records
}
