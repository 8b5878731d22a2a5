//go:build linux

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// onWindows is a shell script that uses the program for Windows: it serves, its server is killed under
// load, and snapshots of its data are saved and restored.
const onWindows = `
export HOME=/root WINEDEBUG=-all
lockkeeper() { wine lockkeeper.exe "$@"; }
serve() {
	lockkeeper serve --data data --log-store $store --listen 127.0.0.1:0 2>serve.log &
	addr=
	for i in $(seq 600); do
		addr=$(tr -d '\r' <serve.log | sed -n 's/.*serving ZooKeeper clients on //p')
		[ -z "$addr" ] || return 0
		sleep 0.1
	done
	cat serve.log
	return 1
}
killed() { # as by a crash
	wineserver --kill
	wait
}
lockkeeper version
for store in wal boltdb; do
	serve
	lockkeeper zk --server $addr create /kept of-$store
	lockkeeper bench $addr --workload create-64x16 --time 4s # so that the log gets new segments, and loses some after snapshots
	[ $(ls data/raft/snapshots | wc -l) -ge 1 ]
	killed
	lockkeeper check data
	serve
	lockkeeper zk --server $addr get /kept
	lockkeeper lock run --server $addr /lock -- cmd /c echo ran-with-$store
	killed
	lockkeeper snapshot save saved --data data
	lockkeeper snapshot restore saved --data data --set-aside
	lockkeeper check data --convert $store
	serve
	lockkeeper zk --server $addr get /kept
	killed
	mv data $store
	mv data.old-* $store.1
	rm saved
done
`

// TestRunWindows runs the program for Windows with Wine 10, whose files are as hard to rename and to remove as
// those of Windows while they are open, and whose directories cannot be synced. Debian has that Wine since version 13.
func TestRunWindows(t *testing.T) {
	tool(t, "debootstrap")
	if os.Getuid() != 0 {
		t.Skip("only root can make another system")
	}
	system := t.TempDir()
	t.Log(lastLine(sh(t, `debootstrap --variant=minbase --include=wine,wine64 trixie "$1"`, system)))
	const in = "/work"
	check(t, os.Mkdir(system+in, 0o700))
	check(t, os.WriteFile(filepath.Join(system, in, "lockkeeper.exe"), archived(t, "windows/amd64")["lockkeeper.exe"], 0o700))
	c := exec.Command("sh", "-euc", `
mount --bind /proc "$1/proc"
mount --bind /dev "$1/dev"
exec chroot "$1" sh -euc 'cd "$1"; eval "$2"' sh "$2" "$3"`, "sh", system, in, onWindows)
	c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL} // the mounts go with it
	out, err := c.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatal(err)
	}
	for _, says := range []string{"of-wal", "of-boltdb", "ran-with-wal", "ran-with-boltdb"} {
		if !strings.Contains(string(out), says) {
			t.Errorf("it does not say %q", says)
		}
	}
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}
