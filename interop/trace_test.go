//go:build interop

package interop

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// tracedCalls are the system calls with which a process changes files, syncs them or
// replies to clients. Those with a question mark do not exist on every system.
const tracedCalls = "trace=?open,openat,?creat,write,pwrite64,writev,pwritev,?pwritev2,ftruncate,?truncate,fallocate," +
	"?rename,renameat,renameat2,?unlink,unlinkat,?rmdir,?mkdir,mkdirat,?link,linkat,?symlink,symlinkat," +
	"fsync,fdatasync,sync,syncfs,msync,mmap,lseek,copy_file_range,?sendfile,splice,?io_uring_setup"

// traced is a command that runs under strace.
type traced struct {
	t      *testing.T
	cmd    *exec.Cmd // strace
	file   string
	stderr *tail
	exited chan struct{}
}

// startTraced starts a command under strace with additional flags.
func startTraced(t *testing.T, flags []string, command ...string) *traced {
	t.Helper()
	p := &traced{t: t, file: filepath.Join(t.TempDir(), "trace"), exited: make(chan struct{})}
	// With -xx every byte is written as \xNN, so that no data looks like syntax.
	args := slices.Concat([]string{"-f", "-y", "-xx", "-s", "100000000", "-qq", "--seccomp-bpf", "-e", tracedCalls, "-o", p.file}, flags, command)
	p.cmd = exec.Command("strace", args...)
	p.cmd.Env = cleanEnv()
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.stderr = &tail{want: servingLine, match: make(chan string, 1)}
	p.cmd.Stderr = p.stderr
	p.cmd.WaitDelay = 10 * time.Second
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("%v (interop/setup.sh installs strace)", err)
	}
	go func() {
		p.cmd.Wait()
		close(p.exited)
	}()
	t.Cleanup(func() {
		select {
		case <-p.exited:
		default:
			p.signal(syscall.SIGKILL)
			<-p.exited
		}
	})
	return p
}

// serving waits until the command serves clients and returns the address, or "" if the
// command ends before.
func (p *traced) serving() string {
	p.t.Helper()
	select {
	case line := <-p.stderr.match:
		return strings.TrimSpace(line[strings.Index(line, servingLine)+len(servingLine):])
	case <-p.exited:
		if strings.Contains(p.stderr.String(), "ptrace") {
			p.t.Skipf("this kernel does not let a process be traced: %s", p.stderr)
		}
	case <-time.After(startDeadline):
		p.t.Fatalf("the server does not start\n%s", p.stderr)
	}
	return ""
}

// signal sends a signal to the traced processes, but not to strace. It returns the
// processes.
func (p *traced) signal(s syscall.Signal) (pids []int) {
	var below func(pid int)
	below = func(pid int) {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
		for _, task := range tasks {
			children, _ := os.ReadFile(task)
			for _, c := range strings.Fields(string(children)) {
				if child, err := strconv.Atoi(c); err == nil {
					below(child)
					syscall.Kill(child, s)
					pids = append(pids, child)
				}
			}
		}
	}
	below(p.cmd.Process.Pid)
	return pids
}

// kill kills the traced processes. It first stops them all: strace cannot read the result
// of a call whose thread was killed meanwhile, and prints that of another call.
func (p *traced) kill() {
	p.t.Helper()
	trace, err := os.Open(p.file)
	if err != nil {
		p.t.Fatal(err)
	}
	defer trace.Close()
	if _, err := trace.Seek(0, io.SeekEnd); err != nil {
		p.t.Fatal(err)
	}
	pids := p.signal(syscall.SIGSTOP)
	var since []byte // what has been traced since then
	for end := time.Now().Add(startDeadline); !stopped(pids, since); time.Sleep(10 * time.Millisecond) {
		more, err := io.ReadAll(trace)
		if err != nil {
			p.t.Fatal(err)
		}
		since = append(since, more...)
		if time.Now().After(end) {
			p.t.Fatal("the traced processes do not stop")
		}
	}
	p.signal(syscall.SIGKILL)
}

// stopped reports whether all threads of these processes have stopped, according to a trace.
func stopped(pids []int, trace []byte) bool {
	for _, pid := range pids {
		threads, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		for _, thread := range threads {
			if !regexp.MustCompile(`(?m)^` + thread.Name() + ` +--- stopped by SIGSTOP`).Match(trace) {
				return false
			}
		}
	}
	return true
}

