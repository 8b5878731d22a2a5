//go:build interop

package interop

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// patroniSteps are the normal work of a PostgreSQL cluster under Patroni, and failures. Each step
// finds what the ones before it have left.
var patroniSteps = []struct {
	name string
	run  func(*patronis)
}{
	{"one leads, two follow", func(p *patronis) {
		p.settled()
		p.write("CREATE TABLE t (n int PRIMARY KEY)")
		p.insert(100)
	}},
	{"switchover", func(p *patronis) {
		from := p.settled()
		to := (from + 1) % len(p.nodes)
		p.post(from, "/switchover", fmt.Sprintf(`{"leader": "node%d", "candidate": "node%d"}`, from, to))
		if now := p.settled(); now != to {
			p.t.Errorf("node%d leads, and not node%d", now, to)
		}
		p.insert(100)
	}},
	{"the settings change everywhere", func(p *patronis) {
		p.post(p.settled(), "/config", `{"postgresql": {"parameters": {"work_mem": "5MB"}}}`)
		for i := range p.nodes {
			p.eventually("the setting changes", func() error { return p.expect(i, "SHOW work_mem", "5MB") })
		}
	}},
	{"another coordination server leads", func(p *patronis) {
		before := p.settled()
		leader := p.servers.leader()
		p.servers.kill(leader)
		p.insert(100)
		p.servers.launch(leader)
		p.servers.await()
		if now := p.settled(); now != before {
			p.t.Errorf("PostgreSQL's leader moved from node%d to node%d", before, now)
		}
		p.insert(100)
	}},
	{"failover", func(p *patronis) {
		dead := p.settled()
		p.kill(dead)
		p.eventually("another leads", func() error {
			_, err := p.leader(dead)
			return err
		})
		p.insert(100, dead)
		p.start(dead)
		if now := p.settled(); now == dead {
			p.t.Errorf("node%d leads again", dead)
		}
		p.insert(100)
	}},
	{"without coordination servers nobody leads", func(p *patronis) {
		before := p.settled()
		for i := range p.servers.addresses() {
			p.servers.kill(i)
		}
		p.eventually("the leader becomes a replica", func() error { return p.expect(before, "SELECT pg_is_in_recovery()", "t") })
		for i := range p.servers.addresses() {
			p.servers.launch(i)
		}
		p.servers.await()
		p.settled()
		p.insert(100)
	}},
	{"all end in order", func(p *patronis) {
		for i := range p.nodes {
			p.stop(i)
		}
		// Patroni gives up the leader's key, and leaves the members' to the end of the session.
		conn := connect(p.t, p.servers.addresses()[0], 10*time.Second)
		if ok, _, err := conn.Exists("/service/test/leader"); err != nil || ok {
			p.t.Errorf("the leader's key still exists: %v, %v", ok, err)
		}
		p.eventually("the members' keys end with their sessions", func() error {
			names, _, err := conn.Children("/service/test/members")
			if err == nil && len(names) > 0 {
				err = fmt.Errorf("there are %q", names)
			}
			return err
		})
	}},
}

// TestSystemsPatroni runs three PostgreSQL servers under Patroni on three servers.
func TestSystemsPatroni(t *testing.T) {
	atNight(t)
	servers := startEnsemble(t, 3)
	if runPatroni(t, servers) == len(patroniSteps) {
		servers.finish()
	}
}

// runPatroni takes the steps until one fails, and returns how many have not.
func runPatroni(t *testing.T, servers coordinators) int {
	p := &patronis{t: t, servers: servers}
	programs, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	if len(programs) == 0 {
		t.Fatal("PostgreSQL is missing (interop/setup.sh --systems installs it)")
	}
	p.programs = programs[len(programs)-1]
	for i := range p.nodes {
		p.nodes[i] = &patroni{dir: t.TempDir(), rest: freeAddr(t), sql: freeAddr(t)}
	}
	t.Cleanup(func() {
		for i, n := range p.nodes {
			if n.cmd != nil {
				p.kill(i)
			}
			if t.Failed() {
				t.Logf("node%d:\n%s", i, &n.said)
			}
		}
	})
	for i := range p.nodes {
		p.start(i)
	}
	for i, step := range patroniSteps {
		if !t.Run(step.name, func(t *testing.T) {
			defer func(outer *testing.T) { p.t = outer }(p.t)
			p.t = t
			step.run(p)
		}) {
			return i
		}
	}
	return len(patroniSteps)
}

