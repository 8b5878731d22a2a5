//go:build interop

package interop

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/core/persona"
	"github.com/lockkeeper/lockkeeper/internal/tools/golden"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/proto"
)

// notHere lists lines of ZooKeeper's answers that lockkeeper omits on purpose, and lines
// that it has instead. Numbers and values are masked.
var notHere = map[string]struct{ zookeeper, lockkeeper *regexp.Regexp }{
	// Java's environment and its memory.
	"envi": {regexp.MustCompile(`^(java\.|os\.version|os\.memory\.)`), regexp.MustCompile(`^(go\.version|lockkeeper\.peer)=`)},
	// The lines of mntr about the stages of ZooKeeper's pipeline, its queues and caches,
	// its watch and quorum code, and all its summaries (mostly of times) except those that
	// TestFourLetterWords checks.
	"mntr": {regexp.MustCompile(`^zk_(` + strings.Join([]string{
		`(avg|min|max|cnt|sum|pN)_\w+`, `outstanding_changes_\w+`, `\w*_processor_\w+`, `(prep|sync|request|response_packet|requests)_\w+`,
		`proposal_count`, `commit_count`, `learner_\w+`, `looking_count`, `quit_leading_\w+`, `diff_count`, `snap_count`, `revalidate_count`,
		`ensemble_auth_\w+`, `skip_\w+`, `dead_watchers_\w+`, `add_dead_\w+`, `digest_mismatches_count`, `unrecoverable_error_count`,
		`stale_(requests|replies)\w*`, `large_requests_rejected`, `insecure_admin_count`, `fsync_threshold_exceed_count`, `(snapshot|restore)_\w+`,
	}, "|") + `)\t`), nil},
}

var versions = regexp.MustCompile(`\d+\.\d+\.\d+\S*, built on`)

// TestWords sends every four-letter word to ZooKeeper and to lockkeeper, after the same
// requests to both. Line by line, the answers must be the same except for numbers, or the
// difference must be in the list above.
func TestWords(t *testing.T) {
	t.Parallel()
	for _, version := range []zkVersion{zk38, zk39} {
		t.Run(string(version), func(t *testing.T) { compareWords(t, version, nil) })
	}
}

// describable gives a server something to describe until the test ends: znodes, an
// ephemeral one among them, two sessions and a watch.
func describable(t *testing.T, addr string, znodes int) {
	t.Helper()
	var all [2]*rawclient.Client
	for i := range all {
		nc, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { nc.Close() })
		if all[i], err = rawclient.Open(nc, 40*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	do := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", addr, err)
		}
	}
	for i := range znodes {
		do(all[0].Create(fmt.Sprintf("/n%d", i), nil, 0))
	}
	do(all[1].Create("/e", nil, proto.FlagEphemeral))
	do(all[0].Get("/e", true)) // the AdminServer lists only watches on data
	do(all[0].Call(proto.OpSync, &proto.Path{Path: "/"}, nil))
}

// compareWords compares a version of ZooKeeper and lockkeeper with flags. p is what lockkeeper
// behaves as.
func compareWords(t *testing.T, version zkVersion, p *persona.Persona, flags ...string) {
	theirs := startZooKeeper(t, version, nil, map[string]string{"4lw.commands.whitelist": "*", "tickTime": "2000"}).addr
	ours := startLockkeeper(t, flags...).addr
	for _, addr := range []string{theirs, ours} {
		describable(t, addr, 300)
	}
	answer, err := fourLetterWord(theirs, "srvr", rawTimeout)
	if err != nil || !strings.Contains(answer, "Zookeeper version: "+string(version)) {
		t.Fatalf("%q, %v", answer, err)
	}
	mask := func(n int64) string { return "stmk" + string(binary.BigEndian.AppendUint64(nil, uint64(n))) }
	for _, word := range []string{"ruok", "isro", "srvr", "stat", "conf", "cons", "dump", "wchs", "wchc", "wchp", "mntr", "dirs", "gtmk", mask(7), "gtmk", "hash", "envi", "crst", "srst"} {
		ask := func(addr string) map[string]int {
			answer, err := fourLetterWord(addr, word, rawTimeout)
			if err != nil {
				t.Fatalf("%s of %s: %v", word, addr, err)
			}
			if len(word) == 8 || word == "gtmk" { // the mask itself, not any number
				return map[string]int{answer: 1}
			}
			return golden.Shape(versions.ReplaceAllString(answer, "V, built on"))
		}
		if !p.KnowsWord(word) {
			for _, addr := range []string{theirs, ours} {
				if answer, err := fourLetterWord(addr, word, rawTimeout); answer != "" {
					t.Errorf("%s: %q, %v from %s", word, answer, err, addr)
				}
			}
			continue
		}
		want, got := ask(theirs), ask(ours)
		// The connections of the words before are perhaps still listed.
		for end := time.Now().Add(rawTimeout); clientsIn(want) != clientsIn(got) && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			want, got = ask(theirs), ask(ours)
		}
		word = word[:4]
		allowed, left := notHere[word], 0
		for _, line := range slices.Sorted(maps.Keys(want)) {
			switch {
			case got[line] == want[line]:
			case got[line] == 0 && allowed.zookeeper != nil && allowed.zookeeper.MatchString(line):
				left++
			default:
				t.Errorf("%s: %d times %q, ZooKeeper %d", word, got[line], line, want[line])
			}
		}
		for _, line := range slices.Sorted(maps.Keys(got)) {
			if want[line] == 0 && (allowed.lockkeeper == nil || !allowed.lockkeeper.MatchString(line)) {
				t.Errorf("%s: ZooKeeper has no line %q", word, line)
			}
		}
		t.Logf("%s: %d different lines, %d of them omitted", word, len(want), left)
	}
}

// clientsIn counts the lines of stat or cons about clients.
func clientsIn(lines map[string]int) (n int) {
	for line, times := range lines {
		if strings.HasPrefix(line, " /") {
			n += times
		}
	}
	return n
}
