package main

import (
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
)

// silentFor is how long a command may try in vain to connect before it says why it waits.
const silentFor = 2 * time.Second

// saysWhy returns a zk.Dialer that calls dial. If that has failed for longer than silentFor, it writes
// the reason to w, once, and how long the command tries, which is the value of a flag.
func saysWhy(dial zk.Dialer, w io.Writer, limit time.Duration, flag string) zk.Dialer {
	var mu sync.Mutex
	began, quiet := time.Now(), false
	return func(network, addr string, timeout time.Duration) (net.Conn, error) {
		nc, err := dial(network, addr, timeout)
		mu.Lock()
		defer mu.Unlock()
		if err == nil {
			quiet = true // the commands say themselves what happens later
		}
		if !quiet && time.Since(began) > silentFor {
			quiet = true
			fmt.Fprintf(w, "lockkeeper: cannot connect to %s: %v; trying for %v (--%s)\n", addr, err, limit, flag)
		}
		return nc, err
	}
}
