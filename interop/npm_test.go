//go:build interop

package interop

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestPackagesNpm builds the packages for npm for this machine, and installs them from a registry of
// its own into a project that has Jest, Vitest and a client, but no Go. Then it runs the tests in
// the packages' README, those in clients/npm/project, and the example in docs/examples/node.
func TestPackagesNpm(t *testing.T) {
	t.Parallel()
	p := newNodeProject(t)
	p.lay(t, "clients/npm/project", ".")
	p.lay(t, "../docs/examples/node", "example")
	for name, text := range readmeTests(t) {
		p.write(t, name, text)
	}

	judged := fileText(t, "../packages/judged.json")
	p.write(t, "judged.json", []byte(judged))
	t.Run("judged", func(t *testing.T) {
		p.passes(t, "node --test --test-reporter=tap judged.test.mjs", "# pass "+strconv.Itoa(strings.Count(judged, `"steps"`)))
	})
	t.Run("node:test", func(t *testing.T) {
		p.passes(t, "node --test --test-reporter=tap first.test.mjs expiry.test.mjs fault.test.mjs cluster.test.mjs guard.test.mjs clients.test.mjs",
			"# tests 15", "# pass 15")
		p.passes(t, "node plain.mjs", "127.0.0.1:")
	})
	t.Run("Jest", func(t *testing.T) {
		for _, config := range []string{"", "globalSetup: 'lockkeeper/global-setup', globalTeardown: 'lockkeeper/global-teardown'"} {
			p.write(t, "jest/jest.config.js", []byte("module.exports = { "+config+" }\n"))
			p.passes(t, "node node_modules/jest/bin/jest.js --config jest/jest.config.js", "Tests:       5 passed, 5 total")
		}
	})
	t.Run("Vitest", func(t *testing.T) {
		for _, config := range []string{"", "pool: 'threads'", "globalSetup: 'lockkeeper/global-setup'"} {
			p.write(t, "vitest/vitest.config.mjs", []byte("export default { test: { "+config+" } }\n"))
			p.passes(t, "node node_modules/vitest/vitest.mjs run --root vitest", "Tests  3 passed (3)")
		}
	})
	t.Run("failures", func(t *testing.T) {
		const late, forgotten, unmet = "it still waited: /wait/exists: /late is not created", "it still waited: /wait/exists: /forgotten is not created", "the test fails, since its fault { do: 'drop', path: '/unmet' } has had no effect (requests that it matched: 0). If it need not meet a request, add optional: true"
		p.fails(t, "node --test --test-reporter=tap fails/node.test.mjs", "# pass 1",
			"# lockkeeper: the znodes:\n# /here\n", late, forgotten, unmet, "/unmet-here\n",
			"its fault { do: 'drop', path: '/disposed' } has had no effect", "its lock /stopped cannot be judged: /guard/verdict: there is no server")
		p.fails(t, "node node_modules/jest/bin/jest.js --rootDir fails/jest fails.test.js", "4 failed, 1 passed", late, forgotten, unmet, "/unmet-here\n", "the lock /judged failed")
		p.fails(t, "node node_modules/jest/bin/jest.js --rootDir fails/jest dies.test.js", "1 failed, 2 passed", "its lock /dead cannot be judged: lockkeeper: /guard/verdict: the server 127.0.0.1:",
			"has ended with SIGKILL\n", "lockkeeper: the tests that follow have a new server, 127.0.0.1:")
		p.fails(t, "node node_modules/vitest/vitest.mjs run --root fails/vitest", "4 failed (4)", "lockkeeper: the znodes:\n/here\n", late, forgotten, unmet, "/unmet-here\n")
	})
	t.Run("example", func(t *testing.T) {
		p.passes(t, "node --test --test-reporter=tap example/paused.test.js", "# pass 2")
	})
	t.Run("types", func(t *testing.T) {
		p.passes(t, "node node_modules/typescript/bin/tsc --strict --noEmit --skipLibCheck false --target es2022 --lib es2022,dom --module nodenext --types node types.mts types.cts")
	})
	t.Run("killed", p.killed)
}

// TestSystemsNativeNode runs programs with the native client zookeeper, and those of its own tests that
// need a server, with a server of the packages for npm.
func TestSystemsNativeNode(t *testing.T) {
	atNight(t)
	p := newNativeNode(t)
	p.passes(t, "node --test --test-reporter=tap ../native.test.mjs", "# pass 2")
	p.passes(t, "node ../native.mjs "+nativeNodeTests, "14 tests passed")
}

