//go:build trace

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/cluster"
	"github.com/lockkeeper/lockkeeper/internal/core/testhooks"
	"github.com/lockkeeper/lockkeeper/spec"
)

// A program that was built with the tag trace writes each step of its member, as a line of JSON, to the end of the file
// with the name of its data directory and ".trace". The tests of real processes have package spec judge these.
func init() {
	probe = func(cfg *lockkeeper.Config) error {
		if cfg.DataDir == "" {
			return nil
		}
		f, err := os.OpenFile(cfg.DataDir+".trace", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		var mu sync.Mutex
		now := func() time.Duration { return time.Duration(time.Now().UnixNano()) }
		testhooks.In(cfg).Probes = cluster.Probes{Trace: spec.Follow(cfg.ID, now, func(e spec.Event) {
			mu.Lock()
			defer mu.Unlock()
			e.At = now()
			line, err := json.Marshal(e)
			if err == nil {
				_, err = f.Write(append(line, '\n'))
			}
			if err != nil {
				fmt.Fprintf(os.Stderr, "lockkeeper: trace: %v\n", err)
			}
		})}
		return nil
	}
}
