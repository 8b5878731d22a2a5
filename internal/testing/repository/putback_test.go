//go:build unix

package repository

import (
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/overlay"
)

var putBackFlag = flag.Bool("putback", false, "TestPutBack: build with each fault, and run the tests that must find it")

// A putBack is a fault that was fixed, with the general checks that find it when it is
// put back. Those that the simulation finds are among its planted bugs.
type putBack struct {
	name  string
	edits []edit
	by    []finding
}

type edit = overlay.Edit

// finding is a test that must fail, with this text in its output. The test's name may be
// followed by flags.
type finding struct{ pkg, test, text string }

var putBacks = []putBack{
	{"a server waits for its log", []edit{
		{"lockkeeper.go", "cfg.Logger, lines = logqueue.New(cfg.Logger)", "_, lines = logqueue.New(cfg.Logger)"},
	}, []finding{{"internal/testing/whole", "TestUnreadLog", "FAIL"}, {"internal/testing/whole", "TestUnreadLogs", "FAIL"}, {"internal/testing/whole", "TestBudget", "waits for the log"}}},
	{"a member waits for its log", []edit{
		{"lockkeeper.go", "member := cfg.cluster()\n", "member := cfg.cluster()\n\tmember.Log = raw\n"},
		{"lockkeeper.go", "	var lines *logqueue.Queue\n", "	var lines *logqueue.Queue\n\traw := cfg.Logger\n"},
	}, []finding{{"internal/testing/whole", "TestUnreadLogs", "FAIL"}, {"internal/testing/whole", "TestClusterLeaderLost", "waits for the log"}}},
	{"the client port waits for its log", []edit{
		{"lockkeeper.go", "	s.clients = server.New(", "	cfg.Logger = raw\n\ts.clients = server.New("},
		{"lockkeeper.go", "	var lines *logqueue.Queue\n", "	var lines *logqueue.Queue\n\traw := cfg.Logger\n"},
	}, []finding{{"internal/testing/whole", "TestUnreadLog", "FAIL"}}},
	{"the answer to a change of members waits for the log", []edit{
		{"lockkeeper.go", "traces: &traces{log: cfg.Logger,", "traces: &traces{log: raw,"},
		{"lockkeeper.go", "	var lines *logqueue.Queue\n", "	var lines *logqueue.Queue\n\traw := cfg.Logger\n"},
	}, []finding{{"internal/testing/whole", "TestUnreadLogs", "FAIL"}}},
	{"a pause while sessions get their timeouts does not show", []edit{
		{"internal/core/alive/liveness.go", "l.newTracker(), nil, l.now()\n", "l.newTracker(), nil, 0\n"},
	}, []finding{{"cluster", "TestPauseAtBegin", "no client could be heard"}}},
	{"a reconfig that was made in part counts as refused", []edit{
		{"internal/core/membership/steps.go", "err != nil && !alone &&", "err != nil && false && !alone &&"},
	}, []finding{{"cluster", "TestReconfigUnknown/lost_server", "the outcome is known: true"}, {"cluster", "TestReconfigRefusedHalfway", "the outcome is known: true"}}},
	{"a pause costs whole ticks", []edit{
		{"session/tracker.go", "t.stood += slept - t.tick/2", "t.stood += (slept + t.tick/2 - 1) / t.tick * t.tick"},
	}, []finding{{"internal/core/alive", "TestRepeatedPauses", "it has not ended"}}},
	{"a pause of which nothing counts keeps sessions for ever", []edit{
		{"session/tracker.go", "slept - t.tick/2\n", "slept\n"},
	}, []finding{{"internal/core/alive", "TestRepeatedPauses", "it has not ended"}}},
	{"as much of a pause counts as goes unnoticed", []edit{
		{"session/tracker.go", "slept - t.tick/2\n", "slept - 2*watch\n"},
	}, []finding{{"internal/core/alive", "TestPausesOfShortest", "expires after a pause of"}}},
	{"a pause shows only at the next look", []edit{
		{"internal/core/alive/liveness.go", "\tl.looked = l.tracker.Awake(now, l.looked, l.watch)\n\tl.note", "\tl.note"},
		{"internal/core/alive/liveness.go", "\tl.looked = l.tracker.Awake(now, l.looked, l.watch)\n\tfor t", "\tfor t"},
		{"internal/core/alive/liveness.go", "now := l.moment()\n\tif deadline", "now := l.now()\n\tif deadline"},
	}, []finding{{"internal/core/alive", "TestTouchedBeforeLook", "a touch: session 8"}, {"internal/core/alive", "TestTouchedBeforeLook", "a follower's: session 8"}, {"internal/core/alive", "TestTouchedBeforeLook", "a resumed session: session 8"}}},
	{"nobody looks for a pause while the first session is a long one", []edit{
		{"internal/core/alive/liveness.go", "min(deadline, now+l.watch) < l.due", "deadline < l.due"},
	}, []finding{{"internal/core/alive", "TestFirstLongSession", "no pause shows"}}},
	{"touches that came during a report are as young as the next one", []edit{
		{"cluster/touches.go", "m.service.setUnheard(since)", "m.service.setUnheard(m.moment().Running + 0*since)"},
	}, []finding{{"cluster", "TestSecondReport/at_the_end_false", "stops serving 0 times"}}},
	{"touches that came during a report are as old as it", []edit{
		{"internal/core/alive/liveness.go", "\t\tl.since = l.running()\n\t\tl.News", "\t\tl.News"},
		{"internal/core/alive/liveness.go", "l.touched = map[int64]int64{}\n\tif", "l.touched, l.since = map[int64]int64{}, l.running()\n\tif"},
	}, []finding{{"cluster", "TestSecondReport/at_the_end_true", "the limit is"}}},
	{"the leader's removal counts as refused when it may still hand over", []edit{
		{"internal/core/membership/steps.go", "case err == engine.ErrMayHandOver:\n\t\t\treturn err //", "case err == engine.ErrMayHandOver && false:\n\t\t\treturn err //"},
	}, []finding{{"cluster", "TestRemoveLeaderUnknown", "no other member can lead"}}},
	{"a member that lags again as soon as it serves goes on to serve", []edit{
		{"cluster/pulse.go", "p.verdict.Swap(&v) || v.Behind {", "p.verdict.Swap(&v) {"},
	}, []finding{{"cluster", "TestLagsAgainAtOnce", "serves although it lags"}}},
	{"a member that has caught up too late serves for a moment", []edit{
		{"cluster/serving.go", "&& !s.behind() {", "{"},
	}, []finding{{"cluster", "TestLagsAgainAtOnce", "begins to serve although it lags"}, {"cluster", "TestServesOnlyThen/slow_barrier", "begins to serve although it lags"}}},
	{"a member serves for a moment without a leader", []edit{
		{"cluster/serving.go", "&& leader != 0 &&", "&&"},
	}, []finding{{"cluster", "TestServesOnlyThen/no_leader", "it begins to serve"}, {"cluster", "TestServesOnlyThen/lost", "it begins to serve"}, {"cluster", "TestServesOnlyThen/deposed", "it begins to serve"}}},
	{"the next leader serves before it has applied what the last one left", []edit{
		{"cluster/serving.go", "(leader != s.id || s.leads())", "true"},
	}, []finding{{"cluster", "TestServesOnlyThen/leads_meanwhile", "it begins to serve"}, {"cluster", "TestServesOnlyThen/leads_twice", "it begins to serve"}}},
	{"a member whose state was found wrong begins to serve", []edit{
		{"cluster/serving.go", "case s.Failed.Load():", "case seen.Stuck && s.Failed.Load():"},
	}, []finding{{"cluster", "TestServesOnlyThen/failed", "it begins to serve"}}},
	{"a leader whose server is to be replaced removes itself first", []edit{
		{"internal/core/membership/steps.go", "self.Observer || election.Find(p.before, m.ID) != nil {", "self.Observer {"},
	}, []finding{{"cluster", "TestReplaceLeader/itself", "FAIL"}}},
	{"a leader that is to leave hands over to one that is to be replaced", []edit{
		{"internal/core/membership/steps.go", "&& election.Find(p.before, x.ID) == nil {", "{"},
	}, []finding{{"cluster", "TestReplaceLeader/the_nearest", "FAIL"}}},
	{"the leader writes an entry before it sends it", []edit{
		{"internal/core/raftlog/asynclog.go", "if !a.Sync && a.Leads() &&", "if false && a.Leads() &&"},
	}, []finding{{"cluster", "TestWaits", "3 members"}}},
	{"a sync waits for a majority without who asks", []edit{
		{"internal/core/propose/readindex.go", "HasMajority(round, asker, ", "HasMajority(round, 0*asker, "},
	}, []finding{{"cluster", "TestWaits", "3 members"}}},
	{"a leader that is to leave hands over to one that has to leave as well", []edit{
		{"internal/core/membership/steps.go", "HandOver(m.Port.Ctx, keep...)", "HandOver(m.Port.Ctx)"},
	}, []finding{{"cluster", "TestRemoveLeaderAndNearest", "without the leader and the nearest"}}},
	{"an operator's change that was made in part counts as refused", []edit{
		{"internal/core/membership/steps.go", "alone := (need.allowsAbsent || errors.As(err, new(lags))) && ", "alone := "},
	}, []finding{{"cluster", "TestAddedInVain", "but the new server was added"}}},
	{"a cluster that may not have been written counts as formed", []edit{
		{"internal/core/membership/form.go", "if done && err != nil { // a write", "if err = nil; done && err != nil { // a write"},
	}, []finding{{"cluster", "TestFormCannotWrite", "after 0 writes: <nil>"}}},
	{"the end of serve waits for its log", []edit{
		{"cmd/lockkeeper/servelines.go", "*log, s.queue = logqueue.New(slog.New(slog.NewTextHandler(to, options)))", "*log = slog.New(slog.NewTextHandler(to, options))\n\t\t_, s.queue = logqueue.New(*log)"},
	}, []finding{{"cmd/lockkeeper", "TestServeUnread", "signal: killed"}}},
	{"the last line of serve is lost", []edit{
		{"cmd/lockkeeper/servelines.go", "\t\ts.sayLast(text)\n", "\t\tfmt.Fprintln(s, text)\n"},
	}, []finding{{"cmd/lockkeeper", "TestServeSaysErrorLast", "and the last of"}}},
	{"serve waits for its first lines", []edit{
		{"cmd/lockkeeper/servelines.go", "s.queue.Add(func() { s.to.Write(text) })", "s.to.Write(text)"},
	}, []finding{{"cmd/lockkeeper", "TestServeUnreadFromStart", "signal: killed"}}},
	{"serve waits to say that a flag is wrong", []edit{
		{"cmd/lockkeeper/main.go", "c.SetErr(serveLines{to: stderr})", "c.SetErr(stderr)"},
	}, []finding{{"cmd/lockkeeper", "TestServeUnreadWrongFlag", "signal: killed"}}},
	{"a transfer counts as failed once a third member leads", []edit{
		{"internal/core/engine/elect.go", "case began: //", "case began && false: //"},
	}, []finding{{"cluster", "TestTransferOvertaken", "leads instead"}}},
	{"a transfer that may still be made counts as failed", []edit{
		{"internal/core/membership/steps.go", "err == engine.ErrMayHandOver {\n\t\terr =", "err == engine.ErrMayHandOver && id == 0 {\n\t\terr ="},
	}, []finding{{"cluster", "TestTransferUnknown", "no other member has become the leader in time"}}},
	{"a reconfig that may have been made counts as refused", []edit{
		{"internal/core/request/requests.go", "ok && !errors.Is(err, ErrUnknownOutcome)", "ok"},
	}, []finding{{"cluster", "TestReconfigUnknown", "the outcome is known: true"}}},
	{"a change of the members that waited in an old leader is made when it leads again", []edit{
		{"internal/core/membership/members.go", "!leads || term != m.changeTerm {", "!leads || term == 0 {"},
	}, []finding{{"cluster", "TestChangeEndsWithItsTerm", "the change of an earlier term"}}},
	{"a leader answers a sync without asking the majority", []edit{
		{"internal/core/propose/readindex.go", "\t\tif agreed {\n", "\t\t_, _ = agreed, news\n\t\tif true {\n"},
	}, []finding{{"cluster", "TestReadOnReplacedLeader", "FAIL"}, {"cluster", "TestReadWithoutMajority", "FAIL"}}},
	{"a sync is answered before its member has applied what was committed", []edit{
		{"internal/core/propose/propose.go", "index != 0 && p.awaitApplied(index, suspended)", "index != 0"},
	}, []finding{{"cluster", "TestReadAsksLeader", "FAIL"}}},
	{"a new leader answers a sync before an entry of its term is committed", []edit{
		{"internal/core/propose/readindex.go", "if !leads || p.Leader.ReadyTerm.Load() != term || newest > term {", "if !leads || newest > term {"},
	}, []finding{{"cluster", "TestReadOfNewLeader", "FAIL"}}},
	{"a leader that has lost the majority, or heard of a later term, still says that it leads", []edit{
		{"cluster/pulse.go", " && knowsCommitted && !b.verdict.Load().NoMajority", " && (knowsCommitted || true)"},
	}, []finding{{"cluster", "TestOldReadsBehindWall", "serves a read"}}},
	{"a member trusts a leader's answer however long ago a majority confirmed that leader", []edit{
		{"internal/core/election/contacts.go", "h.AsOf -= max(0, leaseAge).Milliseconds()", "_ = leaseAge"},
	}, []finding{{"cluster", "TestOldReadsBehindSilentCut", "serves a read"}}},
	{"a leader that has failed, and whose owner does not close it, goes on leading while nothing is written", []edit{
		{"cluster/pulse.go", "\tcase p.Failed.Load():\n\t\treturn forever", "\tcase p.Failed.Load() && at.Running < 0:\n\t\treturn forever"},
	}, []finding{{"lockkeepertest", "TestFullDiskOfIdleLeader", "leads"}}},
	{"servers that were restored from different snapshots form a cluster", []edit{
		{"internal/core/membership/formation.go", "case s.state.Data() && (st.Index != s.state.Index || st.Digest != s.state.Digest):", "case false:"},
		{"internal/core/membership/formation.go", "\tcase q.State != s.state:\n", "\tcase q.State.Data() != s.state.Data():\n"},
	}, []finding{{"cluster", "TestDifferentSnapshots", "takes part"}, {"internal/core/membership", "TestFormationModel", "different states"}, {"cluster", "TestRestoreInAnyOrder", "FAIL"}}},
	{"a server accepts the proposal of one with another state", []edit{
		{"internal/core/membership/formation.go", "\tcase q.State != s.state:\n", "\tcase q.State.Data() != s.state.Data():\n"},
	}, []finding{{"internal/core/membership", "TestMayAccept", "FAIL"}}},
	{"a member goes on that has applied more than its leader has", []edit{
		{"cluster/pulse.go", "h.Term >= newest && applied > b.End {", "h.Term >= newest && applied > b.End && false {"},
	}, []finding{{"cluster", "TestAheadOfLeader", "its fault"}}},
	{"a member goes on whose snapshot ends with another entry than its leader has", []edit{
		{"internal/core/engine/transport.go", "\tcase term != newest.Term:\n", "\tcase term != newest.Term && term == 0:\n"},
	}, []finding{{"cluster", "TestAheadOfLeader", "its fault"}}},
	{"a member is sent the same snapshot without a pause", []edit{
		{"internal/core/engine/transport.go", "\tif s.times++; s.times == 1 {\n", "\tif s.times++; s.times > 0 {\n"},
	}, []finding{{"internal/core/engine", "TestSameSnapshotAgain", "times in a minute"}}},
	{"nobody hears of the state with which a member starts", []edit{
		{"internal/core/engine/engine.go", "\te.replica.Observe(observer{e}) // first: it must hear of the state that the storage has\n", ""},
		{"internal/core/engine/engine.go", "\tmachine := &raftlog.GatedFSM", "\te.replica.Observe(observer{e})\n\tmachine := &raftlog.GatedFSM"},
	}, []finding{{"internal/core/engine", "TestStartsWithState", "its state is said"}, {"cluster", "TestAheadOfLeader", "FAIL"}}},
	{"a member that is stuck only in a snapshot does not count for an election", []edit{
		{"cluster/pulse.go", "\t\treturn d\n", "\t\treturn max(d, p.engine.SnapshotStall(at))\n"},
	}, []finding{{"cluster", "TestElectionBesideStuckSnapshot", "nobody led"}}},
	{"a server of a list forms a cluster although a member of another one calls it", []edit{
		{"internal/core/membership/form.go", "\t\tif err := j.elsewhere(0, s.state.Data()); err != nil {", "\t\tif err := error(nil); err != nil {"},
		{"internal/core/membership/form.go", "\tif err := j.elsewhere(q.Cluster, s.state.Data()); err != nil {", "\tif err := error(nil); err != nil {"},
	}, []finding{{"cluster", "TestListOfThePast", "FAIL"}}},
	{"a server that a member of another cluster has called once forms none", []edit{
		{"internal/core/membership/form.go", "\tj.forget()\n", ""},
	}, []finding{{"cluster", "TestListOfThePastOnly", "FAIL"}, {"cluster", "TestCalledByMistake", "no cluster is formed"}}},
	{"a cluster that cannot call its member any more is forgotten", []edit{
		{"internal/core/membership/form.go", "err != nil || s.Run == j.runID {", "err == nil && s.Run == j.runID {"},
	}, []finding{{"cluster", "TestListOfThePastOtherName", "has server 2 as a member"}}},
	{"clients' reconfigs are refused while a member asks for its place", []edit{
		{"internal/core/membership/change.go", "q.Reconfig != nil && !m.rejoining.Load() {", "q.Reconfig != nil {"},
	}, []finding{{"cluster", "TestReconfigBesideLostDisk", "another change"}}},
	{"a server without data asks only one member for its place", []edit{
		{"internal/core/membership/form.go", "j.join(x.Addr, next.cluster); done {", "j.join(x.Addr, next.cluster); true {"},
	}, []finding{{"cluster", "TestRejoinsBesideLostMember", "FAIL: TestRejoinsBesideLostMember/cut_off"}}},
	{"a member asks a dead one for its vote first", []edit{
		{"internal/core/membership/form.go", "j.addrsToAsk(proto.Peer{Addr: j.via})", "j.addrsToAsk()"},
	}, []finding{{"cluster", "TestRejoinsBesideLostMember", "FAIL: TestRejoinsBesideLostMember/paused"}}},
	{"there is no limit on what auth in an ACL is replaced by", []edit{
		{"znode/acl.go", "room := min(max(maxACL, sent), maxACL+aclGrowth*x.aclSent-x.aclStored)", "room := 1 << 40"},
	}, []finding{{"fsm", "FuzzSurvives", "a znode of"}, {"internal/testing/whole", "TestBudget", "the result is <nil>, should be InvalidACL"}}},
	{"a request may be longer than a section of a snapshot", []edit{
		{"fsm/snapshot.go", "maxSection = 128 << 20", "maxSection = 8 << 20"},
		{"fsm/snapshot.go", "const _ = uint(maxSection - (sectionSize + 5*MaxRequest + 2<<20))", ""},
	}, []finding{{"fsm", "FuzzSurvives", "damaged snapshot"}}},
	{"the members are read from /zookeeper/config", []edit{
		{"fsm/snapshot.go", "if m.Digest() != sum {", "if told, err := m.told(); err != nil {\n\t\t\t\treturn nil, r.damaged(\"members: %v\", err)\n\t\t\t} else if told != nil {\n\t\t\t\tm.members = told\n\t\t\t}\n\t\t\tif m.Digest() != sum {"},
		{"fsm/reconfig.go", "// configText is the form", "func (m *Machine) told() ([]proto.Peer, error) {\n\tb := m.tree.Lookup(znode.ConfigPath).Record().Data\n\tif len(b) == 0 {\n\t\treturn nil, nil\n\t}\n\tb, _, _ = bytes.Cut(b, []byte(\"\\nversion=\"))\n\treturn proto.ParseServers(string(b))\n}\n\n// configText is the form"},
	}, []finding{{"fsm", "FuzzSurvives", "damaged snapshot"}, {"internal/testing/whole", "TestSurvivesRestart", "damaged snapshot"}}},
	{"a member whose log is empty forgets its term and its vote at a start", []edit{
		{"internal/core/storage/storage.go", "if err != nil || term != 1 {", "if err != nil || term == 0 {"},
		{"internal/core/storage/storage.go", "err != nil || voted > 0 {", "err != nil || voted > 1<<62 {"},
	}, []finding{{"internal/core/storage", "TestModel", "the term is 0, should be"}, {"internal/core/storage", "TestVoteBeforeLog", "in term 0"}}},
	{"a member that forms its cluster alone forgets its term", []edit{
		{"internal/core/storage/storage.go", "max(term, 1)", "min(term, 0)+1"},
	}, []finding{{"internal/core/storage", "TestModel", "the term is 1, should be"}}},
	{"a member that has voted before its first entry does not start again", []edit{
		{"internal/core/storage/verify.go", "mark == votedInUse", "mark <= votedInUse"},
	}, []finding{{"internal/core/storage", "TestModel", "the log is empty, but it has voted"}, {"internal/core/storage", "TestVoteBeforeLog", "the log is empty, but it has voted"}}},
	{"a member that voted before its first entry may lose its log", []edit{
		{"internal/core/storage/vote.go", "\treturn l.votes.settle()\n", "\treturn nil\n"},
	}, []finding{{"internal/core/storage", "TestVoteBeforeLog", "FAIL"}}},
	{"a write does not wait for a file descriptor", []edit{
		{"internal/core/storage/descriptors.go", "\terr := open()\n\tif !OutOfFiles(err) {", "\terr := open()\n\tif !OutOfFiles(err) || err != nil {"},
	}, []finding{{"internal/core/storage", "TestModelOutOfFiles/wal", "too many open files"}, {"internal/core/storage", "TestReserve", "too many open files"}}},
	{"no segment of the log is made in reserve", []edit{
		{"internal/core/storage/walfiles.go", "int64(m.size/8)", "1<<60"},
	}, []finding{{"internal/core/storage", "TestReserve", "with a segment in reserve, writes take"}}},
	{"there is no limit on a reply to a read", []edit{
		{"fsm/reads.go", "return r.MaxReply > 0 && len(out) > r.MaxReply", "return false"},
	}, []finding{{"internal/testing/whole", "TestBudget", "out of memory"}}},
	{"there is no limit on the answer to a four-letter word", []edit{
		{"internal/core/server/flw.go", "len(t.b)+len(p) > t.limit", "false"},
		{"internal/core/server/report.go", "return room >= 0", "return true"},
		{"internal/core/server/report.go", "if room < 0 {\n\t\treturn nil, report.ErrTooLong\n\t}\n\treturn all, nil", "return all, nil"},
	}, []finding{{"internal/testing/whole", "TestBudget", "FAIL: TestBudget/wchc"}}},
	{"the znodes below a quota are counted whenever its stats are created", []edit{
		{"znode/quota.go", "\t\tu = n.total()\n", "\t\tu = t.counted(n)\n"},
		{"znode/quota.go", "// checkQuotas verifies", "func (t *Tree) counted(n *Node) usage {\n\tu := usage{count: 1, bytes: int64(len(n.data()))}\n\tif l := n.children(); l != nil {\n\t\tfor _, id := range l.ids {\n\t\t\tbelow := t.counted(t.nodes.at(id))\n\t\t\tu.count, u.bytes = u.count+below.count, u.bytes+below.bytes\n\t\t}\n\t}\n\treturn u\n}\n\n// checkQuotas verifies"},
	}, []finding{{"internal/testing/whole", "TestBudget", "FAIL: TestBudget/multi,_stats_of_a_quota"}}},
	{"each check of an ACL compares all of its entries with all identities", []edit{
		{"znode/acl.go", "len(acl) > longACL || ", ""},
		{"znode/acl.go", "slices.ContainsFunc(acl, address)", "len(acl) < 10 && slices.ContainsFunc(acl, address)"},
		{"znode/acl.go", "if len(ids) <= 4 {", "if len(ids) >= 0 {"},
	}, []finding{{"internal/testing/whole", "TestBudget", "test timed out"}}},
	{"a connection may have 64 KiB of identities", []edit{
		{"internal/core/server/auth.go", "const maxIdentity = 4 << 10", "const maxIdentity = 64 << 10"},
	}, []finding{{"internal/testing/whole", "TestBudget", "FAIL: TestBudget/setData,_by_many_identities,_often"}}},
	{"a vote is stored as Raft does it, the term and then the candidate", []edit{
		{"internal/core/storage/directory.go", "\ts.keepVotes()\n", ""},
	}, []finding{{"internal/testing/whole", "TestSurvivesRestart", `key "LastVoteCand"`}}},
	{"everybody may read the snapshots", []edit{
		{"internal/core/storage/directory.go", "dirMode  = 0o700", "dirMode  = 0o755"},
		{"internal/core/storage/snapshots.go", "return &privateSnapshots{FileSnapshotStore: s, dir: filepath.Join(dir, snapshotDir), log: log}, err", "return s, err"},
	}, []finding{{"internal/core/storage", "TestPrivateFiles", "has mode"}}},
	{"clients may take all file descriptors", []edit{
		{"internal/core/fdlimit/fdlimit.go", "ForClients = 4", "ForClients = 0"},
	}, []finding{{"cmd/lockkeeper", "TestFewFiles", " sessions: "}}},
	{"strangers' connections to the peer port may take all file descriptors", []edit{
		{"internal/core/fdlimit/fdlimit.go", "ForPeers   = 3", "ForPeers   = 0"},
		{"internal/core/peer/ungreeted.go", "if len(u.conns) <= u.most {", "if len(u.conns) <= 1<<30 {"},
	}, []finding{{"cmd/lockkeeper", "TestFewFiles", "too many open files"}}},
	{"strangers keep a probe from a connection to the HTTP port", []edit{
		{"cmd/lockkeeper/adminconns.go", "all.waiting[i].Conn.Close()", "i = len(all.waiting) - 1\n\t\tall.waiting[i].Conn.Close()"},
	}, []finding{{"cmd/lockkeeper", "TestAdminConnections", "FAIL: TestAdminConnections"}}},
	{"an entry that is deleted while it is read is taken for damage", []edit{
		{"internal/core/storage/wal.go", "errors.Is(err, fs.ErrClosed) { // the", "errors.Is(err, fs.ErrInvalid) { // the"},
	}, []finding{{"internal/core/storage", "TestWALReadWhileDeleted", "file already closed"}}},
	{"servers form no cluster if the one that has just formed it loses its disk", []edit{
		{"internal/core/membership/form.go", "s.proposed != 0 && c.Cluster == s.proposed {", "s.proposed != 0 && c.Cluster == 0 {"},
	}, []finding{{"cluster", "TestProposerLostAfterCall", "FAIL"}}},
	{"a leader sends the damaged description of its snapshot", []edit{
		{"internal/core/storage/snapshots.go", "was != \"\" && was != string(b) {", "was == \"never\" {"},
	}, []finding{{"cluster", "TestDamagedMetaWhileItLeads", "FAIL"}}},
	{"an observer's wait begins anew whenever a disk seems stuck", []edit{
		{"internal/core/election/contacts.go", "from = max(from, c.lastResortSince+10*c.ElectionTimeout.Milliseconds())", "from += 10 * c.ElectionTimeout.Milliseconds()"},
	}, []finding{{"cluster", "TestObserverRefusesVotes", "FAIL"}}},
	{"whoever looks into a server has its state locked until everything is read", []edit{
		{"fsm/replica.go", "const pace = 256", "const pace = 1 << 40"},
	}, []finding{{"admin", "TestLooksAreShort", "are allocated while the state is locked once"}}},
	{"the console's search finds znodes whose parents nobody may read", []edit{
		{"internal/core/server/search.go", " || !t.Listed(n, inProcess)", ""},
	}, []finding{{"admin", "TestSearchHides", "going through the tree"}}},
	{"the console's search has the state locked until it ends", []edit{
		{"internal/core/server/search.go", "\t\t\t\tstep()\n", "\t\t\t\t_ = step\n"},
	}, []finding{{"admin", "TestSearchSteps", "the state was locked all the time"}}},
	{"the list of all sessions is made while the state is locked", []edit{
		{"session/table.go", "return List{slices.Clone(t.parts), len(t.byID), t.digest}", "return List{[][]*Session{slices.Concat(t.parts...)}, len(t.byID), t.digest}"},
	}, []finding{{"admin", "TestLooksAreShort", "are allocated while the state is locked once"}}},
	{"a digest is computed while the state is locked", []edit{
		{"fsm/replica.go", "{ return v.m.summary().digest }", "{\n\td := v.m.summary().digest()\n\treturn func() uint64 { return d }\n}"},
	}, []finding{{"fsm", "TestDigestLater", "computed with the state locked"}}},
	{"the lock meter reads all directories at once", []edit{
		{"admin/lockmeter.go", "len(todo) > 0 && room > 0", "len(todo) > 0"},
	}, []finding{{"admin", "TestLooksAreShort", "are allocated while the state is locked once"}}},
}

