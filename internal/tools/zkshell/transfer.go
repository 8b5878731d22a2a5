package zkshell

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/lockkeeper/lockkeeper/internal/tools/privatefile"
	"github.com/lockkeeper/lockkeeper/proto"
)

// Export and import. The file has one JSON object in each line: a header, the znodes, each
// before those below it, in the order of their names, and an end. So an export that was
// interrupted can be continued after its last znode.

// fileFormat and fileVersion identify the files. A new version must be refused by old code.
const (
	fileFormat  = "lockkeeper znodes"
	fileVersion = 1
)

type fileHeader struct {
	Format  string `json:"format"`
	Version int    `json:"version"`
	Path    string `json:"path"` // of the subtree
}

// fileEnd is the last line.
type fileEnd struct {
	End    bool `json:"end"`
	Znodes int  `json:"znodes"`
}

// Types of znodes in a file. "" is persistent. Servers show clients only which znodes are
// ephemeral, so an export has no others; but who knows more can add it to the file.
const (
	typeEphemeral = "ephemeral"
	typeContainer = "container"
	typeTTL       = "ttl"
)

// znode is a znode in a file. Without Data and Base64 its data is null, and without an ACL
// it is open to all.
type znode struct {
	Path   string    `json:"path"` // relative to the subtree, whose own path is "/"
	Type   string    `json:"type,omitempty"`
	TTL    int64     `json:"ttl,omitempty"`   // ms
	Owner  string    `json:"owner,omitempty"` // the session of an ephemeral znode
	Data   *string   `json:"data,omitempty"`
	Base64 *string   `json:"base64,omitempty"`
	ACL    []aclJSON `json:"acl,omitempty"`
}

func newZnode(path string, data []byte, st *proto.Stat, acl []proto.ACL) *znode {
	z := &znode{Path: path}
	if st.EphemeralOwner != 0 {
		z.Type = typeEphemeral
		z.Owner = fmt.Sprintf("0x%x", uint64(st.EphemeralOwner))
	}
	switch text := string(data); {
	case data == nil:
	case utf8.Valid(data):
		z.Data = &text
	default:
		text = base64.StdEncoding.EncodeToString(data)
		z.Base64 = &text
	}
	if !slices.Equal(acl, proto.OpenACL) {
		z.ACL = aclOf(acl)
	}
	return z
}

// request returns the request that creates the znode, without its path.
func (z *znode) request() (q proto.CreateRequest, err error) {
	switch z.Type {
	case "", typeContainer:
		z.TTL = 0
	case typeTTL:
		if z.TTL <= 0 || z.TTL > proto.MaxTTL {
			return q, fmt.Errorf("its TTL is %d ms, not between 1 and %d", z.TTL, proto.MaxTTL)
		}
	default:
		return q, fmt.Errorf("its type %q is not known", z.Type)
	}
	switch {
	case z.Data != nil:
		q.Data = []byte(*z.Data)
	case z.Base64 != nil:
		q.Data, err = base64.StdEncoding.DecodeString(*z.Base64)
	}
	if q.ACL = proto.OpenACL; z.ACL != nil {
		q.ACL = nil
		for _, a := range z.ACL {
			entry := proto.ACL{ID: proto.ID{Scheme: a.Scheme, ID: a.ID}}
			for _, p := range permissions {
				if strings.IndexByte(a.Perms, p.letter) >= 0 {
					entry.Perms |= p.perm
				}
			}
			q.ACL = append(q.ACL, entry)
		}
	}
	return q, err
}

// join returns the path of a znode in a subtree.
func join(root, rel string) string {
	switch {
	case rel == "/":
		return root
	case root == "/":
		return rel
	}
	return root + rel
}

// retry repeats a function as long as the connection was lost, but the session is not.
func (s *Shell) retry(ctx context.Context, do func() error) error {
	for {
		err := do()
		if !errors.Is(err, codeConnectionLoss) || !s.client.current().alive() || ctx.Err() != nil {
			return err
		}
	}
}

