//go:build linux

package main

import (
	"bufio"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
)

// deadline is how long a server may take to start or to stop. It only decides when a test gives up.
const deadline = time.Minute

// serves starts a server, uses it as a client does, and stops it with SIGTERM.
func serves(t *testing.T, c *exec.Cmd) {
	t.Helper()
	pipe := must(c.StderrPipe())(t)
	check(t, c.Start())
	t.Cleanup(func() { c.Process.Kill() })
	lines := make(chan string, 1000)
	go func() {
		for s := bufio.NewScanner(pipe); s.Scan(); {
			lines <- s.Text()
		}
		close(lines)
	}()
	addr := ""
	for after := time.After(deadline); addr == ""; {
		select {
		case line, ok := <-lines:
			if !ok {
				t.Fatalf("it ended before it served: %v", c.Wait())
			}
			t.Log(line)
			_, addr, _ = strings.Cut(line, "lockkeeper: serving ZooKeeper clients on ")
		case <-after:
			t.Fatal("it does not serve")
		}
	}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	conn, _, err := zk.Connect([]string{"127.0.0.1:" + port}, 10*time.Second, zk.WithLogInfo(false))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	node := must(conn.Create("/lock-", []byte("held"), zk.FlagEphemeral|zk.FlagSequence, zk.WorldACL(zk.PermAll)))(t)
	if data, stat, err := conn.Get(node); err != nil || string(data) != "held" || stat.EphemeralOwner != conn.SessionID() {
		t.Errorf("%s: %q, %+v, %v", node, data, stat, err)
	}
	check(t, c.Process.Signal(syscall.SIGTERM))
	ended := make(chan error, 1)
	go func() {
		for line := range lines {
			t.Log(line)
		}
		ended <- c.Wait()
	}()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("after SIGTERM: %v", err)
		}
	case <-time.After(deadline):
		t.Error("it still runs after SIGTERM")
	}
}

// within returns a command in a root directory, as nobody.
func within(t *testing.T, root, dir string, args ...string) *exec.Cmd {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can change the root directory")
	}
	c := exec.CommandContext(context.Background(), args[0], args[1:]...)
	c.Path, c.Err, c.Dir, c.Env = args[0], nil, dir, []string{}
	c.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: nobody, Gid: nobody}, Pdeathsig: syscall.SIGKILL}
	return c
}

// root returns a directory that every user may enter.
func root(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		check(t, os.Chmod(d, 0o755))
	}
	return dir
}