// coordinators are the servers under Patroni: an ensemble, or a zooEnsemble.
type coordinators interface {
	addresses() []string
	leader() int
	kill(i int)
	launch(i int)
	await()
}

type patronis struct {
	t        *testing.T // that of the step
	programs string     // PostgreSQL's
	servers  coordinators
	nodes    [3]*patroni
	rows     int // in the table
}

type patroni struct {
	dir       string
	rest, sql string // addresses
	cmd       *exec.Cmd
	said      tail
}

func (p *patronis) start(i int) {
	p.t.Helper()
	n := p.nodes[i]
	config := filepath.Join(n.dir, "patroni.yml")
	text := fmt.Sprintf(`
scope: test
name: node%d
zookeeper: {hosts: [%s]}
restapi: {listen: "%s", connect_address: "%[3]s"}
bootstrap:
  dcs: {ttl: 20, loop_wait: 1, retry_timeout: 3, postgresql: {use_pg_rewind: true}}
  initdb: [{encoding: UTF8}, data-checksums]
postgresql:
  listen: "%[4]s"
  connect_address: "%[4]s"
  data_dir: %[5]s/data
  bin_dir: %[6]s
  pgpass: %[5]s/pgpass
  authentication: {superuser: {username: postgres}, replication: {username: postgres}}
  parameters: {unix_socket_directories: "", shared_buffers: 16MB, max_connections: 30}
  pg_hba: ["host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"]
`, i, strings.Join(p.servers.addresses(), ", "), n.rest, n.sql, n.dir, p.programs)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		p.t.Fatal(err)
	}
	n.cmd = clientCommand("env", clientCache(p.t, "patroni/bin/python"), "-m", "patroni", config)
	n.cmd.Stdout, n.cmd.Stderr = &n.said, &n.said
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if os.Getuid() == 0 { // PostgreSQL refuses root
		account, err := user.Lookup("postgres")
		if err != nil {
			p.t.Fatal(err)
		}
		uid, _ := strconv.Atoi(account.Uid)
		gid, _ := strconv.Atoi(account.Gid)
		if err := os.Chown(n.dir, uid, gid); err != nil {
			p.t.Fatal(err)
		}
		n.cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		// Python and its packages may be below root's home, and the temporary directory is root's.
		// The capability takes effect in the first program that is executed, which is env.
		const capDACReadSearch = 2
		n.cmd.SysProcAttr.AmbientCaps = []uintptr{capDACReadSearch}
	}
	n.cmd.WaitDelay = 10 * time.Second
	if err := n.cmd.Start(); err != nil {
		n.cmd = nil
		p.t.Fatal(err)
	}
}

// kill kills Patroni and its PostgreSQL, which is in a process group of its own.
func (p *patronis) kill(i int) {
	n := p.nodes[i]
	n.cmd.Process.Kill()
	text, _ := os.ReadFile(filepath.Join(n.dir, "data", "postmaster.pid"))
	line, _, _ := strings.Cut(string(text), "\n")
	if pid, err := strconv.Atoi(line); err == nil {
		syscall.Kill(pid, syscall.SIGKILL) // its children end by themselves
	}
	n.cmd.Wait()
	n.cmd = nil
}

