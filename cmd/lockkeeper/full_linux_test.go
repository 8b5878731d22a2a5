package main

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-zookeeper/zk"
	"github.com/spf13/cobra"
)

// TestFull: no command ends with success if standard output cannot be written to, and all say why.
func TestFull(t *testing.T) {
	t.Parallel()
	s := lockServer(t, "*")
	node(t, client(t, s.Addr()), "/a/lock-", zk.FlagEphemeral|zk.FlagSequence)
	dir := t.TempDir()
	snapshot, data, zookeeper := filepath.Join(dir, "snapshot"), filled(t), zooDir(t)
	peer := freeAddrs(t, 1)[0]
	member := start(t, nil, "serve", "--memory", "--listen", "127.0.0.1:0", "--peers", "1="+peer, "--admin", "127.0.0.1:0", "--admin-write").waitReady()
	recording := filepath.Join("..", "..", "testdata", "golden", "01-connect-ping-close.txt")
	at := " --server " + s.Addr()
	commands := map[string][]string{
		"lockkeeper":            {"--help", "--version"},
		"help":                  {"help", "help lock run"},
		"version":               {"version"},
		"lock ls":               {"lock ls" + at, "lock ls --json" + at, "lock ls --watch" + at, "lock ls --watch --json" + at, "lock ls --watch /nothing" + at},
		"lock check":            {"lock check" + at, "lock check --json" + at},
		"lock break":            {"lock break --yes /a" + at},
		"zk":                    {"zk" + at + " ls /", "zk --json" + at + " ls /"},
		"bench":                 {"bench --list", "bench --ops 1 --workload create-1x1 " + s.Addr(), "bench --json --ops 1 --workload create-1x1 " + s.Addr()},
		"conform":               {"conform --list", "conform --run ^create/sequential$ " + s.Addr(), "conform --json --run ^create/sequential$ " + s.Addr()},
		"wire":                  nil, // see below
		"wire replay":           {"wire replay " + recording + " " + s.Addr(), "wire replay --json " + recording + " " + s.Addr()},
		"check":                 {"check " + data, "check --json " + data, "check --against " + data + " " + data},
		"snapshot save":         {"snapshot save --data " + data + " " + snapshot, "snapshot save --json --force --data " + data + " " + snapshot},
		"snapshot restore":      {"snapshot restore " + snapshot + " --data " + filepath.Join(dir, "restored")},
		"migrate check":         {"migrate check " + zookeeper, "migrate check --json " + zookeeper},
		"migrate from":          {"migrate from " + zookeeper + " --data " + filepath.Join(dir, "from"), "migrate from --json " + zookeeper + " --data " + filepath.Join(dir, "json")},
		"migrate to":            {"migrate to --let-sessions-expire " + filepath.Join(dir, "to") + " --data " + data, "migrate to --json --let-sessions-expire " + filepath.Join(dir, "tojson") + " --data " + data},
		"migrate empty":         {"migrate empty --above 1 --data " + filepath.Join(dir, "empty")},
		"cluster status":        {"cluster status --server " + member.addr, "cluster status --json --server " + member.addr},
		"cluster add":           {"cluster add 1=" + peer + " --server " + member.addr},
		"cluster remove":        nil, // these print the members as cluster add does
		"cluster transfer":      nil,
		"cluster form":          nil,
		"disconnect":            {"disconnect sasl:bob --admin " + member.admin(), "disconnect --json sasl:bob --admin " + member.admin()},
		"serve":                 nil, // prints nothing on standard output
		"lock run":              nil, // that is its command's
		"completion bash":       {"completion bash"},
		"completion zsh":        {"completion zsh"},
		"completion fish":       {"completion fish"},
		"completion powershell": {"completion powershell"},
	}
	var all func(c *cobra.Command)
	all = func(c *cobra.Command) {
		if _, ok := commands[words(c)]; !ok && !c.HasSubCommands() && !c.Hidden {
			t.Errorf("%s is not tested", words(c))
		}
		for _, sub := range c.Commands() {
			all(sub)
		}
	}
	all(newRoot(nil, nil))
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	check1(t, err)
	defer full.Close()
	lines := slices.Concat(commands["snapshot save"]) // before restore
	for name, list := range commands {
		if name != "snapshot save" {
			lines = append(lines, list...)
		}
	}
	for _, line := range lines {
		var errs bytes.Buffer
		code := run(strings.Fields(line), func(string) string { return "" }, full, &errs)
		if code != exitFault || strings.Count(errs.String(), "no space left on device") != 1 {
			t.Errorf("%s: exit code %d, %q", line, code, &errs)
		}
	}
	cmd := exec.Command(binary, "wire", "--to", s.Addr()) // which prints when there is a client
	cmd.Stdout = full
	p := startCmd(t, cmd)
	if nc, err := net.Dial("tcp", p.waitReady().addr); err == nil { // it may be faster, and end
		defer nc.Close()
	}
	if code := p.exit(); code != exitFault || !strings.Contains(strings.Join(p.lines(), "\n"), "no space left on device") {
		t.Errorf("wire: exit code %d, %q", code, p.lines())
	}
	s.WaitHeld("/a", s.Locks()[0].Holder) // lock break has not deleted what it could not announce
}
