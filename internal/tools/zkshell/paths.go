package zkshell

import "fmt"

// checked returns the error for a path that no server accepts, in the words of ZooKeeper's client, which checks
// paths itself (PathUtils).
func checked(path string) error {
	switch {
	case path == "":
		return usage("Path length must be > 0")
	case path[0] != '/':
		return usage("Path must start with / character")
	case path == "/":
		return nil
	case path[len(path)-1] == '/':
		return usage("Path must not end with / character")
	}
	units := []rune(path) // Java counts UTF-16 units, but more than one is not valid anyway
	at := func(i int) rune {
		if i < 0 || i >= len(units) {
			return '/' // as at both ends of a name
		}
		return units[i]
	}
	for i, u := range units {
		reason := ""
		switch {
		case i == 0:
		case u == 0:
			reason = "null character not allowed"
		case u == '/' && at(i-1) == '/':
			reason = "empty node name specified"
		case u == '.' && at(i+1) == '/' && (at(i-1) == '/' || at(i-1) == '.' && at(i-2) == '/'):
			reason = "relative paths not allowed"
		case u <= 0x1f, u >= 0x7f && u <= 0x9f, u >= 0xd800 && u <= 0xf8ff, u >= 0xfff0:
			reason = "invalid character"
		}
		if reason != "" {
			return usage(fmt.Sprintf("Invalid path string \"%s\" caused by %s @%d", path, reason, i))
		}
	}
	return nil
}

// below joins a path and the name of a child.
func below(path, name string) string {
	if path == "/" {
		return "/" + name
	}
	return path + "/" + name
}