// end waits until the command has ended, and returns the events of the files below root.
func (p *traced) end(root string) []event {
	p.t.Helper()
	select {
	case <-p.exited:
	case <-time.After(startDeadline):
		p.t.Fatalf("the traced command does not end\n%s", p.stderr)
	}
	f, err := os.Open(p.file)
	if err != nil {
		p.t.Fatal(err)
	}
	defer f.Close()
	events, err := readTrace(f, root)
	if err != nil {
		p.t.Fatalf("%s: %v", p.file, err)
	}
	if os.Remove(p.file); len(events) < 2 {
		p.t.Fatalf("nothing was traced\n%s", p.stderr)
	}
	return events
}

type eventKind int

const (
	evCreate     eventKind = iota // a file is opened and created if it does not exist
	evOpen                        // a file is opened
	evMkdir                       //
	evRename                      // from path to other
	evLink                        // other becomes another name of path
	evRemove                      //
	evWrite                       // data at offset, or where the last write ended if that is -1
	evSeek                        // to offset
	evTruncate                    // to size
	evAllocate                    // to at least size
	evSync                        // of the file or directory begins; its evSynced has the same call
	evSynced                      // has ended, or failed
	evReply                       // data is being written to socket, or size bytes of it were not
	evUnfinished                  // a write was running when the process ended
	evDied                        // a process has ended
)

// event is a step of a traced process. Times are indexes in the list of events.
type event struct {
	kind        eventKind
	path, other string
	data        []byte
	offset      int64
	size        int64
	truncate    bool // of evCreate and evOpen
	names       bool // of evUnfinished: names may have changed, too; other is the new one of a rename
	failed      bool // of evSynced
	call        int  // of evSync and evSynced
	socket      string
}

func (e *event) String() string {
	names := []string{"create", "open", "mkdir", "rename", "link", "remove", "write", "seek", "truncate", "allocate", "sync", "synced", "reply", "unfinished", "died"}
	s := names[e.kind] + " " + e.path
	switch e.kind {
	case evRename, evLink:
		s += " to " + e.other
	case evWrite:
		s += fmt.Sprintf(", %d bytes at %d", len(e.data), e.offset)
	case evTruncate, evAllocate:
		s += fmt.Sprintf(" to %d bytes", e.size)
	case evSynced:
		if e.failed {
			s += ": failed"
		}
	case evReply:
		s += e.socket
	}
	return s
}

// call is a system call: one line of the trace, or two if other calls come in between.
type call struct {
	name   string
	args   []string
	result string
	number int
}

// readTrace parses the output of strace. It omits calls that concern neither a file below
// root nor a socket. A call that changes a file below root in an unknown way is an error.
func readTrace(r io.Reader, root string) ([]event, error) {
	t := &traceReader{root: root, open: map[string]*call{}}
	in := bufio.NewReaderSize(r, 1<<20)
	for number := 1; ; number++ {
		line, err := in.ReadBytes('\n')
		if len(line) > 0 {
			if err := t.line(string(bytes.TrimSuffix(line, []byte("\n"))), number); err != nil {
				return nil, fmt.Errorf("line %d: %w: %.300s", number, err, line)
			}
		}
		if err == io.EOF {
			break
		} else if err != nil {
			return nil, err
		}
	}
	for _, c := range t.open {
		if t.died(c); t.err != nil {
			return nil, t.err
		}
	}
	t.add(event{kind: evDied})
	return t.events, nil
}

type traceReader struct {
	root   string
	open   map[string]*call // unfinished calls by thread
	events []event
	err    error
}

