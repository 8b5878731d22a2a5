package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/proto"
)

// binary is this test program under the name commandName. By that name it is the command.
var binary string

const commandName = "lockkeeper-command"

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == commandName {
		main()
	}
	dir, err := os.MkdirTemp("", "lockkeeper")
	if err == nil {
		binary = filepath.Join(dir, commandName)
		err = errors.Join(os.Chmod(dir, 0o755), copySelf(binary)) // a test runs it as another user
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cannot copy the command:", err)
		os.Exit(1)
	}
	waitTogether()
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// waitTogether lets at least 16 parallel tests run at a time, however few processors
// there are, since they mostly wait for processes, elections and the end of sessions. The
// flag -parallel takes precedence.
func waitTogether() {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		flag.Set("test.parallel", fmt.Sprint(max(16, runtime.GOMAXPROCS(0))))
	}
}

// copySelf makes this program known by another name, too.
func copySelf(to string) error {
	self, err := os.Executable()
	if err != nil || os.Link(self, to) == nil {
		return err
	}
	text, err := os.ReadFile(self)
	return errors.Join(err, os.WriteFile(to, text, 0o755))
}

var check1 = testkit.Check

// value returns a function that returns v, or fails the test if err is not nil.
func value[T any](v T, err error) func(testing.TB) T { return testkit.Must(v, err) }

// call calls run with an environment and returns its exit code and output.
func call(env map[string]string, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = run(args, func(k string) string { return env[k] }, &out, &errs)
	return code, out.String(), errs.String()
}

// oneError checks that stderr is one line that contains all the texts.
func oneError(t *testing.T, stderr string, says ...string) {
	t.Helper()
	if !strings.HasPrefix(stderr, "lockkeeper: ") || strings.Index(stderr, "\n") != len(stderr)-1 {
		t.Errorf("not one line: %q", stderr)
	}
	for _, s := range says {
		if !strings.Contains(stderr, s) {
			t.Errorf("%q does not say %q", stderr, s)
		}
	}
}

// refuses runs a command, which must print nothing, end with an exit code, and write one line that contains all the texts.
func refuses(t *testing.T, code int, args []string, says ...string) {
	t.Helper()
	got, stdout, stderr := call(nil, args...)
	if oneError(t, stderr, says...); got != code || stdout != "" || strings.Contains(stderr, "SECRET") {
		t.Errorf("%q: exit code %d, %q %q", args, got, stdout, stderr)
	}
}