// TestPutBack puts back faults that were fixed, and checks that general checks find them,
// not only the tests that came with the fixes. It also takes out the corrections that
// docs/raft.md lists, and makes faults in package lock, and checks that their tests fail. Without the flag -putback it
// only checks that the edits still fit the code.
func TestPutBack(t *testing.T) {
	for _, p := range slices.Concat(putBacks, corrections, lockFaults) {
		t.Run(p.name, func(t *testing.T) {
			list := p.overlay(t)
			if t.Failed() || !*putBackFlag {
				return
			}
			for _, f := range p.by {
				binary := filepath.Join(t.TempDir(), "test")
				if out, err := exec.Command("go", "test", "-c", "-overlay", list, "-o", binary, "./"+f.pkg).CombinedOutput(); err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
				// Some of the faults would take all memory of the machine.
				name, flags, _ := strings.Cut(f.test, " ")
				args := []string{"-c", `ulimit -v 6000000; exec "$0" "$@"`, binary, "-test.v", "-test.timeout=5m", "-test.run=^" + name + "$"}
				c := exec.Command("sh", append(args, strings.Fields(flags)...)...)
				c.Dir = f.pkg
				out, err := c.CombinedOutput()
				if _, failed := err.(*exec.ExitError); !failed || !strings.Contains(string(out), f.text) || !strings.Contains(string(out), "=== RUN   "+name) {
					t.Errorf("%s does not find it: %v\n%.4000s", f.test, err, out)
				}
			}
		})
	}
}

