package lockkeepertest

import (
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/znode"
)

// WithTree makes a server or a cluster begin with these znodes, in the format of [Server.Tree]: one
// line for each, with its path and, if it has any, its data, in double quotes as in Go or in hex
// as 0x00ff. At the end of a line, (container) or (TTL 1m0s) is its kind. Empty lines and lines that
// begin with # are ignored. Ephemerals are refused, since they need a session, and so is data that
// Tree has shortened. Missing parents are created too, with empty data. Everybody has all
// permissions for all of them.
//
//	/config/hosts = "a,b"
//	/locks (container)
func WithTree(text string) Option {
	return Option{func(s *Server) {
		s.tree = func() ([]znode.Record, error) { return parseTree("tree", text) }
	}}
}

// WithTreeFile is [WithTree] with the lines in a file.
func WithTreeFile(name string) Option {
	return Option{func(s *Server) {
		s.tree = func() ([]znode.Record, error) {
			text, err := os.ReadFile(name)
			if err != nil {
				return nil, err
			}
			return parseTree(name, string(text))
		}
	}}
}

// TreeError says what is wrong with the znodes that a server should begin with, or that should be
// added; see [WithTree].
type TreeError struct{ reason error }

func (e *TreeError) Error() string { return e.reason.Error() }
func (e *TreeError) Unwrap() error { return e.reason }

// parseTree parses the lines of a tree. name is of the file, for errors.
func parseTree(name, text string) (all []znode.Record, err error) {
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		r, err := parseNode(line)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, i+1, err)
		}
		all = append(all, r)
	}
	if all, err = complete(all); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return all, nil
}

var nodeLine = regexp.MustCompile(`^(.*?)(?: = (".*"|0x[0-9a-f]*))?(?: \((container|(?:TTL|ephemeral of) \S+)\))?$`)

// parseNode parses a line that writeNode has written.
func parseNode(line string) (r znode.Record, err error) {
	parts := nodeLine.FindStringSubmatch(line)
	data, kind := parts[2], parts[3]
	r = znode.Record{Path: parts[1], Data: []byte{}}
	switch {
	case strings.Contains(r.Path, " = "):
		return r, errors.New("the data is neither a whole text in quotes nor in hex")
	case strings.HasPrefix(data, "0x"):
		r.Data, err = hex.DecodeString(data[2:])
	case data != "":
		var text string
		text, err = strconv.Unquote(data)
		r.Data = []byte(text)
	}
	if err != nil {
		return r, fmt.Errorf("the data %s: %w", data, err)
	}
	switch name, arg, _ := strings.Cut(kind, " "); name {
	case "ephemeral":
		return r, fmt.Errorf("%s is ephemeral: that needs a session, and a new server has none", r.Path)
	case "container":
		r.Kind = znode.Container
	case "TTL":
		ttl, err := time.ParseDuration(arg)
		if err != nil || ttl < time.Millisecond || ttl.Milliseconds() > proto.MaxTTL {
			return r, fmt.Errorf("%s is not a TTL", arg)
		}
		r.Kind, r.Owner = znode.TTL, ttl.Milliseconds()
	}
	return r, nil
}

// complete adds the missing parents of znodes, and returns all in an order in which they
// can be created.
func complete(nodes []znode.Record) ([]znode.Record, error) {
	byPath := map[string]*znode.Record{}
	for i := range nodes {
		r := &nodes[i]
		switch {
		case !znode.ValidPath(r.Path):
			return nil, fmt.Errorf("%q is not a path", r.Path)
		case r.Path == znode.Root || r.Path == znode.SystemPath || strings.HasPrefix(r.Path, znode.SystemPath+"/"):
			return nil, fmt.Errorf("%s belongs to the server itself", r.Path)
		case byPath[r.Path] != nil:
			return nil, fmt.Errorf("%s occurs twice", r.Path)
		}
		byPath[r.Path] = r
	}
	for _, at := range slices.Collect(maps.Keys(byPath)) {
		for up := path.Dir(at); up != znode.Root && byPath[up] == nil; up = path.Dir(up) {
			byPath[up] = &znode.Record{Path: up} // without data: one that exists keeps its own
		}
	}
	var all []znode.Record
	for _, at := range slices.Sorted(maps.Keys(byPath)) {
		r := byPath[at]
		r.ACL = proto.OpenACL
		all = append(all, *r)
	}
	return all, nil
}

// plant creates the znodes of [WithTree] on new servers.
func (c *common) plant() error {
	s := c.servers[0]
	if s.tree == nil {
		return nil
	}
	nodes, err := s.tree()
	if err != nil {
		return &TreeError{err}
	}
	empty := false
	s.view(func(v *fsm.View) { empty = v.Tree().Len() == znode.New().Len() })
	if !empty {
		return errors.New("WithTree is for new servers, and this one has znodes already")
	}
	return add(c.servers, nodes)
}

// AddTree adds znodes to the state, in one transaction. text has them in the format of
// [WithTree]. Those that exist get this data, and keep their kind; missing parents are
// created. Nothing is added below an ephemeral, which can have no children.
func (c *common) AddTree(text string) {
	c.t.Helper()
	c.here(c.t)
	nodes, err := parseTree("tree", text)
	if err != nil {
		err = &TreeError{err}
	} else {
		err = add(c.servers, nodes)
	}
	if err != nil {
		c.t.Fatalf("lockkeepertest: add: %v", err)
	}
}

func add(servers []*Server, nodes []znode.Record) error {
	now := servers[0].skew.now().UnixMilli()
	var b []byte
	for i := range nodes {
		nodes[i].Ctime, nodes[i].Mtime = now, now
		b = znode.AppendRecord(b, &nodes[i])
	}
	return commit(servers, fsm.Edit(nil, false, b))
}