func TestUsage(t *testing.T) {
	for _, c := range []struct {
		args string
		env  map[string]string
		says []string
	}{
		{"nonsense", nil, []string{`unknown command "nonsense"`, "lockkeeper --help"}},
		{"srve", nil, []string{`unknown command "srve"; did you mean serve?`}},
		{"cluster stats", nil, []string{`unknown command "cluster stats"; did you mean status?`}},
		{"wire repay a b:1", nil, []string{`"repay"`, "did you mean replay?"}},
		{"help srve", nil, []string{"did you mean serve?"}},
		{"help cluster nonsense", nil, []string{`"cluster nonsense"`}},
		{"version more", nil, []string{`"more"`}},
		{"completion csh", nil, []string{`"completion csh"`}},
		{"completion bash more", nil, []string{`"more"`}},
		{"serve --lisen :0", nil, []string{"unknown flag --lisen; did you mean --listen"}},
		{"serve -listen :0", nil, []string{"unknown flag -listen; did you mean --listen"}},
		{"serve -id=3", nil, []string{"unknown flag -id=3; did you mean --id?"}},
		{"serve -x", nil, []string{"unknown flag -x\n"}},
		{"serve --nonsense", nil, []string{"-nonsense"}},
		{"serve more", nil, []string{`"more"`}},
		{"serve --id 0", nil, []string{"--id", `"0"`}},
		{"serve --id 255", nil, []string{"255"}},
		{"serve --id x", nil, []string{"-id", `"x"`}},
		{"serve --tick-time 0s", nil, []string{"--tick-time", `"0s"`}},
		{"serve --digest-algorithm=", nil, []string{"--digest-algorithm"}},
		{"serve --tick-time 1us", nil, []string{"-tick-time", "1ms"}},
		{"serve --election-timeout 99ms", nil, []string{"-election-timeout", "100ms"}},
		{"serve --log-format xml", nil, []string{"-log-format", `"xml"`}},
		{"serve --log-level loud", nil, []string{"-log-level", `"loud"`}},
		{"serve --listen", nil, []string{"-listen"}},
		{"serve", map[string]string{"LOCKKEEPER_TICK_TIME": "soon"}, []string{"LOCKKEEPER_TICK_TIME", `"soon"`}},
		{"serve", map[string]string{"LOCKKEEPER_ID": "300"}, []string{"LOCKKEEPER_ID: 300 is not in 1 to 254"}},
		{"serve --memory --super-digest nohash", nil, []string{"nohash"}},
		{"serve --memory --max-client-cnxns -1", nil, []string{"negative"}},
		{"serve --memory --max-cnxns -1", nil, []string{"--max-cnxns: ", "negative"}},
		{"serve --listen=", nil, []string{"-listen", "-tls-listen"}},
		{"serve --tls-listen :0", nil, []string{"-tls-cert"}},
		{"serve --tls-listen :0 --tls-cert x", nil, []string{"-tls-client-auth need", "-tls-ca"}},
		{"serve --tls-listen :0 --tls-cert x --tls-client-auth some", nil, []string{"-tls-client-auth", `"some"`}},
		{"serve --tls-cert x", nil, []string{"--tls-listen: ", "--tls-cert"}},
		{"serve --x509-super-user CN=x", nil, []string{"--x509-super-user: "}},
		{"serve --peers 1", nil, []string{"-peers", `"1"`}},
		{"serve --peers 1=a:1,1=b:1", nil, []string{"-peers", "server 1 is listed more than once"}},
		{"serve --peers 1=a:1,2=a:1", nil, []string{"-peers", "servers 1 and 2 have the same address"}},
		{"serve --peers 1=0.0.0.0:1", nil, []string{"-peers", "as other members reach it"}},
		{"serve --peers 2=a:1,3=b:1", nil, []string{"--id: server 1 is not among the members"}},
		{"serve --peers 1=a:1:observer", nil, []string{"--peers: ", "one has to vote"}},
		{"serve --peers 1=a:1 --join b:1", nil, []string{"--join: not together with --peers"}},
		{"serve --id 2 --peer-listen c:1 --peers 1=a:1 --join b:1", nil, []string{"--join: not together with --peers"}},
		{"serve --peers 1=a:1", map[string]string{"LOCKKEEPER_JOIN": "b:1"}, []string{"LOCKKEEPER_JOIN: not together with --peers"}},
		{"serve --id 2 --peers 1=a:1 --join-peers", nil, []string{"--peer-listen: ", "to join a cluster"}},
		{"serve --join-peers", nil, []string{"--join-peers: without", "--peers"}},
		{"serve --id 2 --peers 1=a:1", nil, []string{"--id: server 2 is not among the members"}},
		{"serve --peers 1=a:1 --observer", nil, []string{"--observer: ", "list of members"}},
		{"serve --observer", nil, []string{"--observer", "joins"}},
		{"serve --join b:1", nil, []string{"--peer-listen: ", "join"}},
		{"serve --join b --peer-listen a:1", nil, []string{"-join", "b"}},
		{"serve --join b:1 --peer-listen :1", nil, []string{"-peer-listen", `":1"`}},
		{"serve --peers 1=a:1 --peer-tls-cert x", nil, []string{"-peer-tls-ca"}},
		{"serve --test-control :0", nil, []string{"--test-control: only together with --memory"}},
		{"serve --memory --test-control :0 --data d", nil, []string{"--test-control: not together with --data"}},
		{"serve --memory --test-control :0", map[string]string{"LOCKKEEPER_DATA": "d"}, []string{"--test-control: not together with LOCKKEEPER_DATA"}},
		{"serve --memory", map[string]string{"LOCKKEEPER_TEST_CONTROL": "x"}, []string{"LOCKKEEPER_TEST_CONTROL: ", "missing port"}},
		{"serve --memory --test-control :0 --peers 1=a:1", nil, []string{"--test-control: not together with --peers"}},
		{"serve --memory --test-control :0 --join a:1", nil, []string{"--test-control: not together with --join"}},
		{"serve --memory --test-control :0 --tls-listen :0", nil, []string{"--test-control: not together with --tls-listen"}},
		{"serve --memory --test-control :0 --audit-log f", nil, []string{"--test-control: not together with --audit-log"}},
		{"serve --memory --test-control :0 --cluster 3 --id 2", nil, []string{"--test-control: not together with --id"}},
		{"serve --memory --test-control :0 --cluster 10", nil, []string{"--cluster: 10 is not in 1 to 9"}},
		{"serve --memory --test-control :0 --cluster 0", nil, []string{"--cluster: 0 is not in 1 to 9"}},
		{"serve --memory --cluster 3", nil, []string{"--cluster: only together with --memory and --test-control"}},
		{"serve --memory --log-store x", nil, []string{`--log-store: it must be wal or boltdb, not "x"`}},
		{"check --convert x dir", nil, []string{`--convert: it must be wal or boltdb, not "x"`}},
		{"serve --memory --tree f", nil, []string{"--tree: only together with --memory and --test-control"}},
		{"serve --memory --listen 127.0.0.1:0 --test-control :0 --tree none", nil, []string{"--tree: ", "none"}},
		{"serve --parent-pid 0", nil, []string{"--parent-pid: 0 is not the id of a process"}},
		{"serve --memory --test-control :0 --super-digest nohash", nil, []string{"--super-digest: ", "nohash"}},
		{"cluster list", nil, []string{`"cluster list"`, "lockkeeper cluster --help"}},
		{"cluster status 1", nil, []string{"usage: lockkeeper cluster status"}},
		{"cluster status --peer x", nil, []string{"-peer"}},
		{"cluster form", nil, []string{"--peer", "client port"}},
		{"cluster status --peer a:1 --server a:1", nil, []string{"-peer", "-server"}},
		{"cluster status --observer", nil, []string{"--observer"}},
		{"cluster add 4", nil, []string{`"4"`}},
		{"cluster add 4=a:1,5=b:1", nil, []string{"one server"}},
		{"cluster add 400=a:1", nil, []string{"1 to 254"}},
		{"cluster remove x", nil, []string{`"x"`}},
		{"cluster remove 0", nil, []string{`"0"`}},
		{"cluster transfer 0", nil, []string{`"0"`}},
		{"cluster transfer 1 2", nil, []string{"usage"}},
		{"cluster status --timeout 0s", nil, []string{"--timeout: 0s is not above 0"}},
		{"cluster status", map[string]string{"LOCKKEEPER_CLUSTER_TIMEOUT": "0s"}, []string{"LOCKKEEPER_CLUSTER_TIMEOUT: 0s is not above 0"}},
		{"cluster status --server=", nil, []string{"--server: no server given"}},
		{"cluster status --server a:1,b:99999", nil, []string{`--server: "b:99999" is not HOST or HOST:PORT of `}},
		{"lock ls --timeout 0s", nil, []string{"--timeout: 0s is not above 0"}},
		{"lock ls --server=", nil, []string{"--server: no server given"}},
		{"lock ls --server a:99999", nil, []string{`--server: "a:99999" is not HOST or HOST:PORT of `}},
		{"lock check --timeout -1s", nil, []string{"--timeout: -1s is not above 0"}},
		{"lock check --settle -1s", nil, []string{"--settle: it must not be negative"}},
		{"lock break --timeout 0s /a", nil, []string{"--timeout: 0s is not above 0"}},
		{"lock break --token -1 /a", nil, []string{"--token: it must not be negative"}},
		{"lock run --connect-timeout 0s /a -- true", nil, []string{"--connect-timeout: 0s is not above 0"}},
		{"lock run --server a:0 /a -- true", nil, []string{`--server: "a:0" is not HOST or HOST:PORT of `}},
		{"bench --pid -1 a:1", nil, []string{"--pid: -1 is not the id of a process"}},
		{"bench --compare b:1 --compare-pid 0 a:1", nil, []string{"--compare-pid: 0 is not the id of a process"}},
		{"bench a:99999", nil, []string{`"a:99999" is not HOST or HOST:PORT of `}},
		{"conform --timeout 0s a:1", nil, []string{"--timeout: 0s is not above 0"}},
		{"conform --parallel 0 a:1", nil, []string{"--parallel: 0 is not above 0"}},
		{"conform --reap-within -1s a:1", nil, []string{"--reap-within: it must not be negative"}},
		{"conform a:99999", nil, []string{`"a:99999" is not HOST or HOST:PORT of `}},
		{"conform --against b:99999 a:1", nil, []string{`--against: "b:99999" is not HOST or HOST:PORT of `}},
		{"wire --to a:99999", nil, []string{`--to: "a:99999" is not HOST or HOST:PORT of `}},
		{"wire --to a:1 --listen a", nil, []string{"--listen: ", "missing port"}},
		{"wire replay --timeout -1s a b:1", nil, []string{"--timeout: -1s is not above 0"}},
		{"wire replay a b:99999", nil, []string{`"b:99999" is not HOST or HOST:PORT of `}},
		{"serve --memory --listen 127.0.0.1", nil, []string{"--listen: ", "missing port"}},
		{"serve --memory --listen 2181", nil, []string{"--listen: ", "write :2181 for all addresses", "127.0.0.1:2181"}},
		{"serve --memory --listen :99999", nil, []string{`--listen: ":99999" is not an address`}},
		{"serve --memory --tls-listen :99999", nil, []string{`--tls-listen: ":99999" is not an address`}},
		{"check", nil, []string{"usage: lockkeeper check DIR"}},
		{"wire", nil, []string{"--to"}},
		{"wire --to nowhere/a", nil, []string{"-to", `"nowhere/a" is not HOST or HOST:PORT of one server`}},
		{"wire --to a:1 b:2", nil, []string{`"b:2"`}},
		{"wire --to a:1 --only ls", nil, []string{"-only", `"ls"`, "4lw"}},
		{"wire replay", nil, []string{"usage: lockkeeper wire replay FILE|DIR HOST[:PORT]"}},
		{"lock ls a b", nil, []string{"usage: lockkeeper lock ls"}},
		{"lock ls a", nil, []string{`"a" is not the path of a znode`}},
		{"lock ls --auth digest", nil, []string{"--auth: it must be SCHEME:IDENTITY"}},
		{"lock break", nil, []string{"usage: lockkeeper lock break"}},
		{"lock break a", nil, []string{`"a" is not the path of a znode`}},
		{"lock break --json /a", nil, []string{"--json"}},
		{"lock check /a /b", nil, []string{"usage: lockkeeper lock check"}},
		{"conform", nil, []string{"usage: lockkeeper conform HOST"}},
		{"conform 127.0.0.1:1 --group nonsense", nil, []string{`--group: "nonsense" is not one of handshake`}},
		{"conform 127.0.0.1:1 --without nonsense", nil, []string{`--without: "nonsense" is not one of words`}},
		{"conform 127.0.0.1:1 --run (", nil, []string{"missing closing )"}},
		{"conform 127.0.0.1:1 --like new", nil, []string{`"new" is not a version`}},
		{"conform --against 127.0.0.1:1 127.0.0.1:2 --ops 0", nil, []string{"--ops: 0 is not above 0"}},
		{"conform --against 127.0.0.1:1 127.0.0.1:2 --mask nonsense", nil, []string{`--mask: "nonsense" is not one of`}},
		{"conform --against 127.0.0.1:1 127.0.0.1:2 --without nonsense", nil, []string{`--without: "nonsense" is not one of quotas`}},
		{"bench", nil, []string{"usage: lockkeeper bench HOST"}},
		{"bench 127.0.0.1:1 --workload nonsense", nil, []string{`--workload: "nonsense" is not one of idle`}},
		{"bench 127.0.0.1:1 --ops 0", nil, []string{"--ops: 0 is not above 0"}},
		{"bench 127.0.0.1:1 --time -1s", nil, []string{"--time: -1s is not above 0"}},
		{"bench 127.0.0.1:1 --compare-pid 1", nil, []string{"--compare-pid: it needs --compare"}},
		{"lock run", nil, []string{"lock run takes a path, --, and a command"}},
		{"lock run /a true", nil, []string{"lock run takes a path, --, and a command"}},
		{"lock run /a --", nil, []string{"lock run takes a path, --, and a command"}},
		{"lock run a -- true", nil, []string{`"a" is not the path of a znode`}},
		{"lock run / -- true", nil, []string{"/ cannot be a lock"}},
		{"lock run --try --timeout 1s /a -- true", nil, []string{"--timeout: not together with --try"}},
		{"lock run --timeout -1s /a -- true", nil, []string{"--timeout: it must not be negative"}},
		{"lock run --grace -1s /a -- true", nil, []string{"--grace: it must not be negative"}},
		{"lock run --slots -1 /a -- true", nil, []string{"--slots: "}},
		{"lock run --slots 2 --shared /a -- true", nil, []string{"--slots: not together with --shared"}},
		{"lock run --session-timeout 1ms /a -- true", nil, []string{"--session-timeout: "}},
		{"lock run --server [::1 /a -- true", nil, []string{`"[::1" is not HOST or HOST:PORT`}},
		{"lock ls --server a/b/", nil, []string{`"/b/" is not the path of a znode`}},
		{"zk --server a//b ls /", nil, []string{`"//b" is not the path of a znode`}},
		{"zk --server , ls /", nil, []string{"--server: no server given"}},
		{"bench a:1/b/", nil, []string{`"/b/" is not the path of a znode`}},
		{"conform a:1/b", nil, []string{`"a:1/b" is not HOST or HOST:PORT of one server`}},
		{"conform a:1,b:1", nil, []string{`"a:1,b:1" is not HOST or HOST:PORT of one server`}},
		{"wire --to a:1,b:1", nil, []string{`--to: "a:1,b:1" is not HOST or HOST:PORT of one server`}},
		{"wire replay x a:1,b:1", nil, []string{`"a:1,b:1" is not HOST or HOST:PORT of one server`}},
	} {
		t.Run(c.args, func(t *testing.T) {
			code, stdout, stderr := call(c.env, strings.Fields(c.args)...)
			if oneError(t, stderr, c.says...); code != exitUsage || stdout != "" {
				t.Errorf("exit code %d, %q", code, stdout)
			}
		})
	}
}

