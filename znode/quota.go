package znode

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/lockkeeper/lockkeeper/proto"
)

// A quota on a path consists of two znodes below QuotaPath + path, which clients create
// (Quotas): zookeeper_limits has the limits; zookeeper_stats has the usage, that is, the
// number of znodes at and below the path and the length of their data, which the tree
// updates. A change of a znode is counted only in the nearest quota at or above its path
// that has limits.
const (
	limitsName = "zookeeper_limits"
	statsName  = "zookeeper_stats"
)

// quota is the quota on a path. Quotas form a tree, in which one without limits and stats
// exists only because there is another one below it. It can be computed from the znodes.
type quota struct {
	quotaState
	up   *quota            // quota on the parent; nil for the root
	name string            // last name of the path
	next map[string]*quota // quotas on the children, by name

	before *quotaState // state before the current multi; nil if that has not changed it
}

type quotaState struct {
	limits, stats quotaData
	allowed       quotaValues // parsed limits; nil if there are none or they are invalid
	used          usage       // parsed stats
	readable      bool        // used is valid
}

// maxStats is the length beyond which an update of stats removes the keys that the tree does
// not count. It limits the work for each change that is counted.
const maxStats = 256

// quotaData is the data of a limits or stats znode, if it exists.
type quotaData struct {
	data         string
	null, exists bool
}

func (d quotaData) bytes() []byte {
	if !d.exists || d.null {
		return nil
	}
	return []byte(d.data)
}

// splitQuotaPath splits the path of a limits or stats znode into the path that has the quota,
// and the znode's name. ok is false for other znodes.
func splitQuotaPath(path string) (of, name string, ok bool) {
	if !strings.HasPrefix(path, QuotaPath+"/") {
		return "", "", false
	}
	i := strings.LastIndexByte(path, '/')
	name = path[i+1:]
	return path[len(QuotaPath):i], name, name == limitsName || name == statsName
}

// quotaPart is splitQuotaPath for the node's path.
func (n *Node) quotaPart() (of, name string, ok bool) {
	if n.siblings == nil || !strings.HasPrefix(n.siblings.path, QuotaPath) {
		return "", "", false
	}
	return splitQuotaPath(n.Path())
}

// trackQuota updates the quotas after a change of the znode n: if exists is set, it is new or
// its data was changed, and otherwise it was deleted.
func (t *Tree) trackQuota(n *Node, exists bool) {
	path, name, ok := n.quotaPart()
	if !ok || path == "" { // there is no quota on the root, which would crash ZooKeeper
		return
	}
	q := t.quotaAt(path)
	t.save(q)
	now := quotaData{}
	if exists {
		now = quotaData{n.data(), n.null(), true}
	}
	if name == statsName {
		q.stats = now
		q.used, q.readable = parseUsage(now.bytes())
	} else {
		q.limits = now
		q.allowed, _ = parseQuotaValues(now.bytes())
	}
	q.prune()
}

// walk calls f for the quotas at and above path, from the top, each with the path that it is on.
func (t *Tree) walk(path string, f func(at string, q *quota)) {
	q := &t.quotas
	for end := 0; end < len(path); {
		start := end + 1
		if i := strings.IndexByte(path[start:], '/'); i >= 0 {
			end = start + i
		} else {
			end = len(path)
		}
		if q = q.next[path[start:end]]; q == nil {
			return
		}
		f(path[:end], q)
	}
}

// quotaAt returns the quota on path. It adds it if there is none.
func (t *Tree) quotaAt(path string) *quota {
	q := &t.quotas
	for name := range strings.SplitSeq(path[1:], "/") {
		next := q.next[name]
		if next == nil {
			if q.next == nil {
				q.next = map[string]*quota{}
			}
			next = &quota{up: q, name: name}
			q.next[name] = next
		}
		q = next
	}
	return q
}

// save saves the state of a quota, which is about to change, if a multi is running.
func (t *Tree) save(q *quota) {
	if t.inMulti && q.before == nil {
		before := q.quotaState
		q.before = &before
		t.saved = append(t.saved, q)
	}
}

// discardSaved discards the saved states at the end of a multi.
func (t *Tree) discardSaved() {
	for _, q := range t.saved {
		q.before = nil
		q.prune()
	}
	t.saved = nil
}

// prune removes a quota if it is empty, and then those above it if they are.
func (q *quota) prune() {
	for q.up != nil && !q.limits.exists && !q.stats.exists && len(q.next) == 0 && q.before == nil {
		if q.up.next[q.name] == q {
			delete(q.up.next, q.name)
		}
		q = q.up
	}
}

// path returns the path that has the quota.
func (q *quota) path() string {
	var names []string
	for ; q.up != nil; q = q.up {
		names = append(names, q.name)
	}
	slices.Reverse(names)
	if len(names) == 0 {
		return ""
	}
	return "/" + strings.Join(names, "/")
}

// each calls f for q and every quota below it, in no particular order.
func (q *quota) each(f func(q *quota)) {
	f(q)
	for _, next := range q.next {
		next.each(f)
	}
}

