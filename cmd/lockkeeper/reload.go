package main

import (
	"context"
	"os"
	"os/signal"
	"os/user"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/internal/tools/auditlog"
	"github.com/lockkeeper/lockkeeper/internal/tools/reread"
	"github.com/lockkeeper/lockkeeper/internal/tools/saslfiles"
	"github.com/lockkeeper/lockkeeper/internal/tools/tlsfiles"
)

// reloads is what a server reads or opens again while it runs: at SIGHUP, and files for TLS and SASL also
// when they have changed.
type reloads struct {
	hangup chan os.Signal
	tls    []*tlsfiles.Keeper
	sasl   *saslfiles.Keeper // nil without SASL
	audit  *auditlog.Log     // nil without an audit log
}

// catch has SIGHUP no longer end the process. It is never undone: a signal while the server stops
// must not end it either.
func (r *reloads) catch() {
	r.hangup = make(chan os.Signal, 1)
	signal.Notify(r.hangup, syscall.SIGHUP)
}

// stopTime is how long a server that ends waits for files to be read.
const stopTime = 2 * time.Second

// start begins to reload. What it returns ends that, and waits for it, for stopTime at most: a network
// disk that is gone can block a reader for ever.
func (r *reloads) start() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, k := range r.files() {
		wg.Go(func() { k.Watch(ctx) })
	}
	wg.Go(func() {
		for {
			select {
			case <-r.hangup:
				r.now()
			case <-ctx.Done():
				return
			}
		}
	})
	return func() {
		cancel()
		done := make(chan struct{})
		go func() {
			wg.Wait()
			close(done)
		}()
		select {
		case <-done:
		case <-time.After(stopTime):
		}
	}
}

func (r *reloads) files() (all []*reread.Keeper) {
	for _, k := range r.tls {
		all = append(all, k.Keeper)
	}
	if r.sasl != nil {
		all = append(all, r.sasl.Keeper)
	}
	return all
}

// now reloads everything, and begins with what does not wait for a disk.
func (r *reloads) now() {
	if r.audit != nil {
		r.audit.Reopen()
	}
	for _, k := range r.files() {
		k.Reload()
	}
}

// openAudit opens the audit log in a file; an empty name means none. What it returns closes it.
func (r *reloads) openAudit(file string, cfg *lockkeeper.Config) (closeLog func(), err error) {
	if file == "" {
		return func() {}, nil
	}
	if r.audit, err = auditlog.Open(file, userName(), cfg.Logger); err != nil {
		return nil, err
	}
	cfg.Audit = r.audit.Add
	return r.audit.Close, nil
}

// auditServer notes in the audit log, if there is one, that the server starts or stops.
func (r *reloads) auditServer(operation, result string) {
	if r.audit != nil {
		r.audit.Add(lockkeeper.AuditEvent{Operation: operation, Result: result})
	}
}

// userName returns the name of the user who has started the process or, if that has none, the number.
func userName() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return strconv.Itoa(os.Getuid())
}

// auditCounts is what the metrics say about the audit log; nil without one.
func (r *reloads) auditCounts() *admin.AuditCounts {
	if r.audit == nil {
		return nil
	}
	lines, dropped := r.audit.Stats()
	return &admin.AuditCounts{Lines: lines, Dropped: dropped}
}

// state is what the metrics say about the files.
func (r *reloads) state() (all []admin.FileState) {
	for _, k := range r.tls {
		s := k.State()
		all = append(all, admin.FileState{Use: k.Use(), End: s.End, CRLEnd: s.CRLEnd, Reloads: s.Reloads, Failures: s.Failures, Refused: s.Refused})
	}
	if r.sasl != nil {
		s := r.sasl.State()
		all = append(all, admin.FileState{Use: r.sasl.Use(), Reloads: s.Reloads, Failures: s.Failures, Refused: s.Refused})
	}
	return all
}