func TestHelp(t *testing.T) {
	for args, says := range map[string][]string{
		"help":                 {"Usage: lockkeeper COMMAND\n", "\nCommands:\n  serve ", "\n  completion "},
		"-h":                   {"Usage: lockkeeper COMMAND\n"},
		"--help":               {"Usage: lockkeeper COMMAND\n"},
		"help serve":           {"Usage: lockkeeper serve [flags]\n", "\nExamples:\n", "\n'lockkeeper serve --help-all' explains all ", "--listen is LOCKKEEPER_LISTEN.\n"},
		"serve --help-all":     {"Usage: lockkeeper serve [flags]\n", "\nExamples:\n", "\nClients:\n      --listen ADDRESS ", `(default "127.0.0.1:2181")`, "\nCluster:\n      --id ID ", "\nLogging:\n", "--listen is LOCKKEEPER_LISTEN.\n"},
		"serve -h":             {"Usage: lockkeeper serve [flags]\n"},
		"help help":            {"Usage: lockkeeper help"},
		"check --help":         {"Usage: lockkeeper check DIR [flags]\n"},
		"cluster -h":           {"\nCommands:\n  status "},
		"help cluster add":     {"Usage: lockkeeper cluster add ID=HOST:PORT [flags]\n", "--observer", "--server HOST[:PORT][,...][/PATH]", "LOCKKEEPER_CLUSTER_ADD_OBSERVER"},
		"wire -h":              {"LOCKKEEPER_WIRE_TO"},
		"wire replay --help":   {"Usage: lockkeeper wire replay FILE|DIR HOST[:PORT] [flags]\n"},
		"wire replay a b:1 -h": {"Usage: lockkeeper wire replay "},
		"conform --help":       {"\nComparison of two servers:\n", "--against"},
	} {
		code, stdout, stderr := call(nil, strings.Fields(args)...)
		if code != exitOK || stderr != "" {
			t.Errorf("%s: %d %q", args, code, stderr)
		}
		for _, s := range says {
			if !strings.Contains(stdout, s) {
				t.Errorf("%s does not say %q:\n%s", args, s, stdout)
			}
		}
	}
}

