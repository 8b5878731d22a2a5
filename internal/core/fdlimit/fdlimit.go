// Package fdlimit keeps connections of strangers from taking the last file descriptors of
// this process, which its log, its snapshots and its other connections need.
package fdlimit

import (
	"net"
	"syscall"
)

// Shares of the descriptors that this process may have, in sixteenths: connections leave the
// last ones free; see [Last]. Of the last three sixteenths, two are for the HTTP port for
// operators, which counts its connections ([Sixteenth]), and one is for what the process
// opens by itself.
const (
	ForClients = 4 // connections of clients
	ForPeers   = 3 // connections that come from other members, or claim to
)

// Last reports whether the socket of c has one of the descriptors in the last share. The
// system gives out the lowest free descriptor, so all those before the share are in use
// then, whatever part of the process has them. Last returns false if c has no socket, or
// if the system has no limit.
func Last(c net.Conn, share uint64) bool {
	if t, ok := c.(interface{ NetConn() net.Conn }); ok { // TLS
		c = t.NetConn()
	}
	s, ok := c.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return false
	}
	last := false
	raw.Control(func(fd uintptr) { // an error means that c is closed
		n, ok := limit()
		last = ok && uint64(fd) >= n-n/16*share
	})
	return last
}

// Sixteenth returns a sixteenth of the number of descriptors that this process may have, or
// most if that is less or if the system has no limit.
func Sixteenth(most int) int { return Most(16*most) / 16 }

// Most returns how many descriptors this process may have, or most if that is less or if the
// system has no limit. Go has already raised the limit as far as it can be raised.
func Most(most int) int {
	if n, ok := limit(); ok && n < uint64(most) {
		return int(n)
	}
	return most
}