// TestInteropEditsFit checks that the edits of interop/power_test.go still fit the code, since
// those tests run only where foreign servers are installed.
func TestInteropEditsFit(t *testing.T) {
	source := must(parser.ParseFile(token.NewFileSet(), "interop/power_test.go", nil, 0))(t)
	edits := 0
	ast.Inspect(source, func(n ast.Node) bool {
		l, ok := n.(*ast.CompositeLit)
		if !ok || len(l.Elts) != 3 {
			return true
		}
		var parts []string // file, old and new
		for _, e := range l.Elts {
			if b, ok := e.(*ast.BasicLit); ok && b.Kind == token.STRING {
				parts = append(parts, must(strconv.Unquote(b.Value))(t))
			}
		}
		if len(parts) != 3 || !strings.HasSuffix(parts[0], ".go") {
			return true
		}
		edits++
		if n := strings.Count(string(must(os.ReadFile(parts[0]))(t)), parts[1]); n != 1 {
			t.Errorf("%s has %q %d times, should be once: adapt the edit", parts[0], parts[1], n)
		}
		return true
	})
	if edits < 5 {
		t.Errorf("found %d edits in interop/power_test.go", edits)
	}
}

// overlay writes the edited files, and returns the path of the overlay for go test.
func (p *putBack) overlay(t *testing.T) string {
	files, err := overlay.Apply(".", p.edits...)
	if err != nil {
		t.Error(err)
	}
	return must(overlay.Write(".", t.TempDir(), files))(t)
}
