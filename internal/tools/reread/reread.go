// Package reread reads files anew when they change, while the program runs: certificates, users and keys that
// somebody replaces. Files that cannot be used change nothing.
package reread

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// NotYet is an error of Open's load for files that can be used from a time on. They are tried again then, also if they
// have not changed.
type NotYet struct {
	From time.Time
	Err  error
}

func (e *NotYet) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *NotYet) Unwrap() error { return e.Err }

// Keeper reads files again when they change. Its methods are safe for concurrent use.
type Keeper struct {
	kind, use string
	read      func() Contents
	put       func(Contents) (about []any, err error)
	log       *slog.Logger

	reloads, failures atomic.Int64
	refused           atomic.Bool

	mu      sync.Mutex        // held while files are read
	handled [sha256.Size]byte // of the files that were put to use, or refused
	seen    [sha256.Size]byte // of the files when look last read them
	retry   time.Time         // when those that were refused are to be tried again; zero for never
}

// State says how it is with the files of a Keeper.
type State struct {
	Reloads  int64 // how often changed files have been put to use
	Failures int64 // how often changed files could not be used
	Refused  bool  // the files as they are now cannot be used
}

// Open reads the files. The log calls them files for kind: TLS, for instance. use says which of them, for the log
// and for Use. read reads the files, which belong together. load puts what is in them to use, and returns what the log
// says about it, keys and values. If they cannot be used, it changes nothing and returns an error, which names the file.
func Open(kind, use string, read func() Contents, load func(Contents) (about []any, err error), log *slog.Logger) (*Keeper, error) {
	k := &Keeper{kind: kind, use: use, read: read, put: load, log: log}
	c := read()
	if _, err := load(c); err != nil {
		return nil, err
	}
	k.handled, k.seen = c.sum(), c.sum()
	return k, nil
}

// Use returns what Open was told.
func (k *Keeper) Use() string { return k.use }

// State returns how it is with the files.
func (k *Keeper) State() State {
	return State{k.reloads.Load(), k.failures.Load(), k.refused.Load()}
}

// Reload reads the files now. If they cannot be used, what was loaded before stays in use, and
// the log and State say so.
func (k *Keeper) Reload() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.load(k.read())
}

// look puts files to use that have changed, if they have been the same in two calls: they may
// be written just now, and a certificate and its key are two files. It returns true if it is to
// be called again soon.
func (k *Keeper) look() (again bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := k.read()
	sum := c.sum()
	was := k.seen
	k.seen = sum
	switch {
	case sum == k.handled && (k.retry.IsZero() || time.Now().Before(k.retry)):
		return false
	case sum != was:
		return true
	}
	k.load(c)
	return false
}

// load puts files to use, or refuses them. The caller holds mu.
func (k *Keeper) load(c Contents) {
	k.handled = c.sum()
	k.seen = k.handled
	k.retry = time.Time{}
	about, err := k.put(c)
	if err != nil {
		if later := (*NotYet)(nil); errors.As(err, &later) {
			k.retry = later.From
		}
		k.failures.Add(1)
		k.refused.Store(true)
		k.log.Error("the files for "+k.kind+" have changed and cannot be used: what was read before stays in use", "for", k.use, "error", err)
		return
	}
	k.reloads.Add(1)
	about = append([]any{"for", k.use}, about...)
	if k.refused.Swap(false) {
		k.log.Warn("the files for "+k.kind+" can be used again", about...)
	} else {
		k.log.Info("the files for "+k.kind+" have been read again", about...)
	}
}

// Watch looks at the files every ten seconds, until ctx ends. It compares what is in them, so it does not
// matter how they were replaced.
func (k *Keeper) Watch(ctx context.Context) {
	wait := Every
	for {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
		wait = Every
		if k.look() {
			wait = Settle
		}
	}
}

const (
	Every  = 10 * time.Second // between two looks at the files
	Settle = time.Second      // after a look that has found a change
)

// Contents is what is in files, by their names.
type Contents map[string]Content

// Content is what is in a file, or why it cannot be read; the error names the file.
type Content struct {
	Text []byte
	Err  error
}

// MaxFile is how long a file may be, in bytes.
const MaxFile = 16 << 20

// Read reads files. It reads each once, so that one file for two purposes is the same for both. An
// empty name stands for no file.
func Read(names ...string) Contents {
	c := Contents{}
	for _, name := range names {
		if _, done := c[name]; done || name == "" {
			continue
		}
		var f Content
		if info, err := os.Stat(name); err != nil {
			f.Err = err
		} else if info.Size() > MaxFile {
			f.Err = fmt.Errorf("%s: it has %d bytes, more than %d", name, info.Size(), MaxFile)
		} else {
			f.Text, f.Err = os.ReadFile(name)
		}
		c[name] = f
	}
	return c
}

// sum is different for different contents.
func (c Contents) sum() [sha256.Size]byte { return sha256.Sum256(fmt.Appendf(nil, "%q", c)) } // maps are printed in order