func (s *Shell) progress(done, total int) {
	switch {
	case s.cfg.Progress == nil:
	case total <= 0:
		s.cfg.Progress(fmt.Sprintf("%d znodes", done))
	default:
		const width = 30
		done = min(done, total)
		bar := strings.Repeat("=", width*done/total)
		s.cfg.Progress(fmt.Sprintf("[%-*s] %3d %%  %d of %d znodes", width, bar, 100*done/total, done, total))
	}
}

func (s *Shell) endProgress() {
	if s.cfg.Progress != nil {
		s.cfg.Progress("")
	}
}

type found struct {
	path     string
	data     proto.DataReply
	acl      proto.ACLReply
	children []string // names, in order
	gone     bool     // it was deleted meanwhile
}

// reading is how many znodes are read at the same time.
const reading = 16

// fetch reads znodes with one round trip.
func (s *Shell) fetch(ctx context.Context, paths []string) (all []*found, err error) {
	err = s.retry(ctx, func() error {
		type calls struct{ data, acl, children *call }
		sent := make([]calls, len(paths))
		for i, path := range paths {
			q := &proto.PathWatch{Path: s.client.server(path)}
			sent[i] = calls{
				s.client.start(ctx, proto.OpGetData, q, nil),
				s.client.start(ctx, proto.OpGetACL, &proto.Path{Path: q.Path}, nil),
				s.client.start(ctx, proto.OpGetChildren, q, nil),
			}
		}
		all = nil
		for i, path := range paths {
			f := &found{path: path}
			var names proto.ChildrenReply
			err := sent[i].data.wait(ctx, &f.data)
			if err == nil {
				err = sent[i].acl.wait(ctx, &f.acl)
			}
			if err == nil {
				err = sent[i].children.wait(ctx, &names)
			}
			if f.gone = errors.Is(err, proto.NoNode); err != nil && !f.gone {
				return wrap(err, path)
			}
			f.children = slices.Sorted(slices.Values(names.Names))
			all = append(all, f)
		}
		return nil
	})
	return all, err
}

// after compares paths in the order of a file: a znode is before those below it, and they
// are before its next sibling.
func after(a, b string) bool {
	return slices.Compare(strings.Split(a, "/"), strings.Split(b, "/")) > 0
}

// above reports whether a is b or an ancestor of it.
func above(a, b string) bool {
	return a == "/" || a == b || strings.HasPrefix(b, a+"/")
}

// walk calls do for the znodes of a subtree in the order of a file, from the first one after
// last, or all if last is "". The paths are relative.
func (s *Shell) walk(ctx context.Context, root, last string, do func(rel string, f *found) error) error {
	var group func(rels []string) error
	group = func(rels []string) error {
		rels = slices.DeleteFunc(rels, func(rel string) bool {
			return last != "" && !after(rel, last) && !above(rel, last) || join(root, rel) == "/zookeeper" && root == "/"
		})
		for rels := range slices.Chunk(rels, reading) {
			paths := make([]string, len(rels))
			for i, rel := range rels {
				paths[i] = join(root, rel)
			}
			all, err := s.fetch(ctx, paths)
			if err != nil {
				return err
			}
			for i, f := range all {
				rel := rels[i]
				if f.gone && rel != "/" {
					continue
				} else if f.gone {
					return wrap(proto.NoNode, root)
				}
				if last == "" || after(rel, last) {
					if err := do(rel, f); err != nil {
						return err
					}
				}
				children := make([]string, len(f.children))
				for i, name := range f.children {
					children[i] = below(rel, name)
				}
				if err := group(children); err != nil {
					return err
				}
			}
		}
		return nil
	}
	return group([]string{"/"})
}