// quotaOf returns the nearest quota with limits at or above path, and the path that has it. found
// is nil if there is none (PathTrie.findMaxPrefix). If before is set, it goes by the state before the
// current multi: quotas are checked against that, whatever the multi's earlier operations did.
func (t *Tree) quotaOf(path string, before bool) (at string, found *quotaState) {
	t.walk(path, func(part string, q *quota) {
		state := &q.quotaState
		if before && q.before != nil {
			state = q.before
		}
		if state.limits.exists {
			at, found = part, state
		}
	})
	return at, found
}

// count adds a change at path to the stats of its quota (DataTree.updateQuotaStat). As in
// ZooKeeper, this changes only their data and fires no watch. The stats may differ from the actual
// usage: if a client wrote other numbers, if they are older than the limits, or if there is a quota
// below this one.
func (t *Tree) count(path string, nodes, bytes int) {
	at, q := t.quotaOf(path, false)
	if q == nil || !q.stats.exists {
		return
	}
	if !q.readable { // these would crash ZooKeeper
		t.recount(at)
		return
	}
	u := q.used
	if len(q.stats.data) > maxStats {
		u.all = nil
	}
	u.count += int64(nodes)
	u.bytes += int64(bytes)
	t.setStats(at, u)
}

// recount sets the stats of the quota on path to its actual usage (DataTree.updateQuotaForPath).
func (t *Tree) recount(path string) {
	var u usage
	if n := t.Lookup(path); n != nil {
		u = n.total()
	}
	t.setStats(path, u)
}

func (t *Tree) setStats(path string, u usage) {
	id, _ := t.find(QuotaPath + path + "/" + statsName)
	t.edit(id, func(n *Node) { n.setData(u.text()) })
}

// checkQuotas verifies the quotas, as a part of [Tree.Check].
func (t *Tree) checkQuotas() error {
	fresh := newTree()
	for i := range t.Len() {
		fresh.trackQuota(t.nodes.at(uint32(i)), true)
	}
	return t.compareQuotas(&t.quotas, &fresh.quotas)
}

func (t *Tree) compareQuotas(q, want *quota) error {
	path := q.path()
	if q.limits != want.limits || q.stats != want.stats || q.before != nil {
		return fmt.Errorf("znode: the quota on %s does not agree with its znodes", path)
	}
	for _, name := range slices.Sorted(maps.Keys(q.next)) {
		if want.next[name] == nil {
			return fmt.Errorf("znode: a quota on %s/%s, which has no znodes", path, name)
		}
		if err := t.compareQuotas(q.next[name], want.next[name]); err != nil {
			return err
		}
	}
	if len(q.next) != len(want.next) {
		return fmt.Errorf("znode: %d quotas directly below %q, should be %d", len(q.next), path, len(want.next))
	}
	return nil
}

// quotaValues is the parsed data of a limits or stats znode (StatsTrack).
type quotaValues map[string]int64

const (
	countKey     = "count"
	bytesKey     = "bytes"
	countHardKey = "countHardLimit"
	bytesHardKey = "byteHardLimit"
)

// get returns a value, or -1 if there is none.
func (s quotaValues) get(key string) int64 {
	if v, ok := s[key]; ok {
		return v
	}
	return -1
}

// parseQuotaValues parses key=number pairs separated by commas or semicolons. It accepts exactly
// what ZooKeeper accepts, which uses Java's split: text after a second = in a pair is ignored,
// and a pair with == has the value -1.
func parseQuotaValues(data []byte) (s quotaValues, ok bool) {
	if data == nil {
		return nil, false
	}
	s = quotaValues{}
	if len(data) == 0 {
		return s, true
	}
	separator := func(r rune) bool { return r == ',' || r == ';' }
	text := string(data)
	pairs := strings.FieldsFunc(text, separator)
	if len(pairs) > 0 && separator(rune(text[0])) {
		return nil, false
	}
	for _, pair := range pairs {
		key, rest, _ := strings.Cut(pair, "=")
		if rest = strings.TrimRight(rest, "="); rest == "" {
			return nil, false
		}
		value, _, _ := strings.Cut(rest, "=")
		if value == "" {
			value = "-1"
		}
		v, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return nil, false
		}
		s[key] = v
	}
	return s, true
}

// usage is the content of a stats znode, or an actual usage.
type usage struct {
	count, bytes int64
	all          quotaValues // all keys; may be nil if count and bytes are the only ones
}

// parseUsage parses stats. Those that the tree has written, as it reads them for each write below a quota, cost no memory.
func parseUsage(data []byte) (u usage, ok bool) {
	if rest, is := bytes.CutPrefix(data, []byte(countKey+"=")); is {
		count, size, _ := bytes.Cut(rest, []byte(","+bytesKey+"="))
		n, wrong := strconv.ParseInt(string(count), 10, 64)
		b, wrongToo := strconv.ParseInt(string(size), 10, 64)
		if wrong == nil && wrongToo == nil {
			return usage{count: n, bytes: b}, true
		}
	}
	all, ok := parseQuotaValues(data)
	if ok {
		u = usage{all.get(countKey), all.get(bytesKey), all}
	}
	return u, ok
}