func (t *traceReader) line(line string, number int) error {
	thread, rest, _ := strings.Cut(line, " ")
	rest = strings.TrimLeft(rest, " ")
	switch {
	case strings.HasPrefix(rest, "---"):
		return nil
	case strings.HasPrefix(rest, "+++"):
		if c := t.open[thread]; c != nil {
			t.died(c)
			delete(t.open, thread)
		}
		return t.err
	}
	var c *call
	if strings.HasPrefix(rest, "<... ") {
		if c = t.open[thread]; c == nil {
			return fmt.Errorf("the end of a call that did not start")
		}
		delete(t.open, thread)
		_, rest, _ = strings.Cut(rest, " resumed>")
	} else {
		name, args, ok := strings.Cut(rest, "(")
		if !ok {
			return fmt.Errorf("no call")
		}
		c, rest = &call{name: name, number: number}, args
	}
	part, unfinished := strings.CutSuffix(rest, " <unfinished ...>")
	if unfinished {
		c.add(part)
		t.open[thread] = c
		t.begins(c)
		return t.err
	}
	// The result comes after the last " = ", which cannot be part of a string.
	at := strings.LastIndex(rest, " = ")
	if at < 0 {
		return fmt.Errorf("no result")
	}
	began := len(c.args) > 0
	c.add(strings.TrimSuffix(strings.TrimRight(rest[:at], " "), ")"))
	c.result = rest[at+3:]
	if !began {
		t.begins(c)
	}
	switch {
	case t.err != nil:
	case strings.HasPrefix(c.result, "?"): // the process was killed meanwhile
		t.died(c)
	default:
		t.ends(c)
	}
	return t.err
}

func (c *call) add(args string) {
	for a := range strings.SplitSeq(args, ", ") {
		if a = strings.TrimSpace(a); a != "" {
			c.args = append(c.args, a)
		}
	}
}

// text decodes a string of the trace.
func text(s string) []byte {
	s = strings.Trim(s, `"`)
	b, err := hex.DecodeString(strings.ReplaceAll(s, `\x`, ""))
	if err != nil {
		return []byte(s)
	}
	return b
}

// behind returns the path of a descriptor, written 3<...>, or "" for a file without a name.
func behind(fd string) string {
	_, name, _ := strings.Cut(fd, "<")
	name, rest, _ := strings.Cut(name, ">")
	if strings.Contains(rest, "deleted") {
		return ""
	}
	return string(text(name))
}

func (t *traceReader) ours(path string) bool {
	return path == t.root || strings.HasPrefix(path, t.root+"/")
}

// at returns the path that a call names, given the directory to which it is relative.
func at(dir, path string) string {
	p := string(text(path))
	if !filepath.IsAbs(p) {
		p = filepath.Join(behind(dir), p)
	}
	return filepath.Clean(p)
}

func (c *call) arg(i int) string {
	if i < len(c.args) {
		return c.args[i]
	}
	return ""
}

func (t *traceReader) add(e event) { t.events = append(t.events, e) }

// begins handles effects of the start of a call: what was written before a sync started
// is durable after it, and a request counts as acknowledged when its reply is being sent.
func (t *traceReader) begins(c *call) {
	fd := behind(c.arg(0))
	switch c.name {
	case "write":
		if strings.HasPrefix(fd, "socket:") {
			t.add(event{kind: evReply, socket: fd, data: text(c.arg(1))})
		}
	case "fsync", "fdatasync":
		if t.ours(fd) {
			t.add(event{kind: evSync, path: fd, call: c.number})
		}
	case "writev", "pwritev", "pwritev2", "sendfile", "splice", "copy_file_range", "msync", "io_uring_setup":
		for _, a := range c.args {
			if t.ours(behind(a)) || c.name == "io_uring_setup" {
				t.err = fmt.Errorf("%s is not known to this test", c.name)
			}
		}
	case "mmap":
		if strings.Contains(c.arg(3), "MAP_SHARED") && strings.Contains(c.arg(2), "PROT_WRITE") && t.ours(behind(c.arg(4))) {
			t.err = fmt.Errorf("a mapping that can be written is not known to this test")
		}
	}
}

// died handles a call that was not finished when its process ended.
func (t *traceReader) died(c *call) {
	switch c.name {
	case "write", "pwrite64", "ftruncate", "fallocate":
		if fd := behind(c.arg(0)); t.ours(fd) {
			t.add(event{kind: evUnfinished, path: fd})
		}
	case "renameat", "renameat2":
		if path := at(c.arg(0), c.arg(1)); t.ours(path) {
			t.add(event{kind: evUnfinished, path: path, other: at(c.arg(2), c.arg(3)), names: true})
		}
	case "rename":
		if path := at("", c.arg(0)); t.ours(path) {
			t.add(event{kind: evUnfinished, path: path, other: at("", c.arg(1)), names: true})
		}
	case "openat", "unlinkat", "mkdirat", "linkat":
		if path := at(c.arg(0), c.arg(1)); t.ours(path) {
			t.add(event{kind: evUnfinished, path: path, names: true})
		}
	case "open", "creat", "unlink", "rmdir", "mkdir", "link":
		if path := at("", c.arg(0)); t.ours(path) {
			t.add(event{kind: evUnfinished, path: path, names: true})
		}
	}
}