// TestFirstScreen: the help of serve is short, with the flags of a first day, and --help-all has all flags.
func TestFirstScreen(t *testing.T) {
	_, first, _ := call(nil, "serve", "--help")
	if n := strings.Count(first, "\n"); n > 55 {
		t.Errorf("%d lines do not fit on a screen:\n%s", n, first)
	}
	code, all, stderr := call(map[string]string{"LOCKKEEPER_ID": "x"}, "serve", "--memory", "--help-all")
	if code != exitOK || stderr != "" {
		t.Errorf("%d %q", code, stderr)
	}
	flags := regexp.MustCompile(`(?m)^      (--[a-z0-9-]+)`)
	if n := len(flags.FindAllString(first, -1)); n != 12 {
		t.Errorf("%d flags:\n%s", n, first)
	}
	for _, text := range []string{"      --memory ", "      --admin ADDRESS ", "      --test-control ADDRESS ", "lockkeeper serve --admin ", "lockkeeper serve --id 1 --peers "} {
		if !strings.Contains(first, text) {
			t.Errorf("it does not have %q:\n%s", text, first)
		}
	}
	number := 0
	serveCommand().Flags().VisitAll(func(f *pflag.Flag) {
		if isHelp(f) || f.Hidden {
			return
		}
		if number++; !strings.Contains(all, "\n      --"+f.Name) {
			t.Errorf("--help-all does not explain --%s", f.Name)
		}
	})
	if !strings.Contains(first, fmt.Sprintf("explains all %d flags", number)) {
		t.Errorf("it does not say that there are %d flags:\n%s", number, first)
	}
}

// TestCompletion prints the scripts for the shells, and requests completions as a shell does.
func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		code, stdout, stderr := call(nil, "completion", shell)
		if code != exitOK || stderr != "" || !strings.Contains(stdout, "lockkeeper") {
			t.Errorf("%s: %d %q", shell, code, stderr)
		}
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"s"}, "serve\t"},
		{[]string{"cluster", ""}, "transfer\t"},
		{[]string{"help", "cluster", ""}, "transfer\t"},
		{[]string{"serve", "--log-l"}, "--log-level\t"},
		{[]string{"serve", "--log-format", ""}, "json\n"},
		{[]string{"conform", "--group", ""}, "handshake\n"},
		{[]string{"serve", "--jaas", ""}, ":0\n"}, // names of files
		{[]string{"lock", "ls", "--tls-ca", ""}, ":0\n"},
		{[]string{"migrate", "from", "--log", ""}, ":16\n"}, // names of directories
	} {
		if code, stdout, _ := call(nil, append([]string{"__complete"}, c.args...)...); code != exitOK || !strings.Contains(stdout, c.want) {
			t.Errorf("%q: %d %q, without %q", c.args, code, stdout, c.want)
		}
	}
}

// TestFieldsHaveFlags checks that every field that a ConfigError can name has a flag or a
// key in zoo.cfg.
func TestFieldsHaveFlags(t *testing.T) {
	// The command never sets these to an invalid value, or keeps their defaults.
	none := []string{"Logger", "Audit", "AdvertisedElectionPort", "Limits.MaxSessions", "Limits.MaxWatches", "Limits.MaxTLSHandshakes",
		"Limits.MaxOutstanding", "Limits.MaxOutboxBytes", "Limits.SnapshotBytes"}
	flags := serveCommand().Flags()
	var fields []string
	var collect func(prefix string, in reflect.Type)
	collect = func(prefix string, in reflect.Type) {
		for _, field := range reflect.VisibleFields(in) {
			switch {
			case field.Type.Kind() == reflect.Struct && field.Type.PkgPath() == in.PkgPath():
				collect(prefix+field.Name+".", field.Type)
			case field.IsExported():
				fields = append(fields, prefix+field.Name)
			}
		}
	}
	collect("", reflect.TypeFor[lockkeeper.Config]())
	for _, field := range fields {
		flag, key := fieldFlags[field], zooKeyOf(field)
		switch {
		case slices.Contains(none, field):
		case (flag == "") == (key == ""):
			t.Errorf("%s: flag %q, key %q", field, flag, key)
		case flag != "" && flags.Lookup(flag) == nil:
			t.Errorf("%s: serve has no flag --%s", field, flag)
		}
	}
	for field := range fieldFlags {
		if !slices.Contains(fields, field) {
			t.Errorf("the configuration has no field %s", field)
		}
	}
}

// TestBare: without a command, the program and each of its groups of commands print help.
func TestBare(t *testing.T) {
	groups := []string{""}
	for _, c := range newRoot(io.Discard, io.Discard).Commands() {
		if c.HasSubCommands() && c.Name() != "wire" { // wire runs without a subcommand
			groups = append(groups, c.Name())
		}
	}
	if len(groups) < 5 {
		t.Errorf("groups %q", groups)
	}
	for _, name := range groups {
		args := strings.Fields(name)
		code, stdout, stderr := call(nil, args...)
		_, want, _ := call(nil, append(args, "--help")...)
		if code != exitOK || stderr != "" || stdout != want || !strings.Contains(stdout, "\nCommands:\n") {
			t.Errorf("%q: exit code %d, %q\n%s", name, code, stderr, stdout)
		}
	}
}

