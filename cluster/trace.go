package cluster

import (
	"time"

	"github.com/lockkeeper/lockkeeper/internal/core/alive"
	"github.com/lockkeeper/lockkeeper/internal/core/raftlog"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
)

// Trace is told what a member does, at the moment when it does it, so that the automata in package spec can compare that
// with their models. Its methods are called concurrently, some with locks held: they must not block, nor call the member.
type Trace interface {
	// Opened is called with the member's storage before anything is read from it. It may wrap the storage's parts, to
	// see what is written.
	Opened(*storage.Storage)
	// Leads says that this member leads in term, has applied all entries of earlier terms, and is about to give all
	// sessions their full timeouts.
	Leads(term uint64)
	alive.Trace
	raftlog.Trace
}

// untraced is the Trace of a member that has none.
type untraced struct{}

func (untraced) Opened(*storage.Storage)                                        {}
func (untraced) Visible(uint64, uint64, []byte)                                 {}
func (untraced) Restored(uint64)                                                {}
func (untraced) Leads(uint64)                                                   {}
func (untraced) Anew(uint64)                                                    {}
func (untraced) Session(alive.SessionStep, int64, time.Duration, time.Duration) {}