// stop stops Patroni, which stops PostgreSQL.
func (p *patronis) stop(i int) {
	p.t.Helper()
	n := p.nodes[i]
	n.cmd.Process.Signal(syscall.SIGTERM)
	stuck := time.AfterFunc(startDeadline, func() { n.cmd.Process.Kill() })
	err := n.cmd.Wait()
	n.cmd = nil
	if !stuck.Stop() || err != nil {
		p.t.Errorf("node%d does not end in order: %v", i, err)
	}
}

// leader returns the node that leads, as another than except sees it. All others must be
// replicas that replicate.
func (p *patronis) leader(except ...int) (int, error) {
	var cluster struct {
		Members []struct {
			Name, Role, State string
		}
	}
	asked := 0
	if len(except) > 0 {
		asked = (except[0] + 1) % len(p.nodes)
	}
	answer, err := http.Get("http://" + p.nodes[asked].rest + "/cluster")
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	if err := json.NewDecoder(answer.Body).Decode(&cluster); err != nil {
		return 0, err
	}
	leader, replicas := -1, 0
	for _, m := range cluster.Members {
		i, err := strconv.Atoi(strings.TrimPrefix(m.Name, "node"))
		switch {
		case err != nil:
			return 0, err
		case len(except) > 0 && i == except[0]:
		case m.Role == "leader" && m.State == "running":
			leader = i
		case m.Role == "replica" && m.State == "streaming":
			replicas++
		}
	}
	if leader < 0 || replicas != len(p.nodes)-1-len(except) {
		return 0, fmt.Errorf("the members are %v", cluster.Members)
	}
	return leader, nil
}

// settled waits until one node leads and the others replicate, and returns the one that leads.
func (p *patronis) settled() (leader int) {
	p.t.Helper()
	p.eventually("one leads, and the others replicate", func() (err error) {
		leader, err = p.leader()
		return err
	})
	return leader
}

func (p *patronis) sql(i int, statement string) (string, error) {
	host, port, _ := net.SplitHostPort(p.nodes[i].sql)
	out, err := exec.Command(filepath.Join(p.programs, "psql"), "-XAtq", "-h", host, "-p", port, "-U", "postgres", "-c", statement, "postgres").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return strings.TrimSpace(string(out)), err
}

func (p *patronis) expect(i int, statement, want string) error {
	got, err := p.sql(i, statement)
	if err == nil && got != want {
		err = fmt.Errorf("node%d: %s: %s, want %s", i, statement, got, want)
	}
	return err
}

// write executes a statement on the leader.
func (p *patronis) write(statement string, except ...int) {
	p.t.Helper()
	p.eventually(statement, func() error {
		leader, err := p.leader(except...)
		if err == nil {
			_, err = p.sql(leader, statement)
		}
		return err
	})
}

// insert inserts rows and waits until all nodes have all rows.
func (p *patronis) insert(rows int, except ...int) {
	p.t.Helper()
	p.write(fmt.Sprintf("INSERT INTO t SELECT generate_series(%d, %d)", p.rows+1, p.rows+rows), except...)
	p.rows += rows
	for i := range p.nodes {
		if len(except) > 0 && i == except[0] {
			continue
		}
		p.eventually("the rows arrive", func() error {
			return p.expect(i, "SELECT count(*), max(n) FROM t", fmt.Sprintf("%d|%[1]d", p.rows))
		})
	}
}

// post sends a request to Patroni's API: a PATCH of its settings, or a POST.
func (p *patronis) post(i int, path, body string) {
	p.t.Helper()
	method := http.MethodPost
	if path == "/config" {
		method = http.MethodPatch
	}
	p.eventually(path, func() error {
		request, err := http.NewRequest(method, "http://"+p.nodes[i].rest+path, strings.NewReader(body))
		if err != nil {
			return err
		}
		client := http.Client{Timeout: startDeadline}
		answer, err := client.Do(request)
		if err != nil {
			return err
		}
		answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return errors.New(answer.Status)
		}
		return nil
	})
}

func (p *patronis) eventually(what string, try func() error) {
	p.t.Helper()
	eventually(p.t, what, 2*time.Minute, try)
}
