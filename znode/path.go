package znode

import "strings"

// ValidPath reports whether ZooKeeper accepts path as the path of a znode (PathUtils).
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
			return false // Java has surrogates for code points above U+FFFF, so these are refused too
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

// usablePath is the weaker check that ZooKeeper makes in delete and first in create.
func usablePath(path string) bool {
	return strings.IndexByte(path, '/') >= 0 && strings.IndexByte(path, 0) < 0
}

// parentPath returns path up to its last slash, which is "" for a child of the root.
func parentPath(path string) string { return path[:strings.LastIndexByte(path, '/')] }

// The paths of the znodes that every tree has. They cannot be deleted.
const (
	Root       = "/"
	SystemPath = "/zookeeper"
	QuotaPath  = "/zookeeper/quota"
	ConfigPath = "/zookeeper/config"
)

// special reports whether every tree has this path.
func special(path string) bool {
	return path == Root || path == SystemPath || path == QuotaPath || path == ConfigPath
}