// TestVersionJSON: the commit comes from what Go has noted in the program.
func TestVersionJSON(t *testing.T) {
	code, stdout, stderr := call(nil, "version", "--json")
	var b build
	if err := json.Unmarshal([]byte(stdout), &b); err != nil || code != exitOK || stderr != "" || b.Version != lockkeeper.Version || b.Go != runtime.Version() {
		t.Errorf("%d %q %q, %v", code, stdout, stderr, err)
	}
	b = buildOf(&debug.BuildInfo{Main: debug.Module{Version: "v0.1.0"}, Settings: []debug.BuildSetting{
		{Key: "vcs.revision", Value: "0123"}, {Key: "vcs.time", Value: "2026-01-02T03:04:05Z"}, {Key: "vcs.modified", Value: "true"},
	}})
	want := build{lockkeeper.Version, "0123", "2026-01-02T03:04:05Z", true, "v0.1.0", runtime.Version(), runtime.GOOS, runtime.GOARCH}
	if b != want {
		t.Errorf("%+v", b)
	}
	if b := buildOf(nil); b.Commit != "" || b.Arch == "" {
		t.Errorf("without information: %+v", b)
	}
}

// TestVersion: both ways print the line for this build.
func TestVersion(t *testing.T) {
	for _, args := range [][]string{{"version"}, {"--version"}} {
		code, stdout, stderr := call(nil, args...)
		if want := versionText(thisBuild()) + "\n"; code != exitOK || stdout != want || stderr != "" {
			t.Errorf("%q: %d %q %q, not %q", args, code, stdout, stderr, want)
		}
	}
}

// TestVersionText: the line has what Go knows, however the program was built.
func TestVersionText(t *testing.T) {
	git := func(modified string) []debug.BuildSetting {
		return []debug.BuildSetting{
			{Key: "vcs.revision", Value: "0123456789abcdef"}, {Key: "vcs.time", Value: "2026-01-02T03:04:05Z"}, {Key: "vcs.modified", Value: modified},
		}
	}
	plain := fmt.Sprintf("lockkeeper %s %s %s/%s", lockkeeper.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	for _, x := range []struct {
		name, module string
		settings     []debug.BuildSetting
		more         string
	}{
		{"-buildvcs=false", "(devel)", nil, ""},
		{"go install @ this version", "v" + lockkeeper.Version, nil, ""},
		{"go install @ another tag", "v99.0.0", nil, ", module v99.0.0"},
		{"go install @ a commit", "v0.1.1-0.20260102030405-0123456789ab", nil, ", module v0.1.1-0.20260102030405-0123456789ab"},
		{"a release", "v" + lockkeeper.Version, git("false"), ", commit 0123456789ab of 2026-01-02T03:04:05Z"},
		{"a checkout", "v0.0.0-20260102030405-0123456789ab+dirty", git("true"), ", commit 0123456789ab of 2026-01-02T03:04:05Z, modified"},
	} {
		b := buildOf(&debug.BuildInfo{Main: debug.Module{Version: x.module}, Settings: x.settings})
		if got := versionText(b); got != plain+x.more {
			t.Errorf("%s: %q, not %q", x.name, got, plain+x.more)
		}
	}
}

// process is a running lockkeeper command.
type process struct {
	*exec.Cmd
	t      *testing.T
	addr   string     // of the client port, set when ready
	conns  []net.Conn // those of connect
	ready  chan struct{}
	mu     sync.Mutex
	stderr []string
	done   chan struct{} // closed when it has ended
	err    error         // of Wait, set when it has ended
}

var readyLine = regexp.MustCompile(`^lockkeeper: (?:serving ZooKeeper clients on|proxying) (\S+:[1-9]\d*)(?: to \S+)?$`)

// message returns the text of a line, which may be JSON.
func message(line string) string {
	var entry struct{ Msg string }
	if json.Unmarshal([]byte(line), &entry) == nil {
		return entry.Msg
	}
	return line
}

// start starts the command. It is killed at the end of the test.
func start(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	cmd := exec.Command(binary, args...)
	cmd.Env = env
	cmd.Dir = t.TempDir()
	return startCmd(t, cmd)
}

func startCmd(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{Cmd: cmd, t: t, ready: make(chan struct{}), done: make(chan struct{})}
	pipe, err := cmd.StderrPipe()
	check1(t, err)
	check1(t, cmd.Start())
	go func() {
		defer close(p.done)
		for lines := bufio.NewScanner(pipe); lines.Scan(); {
			p.mu.Lock()
			p.stderr = append(p.stderr, lines.Text())
			p.mu.Unlock()
			if m := readyLine.FindStringSubmatch(message(lines.Text())); m != nil && p.addr == "" {
				p.addr = m[1]
				close(p.ready)
			}
		}
		p.err = cmd.Wait()
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-p.done
	})
	return p
}

func (p *process) lines() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.stderr...)
}

// waitSaid waits until the process has written a line with the text on standard error.
func (p *process) waitSaid(text string) {
	p.t.Helper()
	waitFor(p.t, "a line with "+text, func() bool { return strings.Contains(strings.Join(p.lines(), "\n"), text) })
}

func (p *process) waitReady() *process {
	p.t.Helper()
	select {
	case <-p.ready:
	case <-p.done:
		p.t.Fatalf("the process has ended: %v: %q", p.err, p.lines())
	case <-time.After(time.Minute):
		p.t.Fatalf("not ready: %q", p.lines())
	}
	return p
}

// exit waits until the process ends and returns its exit code.
func (p *process) exit() int {
	p.t.Helper()
	select {
	case <-p.done:
		return p.ProcessState.ExitCode()
	case <-time.After(time.Minute):
		p.t.Fatalf("the process does not end: %q", p.lines())
		return 0
	}
}

// stop ends a server as an operator does. It closes the connections of connect, since the server waits a moment for
// clients that do not.
func (p *process) stop() {
	p.t.Helper()
	for _, nc := range p.conns {
		nc.Close()
	}
	check1(p.t, p.Process.Signal(syscall.SIGTERM))
	if code := p.exit(); code != exitOK {
		p.t.Errorf("exit code %d: %q", code, p.lines())
	}
}

// connect opens a session. It retries, because a cluster member closes connections while
// it knows no leader.
func (p *process) connect() (c *rawclient.Client) {
	p.t.Helper()
	waitFor(p.t, "a session", func() bool {
		nc, err := net.DialTimeout("tcp", p.addr, time.Minute)
		check1(p.t, err)
		p.t.Cleanup(func() { nc.Close() })
		p.conns = append(p.conns, nc)
		c, err = rawclient.Open(nc, 40*time.Second)
		if !closedEarly(err) {
			check1(p.t, err)
		}
		return err == nil
	})
	return c
}

