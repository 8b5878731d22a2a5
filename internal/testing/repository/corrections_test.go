//go:build unix

package repository

// corrections are the corrections of Raft that docs/raft.md lists. Each entry takes one
// of them out, so that TestPutBack can check that the tests which it names fail.
var corrections = []putBack{
	// Messages.
	{"refusals", []edit{
		{"internal/core/engine/stream.go", "\tdefer s.end() // unblocks Raft if it is sending\n", ""},
	}, []finding{{"internal/core/engine", "TestStreamRefused", "the sender waits for ever"}}},
	{"heartbeats", []edit{
		{"internal/core/engine/transport.go", "return t.engine.disk.Terms.During(q.Term, func() bool {", "return func(f func() bool) bool { return f() }(func() bool {"},
		{"internal/core/engine/transport.go", "if q.Term != t.engine.Term() || t.engine.Role() != Follower {", "if q.Term == 0 {"},
	}, []finding{{"internal/core/engine", "TestHeartbeatOfNewTerm", "FAIL"}}},
	{"terms", []edit{
		{"internal/core/raftlog/disk.go", "\tt.Turn.Take()\n\tt.Newest.Store(term)\n\tt.Turn.Give()\n", "\tt.Newest.Store(term)\n"},
	}, []finding{{"internal/core/raftlog", "TestTerms", "has begun meanwhile"}}},
	{"kept connections", []edit{
		{"internal/core/engine/exchange.go", "if !used || !raftlog.EndsWith(", "if true || !raftlog.EndsWith("},
	}, []finding{{"internal/core/engine", "TestTransportRestart", "FAIL"}, {"internal/testing/whole", "TestHandOverAfterRestarts", "FAIL"}}},
	{"return", []edit{
		{"internal/core/engine/transport.go", "\tcase err != nil:\n\t\tt.awaitReturn(", "\tcase err != nil && heartbeat:\n\t\tt.awaitReturn("},
	}, []finding{{"cluster", "TestReturn", "a member that has returned serves after"}}},
	{"a list that is not stored", []edit{
		{"internal/core/raftlog/asynclog.go", "term, voters := a.pending[0].Term, a.voters", "term, voters := a.pending[0].Term, a.Servers()"},
	}, []finding{{"internal/core/engine", "TestListThatIsNotStored", "is committed, want"}}},
	{"committed in a later term", []edit{
		{"internal/core/raftlog/asynclog.go", "now == first {", "now == first || true {"},
	}, []finding{{"internal/core/raftlog", "TestCommittedInLaterTerm", "want 12"}}},
	{"leap", []edit{
		{"internal/core/engine/transport.go", "\t\tt.leap(id, target, args, resp)\n", ""},
	}, []finding{{"cluster", "TestRefusedAfterOwnSnapshot -test.count=5", "did not happen"}, {"cluster", "TestSnapshotOlderThanState", "did not happen: the whole cluster"}}},
	{"an end that is only in the snapshot", []edit{
		{"internal/core/raftlog/asynclog.go", "err != raft.ErrLogNotFound ||", "true ||"},
	}, []finding{{"cluster", "TestFirstLeaderOfRestored", "the members' logs end with"}}},
	{"end of the wait for a return", []edit{
		{"cluster/pulse.go", "\t\t\tb.led = term\n\t\t\tb.engine.HasReturned(b.to.ID)\n", "\t\t\tb.led = term\n"},
	}, []finding{{"cluster", "TestAwaitReturnEnds", "goroutines wait, want"}}},
	{"empty messages", []edit{
		{"internal/core/engine/stream.go", "len(q.Entries) == 0 && tells == s.announced &&", "false && tells == s.announced &&"},
	}, []finding{{"internal/core/engine", "TestStreamRepeatsLittle", "the same: 1 messages, want 0"}}},
	{"empty messages in doubt", []edit{
		{"internal/core/engine/engine.go", "\t\te.transport.doubts.Add(1)\n", ""},
	}, []finding{{"cluster", "TestLaterTermWhileQuiet", "the leader has not stepped down"}}},
	{"watched connections", []edit{
		{"internal/core/peer/conn.go", "\t\t\tif c.Check() {\n", "\t\t\tif c.Check() && false {\n"},
	}, []finding{{"cluster", "TestForgottenWhileReplicating", "did not happen: the entry"}}},
	{"signs of life", []edit{
		{"internal/core/peer/conn.go", "(came || busy) && c.turn.TryTake() {", "(came || !reading) && false {"},
	}, []finding{{"internal/core/engine", "TestSnapshotBeforeRaft", "Success:false"}}},
	{"snapshots are not cut", []edit{
		{"internal/core/peer/conn.go", "if c.to != addr || c.Long.Load() {", "if c.to != addr {"},
	}, []finding{{"internal/core/engine", "TestRedialSparesSnapshot", "bytes: "}}},
	{"unused connections", []edit{
		{"internal/core/peer/conn.go", "\treturn quiet > most\n", "\treturn quiet > most && false\n"},
	}, []finding{{"internal/core/engine", "TestVoteOverForgotten", "i/o timeout"}}},
	{"waiting messages", []edit{
		{"internal/core/engine/transport.go", "dropped := w.entries && old.entries", "dropped := w.entries && old.entries && false"},
		{"internal/core/engine/transport.go", "const mostWaiting = 8", "const mostWaiting = 800"},
	}, []finding{{"internal/core/engine", "TestWaitingIsBounded", "of one, with entries have been refused"}, {"cluster", "TestHandOverToStuck", "connections of Raft"}}},
	{"long messages", []edit{
		{"internal/core/engine/transport.go", "n > 0 && bytes > maxEntryBytes", "n > 0 && bytes > maxEntryBytes && false"},
	}, []finding{{"internal/core/engine", "TestLongMessages", "message 0 has"}}},
	{"commit index of a message over a stream", []edit{
		{"internal/core/engine/stream.go", "max(q.LeaderCommitIndex, min(s.commitIndex, end))", "max(q.LeaderCommitIndex, s.commitIndex)"},
	}, []finding{{"internal/core/engine", "TestStreamCommits", "commit 7"}}},
	{"commit index of a message", []edit{
		{"internal/core/engine/transport.go", "\tq.LeaderCommitIndex = min(q.LeaderCommitIndex, q.PrevLogEntry+uint64(n))\n", ""},
	}, []finding{{"internal/core/engine", "TestLongMessages", "commits up to"}}},
	{"commits", []edit{
		{"cluster/lead.go", "m.Running.Go(func() { m.engine.SpreadCommitIndex(term, until) })", ""},
	}, []finding{{"cluster", "TestFollowerLearnsCommit", "a write waited"}}},

	// Elections and leadership.
	{"the state of a leader that was replaced", []edit{
		{"internal/core/election/contacts.go", "c.currentAsOf = max(c.currentAsOf, min(c.running, c.majority(func(p *peer) int64 { return p.accepted.Running })))", "c.currentAsOf = c.running"},
		{"cluster/pulse.go", "} else if b.contacts.SawLaterTerm(a.Newest) {", "} else if a.Newest == 0 {"},
	}, []finding{{"cluster", "TestReplacedWhileStuck", "goes on serving"}}},
	{"the state of a leader that nobody accepts", []edit{
		{"internal/core/election/contacts.go", "h.AsOf -= max(0, leaseAge).Milliseconds()", "_ = leaseAge"},
		{"cluster/pulse.go", " && knowsCommitted && !b.verdict.Load().NoMajority", " && (knowsCommitted || true)"},
	}, []finding{{"cluster", "TestOldReadsBesideStuckLeader", "serves a read"}}},
	{"the state of a new leader", []edit{
		{"internal/core/election/contacts.go", "if leads && own.Ready {", "if leads {"},
	}, []finding{{"cluster", "TestOldReadsOfNewLeader", "serves a read"}}},
	{"a term that nobody begins", []edit{
		{"cluster/pulse.go", "v.NoMajority || v.Deposed:", "v.NoMajority:"},
	}, []finding{{"cluster", "TestTermThatNobodyBegins", "acknowledges no write"}}},
	{"the vote of a member that was dropped", []edit{
		{"cluster/pulse.go", "own.LosesVote = p.engine.LosesVote()", "own.LosesVote = p.replica.Votes(p.id)"},
	}, []finding{{"cluster", "TestLeaderLostWhileRemovingJoined", "nothing is acknowledged"}, {"cluster", "TestRemovedDoesNotStand", "it stands"}}},
	{"a vote for an address", []edit{
		{"internal/core/engine/transport.go", "\t\tq.Addr = append(append(slices.Clip(q.Addr), 0), q.ID...)\n", ""},
	}, []finding{{"cluster", "TestVoteConfirmedToAnother", "has led"}}},
	{"a list of the past", []edit{
		{"internal/core/engine/engine.go", "return until > 0 && e.LastIndex() < until", "return until > 0 && e.LastIndex() < until && false"},
	}, []finding{{"cluster", "TestOnlyVoterOfThePast", "it is leader"}}},
	{"candidates of another list", []edit{
		{"internal/core/engine/transport.go", "\t\tq.ID = nil\n", "\t\t_ = q\n"},
	}, []finding{{"cluster", "TestVoteGivenBackInAbsence", "there is no leader"}, {"cluster", "TestAbsentVoterKnowsNotTheCandidate", "there is no leader"}}},
	{"a vote of the past", []edit{
		{"internal/core/engine/transport.go", "if t.engine.Abstains() && t.keepOut(rpc) {", "if t.engine.Abstains() && rpc.Command == nil {"},
	}, []finding{{"cluster", "TestVoteOfThePast", "leads in term"}}},
	{"a leader of the past", []edit{
		{"internal/core/engine/elect.go", "if e.Term() < term {", "if false {"},
		{"internal/core/engine/elect.go", "return e.Term() >= term", "return true"},
	}, []finding{{"cluster", "TestFollowsLeaderOfThePast", "acknowledges a write in term"}}},
	{"applied entries", []edit{
		{"internal/core/raftlog/store.go", "at <= min(last, s.LastApplied())", "at <= min(last, 0)"},
	}, []finding{{"internal/core/engine", "TestAppliedIsNotReplaced", "applied entries were deleted"}}},
	{"standalone", []edit{
		{"internal/core/engine/lone.go", "\tincoming <- raft.RPC{\n", "\t_ = raft.RPC{\n"},
	}, []finding{{"cluster", "TestStandaloneLeadsAtOnce", "it serves after"}}},
	{"patience of a candidate", []edit{
		{"internal/core/election/contacts.go", "patience = write * int64(min(c.tries, maxPatienceWrites))", "patience = write"},
	}, []finding{{"cluster", "TestElectionOnSlowDisks -test.count=100", "no leader after"}}},
	{"lost election", []edit{
		{"internal/core/engine/elect.go", "\te.endElection(patience)\n", ""},
	}, []finding{{"cluster", "TestStandsAfterLostElection", "it stands again in term"}}},
	{"successor that lost an election", []edit{
		{"internal/core/engine/transport.go", "\t\tt.engine.endElection(t.ElectionTimeout)\n", ""},
	}, []finding{{"cluster", "TestHandOverToCandidate", "no other member"}}},
	{"candidate", []edit{
		{"internal/core/election/contacts.go", "s.Candidate = s.Candidate && c.heard.Term < s.Term", "_ = s.Candidate"},
	}, []finding{{"cluster", "TestCandidateFollows", "Raft has it as a Candidate"}}},
	{"lease", []edit{
		{"cluster/pulse.go", "return p.since(p.leaseStart.Load()) <= p.contacts.Lease", "return true"},
	}, []finding{{"internal/testing/whole", "TestClusterStuckLeader", "its client was answered for"}, {"cluster", "TestOnlySureLeaderConfirms", "FAIL"}}},
	{"stuck disk", []edit{
		{"internal/core/election/contacts.go", "return c.heard.Stalled >= c.ElectionTimeout }", "return false }"},
	}, []finding{{"internal/testing/whole", "TestClusterStuckDisk", "FAIL"}}},
	{"losses", []edit{
		{"cluster/pulse.go", "case stand && p.gate.IsOpen() && !p.engine.Abstains():", "case false && stand:"},
	}, []finding{{"internal/testing/whole", "TestClusterLeaderKilled", "FAIL"}}},
	{"end of the log", []edit{
		{"internal/core/engine/engine.go", "snapshot > index", "snapshot == 1<<63"},
	}, []finding{{"cluster", "TestLogEndsAtSnapshot", "its log ends at"}}},
	{"transfer is not waited for", []edit{
		{"internal/core/engine/elect.go", "raft.ServerAddress(successor.Addr))\n", "raft.ServerAddress(successor.Addr)).Error()\n"},
	}, []finding{{"cluster", "TestHandOverBesideStuckRaft", "for ever"}}},
	{"successor", []edit{
		{"internal/core/engine/elect.go", "e.raft.LeadershipTransferToServer(storage.ServerID(successor.ID), raft.ServerAddress(successor.Addr))", "_ = successor\n\t\t\t\te.raft.LeadershipTransfer()"},
	}, []finding{{"cluster", "TestHandOverToLiveMember", "does not hand over"}}},
	{"unanswered transfer", []edit{
		{"internal/core/engine/transport.go", "late := time.NewTimer(t.Lease)", "late := time.NewTimer(time.Hour)"},
	}, []finding{{"internal/core/engine", "TestTimeoutNowUnanswered", "it fails after"}}},
	{"failed transfer", []edit{
		{"internal/core/engine/elect.go", "e.StepDown(lease) // otherwise Raft would", "_ = began // Raft would take"},
	}, []finding{{"cluster", "TestHandOverFails", "an entry waited"}}},

	// Members.
	{"log of a removed member", []edit{
		{"internal/core/membership/steps.go", "\tm.Running.Go(func() { m.Engine.SendToRemoved(x, index) })\n", "\t_ = index\n"},
	}, []finding{{"internal/testing/whole", "TestReconfigOwnServer", "FAIL"}}},
	{"removed", []edit{
		{"cluster/cluster.go", "\t\tm.Running.Go(m.membership.Watch)\n", ""},
	}, []finding{{"internal/testing/whole", "TestReconfigOwnServer", "FAIL"}}},
	{"shorter logs are first", []edit{
		{"internal/core/election/contacts.go", "apart, gap = write, patience+electionWrites*write", "apart = write"},
	}, []finding{{"cluster", "TestElectionOnSlowDisks -test.count=100", "no leader after"}}},
	{"added by a second request", []edit{
		{"internal/core/membership/change.go", "removed > q.AskedAt", "removed > 1<<62"},
	}, []finding{{"cluster", "TestRemovedBeforeSecondRequest", "it was added again"}}},
	{"removals are not in snapshots", []edit{
		{"fsm/reconfig.go", "for _, x := range m.removed {\n\t\tb =", "for _, x := range m.removed[:0] {\n\t\tb ="},
	}, []finding{{"cluster", "TestRemovedBeforeSecondRequest", "it was added again"}}},
	{"formed by a majority", []edit{
		{"internal/core/membership/formation.go", "case len(missing) > 0:", "case len(said) == 0:"},
		{"internal/core/membership/formation.go", "case required[0].ID != s.self:", "case false:"},
		{"internal/core/membership/form.go", "return j.propose(s, said, s.required())", "required, _ := s.majority(said)\n\t\treturn j.propose(s, said, required)"},
	}, []finding{{"cluster", "TestFormInAnyOrder", "FAIL"}, {"cluster", "TestFormedOnce", "FAIL"}}},
	{"added again", []edit{
		{"internal/core/membership/form.go", "Request{Add: j.self(true), Rejoin: true,", "Request{Add: j.self(true),"},
	}, []finding{{"cluster", "TestRemovedWhileJoining", "FAIL"}}},
	{"no clusters", []edit{
		{"internal/core/peer/peers.go", "case h.Cluster != a.cluster:", "case false:"},
		{"internal/core/peer/hello.go", "case a.verdict != welcome:", "case false:"},
		{"internal/core/membership/removed.go", "if s.Formed && s.Cluster != own", "if false"},
		{"internal/core/storage/identity.go", "if !x.Agreed || of == 0 || of == x.Cluster {", "if x.Cluster != 1 {"},
	}, []finding{{"cluster", "TestOtherClustersData", "FAIL"}, {"cluster", "TestMixedFiles", "FAIL"}}},
	{"compares nothing", []edit{
		{"cluster/pulse.go", "p.compare(members, own)", "_ = p.compare"},
	}, []finding{{"cluster", "TestDiffers", "FAIL"}}},
	{"serves in doubt", []edit{
		{"cluster/pulse.go", "v.Disputed = p.digests.Dispute() != 0", "v.Disputed = false"},
	}, []finding{{"cluster", "TestDiffersBesideStuckDisk", "serves"}}},
	{"a copy is a witness", []edit{
		{"internal/core/election/digests.go", "!x.Observer && copied == 0 {", "!x.Observer && copied < 1<<62 {"},
	}, []finding{{"cluster", "TestDiffersFromCopy", "FAIL"}, {"internal/core/election", "TestDigestsModel", "is said to be wrong"}}},
	{"the next leader does not know of a dispute", []edit{
		{"internal/core/election/digests.go", "d.ballots, d.doubted = nil, 0", "d.ballots, d.doubted, d.disputed = nil, 0, 0"},
		{"internal/core/election/digests.go", "d.disputed = max(d.disputed, a.Disputed)", ""},
	}, []finding{{"cluster", "TestDiffersNextLeader", "have served"}}},
	{"a leader that was restarted does not hear of a dispute", []edit{
		{"internal/core/election/digests.go", "d.disputed = max(d.disputed, a.Disputed)", ""},
	}, []finding{{"cluster", "TestDiffersLeaderForgets", "a member serves for"}}},
	{"a copy counts for nothing under the next leader", []edit{
		{"internal/core/election/digests.go", "if d.copied < q.Right {", "if false {"},
	}, []finding{{"cluster", "TestDiffersAmongCopies", "FAIL"}}},
	{"the dispute is about the first entry", []edit{
		{"internal/core/election/digests.go", "d.doubted = max(d.doubted, b.index)", "if d.doubted == 0 {\n\t\t\t\td.doubted = b.index\n\t\t\t}"},
	}, []finding{{"internal/core/election", "TestDisputeOfNewest", "it serves"}}},
	{"sessions expire although nobody serves", []edit{
		{"cluster/lead.go", "disputed && len(late) > 0 || was", "was"},
	}, []finding{{"cluster", "TestDiffersBesideStuckDisk", "a session has expired"}}},
	{"lost disk", []edit{
		{"internal/core/membership/form.go", "if done, err = j.join(x.Addr, next.cluster); done {", "j.Engine.Bootstrap(j.first)\n\t\t\t\tj.openGate(next.cluster)\n\t\t\t\tif done = true; done {"},
	}, []finding{{"internal/testing/whole", "TestClusterWipedMember", "FAIL"}, {"cluster", "TestFormInAnyOrder", "FAIL"}}},

	// Snapshots and the log.
	{"snapshot before Raft", []edit{
		{"internal/core/engine/transport.go", "return t.install(rpc)", "t.deliver(rpc)"},
	}, []finding{{"internal/core/engine", "TestSnapshotBeforeRaft", "Raft is given a part"}}},
	{"the link to a leader that was replaced", []edit{
		{"internal/core/propose/link.go", "(asked || l.waits.Load() > 0) && l.turn.TryTake()", "asked || l.waits.Load() > 0"},
		{"internal/core/propose/link.go", "\t\t\tl.write(MsgAlive, nil)\n\t\t\tl.turn.Give()\n", "\t\t\tl.Send(MsgAlive, nil)\n"},
	}, []finding{{"cluster", "TestLinkEndsWithLeader", "after the other member leads"}}},
	{"a snapshot that stops coming", []edit{
		{"internal/core/engine/exchange.go", "\t\t\terr = r.t.dispatch(rpc)\n\t\t\tr.conn.Owed.Add(1) //", "\t\t\tr.conn.Owed.Add(1)\n\t\t\terr = r.t.dispatch(rpc) //"},
	}, []finding{{"internal/core/engine", "TestSnapshotStops", "FAIL"}}},
	{"only the head of a snapshot comes", []edit{
		{"internal/core/engine/exchange.go", "r.conn.MidMessage.Store(long || in.Buffered() > 0)", "r.conn.MidMessage.Store(in.Buffered() > 0)"},
	}, []finding{{"internal/core/engine", "TestSnapshotStops/0", "still waits for the snapshot"}}},
	{"the signs of life of the receiver of a long message are read only when all has been sent", []edit{
		{"internal/core/peer/conn.go", "\tgo func() { answered <- read() }() // it ends with the connection, at the latest\n\t_, err := io.Copy(c, message)\n", "\t_, err := io.Copy(c, message)\n\tgo func() { answered <- read() }()\n"},
	}, []finding{{"cluster", "TestNeededMemberOnSlowLink", "FAIL"}}},
	{"what the receiver's system takes of a long message counts for its process", []edit{
		{"internal/core/peer/conn.go", "\t\tn, err = c.Conn.Write(p)\n", "\t\tn, err = c.Conn.Write(p)\n\t\tc.heard.Store(true)\n"},
	}, []finding{{"internal/core/peer", "TestSignsWhileSending", "seen alive"}}},
	{"installation of a snapshot", []edit{
		{"internal/core/engine/transport.go", "\tt.engine.disk.Stall.During(t.now(), func() error {\n\t\tselect {", "\tfunc(_ timing.Moment, f func() error) { f() }(t.now(), func() error {\n\t\tselect {"},
	}, []finding{{"internal/core/engine", "TestSnapshotBeforeRaft", "it counts as stuck for"}}},
	{"snapshot of an earlier term", []edit{
		{"internal/core/engine/transport.go", "\t\tif t.termEnded(q.Term) {\n\t\t\treturn 0", "\t\tif false {\n\t\t\treturn 0"},
	}, []finding{{"cluster", "TestNextLeadersSnapshot", "it does not get the snapshot of the next leader"}}},
	{"snapshot that cannot be stored", []edit{
		{"internal/core/raftlog/store.go", "if err != nil && s.Saving.Installing.Load() &&", "if false && s.Saving.Installing.Load() &&"},
	}, []finding{{"internal/core/engine", "TestInstallFails", "the member does not stop"}}},
	{"recent entries", []edit{
		{"internal/core/raftlog/store.go", "r.bytes > recentBytes && n-drop > 1", "r.bytes > recentBytes && n-drop > RecentEntries"},
	}, []finding{{"internal/core/raftlog", "TestRecentLog", "are kept, want"}}},
	{"snapshot and log", []edit{
		{"internal/core/engine/engine.go", "err := o.disk.Storage.ReconcileLog(); err != nil", "err := error(nil); err != nil"},
	}, []finding{{"cluster", "TestStaleLog", "states differ"}}},
	{"own snapshot that ends late", []edit{
		{"internal/core/engine/transport.go", "\tif !t.awaitOwn(q.LastLogIndex) {\n\t\treturn lifecycle.ErrClosed\n\t}\n\tdefer t.engine.disk.Saving.Turn.Give()\n", ""},
	}, []finding{{"cluster", "TestOwnSnapshotEndsLate", "Raft takes the snapshot that ends"}}},
	{"follower without the entries before its snapshot", []edit{
		{"internal/core/engine/transport.go", "if t.compactedAway(q) {", "if false && t.compactedAway(q) {"},
	}, []finding{{"cluster", "TestTailRefused", "did not happen: a write"}}},
	{"snapshot that comes late", []edit{
		{"internal/core/raftlog/store.go", "if s.Saving.Installing.Load() && ", "if false && "},
	}, []finding{
		{"internal/core/engine", "TestSnapshotAfterItsEntries", "its newest list of members is"},
		{"internal/core/engine", "TestSnapshotToCandidate", "its newest list of members is"},
		{"internal/core/engine", "TestSnapshotDuringItsEntries", "its newest list of members is"},
	}},
	{"snapshot before a barrier", []edit{
		{"internal/core/raftlog/store.go", "return newest.Index > index || ", "return "},
	}, []finding{{"internal/core/engine", "TestSnapshotBeforeBarrier", "before the snapshot"}}},
	{"entry that comes late", []edit{
		{"internal/core/raftlog/store.go", "if last = newest.Index; index < last &&", "if last = newest.Index; false && index < last &&"},
	}, []finding{{"internal/core/engine", "TestEmptyEntryLate", "it refuses the next entries"}}},
	{"entries by a leader that was replaced", []edit{
		{"internal/core/engine/transport.go", "return t.engine.disk.Terms.Newest.Load() > term", "return false && t.engine.disk.Terms.Newest.Load() > term"},
	}, []finding{{"internal/core/engine", "TestEntriesByDeposed", "it sends"}}},
	{"a snapshot by a leader that was replaced", []edit{
		{"internal/core/engine/transport.go", "\tif t.termEnded(q.Term) {\n\t\treturn errTermEnded", "\tif false {\n\t\treturn errTermEnded"},
	}, []finding{{"internal/core/engine", "TestEntriesByDeposed", "it sends a snapshot"}}},
	{"waits longer for each snapshot that was cut off", []edit{
		{"internal/core/engine/transport.go", "\t\tr.Term, r.Success = q.Term, true\n\t\treturn nil\n", "\t\treturn err\n"},
	}, []finding{{"cluster", "TestServesAfterManyCuts", "FAIL"}}},
	{"snapshot's end, replaced late", []edit{
		{"internal/core/engine/transport.go", "\t\tt.replaceEnd(q.RPCHeader, q.Term, newest.Index, newest.Term) //", "\t\t//"},
	}, []finding{{"internal/core/engine", "TestEndNotReplaced", "it still refuses entry"}}},
	{"snapshot's end, by the follower", []edit{
		{"internal/core/engine/transport.go", "\t\t\t\tt.replaceEnd(q.RPCHeader, q.Term, q.LastLogIndex, q.LastLogTerm)\n", ""},
	}, []finding{{"cluster", "TestLeaderLostAfterSnapshot", "no write for"}}},
	{"snapshot's end, after a crash", []edit{
		{"internal/core/storage/memory.go", "\t\tmending.DeleteRange(first, last)\n", "\t\tmending.DeleteRange(first, min(last, newest.Index-1))\n"},
	}, []finding{{"internal/core/storage", "TestMemorySuperseded", "the log ends at 9"}}},
	{"snapshot's end", []edit{
		{"internal/core/engine/transport.go", "== nil && end.Term != entryTerm {", "== nil && false {"},
		{"internal/core/engine/transport.go", "if !r.Success {\n\t\treturn nil\n\t}\n\t// If this", "if r.Success || !r.Success {\n\t\treturn nil\n\t}\n\t// If this"},
	}, []finding{{"cluster", "TestStaleLog", "states differ"}}},
	{"kept entry", []edit{
		{"internal/core/raftlog/store.go", "if last == newest.Index {", "if last == 1<<63 && newest.Index == 0 {"},
	}, []finding{{"internal/core/raftlog", "TestGuardedLog", "FAIL"}}},
	{"replaced entry", []edit{
		{"internal/core/raftlog/store.go", "\t\tif !replaced {\n", "\t\tif replaced || !replaced {\n"},
	}, []finding{
		{"internal/core/engine", "TestFollowerModel/wal", "the member stops by itself"},
		{"internal/core/engine", "TestFollowerModel/boltdb", "the member stops by itself"},
		{"internal/core/engine", "TestFollowerModel/memory", "the member stops by itself"},
		{"cluster", "TestStaleLog", "states differ"},
	}},
	{"order of the log", []edit{
		{"internal/core/storage/order.go", "if l.Index != last+1 && (i > 0 || last > 0) {", "if i < 0 {"},
	}, []finding{
		{"internal/core/storage", "TestModel/boltdb", "was stored although"},
		{"internal/core/storage", "TestModel/memory", "was stored although"},
	}},
	{"gap", []edit{
		{"internal/core/raftlog/store.go", "if index > last+1 {", "if index == 1<<63 {"},
	}, []finding{{"internal/core/raftlog", "TestGuardedLog", "FAIL"}}},
	{"superseded log", []edit{
		{"internal/core/storage/directory.go", "\tif last > 0 {\n", "\tif last > 0 && err != nil {\n"},
	}, []finding{{"internal/core/storage", "TestSupersededLog", "FAIL"}}},
	{"superseded log in memory", []edit{
		{"internal/core/storage/memory.go", "\t\tmending.DeleteRange(first, last)\n", "\t\t_, _ = first, last\n"},
	}, []finding{{"internal/core/storage", "TestMemorySuperseded", "the log ends at 3"}}},
	{"older snapshot", []edit{
		{"fsm/raft.go", "if err == nil && m.index < r.m.index {", "if err == nil && m.index < 0 {"},
	}, []finding{{"fsm", "TestReplicaRestores", "older than the state"}}},
	{"stuck snapshot", []edit{
		{"internal/core/raftlog/store.go", "err := s.Snapshots.During(at, f)", "_ = at\n\terr := f()"},
	}, []finding{{"cluster", "TestStuckSnapshot", "no other member led"}}},
	{"snapshot threshold", []edit{
		{"internal/core/engine/engine.go", "c.SnapshotThreshold = math.MaxUint64", "_ = math.MaxInt"},
		{"internal/core/engine/engine.go", "\tc.TrailingLogs = 1\n", ""},
	}, []finding{{"cluster", "TestTrailingLog", "FAIL"}}},
	{"trailing logs", []edit{
		{"internal/core/engine/compact.go", "trailing := uint64(max(1, c.bytes*entries/max(1, grown)))", "trailing := uint64(10240)\n\t\t\t_, _ = grown, entries"},
	}, []finding{{"cluster", "TestTrailingLog", "the log begins with entry"}}},

	// Faults of the disk.
	{"vote", []edit{
		{"internal/core/storage/memory.go", "\ts.keepVotes()\n", ""},
	}, []finding{{"internal/core/storage", "TestVoteIsOneWrite", "FAIL"}}},
	{"term not stored", []edit{
		{"internal/core/raftlog/store.go", "\t<-s.Stop\n\tif s.Cut != nil {\n\t\t<-s.Cut\n\t}\n\treturn nil\n", "\treturn err\n"},
	}, []finding{{"internal/core/engine", "TestVoteNotStored", "failed to save current term"}}},
	{"vote not stored", []edit{
		{"internal/core/raftlog/store.go", "\t<-s.Stop\n\tif s.Cut != nil {\n\t\t<-s.Cut\n\t}\n\treturn nil\n", "\treturn nil\n"},
	}, []finding{{"internal/core/engine", "TestVoteNotStored", "it has voted"}}},
	{"log or snapshot not read", []edit{
		{"internal/core/raftlog/store.go", "\t\ts.CannotRead(s.Storage, err)\n", ""},
		{"internal/core/raftlog/store.go", "if err != nil && !replaced {", "if err != nil && replaced {"},
	}, []finding{{"cluster", "TestDamagedWhileItLeads", "the leader's fault is <nil>"}, {"cluster", "TestLostWhileItLeads", "the leader's fault is <nil>"}}},
	{"an entry that cannot be read at the start", []edit{
		{"internal/core/engine/engine.go", "\t\tif p := recover(); p != nil {\n", "\t\tif p := any(nil); p != nil {\n"},
	}, []finding{{"internal/core/engine", "TestUnreadableAtStart", "panic"}}},
	{"an entry to apply that cannot be read", []edit{
		{"internal/core/raftlog/store.go", "r.Started.Load() && r.life.Failed.Load() {", "r.Started.Load() && r.life.Killed.Load() {"},
	}, []finding{{"cluster", "TestCannotReadWhatItApplies", "panic"}}},
	{"the same while it is closed", []edit{
		{"internal/core/lifecycle/lifecycle.go", "\tif wake.Closed(l.Stop) {\n\t\tl.Failed.Store(true)\n", "\tif wake.Closed(l.Stop) {\n"},
	}, []finding{{"cluster", "TestCannotReadWhileClosed", "panic"}}},
	{"an entry to send that cannot be read", []edit{
		{"internal/core/engine/stream.go", "if wake.Closed(s.t.life.Stop) {", "if wake.Closed(s.t.engine.down) {"},
	}, []finding{{"cluster", "TestCannotReadWhatItStreams", "it cannot be closed"}}},
	{"log not stored", []edit{
		{"internal/core/raftlog/store.go", "return s.LogStore.StoreLogs(logs) })\n\tif err != nil {", "return s.LogStore.StoreLogs(logs) })\n\tif false {"},
	}, []finding{{"cluster", "TestLogNotStored", "no fault"}}},
	{"same term", []edit{
		{"internal/core/raftlog/store.go", "err == nil && stored == val {", "err == nil && stored == val && val == 1<<63 {"},
	}, []finding{{"cluster", "TestFaultAtStart", "it hangs"}}},
	{"latch", []edit{
		{"internal/core/storage/latch.go", "\tif s.fault == nil {\n\t\ts.fault = f()\n\t}\n\treturn s.fault\n", "\treturn f()\n"},
	}, []finding{{"internal/core/storage", "TestNothingIsWrittenAfterAFault", "FAIL"}, {"internal/core/storage", "TestStorageIsLatched", "FAIL"}}},
	{"bootstrap", []edit{
		{"internal/core/storage/storage.go", "\tif term, err := s.Term(); err != nil {\n\t\treturn err\n", "\tif term, err := s.Term(); err != nil || term > 0 {\n\t\treturn raft.ErrCantBootstrap\n"},
	}, []finding{{"internal/core/storage", "TestEmpty", "FAIL"}}},
	{"bootstrap's term", []edit{
		{"internal/core/storage/storage.go", "if err != nil || term != 1 {", "if err != nil || term < 1<<63 {"},
	}, []finding{{"internal/core/storage", "TestEmpty", "the term is 1"}}},

	// Shutdown.
	{"futures", []edit{
		{"internal/core/engine/engine.go", "end.Set(reflect.ValueOf(down))", "_ = down"},
	}, []finding{{"cluster", "TestCloseWhileApplying", "timed out"}}},

	// Files.
	{"private snapshots", []edit{
		{"internal/core/storage/snapshots.go", "return &privateSnapshots{FileSnapshotStore: s, dir: filepath.Join(dir, snapshotDir), log: log}, err", "return s, err"},
	}, []finding{{"internal/core/storage", "TestPrivateFiles", "has mode"}}},
	{"unfinished snapshots", []edit{
		{"internal/core/storage/directory.go", "\tremoveTemporary(dir, log)\n\tsnaps", "\tsnaps"},
	}, []finding{{"internal/core/storage", "TestCrashWhileSnapshotsGo", "is still there"}}},
	{"damaged snapshot", []edit{
		{"internal/core/storage/snapshots.go", "\tif err != nil {\n\t\treturn nil, nil, damaged(path, \"%w\", err)\n\t}\n\treturn meta", "\tif err != nil {\n\t\treturn nil, nil, nil\n\t}\n\treturn meta"},
	}, []finding{{"internal/core/storage", "TestDamagedFiles", "FAIL"}}},
	{"checksums", []edit{
		{"internal/core/storage/checksums.go", "entrySum(l, l.Extensions[:n]) != binary", "false && 0 != binary"},
		{"internal/core/storage/checksums.go", "valueSum(key, v[:n]) != binary", "false && 0 != binary"},
	}, []finding{{"internal/core/storage", "TestChecksums", "FAIL"}}},
	{"entries that Raft leaves out at its end", []edit{
		{"internal/core/raftlog/asynclog.go", "g.closed = wake.Closed(g.Log.Stop)", "wake.Closed(g.Log.Stop)"},
	}, []finding{{"internal/core/raftlog", "TestNothingIsAppliedAtTheEnd", "is applied, and what comes before"}}},
	{"a snapshot that waits for Raft", []edit{
		{"internal/core/engine/transport.go", "(*raft.InstallSnapshotRequest); !snapshot {", "(*raft.InstallSnapshotRequest); !snapshot || true {"},
	}, []finding{{"internal/core/engine", "TestWholeSnapshotIsKept", "AppendEntriesRequest first"}}},
	{"what Raft answers at its end", []edit{
		{"internal/core/engine/engine.go", "\t\treturn lifecycle.ErrClosed\n", "\t\treturn err\n"},
	}, []finding{{"internal/core/engine", "TestNothingIsDoneAtTheEnd", "before the entries"}}},
	{"pages", []edit{
		{"internal/core/storage/bolt.go", "path := b.logPath(dir)\n\treturn withoutOthers(path, func() error { return checkPages(path, raftKeys()) })", "return nil"},
	}, []finding{{"internal/core/storage", "TestDamagedFiles -test.count=20", "FAIL"}}},
	{"what a killed process left", []edit{
		{"internal/core/storage/directory.go", "if err := syncFound(dir, disk.files(dir)); err != nil {", "if err := error(nil); err != nil {"},
	}, []finding{{"internal/core/storage", "TestFoundIsOnDisk", "are not on the disk"}}},
	{"first segment of raft-wal", []edit{
		{"internal/core/storage/wal.go", "\t\tif len(state.Segments) == 0 {\n\t\t\t// raft-wal", "\t\tif reached == 1<<63 {\n\t\t\t// raft-wal"},
	}, []finding{{"internal/core/storage", "TestWALFirstSegmentCut", "is missing, but"}}},
	{"list of raft-wal's segments", []edit{
		{"internal/core/storage/wal.go", "return noEntries(path, w.files(dir)[1:], dir)", "return nil"},
	}, []finding{{"internal/core/storage", "TestWALListLost", "are left of"}}},
	{"free pages of bbolt", []edit{
		{"internal/core/storage/bolt.go", "FreelistType: bbolt.FreelistMapType,", "NoFreelistSync: true,"},
	}, []finding{{"internal/core/storage", "TestBoltSyncs", "NoFreelistSync"}}},
	{"damage to the last batch of raft-wal", []edit{
		{"internal/core/storage/walsegment.go", "return 0, fmt.Errorf(\"the batch at offset %d\", t.begin)", "return t.end - t.begin, nil"},
	}, []finding{{"internal/core/storage", "TestWALDamagedLast", "opened with another state"}}},
	{"end of raft-wal's log", []edit{
		{"internal/core/storage/wal.go", "err = s.meta.reach(last)", "_ = last"},
	}, []finding{{"internal/core/storage", "TestWALClosedEnd", "the last write is gone"}}},
	{"full segment of raft-wal", []edit{
		{"internal/core/storage/wal.go", "if found.index == 0 {", "if found.index >= 0 {"},
	}, []finding{{"internal/core/storage", "TestWALCutRotation", "sealed"}}},
	{"rest of a torn batch of raft-wal", []edit{
		{"internal/core/storage/wal.go", "if found.torn > 0 {", "if found.torn < 0 {"},
	}, []finding{{"internal/core/storage", "TestWALTornTwice", "FAIL"}}},
	{"deleted entries of raft-wal", []edit{
		{"internal/core/storage/wal.go", "if index < first {", "if index < first && index == 1<<63 {"},
	}, []finding{{"internal/core/storage", "TestModel -test.count=10", "which is not there"}}},
	{"lock of bbolt", []edit{
		{"internal/core/storage/bolt.go", "\t\t\t\tTimeout:      lockTimeout,\n", ""},
		{"internal/core/storage/bolt.go", "ReadOnly: true, Timeout: lockTimeout", "ReadOnly: true"},
	}, []finding{{"internal/core/storage", "TestRefusedDirectories", "timed out"}}},

	// In memory.
	{"log in memory", []edit{
		{"internal/core/storage/order.go", "\tfirst, last = max(first, begin), min(last, end)\n\tif end == 0 || first > last {", "\tif end == 1<<63 && begin == 0 {"},
	}, []finding{{"internal/core/storage", "TestMemoryLog", "the log is"}}},
	{"snapshots in memory", []edit{
		{"internal/core/storage/memorystores.go", "\treturn &memorySnapshot{store: s, meta: raft.SnapshotMeta{", "\ts.newest = &memorySnapshot{store: s, meta: raft.SnapshotMeta{"},
		{"internal/core/storage/memorystores.go", "ConfigurationIndex: configIndex,\n\t}}, nil", "ConfigurationIndex: configIndex,\n\t}}\n\treturn s.newest, nil"},
	}, []finding{{"internal/core/storage", "TestMemorySnapshots", "FAIL"}}},
}