func (t *traceReader) ends(c *call) {
	value, where, _ := strings.Cut(c.result, "<")
	value, _, _ = strings.Cut(strings.TrimSpace(value), " ")
	result, err := strconv.ParseInt(value, 0, 64)
	failed := err != nil || result < 0
	fd := behind(c.arg(0))
	number := func(i int) int64 {
		n, err := strconv.ParseInt(c.arg(i), 0, 64)
		if err != nil && t.err == nil {
			t.err = fmt.Errorf("argument %d of %s: %w", i, c.name, err)
		}
		return n
	}
	if c.name == "fsync" || c.name == "fdatasync" {
		if t.ours(fd) {
			t.add(event{kind: evSynced, path: fd, call: c.number, failed: failed})
		}
		return
	}
	if c.name == "write" && strings.HasPrefix(fd, "socket:") {
		written := max(0, int(result))
		if left := len(text(c.arg(1))) - written; left > 0 {
			t.add(event{kind: evReply, socket: fd, size: int64(left)})
		}
		return
	}
	if failed {
		return
	}
	switch c.name {
	case "open", "openat", "creat":
		path, flags := behind("<"+where), c.arg(2)
		if c.name != "openat" {
			flags = c.arg(1)
		}
		if c.name == "creat" {
			flags = "O_CREAT|O_TRUNC"
		}
		if !t.ours(path) || strings.Contains(flags, "O_DIRECTORY") {
			return
		}
		if strings.Contains(flags, "SYNC") || strings.Contains(flags, "O_APPEND") {
			t.err = fmt.Errorf("%s: %s is not known to this test", path, flags)
		}
		e := event{kind: evOpen, path: path, truncate: strings.Contains(flags, "O_TRUNC")}
		if strings.Contains(flags, "O_CREAT") {
			e.kind = evCreate
		}
		t.add(e)
	case "mkdir", "mkdirat", "rmdir", "unlink", "unlinkat":
		path := at(c.arg(0), c.arg(1))
		if !strings.HasSuffix(c.name, "at") {
			path = at("", c.arg(0))
		}
		if t.ours(path) {
			kind := evRemove
			if strings.HasPrefix(c.name, "mkdir") {
				kind = evMkdir
			}
			t.add(event{kind: kind, path: path})
		}
	case "rename", "renameat", "renameat2", "link", "linkat", "symlink", "symlinkat":
		if !strings.HasSuffix(c.name, "at") && c.name != "renameat2" {
			c.args = []string{"", c.arg(0), "", c.arg(1)}
		}
		from, to := at(c.arg(0), c.arg(1)), at(c.arg(2), c.arg(3))
		if !t.ours(from) && !t.ours(to) {
			return
		}
		e := event{kind: evRename, path: from, other: to}
		switch {
		case strings.HasPrefix(c.name, "link"):
			e.kind = evLink
		case strings.HasPrefix(c.name, "sym") || c.name == "renameat2" && c.arg(4) != "0" && c.arg(4) != "RENAME_NOREPLACE":
			t.err = fmt.Errorf("%s is not known to this test", c.name)
		}
		t.add(e)
	case "write", "pwrite64":
		if t.ours(fd) {
			e := event{kind: evWrite, path: fd, data: text(c.arg(1))[:result], offset: -1}
			if c.name == "pwrite64" {
				e.offset = number(3)
			}
			t.add(e)
		}
	case "lseek":
		if t.ours(fd) {
			t.add(event{kind: evSeek, path: fd, offset: result})
		}
	case "ftruncate":
		if t.ours(fd) {
			t.add(event{kind: evTruncate, path: fd, size: number(1)})
		}
	case "truncate":
		if path := at("", c.arg(0)); t.ours(path) {
			t.add(event{kind: evTruncate, path: path, size: number(1)})
		}
	case "fallocate":
		if t.ours(fd) {
			if c.arg(1) != "0" {
				t.err = fmt.Errorf("fallocate %s is not known to this test", c.arg(1))
			}
			t.add(event{kind: evAllocate, path: fd, size: number(2) + number(3)})
		}
	case "sync", "syncfs":
		t.err = fmt.Errorf("%s is not known to this test", c.name)
	}
}