// closedEarly reports whether the server closed a connection without an answer.
func closedEarly(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// conf returns the answer to the four-letter word conf.
func (p *process) conf() string {
	p.t.Helper()
	nc, err := net.DialTimeout("tcp", p.addr, time.Minute)
	check1(p.t, err)
	answer, err := rawclient.Word(nc, "conf", time.Minute)
	check1(p.t, err)
	return answer
}

// fails waits until the process ends, and expects exit code 1 and one line.
func fails(t *testing.T, p *process, says ...string) {
	t.Helper()
	if code := p.exit(); code != exitFault {
		t.Errorf("exit code %d", code)
	}
	oneError(t, strings.Join(p.lines(), "\n")+"\n", says...)
}

func TestServeAndStop(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(signal.String(), func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "data")
			p := start(t, nil, "serve", "--listen", "127.0.0.1:0", "--data", dir).waitReady()
			c := p.connect()
			_, err := c.Create("/kept", []byte("data"), 0)
			check1(t, err)
			_, err = c.Create("/mine", nil, proto.FlagEphemeral)
			check1(t, err)
			begin := time.Now()
			check1(t, p.Process.Signal(signal))
			if code := p.exit(); code != exitOK {
				t.Errorf("exit code %d: %q", code, p.lines())
			}
			if d := time.Since(begin); d > 30*time.Second { // the server must not wait for the client
				t.Errorf("it took %v to stop", d)
			}
			if lines := p.lines(); len(lines) != 1 {
				t.Errorf("it says %q", lines)
			}
			again := start(t, nil, "serve", "--listen", "127.0.0.1:0", "--data", dir).waitReady()
			nc, err := net.Dial("tcp", again.addr)
			check1(t, err)
			t.Cleanup(func() { nc.Close() })
			if c, err = rawclient.Resume(nc, c.Session); err != nil {
				t.Fatal(err)
			}
			if r, err := c.Get("/kept", false); err != nil || string(r.Data) != "data" {
				t.Errorf("%q, %v", r.Data, err)
			}
			if _, err := c.Exists("/mine", false); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestKill kills the server during writes. No acknowledged write may be lost.
func TestKill(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	written := 0
	for round := range 5 {
		p := start(t, nil, "serve", "--listen", "127.0.0.1:0", "--data", dir).waitReady()
		c := p.connect()
		if round == 0 {
			_, err := c.Create("/n", nil, 0)
			check1(t, err)
		}
		if r, err := c.Exists("/n", false); err != nil || int(r.Version) < written {
			t.Fatalf("version %d after %d acknowledged writes, %v", r.Version, written, err)
		} else {
			written = int(r.Version) // one more may have been stored without an answer
		}
		for n := 1; ; n++ {
			s, err := c.Set("/n", nil)
			if err != nil {
				break
			}
			written = int(s.Version)
			if n == 5+10*round { // while the writes continue
				go p.Process.Kill()
			}
		}
		p.exit()
	}
	if code, stdout, stderr := call(nil, "check", dir); code != exitOK || !strings.Contains(stdout, "is good") {
		t.Errorf("check: %d %q %q", code, stdout, stderr)
	}
}

func TestEnvironment(t *testing.T) {
	dir := t.TempDir()
	env := []string{"LOCKKEEPER_LISTEN=127.0.0.1:0", "LOCKKEEPER_DATA=" + filepath.Join(dir, "env"), "LOCKKEEPER_TICK_TIME=300ms", "LOCKKEEPER_ID=9",
		"LOCKKEEPER_MAX_CLIENT_CNXNS=17", "LOCKKEEPER_4LW=conf"}
	t.Run("alone", func(t *testing.T) {
		conf := start(t, env, "serve").waitReady().conf()
		for _, want := range []string{"dataDir=" + filepath.Join(dir, "env"), "tickTime=300", "serverId=9", "maxClientCnxns=17"} {
			if !strings.Contains(conf, want+"\n") {
				t.Errorf("%q does not say %s", conf, want)
			}
		}
	})
	t.Run("flags win", func(t *testing.T) {
		conf := start(t, env, "serve", "--tick-time", "700ms", "--data="+filepath.Join(dir, "flag"), "--id", "3").waitReady().conf()
		for _, want := range []string{"dataDir=" + filepath.Join(dir, "flag"), "tickTime=700", "serverId=3", "maxClientCnxns=17"} {
			if !strings.Contains(conf, want+"\n") {
				t.Errorf("%q does not say %s", conf, want)
			}
		}
	})
}

func TestMemory(t *testing.T) {
	for _, how := range []struct {
		env  []string
		args []string
	}{{nil, []string{"--memory"}}, {[]string{"LOCKKEEPER_MEMORY=true"}, nil}} {
		p := start(t, how.env, append([]string{"serve", "--listen", "127.0.0.1:0"}, how.args...)...).waitReady()
		_, err := p.connect().Create("/n", nil, 0)
		check1(t, err)
		p.stop()
		if left, err := os.ReadDir(p.Dir); err != nil || len(left) > 0 {
			t.Errorf("it left %v, %v", left, err)
		}
	}
}

func TestDefaultDirectory(t *testing.T) {
	p := start(t, nil, "serve", "--listen", "127.0.0.1:0").waitReady()
	if _, err := os.Stat(filepath.Join(p.Dir, "lockkeeper-data", "meta.json")); err != nil {
		t.Error(err)
	}
}

func TestPortTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check1(t, err)
	defer l.Close()
	dir := filepath.Join(t.TempDir(), "data")
	refuses(t, exitFault, []string{"serve", "--listen", l.Addr().String(), "--data", dir}, "--listen: client port: listen tcp "+l.Addr().String(), "in use")
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it created its directory: %v", err)
	}
}

// filled creates a data directory with some znodes.
func filled(t *testing.T) string { return filledAs(t, "") }

func filledAs(t *testing.T, logStore lockkeeper.LogStore) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	s, err := lockkeeper.Open(lockkeeper.Config{DataDir: dir, LogStore: logStore})
	check1(t, err)
	nc, err := s.Dial("", "", time.Minute)
	check1(t, err)
	c, err := rawclient.Open(nc, 30*time.Second)
	check1(t, err)
	for i := range 20 {
		_, err := c.Create(fmt.Sprintf("/n%d", i), bytes.Repeat([]byte("x"), 100), 0)
		check1(t, err)
	}
	c.Close()
	check1(t, s.Close())
	return dir
}

func TestDirectoryInUse(t *testing.T) {
	t.Parallel()
	dir := filled(t)
	p := start(t, nil, "serve", "--listen", "127.0.0.1:0", "--data", dir).waitReady()
	refuses(t, exitFault, []string{"serve", "--listen", "127.0.0.1:0", "--data", dir}, dir, "in use")
	refuses(t, exitFault, []string{"check", dir}, dir, "in use")
	if _, err := lockkeeper.Open(lockkeeper.Config{DataDir: dir}); !errors.Is(err, lockkeeper.ErrInUse) {
		t.Errorf("a server of this process: %v", err)
	}
	_, err := p.connect().Get("/n1", false)
	check1(t, err)
	check1(t, p.Process.Kill()) // which releases the lock on the directory
	p.exit()
	start(t, nil, "serve", "--listen", "127.0.0.1:0", "--data", dir).waitReady()
}

