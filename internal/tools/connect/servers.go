// Package connect parses to which servers a client connects, and opens the connections, with or
// without TLS.
package connect

import (
	"errors"
	"fmt"
	"net"
	"strings"
)

// DefaultPort is ZooKeeper's port for clients.
const DefaultPort = "2181"

// ErrNone means that a list has no server.
var ErrNone = errors.New("no server given")

// Parse parses a connect string, HOST[:PORT],...[/CHROOT], as ZooKeeper's ConnectStringParser does.
// It also takes an IPv6 address without brackets, if it has no port. The servers have ports;
// the chroot is "" or what follows the servers, which may not be a valid path.
func Parse(text string) (servers []string, chroot string, err error) {
	if i := strings.IndexByte(text, '/'); i >= 0 {
		text, chroot = text[:i], text[i:]
		if chroot == "/" {
			chroot = ""
		}
	}
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item == "" {
			continue
		}
		server := item
		bare := strings.TrimSuffix(strings.TrimPrefix(item, "["), "]")
		inBrackets, none := len(bare) == len(item)-2, bare == item
		if inBrackets || none && (!strings.Contains(bare, ":") || net.ParseIP(bare) != nil) {
			server = net.JoinHostPort(bare, DefaultPort)
		}
		_, port, err := net.SplitHostPort(server)
		if err == nil {
			var n int
			if n, err = net.LookupPort("tcp", port); err == nil && n == 0 {
				err = errors.New("no port")
			}
		}
		if err != nil {
			return nil, "", fmt.Errorf("%q is not HOST or HOST:PORT of a server", item)
		}
		servers = append(servers, server)
	}
	if len(servers) == 0 {
		return nil, "", ErrNone
	}
	return servers, chroot, nil
}
