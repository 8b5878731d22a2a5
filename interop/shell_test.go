//go:build interop

package interop

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// shellCase is a part of a session of ZooKeeper's shell, zkCli.sh.
type shellCase struct {
	name     string
	commands string
	sorted   bool // sort the lines, whose order is that of a Java hash set
}

// shellScript is the whole session, which starts with an empty tree.
var shellScript = []shellCase{
	{name: "empty", commands: `
		ls /
		ls -R /
		stat /
		ls -s /zookeeper
		get /zookeeper
		getAllChildrenNumber /
		getEphemerals`},
	{name: "create", commands: `
		create /a
		create /a data
		create /a/b "two words"
		create -s /a/s- x
		create -s /a/s- x
		create -e /a/e x
		create -e -s /a/es- x
		create -c /a/c x
		create -t 600000 /a/t x
		create -s -t 600000 /a/st- x
		create -e -t 10 /a/wrong x
		create -c -e /a/wrong x
		create -t 0 /a/wrong x
		create /none/x
		create /a/e/x
		create relative
		create /a//b
		create /a/acl x world:anyone:r
		create /a/acl2 x digest:user:hash:cdrwa,ip:127.0.0.1:r
		create /a/wrong x none:anyone:r
		create`},
	{name: "ls", commands: `
		ls /a
		ls -s /a
		ls -R /a
		ls /none
		ls`},
	{name: "get", commands: `
		get /a/b
		get -s /a/b
		get -b /a/b
		get -x /a/b
		get -s /a/e
		get -s /a/c
		get -s /a/t
		get /a
		get /none
		stat /a
		stat /a/e
		stat /none`},
	{name: "set", commands: `
		set /a/b other
		set -s /a/b third
		set -v 2 /a/b fourth
		set -v 2 -s /a/b fifth
		set -b /a/b Zm91cg==
		get -s /a/b
		set /none x`},
	{name: "watches", commands: `
		get -w /a/b
		set /a/b watched
		stat -w /a/new
		create /a/w x
		stat -w /a/w
		ls -w /a/w
		create /a/w/x
		get -s -w /a/w
		set /a/w y
		set /a/w z
		delete /a/w/x
		delete /a/w
		sync /a`},
	{name: "addWatch", commands: `
		create /watch
		addWatch /watch
		create /watch/x
		set /watch/x y
		addWatch -m PERSISTENT /watch/x
		set /watch/x z
		delete /watch/x
		addWatch -m none /watch
		removewatches /watch -r
		removewatches /watch -r
		removewatches /watch/x -p
		removewatches /watch/x
		get -w /watch
		removewatches /watch -d
		ls -w /watch
		removewatches /watch -c
		get -w /watch
		removewatches /watch -a
		create /watch/y
		set /watch x
		sync /watch`},
	{name: "printwatches", commands: `
		printwatches
		printwatches off
		printwatches
		printwatches on`},
	{name: "acl", commands: `
		getAcl /a
		getAcl -s /a/acl
		getAcl /a/acl2
		getAcl /none
		create /acl x
		setAcl /acl world:anyone:crwda
		setAcl -s /acl ip:127.0.0.1:cdrwa
		setAcl -v 0 /acl world:anyone:r
		setAcl -v 2 -s /acl world:anyone:ra
		set /acl y
		create /acl/x
		delete /a/acl
		setAcl /acl none
		setAcl /acl world:anyone:q
		setAcl /none world:anyone:r
		create /acl-tree
		create /acl-tree/x
		create /acl-tree/x/y
		setAcl -R /acl-tree world:anyone:ra
		getAcl /acl-tree/x/y
		setAcl -R /acl-tree world:anyone:cdrwa`},
	{name: "addauth", commands: `
		create /auth x auth::cdrwa
		addauth digest user:secret
		create /auth x auth::cdrwa
		getAcl /auth
		setAcl /auth auth::r
		set /auth y
		setAcl /a/b auth::cdrwa
		getAcl -s /a/b`},
	{name: "whoami", commands: `whoami`, sorted: true},
	{name: "numbers", commands: `
		getAllChildrenNumber /a
		getAllChildrenNumber /
		getAllChildrenNumber /none
		getEphemerals /a/es
		getEphemerals /none
		getEphemerals a`},
	{name: "delete", commands: `
		delete /a
		delete -v 7 /a/acl2
		delete -v 0 /a/acl2
		delete /a/acl2
		delete /none
		deleteall /a
		deleteall -b 1 /acl-tree
		deleteall /none
		ls -R /`},
	{name: "system", commands: `
		config
		config -s
		config -c
		reconfig -add server.9=127.0.0.1:1:2;3
		reconfig -remove 1
		reconfig
		delete /zookeeper
		delete /zookeeper/config
		delete /zookeeper/quota
		create /zookeeper/x
		set /zookeeper/config x
		getAcl /zookeeper/config
		sync /
		sync /none
		sync`},
	{name: "shell", commands: `
		version
		history
		redo 1
		none
		ls -q /`},
	{name: "options", commands: `
		create /opt x
		get -z /opt
		get -sw /opt
		get -sz /opt
		get -- /opt
		get -s -- /opt
		set /opt y -s
		set -v
		set -v5 /opt z
		set -v=1 /opt z
		set --v 1 /opt z
		set -v -1 /opt z
		set -v -s /opt z
		set -v "7" /opt z
		create /opt-negative -5
		create -t x /opt-ttl
		create -c -s /opt-container
		deleteall -b x /opt
		setquota /opt
		setquota -n 1 -b 5 /opt
		setquota -n -b 5 /opt
		delquota -n -b /opt
		reconfig -v zz -add 1
		reconfig -add 1 -members 2
		reconfig -file /none -members 2
		get -x /opt
		ls -? /opt
		ls -?
		addWatch /a /b
		version 1`},
	{name: "usage", commands: `
		get
		set /opt
		create -s
		delete
		deleteall
		stat
		getAcl
		setAcl /opt
		addauth
		addWatch
		removewatches
		listquota
		delquota
		setquota -n 1
		getAllChildrenNumber
		reconfig`},
	{name: "deprecated", commands: `
		get /opt true
		ls /opt true
		stat /opt true
		get -s /opt true
		delete /opt 7
		create /opt z`},
	{name: "quotes", commands: `
		create "/quo ted" 'a "b" c'
		get "/quo ted"
		get '/quo ted
		create /quo'ted "a'b"
		get /quo'ted
		set /quo'ted ""
		get /quo'ted
		set /quo'ted ✓ü
		get -x /quo'ted
		get -s /quo'ted
		set -b /quo'ted AAECAwQFBgcICQoLDA0ODxAREhM=
		get -x /quo'ted
		create /quo..ted
		create /quoted/..
		create /quoted/.
		create /...
		get /...`},
	{name: "redo", commands: `
		history
		redo 0x1
		redo 100000
		redo -1
		redo
		printwatches x
		printwatches
		printwatches on`},
	{name: "quota", commands: `
		create /q x
		create /q/1 x
		listquota /q
		setquota -n 10 /q
		setquota -b 100 /q
		setquota -N 20 /q
		setquota -B 200 /q
		listquota /q
		create /q/2 xyz
		set /q/1 longer
		listquota /q
		delete /q/2
		listquota /q
		setquota -n 1 /q/1
		setquota -n -5 /q
		setquota -n x /q
		setquota -n 1 /none
		setquota -n 1 /zookeeper
		ls -R /zookeeper
		get /zookeeper/quota/q/zookeeper_limits
		get /zookeeper/quota/q/zookeeper_stats
		delquota -n /q
		listquota /q
		delquota -b /q
		delquota -N /q
		delquota -B /q
		delquota /q
		delquota /q
		listquota /q
		ls -R /zookeeper
		create /q/1/2
		create /q/1/2/3
		setquota -n 10 /q/1/2
		setquota -n 1 /q
		setquota -n 1 /q/1/2/3
		setquota -b 0 /q/1/2
		setquota -b -1 /q/1/2
		listquota /q/1/2
		delquota /q/1/2
		setquota -n 1 /
		listquota /
		listquota none
		delquota /
		delquota /none
		setquota -n 1 none
		ls -R /zookeeper`},
	{name: "close", commands: `
		create -e /ephemeral
		close
		ls /
		history
		printwatches
		connect
		getEphemerals`},
}

