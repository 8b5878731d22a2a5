package diskspace

import "golang.org/x/sys/unix"

// Of returns how many bytes this user may still write to the file system of a directory, and how
// many it holds in all. It returns false if the system does not tell.
func Of(dir string) (free, total uint64, ok bool) {
	var s unix.Statfs_t
	if unix.Statfs(dir, &s) != nil {
		return 0, 0, false
	}
	block := uint64(s.Frsize)
	return s.Bavail * block, s.Blocks * block, true
}
