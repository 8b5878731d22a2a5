//go:build interop

package interop

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// cronScript runs Debian's cron with a crontab and a sendmail of the test's own, which others do not see.
const cronScript = `set -e
mount -t tmpfs none /run
mount -t tmpfs none /var/spool/cron
mkdir /var/spool/cron/crontabs "$1/work" "$1/empty"
mount --bind "$1/empty" /etc/cron.d
mount --bind "$1/crontab" /etc/crontab
mount -t tmpfs none "$1/work"
mkdir "$1/work/sbin"
cp "$1/sendmail" "$1/work/sbin/sendmail"
mount -t overlay -o "lowerdir=$1/work/sbin:/usr/sbin" none /usr/sbin
exec cron -f
`

// TestCron: cron mails what lock run writes. With --quiet it mails only what the command writes, and
// nothing if the lock is not free.
func TestCron(t *testing.T) {
	t.Parallel()
	addr := startLockkeeper(t).addr
	dir := t.TempDir()
	check(t, os.Chmod(dir, 0o755))
	run := lockkeeperBinary(t) + " lock run --try --server " + addr
	crontab := ""
	for _, job := range []string{
		run + " /held -- true",
		run + " --quiet /held -- true; echo $? >" + dir + "/quiet",
		run + " --quiet /free -- echo from the command",
	} {
		crontab += "* * * * * root " + job + "\n"
	}
	for name, text := range map[string]string{
		"crontab":  crontab,
		"sendmail": "#!/bin/sh\ncat >" + dir + "/$$.part && mv " + dir + "/$$.part " + dir + "/$$.mail\n",
	} {
		check(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755))
	}
	if err := os.Chmod(filepath.Join(dir, "crontab"), 0o644); err != nil {
		t.Fatal(err) // which cron wants
	}
	holder := exec.Command(lockkeeperBinary(t), "lock", "run", "--server", addr, "/held", "--", "sh", "-c", "echo held; exec sleep 1000")
	holder.Env = cleanEnv()
	hold(t, holder)

	cron := exec.Command("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", cronScript, "sh", dir)
	log := &tail{}
	cron.Stdout, cron.Stderr, cron.Env = log, log, cleanEnv()
	cron.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	check(t, cron.Start())
	ended := make(chan struct{})
	go func() {
		cron.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		cron.Process.Kill()
		<-ended
	})

	mails := func() (bodies []string) {
		names, _ := filepath.Glob(filepath.Join(dir, "*.mail"))
		for _, name := range names {
			text := must(os.ReadFile(name))(t)
			_, body, _ := strings.Cut(string(text), "\n\n")
			bodies = append(bodies, strings.TrimSpace(body))
		}
		return bodies
	}
	want := []string{"from the command", "lockkeeper: /held is held by another client"}
	complete := func() bool {
		got := mails()
		code, _ := os.ReadFile(filepath.Join(dir, "quiet"))
		return string(code) == "124\n" && slices.Contains(got, want[0]) && slices.Contains(got, want[1])
	}
	for deadline := time.Now().Add(programDeadline + 2*time.Minute); !complete(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("mails %q\n%s", mails(), log)
		}
		select {
		case <-ended:
			t.Fatalf("cron has ended:\n%s", log)
		default:
		}
	}
	for _, body := range mails() {
		if !slices.Contains(want, body) {
			t.Errorf("a mail with %q", body)
		}
	}
}
