package main

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/internal/tools/connect"
)

// silentFor is how long a command may try in vain to connect before it says why it waits.
const silentFor = 2 * time.Second

// saysWhy returns a zk.Dialer that calls dial. If no server has answered for longer than silentFor, it
// writes to w, once, what is wrong with each, and how long the command tries, which is the value of a
// flag. dialer is the one that dial calls.
func saysWhy(dial zk.Dialer, dialer *connect.Dialer, w io.Writer, limit time.Duration, flag string) zk.Dialer {
	began := time.Now()
	var once sync.Once
	f := &connect.Failures{Dialer: dialer}
	f.OnHeard = func() { once.Do(func() {}) } // the commands say themselves what happens later
	f.OnFailed = func() {
		if time.Since(began) > silentFor {
			once.Do(func() { sayTrying(w, f.Err(context.Background()), limit, flag) })
		}
	}
	return f.Watch(dial)
}

// sayTrying writes why a command waits, and for how long, which is the value of a flag.
func sayTrying(w io.Writer, why error, limit time.Duration, flag string) {
	fmt.Fprintf(w, "lockkeeper: %s; trying for %v (--%s)\n", oneLine(why), limit, flag)
}
