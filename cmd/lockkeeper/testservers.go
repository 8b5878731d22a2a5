package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
	"github.com/lockkeeper/lockkeeper/proto"
)

// testPort is the HTTP handler of --test-control. It has the servers that run in this process.
type testPort struct {
	config lockkeeper.Config // of server 1

	mu      sync.Mutex
	servers map[int]*control // by their numbers
	last    int              // the last number
	ended   bool
}

// start starts a server, or a cluster, and gives it a number.
func (p *testPort) start(cfg lockkeeper.Config, members int, begin lockkeepertest.Option) (*control, error) {
	t := &runOfServe{}
	c, err := startTested(t, cfg, members, begin)
	if err == nil && !p.add(c) {
		err = errors.New("the process ends")
	}
	if err != nil {
		return nil, errors.Join(err, t.end())
	}
	return c, nil
}

func (p *testPort) add(c *control) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return false
	}
	if p.servers == nil {
		p.servers = map[int]*control{}
	}
	p.last++
	c.port, c.number = p, p.last
	p.servers[c.number] = c
	return true
}

// end stops all servers, and returns their errors.
func (p *testPort) end() error {
	p.mu.Lock()
	p.ended = true
	all := slices.Collect(maps.Values(p.servers))
	p.mu.Unlock()
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, c := range all {
		wg.Go(func() { errs[i] = c.run.end() })
	}
	wg.Wait()
	return errors.Join(errs...)
}

const serversPath = "/servers/"

// find returns the server that a request is for, and the rest of the path.
func (p *testPort) find(path string) (*control, string, error) {
	number, rest := 1, path
	if below, ok := strings.CutPrefix(path, serversPath); ok {
		name, endpoint, _ := strings.Cut(below, "/")
		n, err := strconv.Atoi(name)
		if err != nil {
			return nil, "", noServer(name)
		}
		number, rest = n, "/"+endpoint
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.servers[number]; c != nil {
		return c, rest, nil
	}
	return nil, "", noServer(strconv.Itoa(number))
}

func noServer(name string) error {
	return refusal{http.StatusNotFound, fmt.Errorf("there is no server %s, or it was stopped", name)}
}

// serverState is what clients need of a server.
type serverState struct {
	Server  int    `json:"server"`
	URL     string `json:"url"`
	Connect string `json:"connect"`
}

// serverState returns the url by which the client of a request reaches the server.
func (c *control) serverState(r *http.Request) serverState {
	return serverState{c.number, "http://" + r.Host + serversPath + strconv.Itoa(c.number), c.connect()}
}

func (c *control) listServers(r *http.Request, _ url.Values) (any, error) {
	c.port.mu.Lock()
	defer c.port.mu.Unlock()
	var all []serverState
	for _, number := range slices.Sorted(maps.Keys(c.port.servers)) {
		all = append(all, c.port.servers[number].serverState(r))
	}
	return map[string]any{"servers": all}, nil
}

func (c *control) startServer(r *http.Request, b struct {
	Cluster           *int    `json:"cluster"`
	Tree              string  `json:"tree"`
	ElectionTimeoutMs *millis `json:"electionTimeoutMs"`
	BehaveAs          string  `json:"behaveAs"`
}) (any, error) {
	cfg := c.port.config
	host, _, err := net.SplitHostPort(cfg.ClientAddr)
	switch {
	case err != nil:
		return nil, err
	case b.Cluster != nil && (*b.Cluster < 1 || *b.Cluster > mostMembers):
		return nil, badRequest("\"cluster\" is %d, and not in 1 to %d", *b.Cluster, mostMembers)
	case b.ElectionTimeoutMs != nil && *b.ElectionTimeoutMs <= 0:
		return nil, badRequest("\"electionTimeoutMs\" must be more than 0")
	case b.ElectionTimeoutMs != nil:
		cfg.ElectionTimeout = time.Duration(*b.ElectionTimeoutMs)
	}
	cfg.ClientAddr = net.JoinHostPort(host, "0")
	cfg.Features.BehaveAs = cmp.Or(b.BehaveAs, cfg.Features.BehaveAs)
	var begin lockkeepertest.Option
	if b.Tree != "" {
		begin = lockkeepertest.WithTree(b.Tree)
	}
	members := 0 // no cluster
	if b.Cluster != nil {
		members = *b.Cluster
	}
	started, err := c.port.start(cfg, members, begin)
	badConfig, badTree := (*lockkeeper.ConfigError)(nil), (*lockkeepertest.TreeError)(nil)
	if errors.As(err, &badConfig) || errors.As(err, &badTree) {
		return nil, badRequest("%w", err)
	} else if err != nil {
		return nil, err
	}
	return started.serverState(r), nil
}

func (c *control) stopServer(struct{}) (any, error) {
	if c.number == 1 {
		return nil, refusal{http.StatusConflict, errors.New("server 1 is the process: stop that")}
	}
	c.port.mu.Lock()
	there := c.port.servers[c.number] == c
	delete(c.port.servers, c.number)
	c.port.mu.Unlock()
	if !there { // another request was faster
		return nil, noServer(strconv.Itoa(c.number))
	}
	return nil, c.run.end()
}

func (c *control) namespace(b struct {
	Name string `json:"name"`
}) (any, error) {
	if err := c.works(); err != nil {
		return nil, err
	}
	var path string
	if err := attempt(func() { path = c.all.Namespace(b.Name) }); err != nil {
		return nil, refusedTree(err)
	}
	return map[string]string{"path": path, "connect": c.connect() + path}, nil
}

func (c *control) removeNamespace(b struct {
	Path string `json:"path"`
}) (any, error) {
	if b.Path == "" {
		return nil, badRequest("\"path\" is missing")
	}
	if err := c.works(); err != nil {
		return nil, err
	}
	there := false
	if err := attempt(func() { there = c.all.RemoveTree(b.Path) }); err != nil {
		return nil, refusedTree(err)
	}
	if !there {
		return nil, refusal{http.StatusNotFound, fmt.Errorf("there is no znode %s", b.Path)}
	}
	return nil, nil
}

// refusedTree adds the status to an error about znodes to be added or deleted.
func refusedTree(err error) error {
	status := http.StatusServiceUnavailable
	if bad := (*lockkeepertest.TreeError)(nil); errors.As(err, &bad) {
		status = http.StatusBadRequest
	} else if errors.Is(err, proto.NodeExists) {
		status = http.StatusConflict
	}
	return refusal{status, err}
}