// export writes a subtree to a file. If the file is the beginning of such an export, it
// continues it.
func export(s *Shell, ctx context.Context, p *parsed) (result fields, err error) {
	name, root := p.args[0], p.arg(1, "/")
	if err := checked(root); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600) // data and ACLs may be secret
	if err != nil {
		return nil, usage(err.Error())
	}
	defer func() {
		if e := file.Close(); e != nil && err == nil {
			err = usage(e.Error())
		}
	}()
	last, done, err := resume(file, root)
	if err != nil {
		return nil, usage(name + ": " + err.Error())
	}
	if file, err = privatefile.Protect(file); err != nil { // one that was there before
		return nil, usage(err.Error())
	}
	if done > 0 {
		s.note(fmt.Sprintf("%s has %d znodes: continuing after %s", name, done, join(root, last)))
	}
	w := bufio.NewWriterSize(file, 1<<20)
	lines := json.NewEncoder(w)
	lines.SetEscapeHTML(false)
	if last == "" {
		if err := lines.Encode(fileHeader{fileFormat, fileVersion, root}); err != nil {
			return nil, usage(err.Error())
		}
	}
	total := 0
	if s.cfg.Progress != nil {
		var r proto.IntReply // servers before 3.6 do not know this
		if s.call(ctx, proto.OpGetAllChildrenNumber, &proto.Path{Path: s.client.server(root)}, &r) == nil {
			total = int(r.N) + 1
		}
	}
	defer s.endProgress()
	err = s.walk(ctx, root, last, func(rel string, f *found) error {
		done++
		if done%100 == 0 {
			s.progress(done, total)
		}
		return lines.Encode(newZnode(rel, f.data.Data, &f.data.Stat, f.acl.ACL))
	})
	if err == nil {
		err = lines.Encode(fileEnd{true, done})
	}
	if e := w.Flush(); err == nil { // also after an error: the next export continues there
		err = e
	}
	if err == nil {
		err = file.Sync()
	}
	if err != nil {
		return nil, wrap(err, root)
	}
	s.endProgress()
	s.println(fmt.Sprintf("Exported %d znodes from %s to %s", done, root, name))
	return fields{"file": name, "path": root, "znodes": done}, nil
}

// resume reads what an earlier export has written, and sets the file's offset after the last
// complete line. last is "" in an empty file, and done is the number of znodes.
func resume(file *os.File, root string) (last string, done int, err error) {
	r := bufio.NewReaderSize(file, 1<<20)
	var good int64
	for n := 0; ; n++ {
		line, err := r.ReadBytes('\n')
		if err == io.EOF {
			if begin := `{"format":`; n == 0 && !strings.HasPrefix(begin, string(line[:min(len(line), len(begin))])) {
				return "", 0, errors.New("it exists and is not an export of znodes")
			}
			break // without the newline, the line may be incomplete
		} else if err != nil {
			return "", 0, err
		}
		var head fileHeader
		var end fileEnd
		var z struct{ Path string }
		switch {
		case json.Unmarshal(line, &head) != nil || n == 0 && head.Format != fileFormat:
			return "", 0, errors.New("it exists and is not an export of znodes")
		case n == 0 && head.Version != fileVersion:
			return "", 0, fmt.Errorf("it has version %d, not %d", head.Version, fileVersion)
		case n == 0 && head.Path != root:
			return "", 0, fmt.Errorf("it is an export of %s", head.Path)
		case n > 0 && json.Unmarshal(line, &end) == nil && end.End:
			return "", 0, errors.New("it exists and is complete")
		case n > 0 && json.Unmarshal(line, &z) == nil:
			last = z.Path
			done++
		}
		good += int64(len(line))
	}
	if done == 0 {
		good = 0 // write the header again
	}
	if err := file.Truncate(good); err != nil {
		return "", 0, err
	}
	_, err = file.Seek(good, io.SeekStart)
	return last, done, err
}

// How much of an import is sent together at most.
const (
	writing      = 64
	writingBytes = 4 << 20
)

type importing struct {
	s          *Shell
	root       string
	force      bool // overwrite znodes that differ
	persistent bool // create ephemeral znodes as persistent ones

	batch   []creation // to be sent together, in order
	bytes   int        // of the data in the batch
	created int
	there   int   // znodes that existed and were the same
	changed int   // znodes that were overwritten
	skipped int   // ephemeral znodes
	zxid    int64 // of the last znode that was created
}