// shells start a shell that executes commands from its standard input, or those in args.
var shells = map[string]func(t *testing.T, addr string, args ...string) *exec.Cmd{
	"zkCli": func(t *testing.T, addr string, args ...string) *exec.Cmd {
		return javaCommand(append([]string{"-Xmx256m", "-Duser.timezone=UTC",
			"-Dorg.slf4j.simpleLogger.defaultLogLevel=off", "-cp", zk39.classpath(t),
			"org.apache.zookeeper.ZooKeeperMain", "-waitforconnection", "-timeout", "30000", "-server", addr}, args...)...)
	},
	"lockkeeper zk": func(t *testing.T, addr string, args ...string) *exec.Cmd {
		path := must(built())(t)
		cmd := exec.Command(path, append([]string{"zk", "--server", addr}, args...)...)
		cmd.Env = append(os.Environ(), "TZ=UTC")
		return cmd
	},
}

// TestShell runs one script with ZooKeeper's shell and with ours, against ZooKeeper and
// against lockkeeper. The output must always be the same, except for values that vary.
func TestShell(t *testing.T) {
	t.Parallel()
	const reference = "zkCli on ZooKeeper"
	outputs := map[string]map[string]string{}
	var mu sync.Mutex
	t.Run("run", func(t *testing.T) {
		for _, server := range serverNames {
			for shell := range shells {
				t.Run(shell+" on "+server, func(t *testing.T) {
					t.Parallel()
					output := shellOutputs(t, shell, startTestServer(t, server, zk39, javaTick).addr)
					mu.Lock()
					defer mu.Unlock()
					outputs[shell+" on "+server] = output
				})
			}
		}
	})
	for name, output := range outputs {
		if name == reference {
			continue
		}
		t.Run(name, func(t *testing.T) {
			for _, c := range append(shellScript, shellCase{name: shellEvents}) {
				t.Run(c.name, func(t *testing.T) {
					want, got := outputs[reference][c.name], output[c.name]
					if c.sorted {
						want, got = sortedLines(want), sortedLines(got)
					}
					switch {
					case strings.TrimSpace(want) == "":
						t.Error("ZooKeeper prints nothing")
					case want != got:
						t.Errorf("the outputs differ (- %s, + %s)\n%s", reference, name, lineDiff(want, got))
					}
				})
			}
		})
	}
}

