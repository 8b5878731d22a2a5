package lockkeepertest

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/znode"
)

// namespaces are the znodes that tests have created for themselves.
type namespaces struct {
	mu    sync.Mutex
	last  int             // number of the last one without a name
	taken map[string]bool // paths of those that are being created
}

// take returns the path of a namespace, and false if it is being created by somebody else.
func (n *namespaces) take(name string) (path string, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if name == "" {
		n.last++
		name = fmt.Sprintf("test-%010d", n.last)
	}
	path = "/" + strings.TrimPrefix(name, "/")
	if n.taken[path] {
		return path, false
	}
	if n.taken == nil {
		n.taken = map[string]bool{}
	}
	n.taken[path] = true
	return path, true
}

func (n *namespaces) release(path string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.taken, path)
}

// Namespace creates a persistent znode, for clients that use it as their root: a chroot at the end
// of their list of servers. So tests that share a server do not see each other's znodes. It returns
// the path. Without a name it is a new one, such as /test-0000000001. It fails the test, with
// [proto.NodeExists], if the znode exists. [Server.RemoveTree] deletes it.
func (s *Server) Namespace(name string) (path string) {
	s.t.Helper()
	return namespace(s.t, []*Server{s}, name)
}

// Namespace is [Server.Namespace] for a cluster. There must be a majority.
func (c *Cluster) Namespace(name string) (path string) {
	c.t.Helper()
	return namespace(c.t, c.first(c.Leader()), name)
}

// first returns all members, the one with the given id first.
func (c *Cluster) first(id int) []*Server {
	all := []*Server{c.Server(id)}
	for _, s := range c.servers {
		if s != all[0] {
			all = append(all, s)
		}
	}
	return all
}

func namespace(t testing.TB, servers []*Server, name string) string {
	t.Helper()
	s := servers[0]
	s.here(t)
	names := &s.report.namespaces
	for {
		path, ok := names.take(name)
		exists := !ok
		var err error
		if ok {
			exists, err = create(servers, path)
			names.release(path)
		}
		switch {
		case err == nil && !exists:
			return path
		case err == nil && name != "":
			err = fmt.Errorf("%s: %w", path, proto.NodeExists)
		}
		if err != nil {
			t.Fatalf("lockkeepertest: namespace: %v", err)
		}
	}
}

// create creates a znode. It returns true, and does nothing, if the znode exists.
func create(servers []*Server, path string) (exists bool, err error) {
	nodes, err := complete([]znode.Record{{Path: path, Data: []byte{}}})
	if err != nil {
		return false, &TreeError{err}
	}
	if exists, err = servers[0].has(path); err != nil || exists {
		return exists, err
	}
	return false, add(servers, nodes)
}

// has reports whether a znode exists, after everything that clients of other members have done.
func (s *Server) has(path string) (has bool, err error) {
	if err := s.propose(fsm.Nothing()); err != nil {
		return false, err
	}
	s.view(func(v *fsm.View) { has = v.Tree().Lookup(path) != nil })
	return has, nil
}

// RemoveTree deletes a znode with all that is below it, also ephemerals, in one transaction. It
// reports whether there was one.
func (s *Server) RemoveTree(path string) bool {
	s.t.Helper()
	return removeTree(s.t, []*Server{s}, path)
}

// RemoveTree is [Server.RemoveTree] for all members. There must be a majority.
func (c *Cluster) RemoveTree(path string) bool {
	c.t.Helper()
	return removeTree(c.t, c.first(c.Leader()), path)
}

func removeTree(t testing.TB, servers []*Server, path string) bool {
	t.Helper()
	servers[0].here(t)
	_, err := complete([]znode.Record{{Path: path}})
	if err != nil {
		t.Fatalf("lockkeepertest: remove: %v", &TreeError{err})
	}
	has, err := servers[0].has(path)
	if err == nil && has {
		err = commit(servers, fsm.Edit([]string{path}, true, nil))
	}
	if err != nil {
		t.Fatalf("lockkeepertest: remove: %v", err)
	}
	return has
}