// tool skips the test if a program is not installed, unless LOCKKEEPER_RELEASE_TOOLS is set.
func tool(t *testing.T, name string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		if os.Getenv("LOCKKEEPER_RELEASE_TOOLS") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

func sh(t *testing.T, script string, args ...string) string {
	t.Helper()
	out, err := exec.Command("sh", append([]string{"-euc", script, "sh"}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", script, args, err, out)
	}
	return string(out)
}

func TestRunArchive(t *testing.T) { runs(t, runtime.GOARCH) }

// TestRunEmulated runs the program for the other architecture, on an emulated processor.
func TestRunEmulated(t *testing.T) {
	other, emulator := "arm64", "qemu-aarch64-static"
	if runtime.GOARCH == other {
		other, emulator = "amd64", "qemu-x86_64-static"
	}
	tool(t, emulator)
	runs(t, other, emulator)
}

// runs runs the program in an archive for Linux, with an emulator if there is one.
func runs(t *testing.T, arch string, emulator ...string) {
	t.Helper()
	dir := t.TempDir()
	lay(t, unpack(t, product(t, "linux_"+arch+".tar.gz")), dir)
	found, err := filepath.Glob(filepath.Join(dir, "*/lockkeeper"))
	if err != nil || len(found) != 1 {
		t.Fatalf("%q, %v", found, err)
	}
	program := append(emulator, found[0])
	out := sh(t, `"$@" version`, program...)
	if !strings.Contains(out, ", commit ") || strings.Contains(out, "modified") || !strings.Contains(out, "linux/"+arch) {
		t.Errorf("its version is %q", out)
	}
	program = append(program, "serve", "--listen", "127.0.0.1:0", "--data", filepath.Join(dir, "data"))
	c := exec.Command(program[0], program[1:]...)
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	serves(t, c)
}

// installedIn checks what a package has put below a directory, and runs it as its service does:
// with the shipped configuration and its own user. Only the port is another one.
func installedIn(t *testing.T, dir string) {
	t.Helper()
	unit := must(os.ReadFile(filepath.Join(dir, "usr/lib/systemd/system/lockkeeper.service")))(t)
	_, command, _ := strings.Cut(string(unit), "\nExecStart=")
	command, _, _ = strings.Cut(command, "\n")
	for _, name := range []string{"usr/share/man/man1/lockkeeper.1.gz", "usr/share/bash-completion/completions/lockkeeper", "usr/lib/sysusers.d/lockkeeper.conf"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode() != 0o644 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	state := filepath.Join(dir, "var/lib/lockkeeper") // StateDirectory
	check(t, os.MkdirAll(state, 0o755))
	check(t, os.Chown(state, nobody, nobody))
	c := within(t, dir, "/var/lib/lockkeeper", strings.Fields(command)...)
	c.Env = []string{"LOCKKEEPER_LISTEN=127.0.0.1:0"}
	serves(t, c)
	if _, err := os.Stat(filepath.Join(state, "meta.json")); err != nil {
		t.Errorf("the data is not in the service's directory: %v", err)
	}
}

func TestRunDeb(t *testing.T) {
	tool(t, "dpkg-deb")
	deb, dir := productPath(t, runtime.GOARCH+".deb"), root(t)
	sh(t, `dpkg-deb --extract "$1" "$2" && dpkg-deb --control "$1" "$2/DEBIAN"`, deb, dir)
	sh(t, `cd "$1" && md5sum --quiet -c DEBIAN/md5sums && for s in postinst prerm postrm; do sh -n DEBIAN/$s; done; grep -qx /etc/lockkeeper/zoo.cfg DEBIAN/conffiles`, dir)
	installedIn(t, dir)
}

func TestRunRPM(t *testing.T) {
	for _, name := range []string{"rpm", "rpm2cpio", "cpio"} {
		tool(t, name)
	}
	rpm, dir := productPath(t, map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]+".rpm"), root(t)
	sh(t, `rpm --dbpath "$2/db" -K "$1" && rpm2cpio "$1" | (mkdir "$2/root" && chmod 755 "$2/root" && cd "$2/root" && cpio --quiet -id --no-absolute-filenames)`, rpm, dir)
	if out := sh(t, `rpm --dbpath "$2/db" -qp --configfiles --scripts "$1"`, rpm, dir); !strings.Contains(out, "/etc/lockkeeper/zoo.cfg") || strings.Count(out, "scriptlet") != 3 {
		t.Errorf("its scripts and configuration:\n%s", out)
	}
	installedIn(t, filepath.Join(dir, "root"))
}

// TestUnitStays: however often the server ends, and however long a member waits for the others, systemd neither
// gives it up nor kills it. What is ordered after it begins when it serves.
func TestUnitStays(t *testing.T) {
	unit := must(os.ReadFile("files/lockkeeper.service"))(t)
	general, service, _ := strings.Cut(string(unit), "[Service]")
	for line, in := range map[string]string{
		"StartLimitIntervalSec=0": general, "Type=notify": service, "TimeoutStartSec=infinity": service, "Restart=on-failure": service, "RestartSec=1": service, "RestartSteps=5": service, "RestartMaxDelaySec=30": service,
	} {
		if !strings.Contains(in, "\n"+line+"\n") {
			t.Errorf("the unit has no line %s in its section", line)
		}
	}
}

// TestUnit: systemd accepts the unit and the user, and the unit has no more rights than it needs.
func TestUnit(t *testing.T) {
	tool(t, "systemd-analyze")
	dir := root(t)
	lay(t, unpack(t, debData(t)), dir)
	// With --root it would look for systemd's own units there.
	said := sh(t, `mkdir "$1/unit" && sed "s|=/usr/bin/|=$1/usr/bin/|" "$1/usr/lib/systemd/system/lockkeeper.service" >"$1/unit/lockkeeper.service"
		systemd-analyze verify --man=no "$1/unit/lockkeeper.service"`, dir)
	for line := range strings.Lines(said) {
		if !strings.Contains(line, "'RestartSteps'") && !strings.Contains(line, "'RestartMaxDelaySec'") { // unknown before systemd 254
			t.Errorf("systemd-analyze: %s", line)
		}
	}
	sh(t, `systemd-analyze security --root="$1" --offline=true --threshold=20 lockkeeper.service`, dir)
	if _, err := exec.LookPath("systemd-sysusers"); err == nil {
		sh(t, `systemd-sysusers --root="$1" && grep -q '^lockkeeper:' "$1/etc/passwd"`, dir)
	}
}

// debData returns the second tar of the package for Debian.
func debData(t *testing.T) []byte {
	t.Helper()
	data := product(t, runtime.GOARCH+".deb")
	const header = 60
	i := strings.Index(string(data), "data.tar.gz ")
	size := must(strconv.Atoi(strings.TrimSpace(string(data[i+48 : i+58]))))(t)
	return data[i+header : i+header+size]
}

// TestRunImage runs the image for this machine as a container does: only with its files, its user
// and its environment, and with variables of ZooKeeper's image.
func TestRunImage(t *testing.T) {
	configs, layers := images(t)
	image := configs[runtime.GOARCH]
	dir := root(t)
	lay(t, unpack(t, layers[runtime.GOARCH]), dir)
	c := within(t, dir, image.Config.WorkingDir, append(image.Config.Entrypoint, image.Config.Cmd...)...)
	listener := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	port := listener.Addr().(*net.TCPAddr).Port
	listener.Close()
	c.Env = append(image.Config.Env, "ZOO_MY_ID=3", "ZOO_TICK_TIME=500", "ZOO_ADMINSERVER_ENABLED=false", "ZOO_STANDALONE_ENABLED=true",
		"ZOO_SERVERS=server.3=127.0.0.1:2888:3888;127.0.0.1:"+strconv.Itoa(port), "ZOO_MAX_CLIENT_CNXNS=5", "ZOO_4LW_COMMANDS_WHITELIST=srvr", "ZOO_CFG_EXTRA=maxSessionTimeout=60000")
	serves(t, c)
	if _, err := os.Stat(filepath.Join(dir, "data/meta.json")); err != nil {
		t.Errorf("the data is not in /data: %v", err)
	}
}
