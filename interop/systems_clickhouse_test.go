//go:build interop

package interop

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// clickHouseSteps are the normal work of a replicated table, and failures. Each step finds what
// the ones before it have left.
var clickHouseSteps = []struct {
	name string
	run  func(*clickHouses)
}{
	{"create on both replicas", func(c *clickHouses) {
		c.ask(0, `CREATE TABLE t ON CLUSTER both (d Date, n UInt64, s String) ENGINE = ReplicatedMergeTree('/clickhouse/t', '{replica}', d, (d, n), 8192)`)
		c.same("0 0")
	}},
	{"insert, and read from the other", func(c *clickHouses) {
		c.insert(0, 1, 1000)
		c.insert(1, 1001, 2000)
		c.same("2000 2001000")
	}},
	{"the same block twice is one", func(c *clickHouses) {
		c.insert(0, 1, 1000)
		c.insert(1, 1, 1000)
		c.same("2000 2001000")
	}},
	{"merge", func(c *clickHouses) {
		for n := 2001; n <= 2020; n++ {
			c.insert(n%2, n, n)
		}
		c.same("2020 2041210")
		c.ask(1, "OPTIMIZE TABLE t FINAL")
		c.await("parts", "1", func(i int) (string, error) {
			return c.query(i, "SELECT count() FROM system.parts WHERE table = 't' AND active")
		})
		c.same("2020 2041210")
	}},
	{"add a column", func(c *clickHouses) {
		c.ask(0, "ALTER TABLE t ADD COLUMN more UInt8 DEFAULT 7")
		c.await("the new column", "14140", func(i int) (string, error) { return c.query(i, "SELECT sum(more) FROM t") })
	}},
	{"a replica that was down catches up", func(c *clickHouses) {
		c.stop(1)
		c.insert(0, 2021, 3000)
		c.start(1)
		c.same("3000 4501500")
	}},
	{"the leader is killed during inserts", func(c *clickHouses) {
		leader := c.servers.leader()
		c.servers.kill(leader)
		for n := 3001; n <= 3020; n++ {
			c.insert(n%2, n, n)
		}
		c.servers.launch(leader)
		c.servers.await()
		c.same("3020 4561710")
	}},
	{"all coordination servers are killed, and start again", func(c *clickHouses) {
		for i := range c.servers.procs {
			c.servers.kill(i)
		}
		if _, err := c.query(0, "INSERT INTO t (d, n, s) VALUES ('2026-01-01', 9999, 'lost')"); err == nil {
			c.t.Error("an insert succeeded without a coordination server")
		}
		for i := range c.servers.procs {
			c.servers.launch(i)
		}
		c.servers.await()
		for n := 3021; n <= 3040; n++ {
			c.insert(n%2, n, n)
		}
		c.same("3040 4622320")
	}},
	{"drop a partition", func(c *clickHouses) {
		c.ask(1, "INSERT INTO t (d, n, s) VALUES ('2026-02-01', 1, 'short-lived')")
		c.same("3041 4622321")
		// The replica that leads does this, and after a failure they may still be electing it.
		c.eventually("the partition is dropped", func() error {
			_, err := c.query(0, "ALTER TABLE t DROP PARTITION 202602")
			return err
		})
		c.same("3040 4622320")
	}},
	{"drop the table", func(c *clickHouses) {
		c.ask(0, "DROP TABLE t ON CLUSTER both")
		conn := connect(c.t, c.servers.listen[0], 10*time.Second)
		if ok, _, err := conn.Exists("/clickhouse/t"); err != nil || ok {
			c.t.Errorf("the table's znodes still exist: %v, %v", ok, err)
		}
	}},
}

// TestSystemsClickHouse runs two ClickHouse servers with a replicated table on three servers.
func TestSystemsClickHouse(t *testing.T) {
	atNight(t)
	c := &clickHouses{root: clientCache(t, "clickhouse"), servers: startEnsemble(t, 3)}
	c.t = t
	for i := range c.replicas {
		c.replicas[i] = &clickHouse{dir: t.TempDir(), http: freeAddr(t), tcp: freeAddr(t), between: freeAddr(t)}
	}
	t.Cleanup(func() {
		for i, r := range c.replicas {
			if r.cmd != nil {
				r.cmd.Process.Kill()
				r.cmd.Wait()
			}
			if t.Failed() {
				text, _ := os.ReadFile(filepath.Join(r.dir, "errors"))
				t.Logf("ClickHouse %d: %s\nits errors end with:\n%s", i, &r.said, text[max(0, len(text)-8000):])
			}
		}
	})
	for i := range c.replicas {
		c.start(i)
	}
	for _, step := range clickHouseSteps {
		if !t.Run(step.name, func(t *testing.T) {
			defer func(outer *testing.T) { c.t = outer }(c.t)
			c.t = t
			step.run(c)
		}) {
			return
		}
	}
	for i := range c.replicas {
		c.stop(i)
	}
	c.servers.finish()
}

type clickHouses struct {
	t        *testing.T // that of the step
	root     string     // where the packages are unpacked
	servers  *ensemble
	replicas [2]*clickHouse
}

type clickHouse struct {
	dir                string
	http, tcp, between string // addresses
	cmd                *exec.Cmd
	said               tail
}

