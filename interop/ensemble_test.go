//go:build interop

package interop

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// ensemble is a cluster of processes. Each member keeps its ports and its data directory.
type ensemble struct {
	t      *testing.T
	dir    string
	args   []string // of every member
	listen []string // client addresses
	peers  []string // addresses of the peer ports
	procs  []*lockkeeper
	served []bool     // whether the process has reported that it serves
	by     [][]string // a command to start the process with, if any: ip netns exec NAME
	runs   []string   // the binary of each member
}

// startEnsemble starts n servers and waits until all of them serve clients.
func startEnsemble(t *testing.T, n int, args ...string) *ensemble {
	t.Helper()
	return newEnsemble(t, n, args...).start()
}

// start starts all servers and waits until they serve clients.
func (e *ensemble) start() *ensemble {
	e.t.Helper()
	for i := range e.procs {
		e.launch(i)
	}
	e.await()
	return e
}

func newEnsemble(t *testing.T, n int, args ...string) *ensemble {
	t.Helper()
	e := &ensemble{runs: slices.Repeat([]string{lockkeeperBinary(t)}, n),
		t: t, dir: t.TempDir(), args: args, procs: make([]*lockkeeper, n), served: make([]bool, n), by: make([][]string, n)}
	for range n {
		e.listen = append(e.listen, freeAddr(t))
		e.peers = append(e.peers, freeAddr(t))
	}
	return e
}

func (e *ensemble) data(i int) string { return filepath.Join(e.dir, strconv.Itoa(i+1)) }

func (e *ensemble) addresses() []string { return e.listen }

func (e *ensemble) addrs() string { return strings.Join(e.listen, ",") }

// launch starts member i without waiting until it serves.
func (e *ensemble) launch(i int) {
	e.t.Helper()
	members := make([]string, len(e.peers))
	for j, addr := range e.peers {
		members[j] = fmt.Sprintf("%d=%s", j+1, addr)
	}
	args := append([]string{"--id", strconv.Itoa(i + 1), "--peers", strings.Join(members, ","), "--listen", e.listen[i], "--data", e.data(i)}, e.args...)
	e.procs[i], e.served[i] = execProgram(e.t, e.runs[i], e.by[i], args...), false
}

// await waits until all running members serve clients.
func (e *ensemble) await() {
	e.t.Helper()
	for i, p := range e.procs {
		if e.served[i] || p.quiet {
			continue
		}
		select {
		case <-p.stderr.match:
			e.served[i] = true
		case <-p.exited:
			e.t.Fatalf("server %d ended by itself: %v", i+1, p.state)
		case <-time.After(startDeadline):
			e.t.Fatalf("server %d does not serve after %v", i+1, startDeadline)
		}
	}
}

// up checks that a member is still running.
func (e *ensemble) up(i int) *lockkeeper {
	e.t.Helper()
	p := e.procs[i]
	select {
	case <-p.exited:
		e.t.Fatalf("server %d ended by itself: %v", i+1, p.state)
	default:
	}
	return p
}

// kill kills member i with SIGKILL.
func (e *ensemble) kill(i int) {
	e.t.Helper()
	p := e.up(i)
	p.Kill()
	p.quiet = true
}

// stop stops member i with SIGTERM.
func (e *ensemble) stop(i int) {
	e.t.Helper()
	p := e.up(i)
	p.Stop()
	p.quiet = true
}

func (e *ensemble) signal(i int, s syscall.Signal) {
	e.t.Helper()
	if err := e.up(i).cmd.Process.Signal(s); err != nil {
		e.t.Fatalf("%v to server %d: %v", s, i+1, err)
	}
}

// mode returns the mode in the answer of member i to srvr, or "" if it does not answer.
func (e *ensemble) mode(i int) string {
	answer, err := fourLetterWord(e.listen[i], "srvr", 5*time.Second)
	if err != nil {
		return ""
	}
	_, mode, _ := strings.Cut(answer, "Mode: ")
	mode, _, _ = strings.Cut(mode, "\n")
	return strings.TrimSpace(mode)
}

// leader waits until a running member reports that it leads, and returns its index.
func (e *ensemble) leader() int {
	e.t.Helper()
	for deadline := time.Now().Add(startDeadline); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		for i, p := range e.procs {
			select {
			case <-p.exited:
				continue
			default:
			}
			if e.mode(i) == "leader" {
				return i
			}
		}
	}
	e.t.Fatalf("no leader within %v", startDeadline)
	return -1
}

// memberStatus is the output of 'lockkeeper cluster status --json'.
type memberStatus struct {
	ID      uint64
	Leader  uint64
	Term    uint64
	Index   uint64
	Zxid    int64
	Digest  string
	Cluster string
}

// cluster runs a 'lockkeeper cluster' command with member i.
func (e *ensemble) cluster(i int, args ...string) (s memberStatus, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), startDeadline)
	defer cancel()
	args = append([]string{"cluster", "--peer", e.peers[i], "--json"}, args...)
	cmd := exec.CommandContext(ctx, lockkeeperBinary(e.t), args...)
	cmd.Env = cleanEnv()
	out, err := cmd.Output()
	if err != nil && len(out) == 0 { // status has other exit codes for a cluster that is not well
		return s, fmt.Errorf("lockkeeper cluster %q: %w: %s", args, err, stderrOf(err))
	}
	return s, json.Unmarshal(out, &s)
}

// agree waits until all members have applied the same entries, and checks that they have
// the same digest. No client may write meanwhile.
func (e *ensemble) agree() {
	e.t.Helper()
	var last []memberStatus
	var err error
next:
	for deadline := time.Now().Add(startDeadline); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		last = last[:0]
		for i := range e.procs {
			var s memberStatus
			if s, err = e.cluster(i, "status"); err != nil {
				continue next
			}
			last = append(last, s)
		}
		other := func(s memberStatus) bool { return s.Index != last[0].Index }
		if slices.ContainsFunc(last, other) {
			continue
		}
		for _, s := range last[1:] {
			if s.Digest != last[0].Digest || s.Zxid != last[0].Zxid {
				e.t.Fatalf("at one index, members differ: %+v", last)
			}
		}
		return
	}
	e.t.Fatalf("the members do not come to the same index: %+v, %v", last, err)
}

// finish checks that all members have the same digest, stops them with SIGTERM, and runs
// 'lockkeeper check' on their files.
func (e *ensemble) finish() {
	e.t.Helper()
	e.agree()
	for i := range e.procs {
		e.stop(i)
	}
	for i := range e.procs {
		checkDir(e.t, e.data(i))
	}
}

// checkDir runs 'lockkeeper check' on the files of a dead server.
func checkDir(t testing.TB, dir string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startDeadline)
	defer cancel()
	cmd := exec.CommandContext(ctx, lockkeeperBinary(t), "check", dir)
	cmd.Env = cleanEnv()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("lockkeeper check: %v\n%s", err, out)
	}
	return string(out)
}