func TestBadDirectory(t *testing.T) {
	t.Parallel()
	inWAL, inBolt := os.DirFS(filledAs(t, "wal")), os.DirFS(filledAs(t, "boltdb"))
	for name, c := range map[string]struct {
		harm func(t *testing.T, dir string)
		says []string
	}{
		"newer format": {func(t *testing.T, dir string) {
			writeMeta(t, dir, `{"format":99,"serverId":1`)
		}, []string{"DIR", "format 99"}},
		"another server's": {func(t *testing.T, dir string) {
			writeMeta(t, dir, `{"format":3,"serverId":8`)
		}, []string{"DIR", "server 8"}},
		"damaged meta.json": {func(t *testing.T, dir string) {
			check1(t, os.WriteFile(filepath.Join(dir, "meta.json"), []byte(`{"for`), 0o644))
		}, []string{"DIR/meta.json", "damaged"}},
		"damaged log":         {damageLog, []string{"DIR/raft/"}},
		"damaged log, boltdb": {damageLog, []string{"DIR/raft/raft.db"}},
		"half of raft.db, boltdb": {func(t *testing.T, dir string) {
			check1(t, os.Truncate(filepath.Join(dir, "raft/raft.db"), 10_000))
		}, []string{"DIR/raft/raft.db", "damaged", "cut short"}},
		"half of a segment": {func(t *testing.T, dir string) {
			check1(t, os.Truncate(segment(t, dir), 1000))
		}, []string{"lockkeeper: DIR/raft/wal/0", ".wal is damaged: 1000 bytes of"}},
		"no raft.db, boltdb": {func(t *testing.T, dir string) {
			check1(t, os.Remove(filepath.Join(dir, "raft/raft.db")))
		}, []string{"DIR/raft/raft.db"}},
		"no segment": {func(t *testing.T, dir string) {
			check1(t, os.Remove(segment(t, dir)))
		}, []string{"DIR/raft/wal/", "missing"}},
		"a file": {func(t *testing.T, dir string) {
			check1(t, os.RemoveAll(dir))
			check1(t, os.WriteFile(dir, nil, 0o644))
		}, []string{"DIR", "not a directory"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "data")
			if strings.HasSuffix(name, "boltdb") {
				check1(t, os.CopyFS(dir, inBolt))
			} else {
				check1(t, os.CopyFS(dir, inWAL))
			}
			c.harm(t, dir)
			for i := range c.says {
				c.says[i] = strings.Replace(c.says[i], "DIR", dir, 1)
			}
			alone, member := "restore a snapshot, or a copy", "do not put back a copy of it: move it away"
			says := func(also ...string) []string {
				if slices.Contains([]string{"newer format", "another server's", "a file"}, name) {
					return c.says
				}
				return append(also, c.says...)
			}
			refuses(t, exitFault, []string{"serve", "--listen", "127.0.0.1:0", "--data", dir}, says(alone)...)
			refuses(t, exitFault, []string{"serve", "--listen", "127.0.0.1:0", "--data", dir, "--peers", "1=127.0.0.1:1,2=127.0.0.1:2,3=127.0.0.1:3"}, says(member)...)
			if name == "another server's" {
				return // the directory itself is good
			}
			refuses(t, exitFault, []string{"check", dir}, append(says("if it is a standalone server's, "+alone, "if it is a member's, "+member), dir)...)
		})
	}
}

// writeMeta writes meta.json, with its checksum.
func writeMeta(t *testing.T, dir, content string) {
	t.Helper()
	sum := crc32.Checksum([]byte(content), crc32.MakeTable(crc32.Castagnoli))
	check1(t, os.WriteFile(filepath.Join(dir, "meta.json"), fmt.Appendf(nil, "%s,\"sum\":\"%08x\"}\n", content, sum), 0o644))
}

// segment is the file that the log of a small data directory is in.
func segment(t *testing.T, dir string) string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, "raft/wal/*.wal"))
	check1(t, err)
	if len(list) != 1 {
		t.Fatalf("%d segments", len(list))
	}
	return list[0]
}

// damageLog flips a bit in every copy of an entry.
func damageLog(t *testing.T, dir string) {
	path := filepath.Join(dir, "raft/raft.db")
	if _, err := os.Stat(path); err != nil {
		path = segment(t, dir)
	}
	b, err := os.ReadFile(path)
	check1(t, err)
	for i := range len(b) - 100 {
		if bytes.Equal(b[i:i+50], bytes.Repeat([]byte("x"), 50)) {
			b[i] ^= 1
		}
	}
	check1(t, os.WriteFile(path, b, 0o600))
}

func TestCheck(t *testing.T) {
	dir := filled(t)
	before := modTimes(t, dir)
	code, stdout, stderr := call(nil, "check", dir)
	if pattern := `^` + regexp.QuoteMeta(dir) + ` is good: server 1, cluster [0-9a-f]{16}, zxid 0x[0-9a-f]+, 24 znodes, 1 sessions, term \d+, log entries 1 to \d+ in wal after a snapshot at 0, digest [0-9a-f]{16}\n$`; code != exitOK || stderr != "" || !regexp.MustCompile(pattern).MatchString(stdout) {
		t.Errorf("%d %q %q, not %s", code, stdout, stderr, pattern)
	}
	code, out, stderr := call(nil, "check", "--json", dir)
	var report struct {
		ServerID, LastIndex uint64
		Zxid                int64
		Znodes, Sessions    int
		Cluster, Digest     string
	}
	if err := json.Unmarshal([]byte(out), &report); code != exitOK || stderr != "" || err != nil {
		t.Errorf("%d %q %q, %v", code, out, stderr, err)
	}
	if report.ServerID != 1 || report.Znodes != 24 || report.Sessions != 1 || report.Zxid < 21 || !strings.Contains(stdout, report.Digest) {
		t.Errorf("%+v, but %s", report, stdout)
	}
	if _, viaEnv, _ := call(map[string]string{"LOCKKEEPER_JSON": "true"}, "check", dir); viaEnv != out {
		t.Errorf("by the environment %q, by the flag %q", viaEnv, out)
	}
	if after := modTimes(t, dir); after != before {
		t.Errorf("check changed\n%s\nto\n%s", before, after)
	}
	for _, to := range []string{"boltdb", "boltdb", "wal"} {
		code, out, stderr := call(nil, "check", "--convert", to, dir)
		if want := strings.Replace(stdout, " in wal ", " in "+to+" ", 1); code != exitOK || !strings.HasPrefix(out, want) || stderr != "" {
			t.Errorf("converted to %s: %d %q %q", to, code, out, stderr)
		}
	}
	if code, _, stderr := call(nil, "check", "--convert", "etcd", dir); code != exitUsage || !strings.Contains(stderr, "--convert") {
		t.Errorf("converted to etcd: %d %q", code, stderr)
	}
	missing := filepath.Join(t.TempDir(), "missing")
	for _, args := range [][]string{{"check", missing}, {"check", "--json", missing}} {
		refuses(t, exitFault, args, missing)
	}
	if _, err := os.Stat(missing); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("check created the directory: %v", err)
	}
}

