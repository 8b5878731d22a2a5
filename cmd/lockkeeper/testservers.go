package main

import (
	"cmp"
	"errors"
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

// server returns the server that a path is of, and the rest of the path.
func (p *testPort) server(path string) (*control, string) {
	number, rest := "1", path
	if below, ok := strings.CutPrefix(path, serversPath); ok {
		number, rest, _ = strings.Cut(below, "/")
		rest = "/" + rest
	}
	n, _ := strconv.Atoi(number)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.servers[n] == nil {
		noServer(number)
	}
	return p.servers[n], rest
}

func noServer(number string) {
	deny(http.StatusNotFound, "there is no server %s, or it was stopped", number)
}

// serverState returns what clients need of a server, with the url by which the client of a request reaches it.
func (c *control) serverState(r *http.Request) object {
	return object{"server": c.number, "url": "http://" + r.Host + serversPath + strconv.Itoa(c.number), "connect": c.connect()}
}

func (c controlRequest) listServers(url.Values) any {
	c.port.mu.Lock()
	defer c.port.mu.Unlock()
	var all []object
	for _, number := range slices.Sorted(maps.Keys(c.port.servers)) {
		all = append(all, c.port.servers[number].serverState(c.r))
	}
	return object{"servers": all}
}

func (c controlRequest) startServer(b struct {
	Cluster           *int    `json:"cluster"`
	Tree              string  `json:"tree"`
	ElectionTimeoutMs *millis `json:"electionTimeoutMs"`
	BehaveAs          string  `json:"behaveAs"`
}) any {
	cfg, members := c.port.config, 0 // no cluster
	if b.Cluster != nil {
		if members = *b.Cluster; members < 1 || members > mostMembers {
			badRequest("\"cluster\" is %d, and not in 1 to %d", members, mostMembers)
		}
	}
	if b.ElectionTimeoutMs != nil {
		if cfg.ElectionTimeout = time.Duration(*b.ElectionTimeoutMs); cfg.ElectionTimeout <= 0 {
			badRequest("\"electionTimeoutMs\" must be more than 0")
		}
	}
	host, _, err := net.SplitHostPort(cfg.ClientAddr)
	orFail(err)
	cfg.ClientAddr = net.JoinHostPort(host, "0")
	cfg.Features.BehaveAs = cmp.Or(b.BehaveAs, cfg.Features.BehaveAs)
	var begin lockkeepertest.Option
	if b.Tree != "" {
		begin = lockkeepertest.WithTree(b.Tree)
	}
	started, err := c.port.start(cfg, members, begin)
	orFail(err)
	return started.serverState(c.r)
}

func (c controlRequest) stopServer(struct{}) any {
	if c.number == 1 {
		deny(http.StatusConflict, "server 1 is the process: stop that")
	}
	c.port.mu.Lock()
	there := c.port.servers[c.number] == c.control
	delete(c.port.servers, c.number)
	c.port.mu.Unlock()
	if !there { // another request was faster
		noServer(strconv.Itoa(c.number))
	}
	orFail(c.run.end())
	return nil
}

func (c controlRequest) namespace(b struct {
	Name string `json:"name"`
}) any {
	c.works()
	path := c.all.Namespace(b.Name)
	return object{"path": path, "connect": c.connect() + path}
}

func (c controlRequest) removeNamespace(b struct {
	Path string `json:"path"`
}) any {
	need("path", b.Path != "")
	c.works()
	if !c.all.RemoveTree(b.Path) {
		deny(http.StatusNotFound, "there is no znode %s", b.Path)
	}
	return nil
}
