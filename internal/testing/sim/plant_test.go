package sim

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/overlay"
)

var plantsFlag = flag.Int("sim.plants", 0, "TestPlants: look for each planted bug in at most this many seeds")

// A plant is a bug put into a build of the tests, to see whether the checks find it.
// The repository's files stay as they are: go test -overlay replaces them in the build.
type plant struct {
	name  string
	edits []edit
	by    []string // checks that may find it first
}

type edit = overlay.Edit

var plants = []plant{
	{"a read does not wait for the session's write", []edit{
		{"internal/core/server/pipeline.go", "waits := len(c.queue) > 0", "waits := false"},
	}, []string{"session order"}},
	{"sync does not ask the leader", []edit{
		{"proto/ops.go", `{OpSync, "sync", "SYNC", Write,`, `{OpSync, "sync", "SYNC", Read,`},
		{"internal/core/server/pipeline.go", "\tcase q.op.Code == proto.OpPing:", "\tcase q.op.Code == proto.OpSync:\n\t\tq.fixed = &fixedReply{header: proto.ReplyHeader{Xid: q.xid}, now: true}\n\tcase q.op.Code == proto.OpPing:"},
	}, []string{"linearizability", "read-only"}},
	{"the leader ignores the touches that other members report", []edit{
		{"internal/core/alive/liveness.go", "case l.tracker.Touch(id, now-ago):", "case now-ago != -1:"},
	}, []string{"expiry", "locks"}},
	{"a member answers before the leader has heard of the session", []edit{
		{"internal/core/alive/liveness.go", "l.tracker.Safe(id, now, slack)", "slack > 0"},
	}, []string{"expiry", "locks"}},
	{"a new leader does not give the sessions their full timeouts again", []edit{
		{"cluster/lead.go", "m.setLeading(term)\n\t\t\tm.trackAll()", "m.setLeading(term)"},
	}, []string{"expiry", "locks"}},
	{"an entry that is proposed again is applied again", []edit{
		{"fsm/machine.go", "if e.Batch <= m.batches[e.Origin] {", "if e.Batch == 0 {"},
	}, []string{"exactly once"}},
	{"a new leader's first entry fires no watches", []edit{
		{"fsm/replica.go", "\tv := &View{r, r.m}\n\terr := r.m.Apply(", "\tv, before := &View{r, r.m}, r.m.term\n\terr := r.m.Apply("},
		{"fsm/replica.go", "\t\t\tr.fire(changes)\n\t\t\tfor", "\t\t\tif before == term {\n\t\t\t\tr.fire(changes)\n\t\t\t}\n\t\t\tfor"},
	}, []string{"watches"}},
	{"a watch fires twice", []edit{
		{"watch/watch.go", "\t\tif mode&Standard != 0 {\n\t\t\tt.Remove(c, kind, e.Path, Standard)\n\t\t}\n", ""},
	}, []string{"watches"}},
	{"setWatches does not report what has changed", []edit{
		{"fsm/reads.go", "case n.Stat().Mzxid > q.RelativeZxid:", "case false:"},
		{"fsm/reads.go", "case n.Stat().Pzxid > q.RelativeZxid:", "case false:"},
	}, []string{"watches"}},
	{"a recursive watch is not set again", []edit{
		{"fsm/reads.go", "set(r.watchPersistent(v, path, true))", "_ = path"},
	}, []string{"watches"}},
	{"a write is acknowledged before it is committed", []edit{
		{"internal/core/server/pipeline.go", "\tc.push(q, false)\n\tc.s.cfg.Proposer.Propose(&cmd, w, c.gone)", "\tif q.op.Code == proto.OpDelete {\n\t\tc.s.cfg.Proposer.Propose(&cmd, early{}, nil)\n\t\tq.fixed = &fixedReply{header: proto.ReplyHeader{Xid: q.xid}, now: true}\n\t\tc.local(q)\n\t\tc.release(&q)\n\t\treturn true\n\t}\n\tc.push(q, false)\n\tc.s.cfg.Proposer.Propose(&cmd, w, c.gone)"},
		{"internal/core/server/pipeline.go", "// request is one request in a connection's queue.", "type early struct{}\n\nfunc (early) Done(*fsm.View, *fsm.Result) {}\nfunc (early) Lost() {}\n\n// request is one request in a connection's queue."},
	}, []string{"writes", "session order", "reads"}},
	{"a member that crashes loses the last entries of its log", []edit{
		{"internal/core/storage/memory.go", "\tfirst, _ := m.log.FirstIndex()\n", "\tif last, _ := m.log.LastIndex(); last > 10 {\n\t\torderedLog{m.log.InmemStore}.DeleteRange(last-1, last)\n\t}\n\tfirst, _ := m.log.FirstIndex()\n"},
	}, []string{"agreement", "order", "outcomes", "writes", "start", "recovery", "ephemerals"}},
	{"a member keeps the ephemerals of some sessions that have ended", []edit{
		{"fsm/machine.go", "\tm.tree.CloseSession(&m.txn, id)\n", "\tif planted++; planted%20 != 0 {\n\t\tm.tree.CloseSession(&m.txn, id)\n\t}\n"},
		{"fsm/machine.go", "// closeSession ends", "var planted int\n\n// closeSession ends"},
	}, []string{"agreement", "ephemerals", "check"}},
	{"a connection that lost its session can write", []edit{
		{"fsm/writes.go", "if s.Owner != conn {", "if false {"},
	}, []string{"session moved"}},
	{"a connection that lost its session can read", []edit{
		{"internal/core/server/server.go", "		case proto.SessionResumed: // by", "		case proto.ChangeKind(100): // by"},
	}, []string{"session moved"}},
	{"sessions are timed by the time of day", []edit{
		{"cluster/clock.go", "func (c *clock) nowMs() int64 { return c.mono().Milliseconds() }", "func (c *clock) nowMs() int64 { return c.timeOfDay() }"},
		{"session/tracker.go", "2*watch && looked != 0 {", "2*watch && false {"},
	}, []string{"expiry", "locks"}},
	{"a TTL znode is deleted after two thirds of its TTL", []edit{
		{"znode/tree.go", "return nowMs-n.mtime > n.more.owner", "return nowMs-n.mtime > n.more.owner*2/3"},
	}, []string{"clocks"}},
	{"an entry keeps the time of the member that forwarded it", []edit{
		{"cluster/forward.go", "	fsm.Stamp(entry, f.timeOfDay())\n", ""},
	}, []string{"clocks"}},
	{"a connection that ends skips a request that it has read", []edit{
		{"internal/core/server/pipeline.go", "\t\treturn c.write(q) && q.op.Code", "\t\tc.write(q)\n\t\treturn q.op.Code"},
		{"internal/core/server/pipeline.go", "&cmd, w, c.gone)", "&cmd, w, nil)"},
	}, []string{"session order"}},
	{"requests after a lost one are not lost", []edit{
		{"internal/core/propose/propose.go", "\t\t\tp.batcher.lose()\n\t\t\tcontinue", "\t\t\tcontinue"},
		{"internal/core/propose/propose.go", "\t\t\tp.batcher.lose() // it may be", "\t\t\tsuspended = p.Leader.Get().Suspended // it may be"},
	}, []string{"session order"}},
	{"an ended session stays in the table", []edit{
		{"fsm/machine.go", "\tm.sessions.Close(id)\n", "\tif id%2 == 0 {\n\t\tm.sessions.Close(id)\n\t}\n"},
	}, []string{"ephemerals", "session", "locks"}},
	{"the owner of a late session is looked up when the session is ended", []edit{
		{"cluster/lead.go", "\t\tfor _, s := range late {\n\t\t\tm.proposer.Do(fsm.ExpireSession(s, term)", "\t\ttime.Sleep(50 * time.Millisecond)\n\t\tfor _, s := range late {\n\t\t\tm.replica.View(func(v *fsm.View) {\n\t\t\t\tif now := v.Sessions().Get(s.ID); now != nil {\n\t\t\t\t\ts = now\n\t\t\t\t}\n\t\t\t})\n\t\t\tm.proposer.Do(fsm.ExpireSession(s, term)"},
	}, []string{"expiry"}},
	{"a member that restores a snapshot keeps its connections", []edit{
		{"internal/core/server/server.go", "\tfor c := range o.s.conns {\n\t\tc.out.close()\n\t}\n", ""},
	}, []string{"watches"}},
	{"a leader whose disk is stuck continues to lead", []edit{
		{"internal/core/election/contacts.go", "func (c *Contacts) leaderStuck() bool { return c.heard.Stalled >= c.ElectionTimeout }", "func (c *Contacts) leaderStuck() bool { return false }"},
	}, []string{"availability", "progress"}},
	{"a member that has lost its leader continues to serve", []edit{
		{"cluster/serving.go", "giveUp: countdown{length: p.contacts.ElectionTimeout,", "giveUp: countdown{length: 20 * p.contacts.ElectionTimeout,"},
		{"cluster/serving.go", "case seen.NoMajority:", "case false:"},
		{"cluster/serving.go", "if s.late.stop(); since != allHeard {", "if s.late.stop(); since < -1 {"},
		{"cluster/serving.go", "case s.serving && s.behind():", "case s.serving && reason == \"never\":"},
	}, []string{"age of reads"}},
	{"a member that lags behind its leader continues to serve", []edit{
		{"cluster/serving.go", "case s.serving && s.behind():", "case s.serving && reason == \"never\":"},
	}, []string{"age of reads"}},
	{"a multi that fails leaves data that it has set", []edit{
		{"znode/tree.go", "\t\tcase edited:\n", "\t\tcase edited:\n\t\t\tif t.Lookup(path).version != u.node.version {\n\t\t\t\tcontinue\n\t\t\t}\n"},
	}, []string{"outcomes"}},
	{"a version above the current one matches", []edit{
		{"znode/ops.go", "return want == proto.AnyVersion || want == have", "return want == proto.AnyVersion || want >= have"},
	}, []string{"outcomes"}},
	{"setData needs no permission", []edit{
		{"znode/ops.go", "id, n, code := t.lookup(x, r.Path, proto.PermWrite)", "id, n := t.find(r.Path)\n\tcode := proto.OK\n\tif n == nil {\n\t\tcode = proto.NoNode\n\t}"},
	}, []string{"outcomes"}},
	{"reads need no permission", []edit{
		{"fsm/reads.go", "case !c.Permits(n.Access(), proto.PermRead, ids):", "case false:"},
	}, []string{"reads"}},
	{"a member that regains its majority keeps its read-only connections", []edit{
		{"internal/core/server/server.go", "\t\tif c.readOnly {\n\t\t\tc.kill()\n\t\t}\n", "\t\t_ = c\n"},
	}, []string{"read-only"}},
	{"a member that loses its majority keeps its connections", []edit{
		{"internal/core/server/server.go", "s.serving, s.readOnly = false, s.cfg.ReadOnly\n\tfor c := range s.conns {\n\t\tc.kill()", "s.serving, s.readOnly = false, s.cfg.ReadOnly\n\tfor c := range s.conns {\n\t\tif !s.readOnly {\n\t\t\tc.kill()\n\t\t}"},
	}, []string{"read-only", "age of reads"}},
	{"a read-only server accepts clients that have seen higher zxids", []edit{
		{"internal/core/server/handshake.go", "\tif q.LastZxidSeen > last {", "\tif q.LastZxidSeen > last && !c.s.isReadOnly() {"},
	}, []string{"session order"}},
	{"a read-only server forwards writes", []edit{
		{"internal/core/server/pipeline.go", "case c.readOnly && q.op.Class == proto.Write:", "case c.readOnly && q.op.Code == proto.OpCloseSession:"},
	}, []string{"read-only"}},
	{"a hard limit is one too low", []edit{
		{"znode/quota.go", "if e.Value > e.Limit {", "if e.Value >= e.Limit {"},
	}, []string{"outcomes"}},
	{"an operation of a multi counts those before it towards the quota", []edit{
		{"znode/quota.go", "\t\tif before && q.before != nil {\n", "\t\tif false {\n"},
	}, []string{"outcomes"}},
	{"the stats of a new quota do not count existing znodes", []edit{
		{"znode/ops.go", "\t\tt.recount(of)\n", "\t\t_ = of\n"},
	}, []string{"outcomes", "quotas", "reads"}},
	{"quotas do not count the znodes deleted at a session's end", []edit{
		{"znode/quota.go", "at, q := t.quotaOf(path, false)\n\tif q == nil ||", "at, q := t.quotaOf(path, false)\n\tif q != nil && nodes < 0 && strings.Contains(path, \"/e-\") {\n\t\treturn\n\t}\n\tif q == nil ||"},
	}, []string{"outcomes", "quotas", "reads"}},
	{"a reconfig ignores the version that it names", []edit{
		{"fsm/reconfig.go", "r.ConfigID != -1 && r.ConfigID != m.membersZxid", "r.ConfigID < -1"},
		{"internal/core/membership/change.go", "r.Version != -1 && r.Version != version", "r.Version < -1"},
	}, []string{"reconfig"}},
	{"a reconfig needs no permission", []edit{
		{"fsm/reconfig.go", "case !m.tree.MayConfigure(&m.txn):", "case false:"},
	}, []string{"reconfig"}},
	// What gave members and clusters the benefit of the doubt.
	{"a majority of the listed servers forms a cluster", []edit{
		{"internal/core/membership/formation.go", "case len(missing) > 0:", "case len(said) == 0:"},
		{"internal/core/membership/formation.go", "case required[0].ID != s.self:", "case election.Find(required, s.self) == nil:"},
		{"internal/core/membership/form.go", "return j.propose(s, said, s.required())", "required, _ := s.majority(said)\n\t\treturn j.propose(s, said, required)"},
	}, []string{"agreement", "order", "writes", "reads", "session order", "outcomes", "recovery", "fault", "ephemerals", "start"}},
	{"members do not tell clusters apart", []edit{
		{"internal/core/peer/peers.go", "case h.Cluster != a.cluster:", "case false:"},
		{"internal/core/peer/hello.go", "case a.verdict != welcome:", "case false:"},
		{"internal/core/membership/removed.go", "if s.Formed && s.Cluster != own", "if false"},
		{"internal/core/storage/identity.go", "if !x.Agreed || of == 0 || of == x.Cluster {", "if x.Cluster != 1 {"},
	}, []string{"agreement", "order", "writes", "reads", "session order", "outcomes", "recovery", "fault", "ephemerals", "start", "expiry"}},
	{"a member that joins does not take over the leader's term", []edit{
		{"internal/core/engine/elect.go", "\tif e.Term() < term {\n", "\tif term == 0 {\n"},
		{"internal/core/engine/elect.go", "\treturn e.Term() >= term\n", "\treturn true\n"},
	}, nil},
	{"Raft reads a snapshot from the network, and no connection is watched", []edit{
		{"internal/core/engine/transport.go", "return t.install(rpc)", "done := make(chan raft.RPCResponse, 1)\n\t\tt.deliver(raft.RPC{Command: q, Reader: rpc.Reader, RespChan: done})\n\t\tr := <-done\n\t\trpc.Respond(r.Response, r.Error)\n\t\treturn nil"},
		{"internal/core/peer/conn.go", "\t\t\tif c.Check() {\n", "\t\t\tif c.Check() && false {\n"},
	}, []string{"progress", "recovery", "availability", "age of reads"}},
	{"a silent connection to the leader is kept", []edit{
		{"internal/core/propose/link.go", "if quiet == timing.LooksPerTimeout || quiet > 0 && gaps.Load() != before {", "if quiet < 0 && gaps.Load() != before {"},
	}, []string{"progress", "recovery", "availability"}},
	{"a member with a stuck disk takes every copy of a message", []edit{
		{"internal/core/engine/transport.go", "dropped := w.entries && old.entries", "dropped := w.entries && old.entries && false"},
		{"internal/core/engine/transport.go", "const mostWaiting = 8", "const mostWaiting = 800"},
		{"internal/core/peer/conn.go", "(came || busy) && c.turn.TryTake() {", "(came || !reading) && false {"},
	}, []string{"connections", "recovery", "progress"}},
	// What a leader shows of entries that its disk has not written.
	{"a leader applies an entry before its disk has it", []edit{
		{"internal/core/raftlog/asynclog.go", "if first == 0 || index < first {\n\t\t\treturn true", "if first == 0 || index > 0 {\n\t\t\treturn true"},
	}, lossChecks},
	{"a leader tells the others that an entry is committed before its disk has it", []edit{
		{"internal/core/raftlog/asynclog.go", "if first == 0 || index < first {\n\t\t\treturn index", "if first == 0 || index > 0 {\n\t\t\treturn index"},
	}, lossChecks},
	{"something else is stored before what a leader has not written", []edit{
		{"internal/core/raftlog/asynclog.go", "\tfor end := a.pending[len(a.pending)-1].Index; a.failed", "\tfor end := uint64(0); a.failed"},
	}, lossChecks},
	{"a leader counts itself among those that have what it has not written", []edit{
		{"internal/core/raftlog/asynclog.go", "return upTo[(len(upTo)-1)/2]", "return upTo[(len(upTo)+1)/2]"},
	}, lossChecks},
	{"a follower acknowledges an entry before its disk has it", []edit{
		{"internal/core/raftlog/asynclog.go", "!a.Sync && a.Leads() && a.postpone", "!a.Sync && a.postpone"},
	}, lossChecks},
}

