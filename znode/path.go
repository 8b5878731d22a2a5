package znode

import "strings"

// ValidPath reports whether ZooKeeper would take path as the name of a znode
// (common/PathUtils).
func ValidPath(path string) bool {
	if path == "/" {
		return true
	}
	if path == "" || path[0] != '/' || path[len(path)-1] == '/' {
		return false
	}
	start := 1
	for i, r := range path {
		switch {
		case r <= 0x1f, r >= 0x7f && r <= 0x9f, r >= 0xd800 && r <= 0xf8ff, r >= 0xfff0:
			return false // what is above U+FFFF is surrogates to Java, so it is refused as well
		case r == '/' && i > 0:
			if !validName(path[start:i]) {
				return false
			}
			start = i + 1
		}
	}
	return validName(path[start:])
}

func validName(s string) bool { return s != "" && s != "." && s != ".." }

// usablePath is the weaker rule, of delete and of create's first check.
func usablePath(path string) bool {
	return strings.IndexByte(path, '/') >= 0 && strings.IndexByte(path, 0) < 0
}

// parentPath is what stands before the last slash; "" for a child of the root.
func parentPath(path string) string { return path[:strings.LastIndexByte(path, '/')] }

// The paths that a server makes itself and that nobody can delete.
const (
	Root       = "/"
	SystemPath = "/zookeeper"
	QuotaPath  = "/zookeeper/quota"
	ConfigPath = "/zookeeper/config"
)

func special(path string) bool {
	return path == Root || path == SystemPath || path == QuotaPath || path == ConfigPath
}
