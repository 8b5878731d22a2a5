package zkshell

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/lockkeeper/lockkeeper/proto"
)

// The commands that read and write znodes.

// call sends a request about a znode, with a valid path, and waits for its reply. It
// returns the server's code as it is.
func (s *Shell) call(ctx context.Context, op proto.OpCode, body, reply proto.Record) error {
	return s.client.do(ctx, op, body, reply)
}

// watching is like call for a request with a path, which it checks. If watch is set, it notes a
// watch when the request succeeds.
func (s *Shell) watching(ctx context.Context, op proto.OpCode, path string, watch bool, kind watchKind, reply proto.Record) error {
	if err := checked(path); err != nil {
		return err
	}
	var finish func(proto.Code)
	if watch {
		finish = s.client.watch(op, kind, path)
	}
	return s.client.start(ctx, op, &proto.PathWatch{Path: s.client.server(path), Watch: watch}, finish).wait(ctx, reply)
}

// integer parses an option that is a number. Without the option it returns other.
func (p *parsed) integer(option string, bits int, other int64) (int64, error) {
	text, ok := p.values[option]
	if !ok {
		return other, nil
	}
	n, err := strconv.ParseInt(text, 10, bits)
	if err != nil {
		return 0, usage(notANumber(text))
	}
	return n, nil
}

// version returns the option -v.
func (p *parsed) version() (int32, error) {
	v, err := p.integer("v", 32, int64(proto.AnyVersion))
	return int32(v), err
}

// statFields returns the fields of a Stat with the names that zkCli prints.
func statFields(st *proto.Stat) []statField {
	hex := func(n int64) string { return fmt.Sprintf("0x%x", uint64(n)) }
	return []statField{
		{"cZxid", hex(st.Czxid)}, {"ctime", time.UnixMilli(st.Ctime)}, {"mZxid", hex(st.Mzxid)}, {"mtime", time.UnixMilli(st.Mtime)},
		{"pZxid", hex(st.Pzxid)}, {"cversion", st.Cversion}, {"dataVersion", st.Version}, {"aclVersion", st.Aversion},
		{"ephemeralOwner", hex(st.EphemeralOwner)}, {"dataLength", st.DataLength}, {"numChildren", st.NumChildren},
	}
}

type statField struct {
	name  string
	value any
}

// printStat prints a Stat (StatPrinter).
func (s *Shell) printStat(st *proto.Stat) {
	for _, f := range statFields(st) {
		if at, ok := f.value.(time.Time); ok {
			f.value = at.Format("Mon Jan 02 15:04:05 MST 2006") // as Java prints a Date
		}
		s.println(s.color(cyan, f.name) + fmt.Sprintf(" = %v", f.value))
	}
}

// showStat prints a Stat, and adds it to the result, if there is the option -s.
func (s *Shell) showStat(p *parsed, result fields, st *proto.Stat) {
	if p.has("s") {
		s.printStat(st)
		result["stat"] = statOf(st)
	}
}

// statOf returns a Stat for JSON.
func statOf(st *proto.Stat) fields {
	all := fields{}
	for _, f := range statFields(st) {
		if at, ok := f.value.(time.Time); ok {
			f.value = at.UTC().Format("2006-01-02T15:04:05.000Z")
		}
		all[f.name] = f.value
	}
	return all
}

// putData adds data to a JSON object: as text if it is UTF-8, and otherwise in base64. Null
// stays null.
func putData(f fields, data []byte) {
	switch {
	case data == nil:
		f["data"] = nil
	case utf8.Valid(data):
		f["data"] = string(data)
	default:
		f["base64"] = base64.StdEncoding.EncodeToString(data)
	}
}

func ls(s *Shell, ctx context.Context, p *parsed) (fields, error) {
	if p.has("?") {
		s.println("usage: ls [options] path\n -?   help\n -R   recurse\n -s   stat\n -w   watch")
	}
	if len(p.args) == 0 {
		return nil, usage(find("ls").usageText())
	}
	path, watch := p.args[0], p.has("w")
	if p.has("R") {
		paths := []string{}
		err := s.visit(ctx, path, watch, func(path string) error {
			s.println(path)
			if s.json != nil {
				paths = append(paths, path)
			}
			return nil
		})
		return fields{"path": path, "paths": paths}, wrap(err, path)
	}
	var r proto.Children2Reply
	if err := s.watching(ctx, proto.OpGetChildren2, path, watch, watchChild, &r); err != nil {
		return nil, wrap(err, path)
	}
	slices.Sort(r.Names)
	s.println("[" + strings.Join(r.Names, ", ") + "]")
	result := fields{"path": path, "children": append([]string{}, r.Names...)}
	s.showStat(p, result, &r.Stat)
	return result, nil
}

