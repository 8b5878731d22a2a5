//go:build unix

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// TestReadmeThreeServers pastes "Three servers" of the README into shells, twice, with other ports. No command of it
// fails, and none of the servers is left.
func TestReadmeThreeServers(t *testing.T) {
	t.Parallel()
	text := string(value(os.ReadFile("../../README.md"))(t))
	_, part, _ := strings.Cut(text, "\n## Three servers\n")
	_, script, _ := strings.Cut(part, "```sh\n")
	script, _, ok := strings.Cut(script, "```\n")
	if !ok || strings.Contains(script, "#") { // zsh takes a comment for arguments
		t.Fatalf("no script, or one with comments:\n%s", script)
	}
	for _, shell := range []string{"sh", "bash", "zsh"} {
		path, err := exec.LookPath(shell)
		if err != nil {
			continue
		}
		t.Run(shell, func(t *testing.T) {
			dir := t.TempDir()
			check1(t, os.Symlink(binary, filepath.Join(dir, commandName)))
			mine := strings.ReplaceAll(script, "./lockkeeper ", "./"+commandName+" ")
			var server string
			for _, port := range []string{"700", "218", "808"} {
				free := fmt.Sprint((testkit.Ports(t, 13) + 8) / 10) // its last digits 1 to 3 are among them
				if !strings.Contains(mine, port+"1") && !strings.Contains(mine, port+"$i") {
					t.Fatalf("no port %s1:\n%s", port, script)
				}
				mine = strings.ReplaceAll(strings.ReplaceAll(mine, port+"$i", free+"$i"), ":"+port, ":"+free)
				if port == "218" {
					server = "127.0.0.1:" + free + "1"
				}
			}
			health := "\nhealth: ok\n"
			for turn := 1; turn <= 2; turn++ { // the second time with their data: two servers may serve before the third is up
				if turn == 2 {
					mine, health = strings.ReplaceAll(mine, "cluster status\n", "cluster status || [ $? -eq 3 ]\n"), "\nhealth: "
				}
				cmd := exec.CommandContext(t.Context(), path, "-e", "-c", mine+"wait\n")
				cmd.Dir, cmd.Env = dir, append(os.Environ(), "LOCKKEEPER_SERVER="+server, "LOCKKEEPER_CLUSTER_TIMEOUT=1m")
				cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
				var out bytes.Buffer
				cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, &out, 20*time.Second
				err := cmd.Run() // ends when the servers have, which have a copy of its pipe
				if cmd.Process != nil {
					syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // those that are left if a command failed
				}
				if err != nil || !strings.Contains(out.String(), health) || !strings.Contains(out.String(), "\nlocked\n") {
					t.Errorf("turn %d: %v\n%s\n%s", turn, err, mine, out.String())
				}
			}
		})
	}
}