// lossChecks may find that something acknowledged was lost.
var lossChecks = []string{"agreement", "order", "writes", "reads", "session order", "outcomes", "recovery", "fault", "ephemerals", "start", "exactly once", "linearizability", "watches", "locks", "session"}

// hidden are bugs that only perturbed schedules or paused processes show.
var hidden = []plant{
	{"the leader gives no time back after a pause", []edit{
		{"session/tracker.go", "2*watch && looked != 0 {", "2*watch && false {"},
	}, []string{"expiry"}},
}

// replaced returns the files that a plant changes, with its edits, by name.
func (p *plant) replaced(t *testing.T) map[string]string {
	files, err := overlay.Apply("../../..", p.edits...)
	if err != nil {
		t.Errorf("%s: %v", p.name, err)
	}
	return files
}

// TestPlants checks that the simulation finds each planted bug. Without -sim.plants it
// only checks that they still fit the code.
func TestPlants(t *testing.T) {
	for i, p := range slices.Concat(plants, hidden) {
		t.Run(p.name, func(t *testing.T) {
			files := p.replaced(t)
			if t.Failed() || *plantsFlag == 0 {
				return
			}
			if i >= len(plants) || *perturbFlag {
				files = weave(t, files)
			}
			dir, binary := t.TempDir(), buildWith(t, files)
			var otherwise []string // what other checks say, which come first in some schedules
			guide, next := guide{reached: map[string]bool{}}, uint64(1)
			for run := 1; run <= *plantsFlag; run++ {
				seed, forks := next, ""
				if *guideFlag {
					seed, forks = guide.choose(next)
				}
				if forks == "" {
					next++
				}
				out, err := exec.Command(binary, "-test.run=^TestSeeds$", "-test.timeout=10m", "-sim.for=5m", fmt.Sprintf("-sim.seed=%d", seed), "-sim.forks="+forks,
					fmt.Sprintf("-sim.guide=%v", *guideFlag), "-sim.keep="+dir, "-sim.without="+*withoutFlag).CombinedOutput()
				_, text, ok := bytes.Cut(out, []byte("SIM {"))
				var s summary
				if ok {
					text, _, _ = bytes.Cut(text, []byte("\n"))
					json.Unmarshal(append([]byte("{"), text...), &s)
				}
				guide.learn(s, forks)
				if err == nil {
					continue
				}
				if len(s.Violations) == 0 {
					t.Fatalf("seed %d failed without a violation: %v\n%.4000s", seed, err, out)
				}
				for _, by := range append(p.by, "spec") { // an automaton sees the step itself
					if strings.HasPrefix(s.Violations[0], by+":") {
						t.Logf("found in run %d, after %.2f virtual hours, with seed %d %s: %.300s; before that %q", run, guide.virtual.Hours(), seed, forks, s.Violations[0], otherwise)
						return
					}
				}
				otherwise = append(otherwise, fmt.Sprintf("seed %d by another check: %.300s", seed, s.Violations[0]))
			}
			t.Errorf("not found in %d seeds by %q; %q", *plantsFlag, p.by, otherwise)
		})
	}
}