// visit calls do for a znode and everything below it: first for all children, then for what
// is below each (ZKUtil.visitSubTreeDFS). Znodes that are deleted meanwhile are skipped.
func (s *Shell) visit(ctx context.Context, path string, watch bool, do func(path string) error) error {
	if err := s.watching(ctx, proto.OpGetData, path, watch, watchData, nil); err != nil {
		return err
	}
	if err := do(path); err != nil {
		return err
	}
	var inside func(path string) error
	inside = func(path string) error {
		var r proto.Children2Reply
		err := s.watching(ctx, proto.OpGetChildren2, path, watch, watchChild, &r)
		if errors.Is(err, proto.NoNode) {
			return nil
		} else if err != nil {
			return wrap(err, path)
		}
		slices.Sort(r.Names)
		for _, name := range r.Names {
			if err := do(below(path, name)); err != nil {
				return err
			}
		}
		for _, name := range r.Names {
			if err := inside(below(path, name)); err != nil {
				return err
			}
		}
		return nil
	}
	return inside(path)
}

func get(s *Shell, ctx context.Context, p *parsed) (fields, error) {
	path := p.args[0]
	var r proto.DataReply
	if err := s.watching(ctx, proto.OpGetData, path, p.has("w"), watchData, &r); err != nil {
		return nil, wrap(err, path)
	}
	result := fields{"path": path}
	putData(result, r.Data)
	data := r.Data
	if data == nil {
		data = []byte("null")
	}
	switch {
	case p.has("x"):
		s.println(hexDump(data))
	case p.has("b"):
		s.println(base64.StdEncoding.EncodeToString(data))
	default:
		s.write(append(s.visible(data), '\n'))
	}
	s.showStat(p, result, &r.Stat)
	return result, nil
}

// visible returns data as it can be printed: on a terminal without control characters,
// which could be escape sequences.
func (s *Shell) visible(data []byte) []byte {
	if !s.cfg.Visible {
		return slices.Clone(data)
	}
	return []byte(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return unicode.ReplacementChar
		}
		return r
	}, string(data)))
}

// hexDump formats data as Netty does (ByteBufUtil.prettyHexDump).
func hexDump(data []byte) string {
	if len(data) == 0 {
		return ""
	}
	const line = "+--------+-------------------------------------------------+----------------+"
	var b strings.Builder
	b.WriteString("         +-------------------------------------------------+\n")
	b.WriteString("         |  0  1  2  3  4  5  6  7  8  9  a  b  c  d  e  f |\n" + line)
	for at := 0; at < len(data); at += 16 {
		row := data[at:min(at+16, len(data))]
		var hex, text strings.Builder
		for _, c := range row {
			fmt.Fprintf(&hex, " %02x", c)
			if c <= 0x1f || c >= 0x7f {
				c = '.'
			}
			text.WriteByte(c)
		}
		fmt.Fprintf(&b, "\n|%08x|%-49s|%-16s|", at, hex.String(), text.String())
	}
	return b.String() + "\n" + line
}

func set(s *Shell, ctx context.Context, p *parsed) (fields, error) {
	path, data := p.args[0], []byte(p.args[1])
	if p.has("b") {
		var err error
		if data, err = base64.StdEncoding.DecodeString(p.args[1]); err != nil {
			return nil, usage(err.Error())
		}
	}
	version, err := p.version()
	if err != nil {
		return nil, err
	}
	var st proto.Stat
	if err := s.call(ctx, proto.OpSetData, &proto.SetDataRequest{Path: s.client.server(path), Data: data, Version: version}, &st); err != nil {
		return nil, wrap(err, path)
	}
	if p.has("s") {
		s.printStat(&st)
	}
	return fields{"path": path, "stat": statOf(&st)}, nil
}