// TestCheckAgainst compares the directories of members.
func TestCheckAgainst(t *testing.T) {
	dir, other := filled(t), filled(t)
	same := filepath.Join(t.TempDir(), "same")
	check1(t, os.CopyFS(same, os.DirFS(dir)))
	before := modTimes(t, dir)
	code, out, stderr := call(nil, "check", "--against", same, dir)
	want := `^` + regexp.QuoteMeta(dir+" and "+same) + ` are the same: log entries 1 to (\d+), and the state after entry (\d+)\n$`
	if m := regexp.MustCompile(want).FindStringSubmatch(out); code != exitOK || stderr != "" || m == nil || m[1] != m[2] {
		t.Errorf("%d %q %q, not %s", code, out, stderr, want)
	}
	var report struct {
		A, B       struct{ Digest string }
		StateIndex uint64
		Different  string
	}
	code, out, stderr = call(nil, "check", "--json", "--against", same, dir)
	if err := json.Unmarshal([]byte(out), &report); err != nil || code != exitOK || stderr != "" || report.A != report.B || report.StateIndex == 0 {
		t.Errorf("%d %q %q, %v", code, out, stderr, err)
	}
	code, out, stderr = call(nil, "check", "--against", other, dir)
	if code != exitFault || out != "" {
		t.Errorf("of another server: %d %q", code, out)
	}
	oneError(t, stderr, dir+" and "+other+" differ: they belong to cluster ")
	code, out, _ = call(nil, "check", "--json", "--against", other, dir)
	if err := json.Unmarshal([]byte(out), &report); err != nil || code != exitFault || !strings.Contains(report.Different, "they belong to cluster ") {
		t.Errorf("of another server: %d %q, %v", code, out, err)
	}
	if code, _, stderr := call(nil, "check", "--convert", "wal", "--against", same, dir); code != exitUsage || !strings.Contains(stderr, "--against") {
		t.Errorf("with --convert: %d %q", code, stderr)
	}
	if after := modTimes(t, dir); after != before {
		t.Errorf("check changed\n%s\nto\n%s", before, after)
	}
}

func modTimes(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	check1(t, filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err == nil {
			fmt.Fprintln(&b, path, info.Size(), info.ModTime())
		}
		return err
	}))
	return b.String()
}

// logged is a line of the log.
type logged struct {
	Time       time.Time
	Level, Msg string
}

// jsonLog returns the lines on standard error of a process that has ended, all of which must be JSON.
func jsonLog(t *testing.T, p *process) (all []logged) {
	t.Helper()
	for _, line := range p.lines() {
		var e logged
		if err := json.Unmarshal([]byte(line), &e); err != nil || e.Time.IsZero() || e.Level == "" || e.Msg == "" {
			t.Errorf("%q: %v", line, err)
		}
		all = append(all, e)
	}
	return all
}

// TestLogFormatWhole: with --log-format json there is nothing else on standard error, at any level.
func TestLogFormatWhole(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	check1(t, err)
	t.Cleanup(func() { taken.Close() })
	dir := t.TempDir()
	badConfig := filepath.Join(dir, "zoo.cfg")
	check1(t, os.WriteFile(badConfig, []byte("tickTime=soon\n"), 0o600))
	cert, _ := testkit.WritePair(t, testkit.NewCA(t).Server(t), dir, "both.pem", "both.pem")
	const nobody = "127.0.0.1:0"
	for _, c := range []struct {
		name string
		env  []string
		args []string
		code int      // -1 for one that serves, and is stopped
		says []string // how the messages begin
	}{
		{"serves", nil, []string{"--log-format=json", "--log-level=error", "--admin", nobody, "--metrics-listen", nobody, "--tls-listen", nobody, "--tls-cert", cert, "--tls-client-auth", "none"}, -1,
			[]string{"lockkeeper: admin on http://", "lockkeeper: metrics on http://", "lockkeeper: serving ZooKeeper clients with TLS on ", "lockkeeper: serving ZooKeeper clients on "}},
		{"for tests", nil, []string{"--log-format=json", "--log-level=error", "--test-control", nobody}, -1, []string{"lockkeeper: test control on http://", "lockkeeper: serving ZooKeeper clients on "}},
		{"by a variable", []string{"LOCKKEEPER_LOG_FORMAT=json"}, nil, -1, []string{"lockkeeper: serving ZooKeeper clients on "}},
		{"a fault", nil, []string{"--log-format=json", "--listen", taken.Addr().String()}, exitFault, []string{"lockkeeper: --listen: "}},
		{"the file", nil, []string{"--log-format=json", "--config", badConfig}, exitUsage, []string{"lockkeeper: "}},
		{"a value", nil, []string{"--log-format=json", "--super-digest", "nohash"}, exitUsage, []string{"lockkeeper: --super-digest: "}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := start(t, c.env, append([]string{"serve", "--memory", "--listen", nobody}, c.args...)...)
			code, level := c.code, "ERROR"
			if code < 0 {
				p.waitReady()
				check1(t, p.Process.Signal(syscall.SIGTERM))
				code, level = exitOK, "INFO"
			}
			if got := p.exit(); got != code {
				t.Errorf("exit code %d", got)
			}
			all := jsonLog(t, p)
			for i, want := range c.says {
				if len(all) != len(c.says) || all[i].Level != level || !strings.HasPrefix(all[i].Msg, want) {
					t.Fatalf("%+v, not %q", all, c.says)
				}
			}
		})
	}
	t.Run("a flag", func(t *testing.T) { // the flags do not say what the format is
		t.Parallel()
		p := start(t, nil, "serve", "--log-format=json", "--nonsense")
		if code := p.exit(); code != exitUsage {
			t.Errorf("exit code %d", code)
		}
		oneError(t, strings.Join(p.lines(), "\n")+"\n", "--nonsense")
	})
}