type creation struct {
	path string
	q    proto.CreateRequest // without its path
	op   proto.OpCode
	body proto.Record // what is sent
}

// importFile creates the znodes of a file. Those that exist and are the same are skipped, so
// an import that was interrupted can be repeated.
func importFile(s *Shell, ctx context.Context, p *parsed) (fields, error) {
	name := p.args[0]
	file, err := os.Open(name)
	if err != nil {
		return nil, usage(err.Error())
	}
	defer file.Close()
	total, err := complete(file)
	if err != nil {
		return nil, usage(name + ": " + err.Error())
	}
	r := bufio.NewReaderSize(file, 1<<20)
	line, err := r.ReadBytes('\n')
	var head fileHeader
	line = bytes.TrimPrefix(line, []byte("\ufeff")) // of an editor
	if err != nil || json.Unmarshal(line, &head) != nil || head.Format != fileFormat || head.Version != fileVersion {
		return nil, usage(name + ": it is not an export of znodes of version 1")
	}
	i := &importing{s: s, root: p.arg(1, head.Path), force: p.has("f"), persistent: p.has("e")}
	if err := checked(i.root); err != nil {
		return nil, err
	}
	defer s.endProgress()
	for n := 0; n < total && err == nil; n++ {
		if line, err = r.ReadBytes('\n'); err != nil {
			break
		}
		z := &znode{}
		if err = json.Unmarshal(line, z); err != nil {
			err = fmt.Errorf("%s: line %d: %w", name, n+2, err)
			break
		}
		err = i.add(ctx, z)
		if n%100 == 0 {
			s.progress(n, total)
		}
	}
	if err == nil {
		err = i.send(ctx)
	}
	if err != nil {
		return nil, wrap(err, i.root)
	}
	s.endProgress()
	s.println(fmt.Sprintf("Imported %s to %s: %d znodes created, %d were there already, %d overwritten, %d ephemeral ones skipped",
		name, i.root, i.created, i.there, i.changed, i.skipped))
	if i.created > 0 {
		s.note(fmt.Sprintf("Note: fencing tokens are zxids of this server from now on, at present 0x%x. If the old servers gave out higher ones, what remembers these refuses new holders until it is reset. A snapshot (lockkeeper snapshot) or ZooKeeper's data directory (lockkeeper migrate) would keep tokens rising.", i.zxid))
	}
	return fields{"file": name, "path": i.root, "created": i.created, "existing": i.there, "overwritten": i.changed, "skipped": i.skipped}, nil
}

// complete returns the number of znodes in a file. It is an error if the file has no end.
func complete(file *os.File) (int, error) {
	info, err := file.Stat()
	if err != nil {
		return 0, err
	}
	tail := make([]byte, min(info.Size(), 1000))
	if _, err := file.ReadAt(tail, info.Size()-int64(len(tail))); err != nil {
		return 0, err
	}
	tail = bytes.TrimSpace(tail) // an editor may have changed how lines end, or added blank ones
	var end fileEnd
	if json.Unmarshal(tail[bytes.LastIndexByte(tail, '\n')+1:], &end) != nil || !end.End {
		return 0, errors.New("it has no end: it is not an export of znodes, or the export was interrupted and must be repeated")
	}
	return end.Znodes, nil
}

// add adds a znode to the batch, after it has sent one that is full.
func (i *importing) add(ctx context.Context, z *znode) error {
	if z.Type == typeEphemeral {
		if !i.persistent {
			i.skipped++
			return nil
		}
		z.Type = ""
	}
	c := creation{path: join(i.root, z.Path)}
	if err := checked(c.path); err != nil {
		return err
	}
	var err error
	if c.q, err = z.request(); err != nil {
		return usage(c.path + ": " + err.Error())
	}
	q := c.q
	q.Path = c.path
	c.op, c.body = createRequest(i.s.client, q, z.Type == typeContainer, z.TTL)
	if len(i.batch) == writing || i.bytes+len(c.q.Data) > writingBytes {
		err = i.send(ctx)
	}
	i.batch = append(i.batch, c)
	i.bytes += len(c.q.Data)
	return err
}

