package lockkeepertest

import (
	"fmt"
	"strings"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/znode"
)

// Namespace creates a persistent znode, for clients that use it as their root: a chroot at the end
// of their list of servers. So tests that share a server do not see each other's znodes. It returns
// the path. Without a name it is a new one, such as /test-0000000001. It fails the test, with
// [proto.NodeExists], if the znode exists. RemoveTree deletes it.
func (c *common) Namespace(name string) (path string) {
	c.t.Helper()
	c.here(c.t)
	c.report.naming <- struct{}{}
	defer func() { <-c.report.naming }()
	path, err := c.namespace(name)
	if err != nil {
		c.t.Fatalf("lockkeepertest: namespace: %v", err)
	}
	return path
}

// namespace is Namespace for the goroutine whose turn it is.
func (c *common) namespace(name string) (path string, err error) {
	servers := c.leaderFirst()
	for {
		path = "/" + strings.TrimPrefix(name, "/")
		if name == "" {
			c.report.namespaces++
			path = fmt.Sprintf("/test-%010d", c.report.namespaces)
		}
		nodes, err := complete([]znode.Record{{Path: path, Data: []byte{}}})
		if err != nil {
			return "", &TreeError{err}
		}
		switch there, err := servers[0].has(path); {
		case err != nil:
			return "", err
		case !there:
			return path, add(servers, nodes)
		case name != "":
			return "", fmt.Errorf("%s: %w", path, proto.NodeExists)
		}
	}
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
func (c *common) RemoveTree(path string) bool {
	c.t.Helper()
	c.here(c.t)
	_, err := complete([]znode.Record{{Path: path}})
	if err != nil {
		c.t.Fatalf("lockkeepertest: remove: %v", &TreeError{err})
	}
	servers := c.leaderFirst()
	has, err := servers[0].has(path)
	if err == nil && has {
		err = commit(servers, fsm.Edit([]string{path}, true, nil))
	}
	if err != nil {
		c.t.Fatalf("lockkeepertest: remove: %v", err)
	}
	return has
}