// start starts a replica and waits until it answers.
func (c *clickHouses) start(i int) {
	c.t.Helper()
	r := c.replicas[i]
	port := func(addr string) string {
		_, port, _ := net.SplitHostPort(addr)
		return port
	}
	var nodes, replicas strings.Builder
	for j, addr := range c.servers.listen {
		fmt.Fprintf(&nodes, "<node index=\"%d\"><host>127.0.0.1</host><port>%s</port></node>\n", j+1, port(addr))
	}
	for _, other := range c.replicas {
		fmt.Fprintf(&replicas, "<replica><host>127.0.0.1</host><port>%s</port></replica>\n", port(other.tcp))
	}
	config := filepath.Join(r.dir, "config.xml")
	text := fmt.Sprintf(`<yandex>
<logger><level>information</level><log>%[1]s/log</log><errorlog>%[1]s/errors</errorlog></logger>
<listen_host>127.0.0.1</listen_host>
<http_port>%[2]s</http_port><tcp_port>%[3]s</tcp_port>
<interserver_http_host>127.0.0.1</interserver_http_host><interserver_http_port>%[4]s</interserver_http_port>
<path>%[1]s/data/</path><tmp_path>%[1]s/tmp/</tmp_path>
<user_files_path>%[1]s/files/</user_files_path><format_schema_path>%[1]s/schemas/</format_schema_path>
<users_config>%[5]s</users_config>
<default_profile>default</default_profile><default_database>default</default_database>
<mark_cache_size>16777216</mark_cache_size>
<macros><replica>%[6]d</replica></macros>
<zookeeper>%[7]s<session_timeout_ms>10000</session_timeout_ms></zookeeper>
<distributed_ddl><path>/clickhouse/ddl</path></distributed_ddl>
<remote_servers><both><shard><internal_replication>true</internal_replication>%[8]s</shard></both></remote_servers>
</yandex>
`, r.dir, port(r.http), port(r.tcp), port(r.between), filepath.Join(c.root, "etc/clickhouse-server/users.xml"), i+1, &nodes, &replicas)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
	r.cmd = clientCommand(filepath.Join(c.root, "usr/sbin/clickhouse-server"), "--config-file="+config)
	libraries, _ := filepath.Glob(filepath.Join(c.root, "usr/lib/*-linux-gnu"))
	more, _ := filepath.Glob(filepath.Join(c.root, "lib/*-linux-gnu"))
	r.cmd.Env = append(r.cmd.Env, "LD_LIBRARY_PATH="+strings.Join(append(libraries, more...), ":"))
	r.cmd.Stdout, r.cmd.Stderr = &r.said, &r.said
	r.cmd.Dir = r.dir
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := r.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.eventually("ClickHouse answers", func() error {
		_, err := c.query(i, "SELECT 1")
		return err
	})
}

func (c *clickHouses) stop(i int) {
	c.t.Helper()
	r := c.replicas[i]
	r.cmd.Process.Signal(syscall.SIGTERM)
	stuck := time.AfterFunc(startDeadline, func() { r.cmd.Process.Kill() })
	r.cmd.Wait()
	r.cmd = nil
	if !stuck.Stop() {
		c.t.Errorf("ClickHouse %d does not end", i)
	}
}

func (c *clickHouses) query(i int, query string) (string, error) {
	client := http.Client{Timeout: startDeadline}
	answer, err := client.Post("http://"+c.replicas[i].http+"/?distributed_ddl_task_timeout=60", "text/plain", strings.NewReader(query))
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = errors.New(string(text))
	}
	return strings.Join(strings.Fields(string(text)), " "), err
}

// ask sends a query that must succeed.
func (c *clickHouses) ask(i int, query string) {
	c.t.Helper()
	if _, err := c.query(i, query); err != nil {
		c.t.Fatalf("%s: %v", query, err)
	}
}

// insert inserts the numbers from first to last as one block. While it has no session, ClickHouse
// refuses inserts; what is repeated and was already inserted is dropped, as a block that exists.
func (c *clickHouses) insert(i, first, last int) {
	c.t.Helper()
	c.eventually("an insert succeeds", func() error {
		_, err := c.query(i, fmt.Sprintf("INSERT INTO t (d, n, s) SELECT toDate('2026-01-01'), number + %d, 'x' FROM numbers(%d)", first, last-first+1))
		return err
	})
}

// same waits until both replicas have the same rows: their number and sum.
func (c *clickHouses) same(want string) {
	c.t.Helper()
	c.await("number and sum of the rows", want, func(i int) (string, error) { return c.query(i, "SELECT count(), sum(n) FROM t") })
}

// await waits until both replicas answer the same.
func (c *clickHouses) await(what, want string, ask func(i int) (string, error)) {
	c.t.Helper()
	for i := range c.replicas {
		c.eventually("replica "+fmt.Sprint(i), func() error {
			got, err := ask(i)
			if err == nil && got != want {
				err = fmt.Errorf("%s: %s, want %s", what, got, want)
			}
			return err
		})
	}
}

func (c *clickHouses) eventually(what string, try func() error) {
	c.t.Helper()
	eventually(c.t, what, 2*time.Minute, try)
}

// eventually tries something until it succeeds.
func eventually(t *testing.T, what string, limit time.Duration, try func() error) {
	t.Helper()
	for deadline := time.Now().Add(limit); ; time.Sleep(100 * time.Millisecond) {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v: %v", what, limit, err)
		}
	}
}