func create(s *Shell, ctx context.Context, p *parsed) (fields, error) {
	ephemeral, sequential, container, hasTTL := p.has("e"), p.has("s"), p.has("c"), p.has("t")
	if container && (ephemeral || sequential) {
		return nil, usage("-c cannot be combined with -s or -e. Containers cannot be ephemeral or sequential.")
	}
	ttl, err := p.integer("t", 64, 0)
	switch {
	case err != nil:
		return nil, usage("-t argument must be a long value")
	case hasTTL && ephemeral:
		return nil, usage("TTLs cannot be used with Ephemeral znodes")
	case hasTTL && container:
		return nil, usage("TTLs cannot be used with Container znodes")
	case hasTTL && (ttl <= 0 || ttl > proto.MaxTTL):
		return nil, usage(fmt.Sprintf("ttl must be positive and cannot be larger than: %d", proto.MaxTTL))
	}
	q := proto.CreateRequest{Path: p.args[0], ACL: proto.OpenACL}
	if len(p.args) > 1 {
		q.Data = []byte(p.args[1])
	}
	if len(p.args) > 2 {
		q.ACL = s.parseACL(p.args[2])
	}
	if ephemeral {
		q.Flags |= proto.FlagEphemeral
	}
	if sequential {
		q.Flags |= proto.FlagSequential
	}
	check := q.Path
	if sequential {
		check += "1"
	}
	if err := checked(check); err != nil {
		return nil, err
	}
	path, err := s.createZnode(ctx, q, container, ttl)
	if err != nil {
		switch {
		case errors.Is(err, codeLocalSession):
			s.note("Unable to create ephemeral node on a local session")
		case errors.Is(err, proto.InvalidACL):
			at := q.Path
			if len(q.ACL) == 0 {
				at = ""
			}
			s.note(keeperText(proto.InvalidACL, at))
		}
		return nil, wrapACL(err, q.ACL, q.Path)
	}
	s.note("Created " + path)
	return fields{"path": path}, nil
}

// wrapACL is like wrap. An empty ACL is refused by the client, which names no path.
func wrapACL(err error, acl []proto.ACL, path string) error {
	if len(acl) == 0 {
		path = noPath
	}
	return wrap(err, path)
}

// createZnode creates a znode of any type and returns its path. A ttl of 0 is none.
func (s *Shell) createZnode(ctx context.Context, q proto.CreateRequest, container bool, ttl int64) (string, error) {
	if len(q.ACL) == 0 {
		return "", proto.InvalidACL // the Java client refuses it too
	}
	op, body := createRequest(s.client, q, container, ttl)
	var r proto.PathReply // a reply to createContainer or createTTL has a Stat after it
	err := s.call(ctx, op, body, &r)
	return s.client.local(r.Path), err
}

// createRequest returns the operation and the request that create a znode of any type.
func createRequest(c *client, q proto.CreateRequest, container bool, ttl int64) (proto.OpCode, proto.Record) {
	q.Path = c.server(q.Path)
	switch {
	case container:
		q.Flags = proto.FlagContainer
		return proto.OpCreateContainer, &q
	case ttl > 0:
		flags := proto.FlagTTL
		if q.Flags == proto.FlagSequential {
			flags = proto.FlagTTLSequential
		}
		return proto.OpCreateTTL, &proto.CreateTTLRequest{CreateRequest: proto.CreateRequest{Path: q.Path, Data: q.Data, ACL: q.ACL, Flags: flags}, TTL: ttl}
	}
	return proto.OpCreate, &q
}

func remove(s *Shell, ctx context.Context, p *parsed) (fields, error) {
	if len(p.args) > 1 {
		s.note("'delete path [version]' has been deprecated. Please use 'delete [-v version] path' instead.")
	}
	path := p.args[0]
	version, err := p.version()
	if err != nil {
		return nil, err
	}
	err = s.call(ctx, proto.OpDelete, &proto.PathVersion{Path: s.client.server(path), Version: version}, nil)
	return fields{"path": path}, wrap(err, path)
}

func deleteAll(s *Shell, ctx context.Context, p *parsed) (fields, error) {
	size, err := p.integer("b", 32, 1000)
	if err != nil {
		return nil, usage("-b argument must be an int value")
	}
	path := p.args[0]
	tree := []string{path} // parents first
	for i := 0; i < len(tree); i++ {
		var r proto.ChildrenReply
		if err := s.call(ctx, proto.OpGetChildren, &proto.PathWatch{Path: s.client.server(tree[i])}, &r); err != nil {
			return nil, wrap(err, tree[i])
		}
		for _, name := range r.Names {
			tree = append(tree, below(tree[i], name))
		}
	}
	slices.Reverse(tree)
	result := fields{"path": path, "deleted": len(tree)}
	if size <= 0 {
		for _, path := range tree {
			if err := s.call(ctx, proto.OpDelete, &proto.PathVersion{Path: s.client.server(path), Version: proto.AnyVersion}, nil); err != nil {
				return nil, wrap(err, path)
			}
		}
		return result, nil
	}
	for batch := range slices.Chunk(tree, int(size)) {
		var q proto.MultiRequest
		for _, path := range batch {
			q.Ops = append(q.Ops, proto.MultiOp{Op: proto.OpDelete, Request: &proto.PathVersion{Path: s.client.server(path), Version: proto.AnyVersion}})
		}
		if s.call(ctx, proto.OpMulti, &q, nil) != nil {
			s.note("Failed to delete some node(s) in the subtree!")
			return fields{"path": path, "failed": true}, nil
		}
	}
	return result, nil
}