// TestShellOnce executes single commands with each shell on a ZooKeeper of its own. Standard
// output, standard error and the exit code must be the same.
func TestShellOnce(t *testing.T) {
	t.Parallel()
	commands := []string{
		"create /once x", "create /once x", "get /once", "get -s /once", "get /none", "ls /", "ls -q /", "ls relative", "stat",
		"delete -v 5 /once", "create -c -e /x", "close", "redo 5", "printwatches", "none", "deleteall /once",
	}
	type outcome struct {
		stdout, stderr string
		exit           int
	}
	outcomes := map[string][]outcome{}
	for shell, start := range shells {
		addr := startZooKeeper(t, zk39, withTTL, nil).addr
		for _, command := range commands {
			cmd := start(t, addr, strings.Fields(command)...)
			var stdout, stderr strings.Builder
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
				t.Fatal(err)
			}
			same := func(text string) string {
				text, _ = takeEvents(maskShell(sameShell(strings.ReplaceAll(text, addr, "ADDRESS"))))
				return text
			}
			outcomes[shell] = append(outcomes[shell], outcome{same(stdout.String()), same(stderr.String()), cmd.ProcessState.ExitCode()})
		}
	}
	for i, command := range commands {
		if want, got := outcomes["zkCli"][i], outcomes["lockkeeper zk"][i]; want != got {
			t.Errorf("%s: %+v, not %+v as zkCli", command, got, want)
		}
	}
}

// shellEvents is the key of the events of the whole session. Another thread of the shell
// prints them, so they may appear anywhere.
const shellEvents = "events"

// shellOutputs runs the script and returns the output of each case by its name.
func shellOutputs(t *testing.T, shell, addr string) map[string]string {
	t.Helper()
	var script strings.Builder
	for _, c := range shellScript {
		for line := range strings.Lines(c.commands) {
			if line = strings.TrimSpace(line); line != "" {
				script.WriteString(line + "\n")
			}
		}
		// The error of this command marks the end of the case's output.
		fmt.Fprintf(&script, "get /end-of/%s\n", c.name)
	}
	script.WriteString("quit\n")

	cmd := shells[shell](t, addr)
	cmd.Stdin = strings.NewReader(script.String())
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stuck := time.AfterFunc(clientDeadline, func() { cmd.Process.Kill() })
	out, err := cmd.CombinedOutput()
	if !stuck.Stop() {
		t.Fatalf("the shell was stuck after %s", out)
	}
	// The exit code is that of the last command, which fails.
	if exit, ok := err.(*exec.ExitError); err != nil && (!ok || exit.ExitCode() != 1) {
		t.Fatalf("the shell: %v\n%s", err, out)
	}

	text := strings.ReplaceAll(string(out), addr, "ADDRESS")
	_, text, welcome := strings.Cut(text, "Welcome to ZooKeeper!\n")
	if !welcome {
		t.Fatalf("the shell does not start:\n%s", out)
	}
	text, events := takeEvents(maskShell(sameShell(text)))
	outputs := map[string]string{shellEvents: events}
	for _, c := range shellScript {
		part, rest, ended := strings.Cut(text, "Node does not exist: /end-of/"+c.name+"\n")
		if !ended {
			t.Fatalf("the case %s does not end:\n%s", c.name, text)
		}
		outputs[c.name], text = part, rest
	}
	return outputs
}