// nativeNodeTests are the client's own tests, as arguments of node. The address of a server follows.
const nativeNodeTests = "../node_modules/ava/entrypoints/cli.mjs tests/integration/*.js --"

// newNativeNode returns a project that is in the folder of the native client, with the programs in its parent.
func newNativeNode(t *testing.T) *nodeProject {
	t.Helper()
	p := newNodeProject(t)
	p.lay(t, "clients/npm/project", ".")
	// The tests are in the client's package. ava refuses tests in node_modules.
	link(t, filepath.Join(p.dir, "node_modules/zookeeper"), filepath.Join(p.dir, "native"))
	p.in = "native"
	return p
}

// killed checks that no server is left when the process that has started it is killed, or ends.
func (p *nodeProject) killed(t *testing.T) {
	runner := p.command("node runner.cjs")
	runner.Stderr = os.Stderr
	out := must(runner.StdoutPipe())(t)
	check(t, runner.Start())
	t.Cleanup(func() { runner.Process.Kill() })
	line := make([]byte, 100)
	n := must(out.Read(line))(t)
	servers := strings.Fields(string(line[:n]))
	if len(servers) != 2 {
		t.Fatalf("the servers are %q", servers)
	}
	for _, server := range servers {
		if !runsProcess(t, server) {
			t.Fatalf("the server %s does not run", server)
		}
	}
	runner.Process.Kill()
	runner.Wait()
	ended := must(p.command("node ends.mjs").Output())(t)
	for _, server := range append(servers, strings.TrimSpace(string(ended))) {
		for end := time.Now().Add(startDeadline); runsProcess(t, server); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("the server %s still runs", server)
			}
		}
	}
}

// runsProcess returns whether a process runs. A zombie, which its new parent has not noticed yet, does not.
func runsProcess(t *testing.T, pid string) bool {
	t.Helper()
	must(strconv.Atoi(pid))(t)
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	return err == nil && !bytes.Contains(stat, []byte(") Z ")) && bytes.Contains(stat, []byte("(lockkeeper)"))
}

// nodeProject is a folder with programs for Node.
type nodeProject struct {
	dir string
	in  string // a folder in it, in which commands run
	env []string
}

// newNodeProject makes a project as its users do, whose PATH has no Go.
func newNodeProject(t *testing.T) *nodeProject {
	t.Helper()
	cached := clientCache(t, "npm/node_modules")
	p := &nodeProject{dir: filepath.Join(t.TempDir(), "project")}
	home, bin := t.TempDir(), t.TempDir()
	for _, name := range []string{"node", "npm", "sh"} {
		path := must(exec.LookPath(name))(t)
		check(t, os.Symlink(path, filepath.Join(bin, name)))
	}
	p.env = []string{"PATH=" + bin, "HOME=" + home, "TMPDIR=" + home, "LOCKKEEPER_DATA=/ignored", "NO_COLOR=1", "CI=true"}
	check(t, os.MkdirAll(p.dir, 0o755))
	link(t, cached, filepath.Join(p.dir, "node_modules"))
	for _, name := range []string{"package.json", "package-lock.json"} {
		data := must(os.ReadFile("clients/npm/" + name))(t)
		p.write(t, name, data)
	}
	registry := npmRegistry(t, buildNpm(t))
	p.passes(t, "npm install --save-dev --prefer-offline --no-audit --no-fund --registry="+registry+" lockkeeper")
	host := map[string]string{"amd64": "x64"}[runtime.GOARCH]
	if host == "" {
		host = runtime.GOARCH
	}
	program, err := os.Stat(filepath.Join(p.dir, "node_modules/lockkeeper-linux-"+host+"/bin/lockkeeper"))
	if err != nil || program.Mode()&0o111 != 0o111 {
		t.Fatal(program, err)
	}
	return p
}

