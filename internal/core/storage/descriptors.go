package storage

import (
	"errors"
	"os"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
)

// patience is how long a write waits for a file descriptor before it fails, and askAgain
// how long between two tries.
const (
	patience = 30 * time.Second
	askAgain = 50 * time.Millisecond
)

// OutOfFiles reports whether err says that the process or the machine has no file
// descriptor left. That says nothing about the disk, and usually passes: a server with too
// many connections closes some when its disk seems stuck.
func OutOfFiles(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// awaitFiles calls open again while there is no file descriptor for it, for as long as
// patience or until stop is closed. The log says for what it waits.
func awaitFiles(log hclog.Logger, what string, stop <-chan struct{}, open func() error) error {
	err := open()
	if !OutOfFiles(err) {
		return err
	}
	log.Warn("waiting for a file descriptor", "for", what, "atMost", patience, "error", err)
	tick, end := time.NewTicker(askAgain), time.NewTimer(patience)
	defer tick.Stop()
	defer end.Stop()
	for {
		select {
		case <-tick.C:
		case <-end.C:
			return err
		case <-stop:
			return err
		}
		if err = open(); !OutOfFiles(err) {
			log.Info("there are file descriptors again", "for", what)
			return err
		}
	}
}

// spareFiles returns an error unless n more files can be open.
func spareFiles(dir string, n int) error {
	if n == 0 {
		return nil
	}
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(spareFiles(dir, n-1), f.Close())
}