// send creates the znodes of the batch. The order matters, so after the loss of a connection it repeats all whose replies are missing,
// some of which may have been created.
func (i *importing) send(ctx context.Context) error {
	err := i.s.retry(ctx, func() error {
		calls := make([]*call, len(i.batch))
		for n, c := range i.batch {
			calls[n] = i.s.client.start(ctx, c.op, c.body, nil)
		}
		for _, call := range calls {
			c := i.batch[0]
			switch err := call.wait(ctx, nil); {
			case errors.Is(err, proto.NodeExists):
				if err := i.existing(ctx, c); err != nil {
					return err
				}
			case err != nil:
				return wrap(err, c.path)
			default:
				i.created++
				i.zxid = call.frame.Zxid
			}
			i.batch = i.batch[1:]
		}
		return nil
	})
	i.bytes = 0
	return err
}

// existing compares a znode that exists with that in the file.
func (i *importing) existing(ctx context.Context, c creation) error {
	var data proto.DataReply
	if err := i.s.watching(ctx, proto.OpGetData, c.path, false, watchData, &data); err != nil {
		return wrap(err, c.path)
	}
	var acl proto.ACLReply
	if err := i.s.call(ctx, proto.OpGetACL, &proto.Path{Path: i.s.client.server(c.path)}, &acl); err != nil {
		return wrap(err, c.path)
	}
	sameData := bytes.Equal(data.Data, c.q.Data) && (data.Data == nil) == (c.q.Data == nil)
	sameACL := slices.Equal(acl.ACL, c.q.ACL)
	switch {
	case data.Stat.EphemeralOwner != 0:
		return usage("Node already exists: " + c.path + ", as an ephemeral znode")
	case sameData && sameACL:
		i.there++
		return nil
	case !i.force:
		return usage("Node already exists: " + c.path + ", with other data or another ACL; import -f overwrites it")
	}
	if !sameData {
		if err := i.s.call(ctx, proto.OpSetData, &proto.SetDataRequest{Path: i.s.client.server(c.path), Data: c.q.Data, Version: proto.AnyVersion}, nil); err != nil {
			return wrap(err, c.path)
		}
	}
	if !sameACL {
		if err := i.s.call(ctx, proto.OpSetACL, &proto.SetACLRequest{Path: i.s.client.server(c.path), ACL: c.q.ACL, Version: proto.AnyVersion}, nil); err != nil {
			return wrap(err, c.path)
		}
	}
	i.changed++
	return nil
}

func tree(s *Shell, ctx context.Context, p *parsed) (fields, error) {
	root := p.arg(0, "/")
	depth, err := p.integer("d", 32, 1<<31-1)
	if err != nil {
		return nil, err
	}
	list := []fields{}
	var show func(path, label, indent string, depth int64) error
	show = func(path, label, indent string, depth int64) error {
		var r proto.Children2Reply
		err := s.watching(ctx, proto.OpGetChildren2, path, false, watchChild, &r)
		if errors.Is(err, proto.NoNode) && path != root {
			return nil // deleted meanwhile
		} else if err != nil {
			return wrap(err, path)
		}
		if p.has("l") {
			about := fmt.Sprintf("%d bytes", r.Stat.DataLength)
			if owner := r.Stat.EphemeralOwner; owner != 0 {
				about += fmt.Sprintf(", ephemeral of 0x%x", uint64(owner))
			}
			label += s.color(cyan, "  ("+about+")")
		}
		s.println(label)
		if s.json != nil {
			list = append(list, fields{"path": path, "stat": statOf(&r.Stat)})
		}
		if depth <= 0 {
			return nil
		}
		slices.Sort(r.Names)
		for i, name := range r.Names {
			branch, more := "├── ", "│   "
			if i == len(r.Names)-1 {
				branch, more = "└── ", "    "
			}
			if err := show(below(path, name), indent+branch+name, indent+more, depth-1); err != nil {
				return err
			}
		}
		return nil
	}
	err = show(root, root, "", depth)
	return fields{"path": root, "znodes": list}, err
}
