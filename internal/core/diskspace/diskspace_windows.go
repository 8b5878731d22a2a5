package diskspace

import "golang.org/x/sys/windows"

// Of returns how many bytes this user may still write to the file system of a directory, and how
// many it holds in all. It returns false if the system does not tell.
func Of(dir string) (free, total uint64, ok bool) {
	name, err := windows.UTF16PtrFromString(dir)
	if err != nil || windows.GetDiskFreeSpaceEx(name, &free, &total, nil) != nil {
		return 0, 0, false
	}
	return free, total, true
}