// text returns stats in the form that ZooKeeper writes. It has an extra = before the first
// semicolon for old versions, which do not know hard limits.
func (u *usage) text() []byte {
	b := append(make([]byte, 0, 24), countKey+"="...)
	b = strconv.AppendInt(b, u.count, 10)
	b = append(b, ","+bytesKey+"="...)
	b = strconv.AppendInt(b, u.bytes, 10)
	end := "="
	for _, key := range slices.Sorted(maps.Keys(u.all)) {
		if key != countKey && key != bytesKey {
			b = fmt.Appendf(b, "%s;%s=%d", end, key, u.all[key])
			end = ""
		}
	}
	return b
}

// QuotaExceeded describes an operation that exceeds a quota.
type QuotaExceeded struct {
	Path  string // that has the quota
	Unit  string // "count" or "bytes"
	Value int64  // usage with the operation
	Limit int64
	Hard  bool // the limit is a hard one, so the operation was refused
}

// String returns the message that ZooKeeper logs.
func (e *QuotaExceeded) String() string {
	strictness, what := "soft", "Count"
	if e.Hard {
		strictness = "hard"
	}
	if e.Unit == bytesKey {
		what = "Byte"
	}
	return fmt.Sprintf("Quota exceeded: %s [current %s=%d, %s%sLimit=%d]", e.Path, e.Unit, e.Value, strictness, what, e.Limit)
}

// checkQuota checks whether that many nodes and bytes may be added at path
// (ZooKeeperServer.checkQuota). As in ZooKeeper, invalid limits or stats are a MarshallingError.
func (t *Tree) checkQuota(x *Txn, path string, nodes, bytes int) proto.Code {
	if !x.EnforceQuota {
		return proto.OK
	}
	at, q := t.quotaOf(path, true)
	if q == nil {
		return proto.OK
	}
	if q.allowed == nil {
		return proto.MarshallingError
	}
	units := [...]struct {
		key, hardKey string
		more         int
	}{{countKey, countHardKey, nodes}, {bytesKey, bytesHardKey, bytes}}
	for _, unit := range units {
		soft, hard := q.allowed.get(unit.key), q.allowed.get(unit.hardKey)
		if unit.more == 0 || soft < 0 && hard < 0 {
			continue
		}
		if !q.stats.exists {
			return proto.OK
		}
		if !q.readable {
			return proto.MarshallingError
		}
		u := q.used
		e := QuotaExceeded{Path: at, Unit: unit.key, Value: u.count + int64(unit.more), Limit: soft}
		if unit.key == bytesKey {
			e.Value = u.bytes + int64(unit.more)
		}
		if hard >= 0 {
			e.Limit, e.Hard = hard, true
		}
		if e.Value > e.Limit {
			x.Exceeded = append(x.Exceeded, e)
			if e.Hard {
				return proto.QuotaExceeded
			}
		}
	}
	return proto.OK
}

// Namespace returns the first name of the path that has the quota.
func (e *QuotaExceeded) Namespace() string {
	name, _, _ := strings.Cut(e.Path[1:], "/")
	return name
}

// QuotaTotal is the sum of the quotas at and below a child of the root. For each quota, it adds
// the hard limit if there is one, else the soft limit, or else -1. A sum is nil if no quota has
// valid limits or stats, respectively.
type QuotaTotal struct {
	Namespace              string // name of the child
	CountLimit, BytesLimit *int64
	CountUsage, BytesUsage *int64
}

// QuotaTotals returns the sums of all quotas, in no particular order (QuotaMetricsUtils). It calls step
// after each quota; the tree may change meanwhile.
func (t *Tree) QuotaTotals(step func()) (all []QuotaTotal) {
	add := func(sum **int64, v int64) {
		if *sum == nil {
			*sum = new(int64)
		}
		**sum += v
	}
	limit := func(limits quotaValues, key, hardKey string) int64 {
		if hard := limits.get(hardKey); hard >= 0 {
			return hard
		}
		return limits.get(key)
	}
	found := map[string]bool{} // what goes and comes back meanwhile, the map may have again
	for name, below := range t.quotas.next {
		if found[name] {
			continue
		}
		found[name] = true
		total := QuotaTotal{Namespace: name}
		below.each(func(q *quota) {
			if q.allowed != nil {
				add(&total.CountLimit, limit(q.allowed, countKey, countHardKey))
				add(&total.BytesLimit, limit(q.allowed, bytesKey, bytesHardKey))
			}
			if q.readable {
				add(&total.CountUsage, q.used.count)
				add(&total.BytesUsage, q.used.bytes)
			}
			step()
		})
		all = append(all, total)
	}
	return all
}

// Recount sets the stats of all quotas to the actual usage, as ZooKeeper does when it loads a tree
// (DataTree.setupQuota). It is for a tree that replicas do not have yet.
func (t *Tree) Recount() {
	var paths []string
	t.quotas.each(func(q *quota) {
		if q.limits.exists && q.stats.exists {
			paths = append(paths, q.path())
		}
	})
	for _, path := range paths {
		t.recount(path)
	}
}
