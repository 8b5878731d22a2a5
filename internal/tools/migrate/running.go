package migrate

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/tools/properties"
	"github.com/lockkeeper/lockkeeper/proto"
)

// InUse returns why the directories seem to be those of a ZooKeeper that runs; why is empty if nothing says so. On Linux it looks for a
// process that has one of their files open for writing, and for a ZooKeeper that was started with a zoo.cfg or
// arguments that name them. It asks the ports for clients in config, a zoo.cfg, or if that is empty in one that is at a usual place
// and names the directories. doubts are sentences about what could not be found out.
func (src *Source) InUse(config string) (why string, doubts []string, err error) {
	why, doubts = src.processes("/proc")
	if why != "" {
		return why, doubts, nil
	}
	if config != "" {
		keys, err := readConfig(config, filepath.Clean)
		if err != nil {
			return "", nil, err
		}
		return answers(config, keys), doubts, nil
	}
	above := filepath.Dir(filepath.Clean(src.Data))
	for _, path := range []string{filepath.Join(src.Data, "zoo.cfg"), filepath.Join(above, "zoo.cfg"), filepath.Join(above, "conf", "zoo.cfg"), "/etc/zookeeper/conf/zoo.cfg", "/etc/zookeeper/zoo.cfg"} {
		if keys, err := readConfig(path, filepath.Clean); err == nil && src.named(keys, filepath.Clean) {
			if why := answers(path, keys); why != "" {
				return why, doubts, nil
			}
		}
	}
	return "", doubts, nil
}

// processes looks for processes that use the directories. Other systems than Linux have no /proc like this.
func (src *Source) processes(proc string) (why string, doubts []string) {
	files := map[string]os.FileInfo{} // by name
	if d, err := src.list(); err == nil {
		for _, x := range slices.Concat(d.snapshots, d.strangeSnapshots, d.logs, d.strangeLogs) {
			if info, err := os.Stat(x.path); err == nil {
				files[filepath.Base(x.path)] = info
			}
		}
	}
	entries, _ := os.ReadDir(proc)
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err != nil || pid == os.Getpid() {
			continue
		}
		p := process(filepath.Join(proc, e.Name()))
		if file := p.writes(files); file != "" {
			return fmt.Sprintf("process %s has %s open for writing", e.Name(), file), doubts
		}
		keys, config, err := p.zooKeeper()
		switch {
		case err != nil && exists(string(p)): // it has not ended meanwhile
			doubts = append(doubts, fmt.Sprintf("process %s is a ZooKeeper, and may use %s: %v", e.Name(), src.Data, err))
		case keys != nil && src.named(keys, p.inside):
			return fmt.Sprintf("process %s is a ZooKeeper, and %s names the directory", e.Name(), config), doubts
		}
	}
	return "", doubts
}

// process is the directory of one in /proc.
type process string

// writes returns one of the files that the process has open for writing.
func (p process) writes(files map[string]os.FileInfo) string {
	fds, _ := os.ReadDir(string(p) + "/fd") // of another user it is not readable, except for root
	for _, fd := range fds {
		link := string(p) + "/fd/" + fd.Name()
		path, err := os.Readlink(link)
		want := files[filepath.Base(path)]
		if err != nil || want == nil {
			continue
		}
		info, err := os.Stat(link) // the file itself, whatever the process calls it
		if err != nil || !os.SameFile(info, want) {
			continue
		}
		about, _ := os.ReadFile(string(p) + "/fdinfo/" + fd.Name())
		_, flags, _ := strings.Cut(string(about), "flags:")
		flags, _, _ = strings.Cut(strings.TrimSpace(flags), "\n")
		if n, err := strconv.ParseUint(flags, 8, 64); err != nil || n&uint64(os.O_WRONLY|os.O_RDWR) != 0 {
			return path
		}
	}
	return ""
}

// zooKeeper returns the configuration with which the process was started, and the name of its file. keys is nil if it is no ZooKeeper.
func (p process) zooKeeper() (keys map[string]string, from string, err error) {
	text, _ := os.ReadFile(string(p) + "/cmdline")
	args := strings.Split(strings.TrimRight(string(text), "\x00"), "\x00")
	i := slices.IndexFunc(args, func(arg string) bool {
		return arg == "org.apache.zookeeper.server.quorum.QuorumPeerMain" || arg == "org.apache.zookeeper.server.ZooKeeperServerMain"
	})
	if i < 0 {
		return nil, "", nil
	}
	switch args = args[i+1:]; len(args) {
	case 0:
		return nil, "", errors.New("it has no arguments")
	case 1:
		keys, err = readConfig(args[0], p.inside)
		return keys, args[0], err
	}
	return map[string]string{"clientPort": args[0], "dataDir": args[1]}, "its command line", nil
}

// inside returns what a path in the configuration of the process is here. A container has other directories.
func (p process) inside(path string) string {
	if !filepath.IsAbs(path) {
		dir, _ := os.Readlink(string(p) + "/cwd")
		path = filepath.Join(dir, path)
	}
	if in := filepath.Join(string(p), "root", path); exists(in) {
		return in
	}
	return path
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// named reports whether a zoo.cfg names one of the directories. here makes a path in it one of this process.
func (src *Source) named(keys map[string]string, here func(string) string) bool {
	snapshots, logs := src.dirs()
	for _, key := range []string{"dataDir", "dataLogDir"} {
		if keys[key] == "" {
			continue
		}
		there, err := os.Stat(filepath.Join(here(keys[key]), versionDir))
		if err != nil {
			continue
		}
		for _, dir := range []string{snapshots, logs} {
			if info, err := os.Stat(dir); err == nil && os.SameFile(info, there) {
				return true
			}
		}
	}
	return false
}

// readConfig reads a zoo.cfg, and the file of servers that it may name. here makes a path in it one of this process.
func readConfig(path string, here func(string) string) (map[string]string, error) {
	b, err := os.ReadFile(here(path))
	if err != nil {
		return nil, err
	}
	keys, err := properties.Parse(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if servers := keys["dynamicConfigFile"]; servers != "" {
		if b, err = os.ReadFile(here(servers)); err != nil {
			return nil, err
		}
		more, err := properties.Parse(b)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", servers, err)
		}
		for key, value := range more {
			keys[key] = value
		}
	}
	for key, value := range keys {
		keys[key] = strings.TrimSpace(value)
	}
	return keys, nil
}

// answers returns which port for clients in a zoo.cfg somebody listens on, "" for none.
func answers(config string, keys map[string]string) string {
	addrs := [][2]string{{keys["clientPortAddress"], keys["clientPort"]}, {keys["secureClientPortAddress"], keys["secureClientPort"]}}
	id, err := os.ReadFile(filepath.Join(keys["dataDir"], "myid"))
	if key := "server." + strings.TrimSpace(string(id)); err == nil {
		if s, err := proto.ParseServer(key, keys[key]); err == nil && s.ClientAddr != "" {
			if host, port, err := net.SplitHostPort(s.ClientAddr); err == nil {
				addrs = append(addrs, [2]string{host, port})
			}
		}
	}
	for _, addr := range addrs {
		if ip := net.ParseIP(addr[0]); ip != nil && ip.IsUnspecified() {
			addr[0] = ""
		}
		if addr[1] == "" || addr[1] == "0" {
			continue
		}
		c, err := net.DialTimeout("tcp", net.JoinHostPort(cmp.Or(addr[0], "localhost"), addr[1]), time.Second)
		if err == nil {
			c.Close()
			return fmt.Sprintf("somebody listens on %s, the port for clients in %s", net.JoinHostPort(addr[0], addr[1]), config)
		}
	}
	return ""
}