func stat(s *Shell, ctx context.Context, p *parsed) (fields, error) {
	path := p.args[0]
	var st proto.Stat
	if err := s.watching(ctx, proto.OpExists, path, p.has("w"), watchData, &st); err != nil {
		return nil, wrap(err, path)
	}
	s.printStat(&st)
	return fields{"path": path, "stat": statOf(&st)}, nil
}

// permissions are the letters of an ACL.
var permissions = []struct {
	letter byte
	perm   int32
}{{'c', proto.PermCreate}, {'d', proto.PermDelete}, {'r', proto.PermRead}, {'w', proto.PermWrite}, {'a', proto.PermAdmin}}

// parseACL parses scheme:id:perms,... It reports what it does not understand and goes on,
// as zkCli does (AclParser). The result is not nil.
func (s *Shell) parseACL(text string) []proto.ACL {
	acl := []proto.ACL{}
	for entry := range strings.SplitSeq(strings.TrimRight(text, ","), ",") {
		first, last := strings.IndexByte(entry, ':'), strings.LastIndexByte(entry, ':')
		if first == last {
			s.note(entry + " does not have the form scheme:id:perm")
			continue
		}
		a := proto.ACL{ID: proto.ID{Scheme: entry[:first], ID: entry[first+1 : last]}}
		for _, letter := range entry[last+1:] {
			known := false
			for _, p := range permissions {
				if letter == rune(p.letter) {
					a.Perms |= p.perm
					known = true
				}
			}
			if !known {
				s.note("Unknown perm type: " + string(letter))
			}
		}
		acl = append(acl, a)
	}
	return acl
}

type aclJSON struct {
	Scheme string `json:"scheme"`
	ID     string `json:"id"`
	Perms  string `json:"perms"` // letters
}

func aclOf(acl []proto.ACL) []aclJSON {
	all := []aclJSON{}
	for _, a := range acl {
		all = append(all, aclJSON{a.Scheme, a.ID.ID, proto.PermLetters(a.Perms)})
	}
	return all
}

func getACL(s *Shell, ctx context.Context, p *parsed) (fields, error) {
	path := p.args[0]
	var r proto.ACLReply
	if err := s.call(ctx, proto.OpGetACL, &proto.Path{Path: s.client.server(path)}, &r); err != nil {
		return nil, wrap(err, path)
	}
	for _, a := range r.ACL {
		s.println(fmt.Sprintf("'%s,'%s\n: %s", a.Scheme, a.ID.ID, proto.PermLetters(a.Perms)))
	}
	result := fields{"path": path, "acl": aclOf(r.ACL)}
	s.showStat(p, result, &r.Stat)
	return result, nil
}

func setACL(s *Shell, ctx context.Context, p *parsed) (fields, error) {
	path, acl := p.args[0], s.parseACL(p.args[1])
	version, err := p.version()
	if err != nil {
		return nil, err
	}
	one := func(path string, st *proto.Stat) error {
		if len(acl) == 0 {
			return proto.InvalidACL // the Java client refuses it too
		}
		return s.call(ctx, proto.OpSetACL, &proto.SetACLRequest{Path: s.client.server(path), ACL: acl, Version: version}, st)
	}
	var st proto.Stat
	if p.has("R") {
		failed := []string{}
		err := s.visit(ctx, path, false, func(path string) error {
			var code proto.Code
			err := one(path, &st)
			if !errors.As(err, &code) {
				return err
			}
			if len(acl) == 0 {
				path = ""
			}
			failed = append(failed, path)
			s.write([]byte(keeperText(code, path))) // without a newline, as in zkCli
			return nil
		})
		return fields{"path": path, "failed": failed}, wrap(err, path)
	}
	if err := one(path, &st); err != nil {
		return nil, wrapACL(err, acl, path)
	}
	if p.has("s") {
		s.printStat(&st)
	}
	return fields{"path": path, "stat": statOf(&st)}, nil
}

func addAuth(s *Shell, ctx context.Context, p *parsed) (fields, error) {
	a := Auth{Scheme: p.args[0]}
	if len(p.args) > 1 {
		a.Auth = []byte(p.args[1])
	}
	s.client.authenticate(ctx, a) // an event tells of a failure
	return nil, nil
}

