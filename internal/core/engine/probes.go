package engine

import "github.com/hashicorp/raft"

// The methods in this file are for tests of other packages.

// Entry returns an entry of this member's log, also if it is not written yet.
func (e *Engine) Entry(index uint64) (l raft.Log, err error) { return l, e.log.GetLog(index, &l) }

// Told returns how far other members may know the log to be committed.
func (e *Engine) Told() uint64 { return e.known.Newest() }

// Stats returns Raft's statistics.
func (e *Engine) Stats() map[string]string { return e.raft.Stats() }

// CountConns returns how many connections there are for entries and Raft's other messages.
func (e *Engine) CountConns() int { return e.transport.conns.Count() }