// What our shell prints differently: docs/zk.md explains it.
var (
	shellClass   = regexp.MustCompile(`(?m)^org\.apache\.commons\.cli\.\w+: `)
	shellVersion = regexp.MustCompile(`(?m)^(ZooKeeper|lockkeeper) CLI version: .*`)
	shellUsage   = regexp.MustCompile(`(?m)^(ZooKeeper -server host:port -client-configuration properties-file|lockkeeper zk --server host:port) cmd args$`)
	shellOurs    = regexp.MustCompile(`(?m)^\t(help|tree|export|import) .*\n`)
	shellBanner  = regexp.MustCompile(`(?m)^(Connecting to ADDRESS|JLine support is disabled)\n`)
)

// sameShell removes the differences between the two shells.
func sameShell(text string) string {
	text = shellClass.ReplaceAllString(text, "")
	text = shellVersion.ReplaceAllString(text, "CLI version")
	text = shellUsage.ReplaceAllString(text, "SHELL cmd args")
	text = shellOurs.ReplaceAllString(text, "")
	return shellBanner.ReplaceAllString(text, "")
}

var (
	shellZxid    = regexp.MustCompile(`(?m)^((?:cZxid|mZxid|pZxid) = )0x([0-9a-f]+)$`)
	shellEvent   = regexp.MustCompile(`(zxid: )([0-9]+)`)
	shellTime    = regexp.MustCompile(`(?m)^((?:ctime|mtime) = )\w{3} \w{3} \d{2} .*$`)
	shellSession = regexp.MustCompile(`(?m)^(ephemeralOwner = )0x[0-9a-f]{2,}$`)
)

// maskShell masks values that vary: times and the session id, and it makes zxids relative
// to the first one printed. System znodes have zxid 0 on every server.
func maskShell(text string) string {
	var base uint64
	zxid := func(s string, radix int) string {
		n, err := strconv.ParseUint(s, radix, 64)
		if err != nil || n == 0 {
			return s
		}
		if base == 0 {
			base = n
		}
		return fmt.Sprintf("base+%d", n-base)
	}
	text = shellZxid.ReplaceAllStringFunc(text, func(s string) string {
		m := shellZxid.FindStringSubmatch(s)
		return m[1] + zxid(m[2], 16)
	})
	text = shellEvent.ReplaceAllStringFunc(text, func(s string) string {
		m := shellEvent.FindStringSubmatch(s)
		return m[1] + zxid(m[2], 10)
	})
	text = shellTime.ReplaceAllStringFunc(text, func(s string) string {
		name, value, _ := strings.Cut(s, " = ")
		if strings.HasPrefix(value, "Thu Jan 01 00:00:00") {
			return s // a system znode
		}
		return name + " = TIME"
	})
	return shellSession.ReplaceAllString(text, "${1}SESSION")
}

// takeEvents separates the events from the rest of a text, without empty lines.
func takeEvents(text string) (without, events string) {
	var rest, taken strings.Builder
	for line := range strings.Lines(text) {
		switch {
		case strings.TrimSpace(line) == "", line == "WATCHER::\n", strings.Contains(line, "type:None"):
		case strings.HasPrefix(line, "WatchedEvent "):
			taken.WriteString(line)
		default:
			rest.WriteString(line)
		}
	}
	return rest.String(), taken.String()
}

func sortedLines(text string) string {
	return strings.Join(slices.Sorted(strings.Lines(text)), "")
}

// lineDiff returns the lines of both texts, starting with the first one that differs.
func lineDiff(want, got string) string {
	w, g := slices.Collect(strings.Lines(want)), slices.Collect(strings.Lines(got))
	i := 0
	for i < len(w) && i < len(g) && w[i] == g[i] {
		i++
	}
	var b strings.Builder
	show := func(sign string, lines []string) {
		for _, line := range lines[:min(len(lines), 8)] {
			b.WriteString(sign + line)
		}
	}
	show("  ", w[max(0, i-3):i])
	show("- ", w[i:])
	show("+ ", g[i:])
	return b.String()
}