func whoAmI(s *Shell, ctx context.Context, _ *parsed) (fields, error) {
	var r proto.WhoAmIReply
	s.call(ctx, proto.OpWhoAmI, nil, &r) // zkCli ignores an error
	s.println("Auth scheme: User")
	ids := []aclJSON{}
	for _, id := range r.IDs {
		s.println(id.Scheme + ": " + id.ID)
		ids = append(ids, aclJSON{Scheme: id.Scheme, ID: id.ID})
	}
	return fields{"identities": ids}, nil
}

// syncTimeout is how long sync waits.
const syncTimeout = 30 * time.Second

func syncPath(s *Shell, ctx context.Context, p *parsed) (fields, error) {
	path := p.args[0]
	ctx, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	err := s.call(ctx, proto.OpSync, &proto.Path{Path: s.client.server(path)}, nil)
	var code proto.Code
	switch {
	case errors.As(err, &code):
		s.println(fmt.Sprintf("Sync has failed. rc=%d", code))
	case errors.Is(err, context.DeadlineExceeded):
		return nil, usage(noPath) // what the message of Java's TimeoutException is
	case err != nil:
		return nil, wrap(err, path)
	default:
		s.println("Sync is OK")
	}
	return fields{"path": path, "code": code}, nil
}

func addWatch(s *Shell, ctx context.Context, p *parsed) (fields, error) {
	path, mode, kind := p.args[0], int32(1), watchRecursive
	switch m := p.values["m"]; strings.ToUpper(m) {
	case "PERSISTENT":
		mode, kind = 0, watchPersistent
	case "PERSISTENT_RECURSIVE":
	default:
		if p.has("m") {
			return nil, usage(find("addWatch").usageText())
		}
	}
	err := s.client.start(ctx, proto.OpAddWatch, &proto.PathType{Path: s.client.server(path), Type: mode}, s.client.watch(proto.OpAddWatch, kind, path)).wait(ctx, nil)
	return fields{"path": path}, wrap(err, path)
}

func removeWatches(s *Shell, ctx context.Context, p *parsed) (fields, error) {
	path, t := p.args[0], watcherAny
	for _, o := range []struct {
		option string
		t      watcherType
	}{{"a", watcherAny}, {"r", watcherRecursive}, {"p", watcherPersistent}, {"d", watcherData}, {"c", watcherChildren}} {
		if p.has(o.option) {
			t = o.t
		}
	}
	return fields{"path": path}, wrap(s.client.unwatch(ctx, path, t, p.has("l")), path)
}

// unwatch removes watches. With local, it does so even if the server does not answer
// (WatchDeregistration).
func (c *client) unwatch(ctx context.Context, path string, t watcherType, local bool) error {
	result := make(chan error, 1)
	err := c.start(ctx, proto.OpRemoveWatches, &proto.PathType{Path: c.server(path), Type: int32(t)}, func(code proto.Code) {
		c.mu.Lock()
		has := c.watches.has(t, path)
		var removed []string
		if has && (local || code == proto.OK) {
			removed = c.watches.remove(t, path)
		}
		c.mu.Unlock()
		state := "SyncConnected"
		if code == codeConnectionLoss || code == proto.SessionExpired {
			state = "Disconnected"
		}
		for _, event := range removed {
			c.events(Event{State: state, Type: event, Path: path, Zxid: -1})
		}
		switch {
		case !has:
			result <- proto.NoWatcher
		case len(removed) == 0:
			result <- code
		default:
			result <- nil
		}
	}).wait(ctx, nil)
	select {
	case err = <-result:
	default: // interrupted
	}
	return err
}

func getEphemerals(s *Shell, ctx context.Context, p *parsed) (fields, error) {
	path := p.arg(0, "/")
	var r proto.ChildrenReply
	if err := s.call(ctx, proto.OpGetEphemerals, &proto.Path{Path: path}, &r); err != nil { // ZooKeeper's client ignores its chroot here
		return nil, wrap(err, noPath)
	}
	s.println("[" + strings.Join(r.Names, ", ") + "]")
	return fields{"path": path, "ephemerals": append([]string{}, r.Names...)}, nil
}

func countDescendants(s *Shell, ctx context.Context, p *parsed) (fields, error) {
	path := p.args[0]
	var r proto.IntReply
	if err := s.call(ctx, proto.OpGetAllChildrenNumber, &proto.Path{Path: s.client.server(path)}, &r); err != nil {
		return nil, wrap(err, path)
	}
	s.println(r.N)
	return fields{"path": path, "descendants": r.N}, nil
}

func closeSession(s *Shell, ctx context.Context, _ *parsed) (fields, error) {
	s.client.close(ctx)
	return nil, nil
}