// buildNpm builds the packages for this machine from the commit that is checked out.
func buildNpm(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	cmd := exec.Command("go", "run", "-C", "../.ci/release", ".", "-only", "npm", "-pgo", "off", "-platforms", runtime.GOOS+"/"+runtime.GOARCH, "-o", dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return dir
}

// npmRegistry serves the packages in a folder as npm's registry would, and no others. It returns its URL.
func npmRegistry(t *testing.T, dir string) string {
	t.Helper()
	packages, err := filepath.Glob(filepath.Join(dir, "*.tgz"))
	if err != nil || len(packages) != 2 {
		t.Fatal(packages, err)
	}
	mux := http.NewServeMux()
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	for _, name := range packages {
		data := must(os.ReadFile(name))(t)
		manifest := packedManifest(t, data)
		file := "/" + filepath.Base(name)
		sum := sha512.Sum512(data)
		manifest["dist"] = map[string]string{"tarball": server.URL + file, "integrity": "sha512-" + base64.StdEncoding.EncodeToString(sum[:])}
		version := manifest["version"].(string)
		document, err := json.Marshal(map[string]any{
			"name": manifest["name"], "dist-tags": map[string]string{"latest": version}, "versions": map[string]any{version: manifest},
		})
		if err != nil {
			t.Fatal(err)
		}
		mux.HandleFunc(file, func(w http.ResponseWriter, _ *http.Request) { w.Write(data) })
		mux.HandleFunc("/"+manifest["name"].(string), func(w http.ResponseWriter, _ *http.Request) { w.Write(document) })
	}
	return server.URL
}

// packedManifest returns the package.json of a package.
func packedManifest(t *testing.T, data []byte) (manifest map[string]any) {
	t.Helper()
	z := must(gzip.NewReader(bytes.NewReader(data)))(t)
	for r := tar.NewReader(z); ; {
		h := must(r.Next())(t)
		if h.Name != "package/package.json" {
			continue
		}
		text, err := io.ReadAll(r)
		if err == nil {
			err = json.Unmarshal(text, &manifest)
		}
		if err != nil {
			t.Fatal(err)
		}
		return manifest
	}
}

// readmeTests returns the programs in the packages' README, by the names in the comments above them.
func readmeTests(t *testing.T) map[string][]byte {
	t.Helper()
	text := must(os.ReadFile("../packages/npm/README.md"))(t)
	all := map[string][]byte{}
	for _, m := range regexp.MustCompile("(?s)<!-- test: (\\S+) -->\n```js\n(.*?)```\n").FindAllSubmatch(text, -1) {
		all[string(m[1])] = m[2]
	}
	if blocks := bytes.Count(text, []byte("```js\n")); len(all) != blocks || blocks < 8 {
		t.Fatalf("%d programs, of %d", len(all), blocks)
	}
	return all
}

func (p *nodeProject) write(t *testing.T, name string, data []byte) {
	t.Helper()
	path := filepath.Join(p.dir, name)
	check(t, os.MkdirAll(filepath.Dir(path), 0o755))
	check(t, os.WriteFile(path, data, 0o644))
}

// lay copies a folder into the project.
func (p *nodeProject) lay(t *testing.T, from, to string) {
	t.Helper()
	check(t, os.CopyFS(filepath.Join(p.dir, to), os.DirFS(from)))
}

// link copies a folder whose files nobody changes.
func link(t *testing.T, from, to string) {
	t.Helper()
	if exec.Command("cp", "-al", from, to).Run() == nil {
		return
	}
	os.RemoveAll(to) // another file system
	if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// command returns a command in the project, of a shell.
func (p *nodeProject) command(line string) *exec.Cmd {
	cmd := exec.Command("sh", "-c", "exec "+line)
	cmd.Dir, cmd.Env = filepath.Join(p.dir, p.in), p.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// passes runs a command, which must succeed and print these texts.
func (p *nodeProject) passes(t *testing.T, line string, texts ...string) {
	t.Helper()
	out, err := p.run(t, line)
	p.prints(t, line, out, err, texts)
}

// fails runs tests that must fail, with these texts in what is printed.
func (p *nodeProject) fails(t *testing.T, line string, texts ...string) {
	t.Helper()
	out, err := p.run(t, line)
	if _, exited := errors.AsType[*exec.ExitError](err); exited {
		err = nil
	} else if err == nil {
		err = errors.New("the tests have not failed")
	}
	p.prints(t, line, out, err, texts)
}

// prints checks that a command, whose error was err, has printed these texts.
func (p *nodeProject) prints(t *testing.T, line, out string, err error, texts []string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(out, text) {
			err = fmt.Errorf("%v; it does not print %q", err, text)
		}
	}
	if err != nil {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
}

// run runs a command and returns what it prints.
func (p *nodeProject) run(t *testing.T, line string) (string, error) {
	t.Helper()
	cmd := p.command(line)
	cmd.SysProcAttr.Setpgid = true
	cmd.WaitDelay = 10 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	check(t, cmd.Start())
	stuck := time.AfterFunc(clientDeadline, func() { syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	defer stuck.Stop()
	err := cmd.Wait()
	return out.String(), err
}
