package znode

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/lockkeeper/lockkeeper/proto"
)

// A quota on a path is two znodes that clients make (Quotas): QuotaPath + path +
// "/zookeeper_limits", which says how much may be there, and likewise
// "zookeeper_stats", whose data the tree keeps: the number of znodes at and
// below the path, and the bytes of their data. A znode counts for the nearest
// quota alone, and only those with limits count.
const (
	limitsName = "zookeeper_limits"
	statsName  = "zookeeper_stats"
)

// quota is what the tree knows of a path that has limits or stats, or is above
// one that has. It follows from the znodes, apart from exact.
type quota struct {
	quotaState
	up   *quota // of the parent; nil for the root
	name string // the last name of the path
	next map[string]*quota

	before *quotaState // if the running multi has changed it
}

type quotaState struct {
	limits, stats quotaData
	allowed       track // the limits; nil if they cannot be read
	used          usage // the stats, if they are readable
	readable      bool
	below         int // quotas with limits strictly below the path
	// exact says that the stats are what a count would give. ZooKeeper keeps on
	// counting from wrong numbers too: those that a client wrote, those of stats that are
	// older than the limits, or of a quota with another one below it.
	exact bool
}

// maxStats is the length beyond which stats lose the keys that the tree does not
// count. They are written anew with every change of a znode that they count.
const maxStats = 256

// quotaData is the data of a znode, if there is one.
type quotaData struct {
	data  []byte
	there bool
}

// quotaNode splits the path of a limits or stats znode into the path that it is
// about and its name.
func quotaNode(path string) (of, name string, ok bool) {
	if !strings.HasPrefix(path, QuotaPath+"/") {
		return "", "", false
	}
	i := strings.LastIndexByte(path, '/')
	name = path[i+1:]
	return path[len(QuotaPath):i], name, name == limitsName || name == statsName
}

// trackQuota keeps the quotas: r was linked or has other data, or is not there any more.
func (t *Tree) trackQuota(r *Record, there bool) {
	path, name, ok := quotaNode(r.Path)
	if !ok || path == "" { // nothing counts for the root: ZooKeeper dies of limits for it
		return
	}
	q := t.quotaAt(path)
	t.note(q)
	now := quotaData{}
	if there {
		now = quotaData{r.Data, true}
	}
	if name == statsName {
		q.stats, q.exact = now, false
		q.used, q.readable = parseUsage(now.data)
	} else {
		had := q.limits.there
		q.limits = now
		q.allowed, _ = parseTrack(now.data)
		if had != there {
			q.exact = false
			d := 1
			if had {
				d = -1
			}
			for above := q.up; above.up != nil; above = above.up {
				t.note(above)
				above.below += d
				above.exact = false
			}
		}
	}
	q.prune()
}

// walk calls f with each part of path that ends before a slash or with it, the
// shortest first, and with the quota there, as far as there are any.
func (t *Tree) walk(path string, f func(part string, q *quota)) {
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

// findQuota is the quota of a path, nil if there is none.
func (t *Tree) findQuota(path string) (found *quota) {
	t.walk(path, func(part string, q *quota) {
		if len(part) == len(path) {
			found = q
		}
	})
	return found
}

// quotaAt is the quota of a path, made if need be.
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

// note remembers what a quota was before the running multi.
func (t *Tree) note(q *quota) {
	if t.inMulti && q.before == nil {
		before := q.quotaState
		q.before = &before
		t.noted = append(t.noted, q)
	}
}

// forgetNoted ends a multi.
func (t *Tree) forgetNoted() {
	for _, q := range t.noted {
		q.before = nil
		q.prune()
	}
	t.noted = nil
}

// prune takes a quota out, and those above, as far as there is nothing in them.
func (q *quota) prune() {
	for q.up != nil && !q.limits.there && !q.stats.there && len(q.next) == 0 && q.before == nil {
		if q.up.next[q.name] == q {
			delete(q.up.next, q.name)
		}
		q = q.up
	}
}

// path is what the quota is about.
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

// each calls f with every quota at q and below, in no order.
func (q *quota) each(f func(q *quota)) {
	f(q)
	for _, next := range q.next {
		next.each(f)
	}
}

// quotaOf is the nearest quota with limits at or above path, or nil
// (PathTrie.findMaxPrefix).
func (t *Tree) quotaOf(path string) (at string, found *quota) {
	t.walk(path, func(part string, q *quota) {
		if q.limits.there {
			at, found = part, q
		}
	})
	return at, found
}

// quotaBefore is quotaOf as it was before the running multi: what an operation
// of a multi is checked against, whatever those before it did.
func (t *Tree) quotaBefore(path string) (at string, found *quotaState) {
	t.walk(path, func(part string, q *quota) {
		state := &q.quotaState
		if q.before != nil {
			state = q.before
		}
		if state.limits.there {
			at, found = part, state
		}
	})
	return at, found
}

// count adds to the stats of the quota that counts path (DataTree.updateQuotaStat).
// Nothing but their data changes, and no watch fires.
func (t *Tree) count(path string, nodes, bytes int) {
	at, q := t.quotaOf(path)
	if q == nil || !q.stats.there {
		return
	}
	if !q.readable { // which a real server does not survive
		t.recount(at)
		return
	}
	u := q.used
	if len(q.stats.data) > maxStats {
		u.all = nil
	}
	u.count += int64(nodes)
	u.bytes += int64(bytes)
	exact := q.exact
	t.setStats(at, u)
	q.exact = exact
}

// recount makes the stats of a path true (DataTree.updateQuotaForPath).
func (t *Tree) recount(path string) {
	t.setStats(path, t.total(path))
	if q := t.findQuota(path); q != nil {
		q.exact = q.countable() && !system(path)
	}
}

func (t *Tree) setStats(path string, u usage) {
	n := t.index[QuotaPath+path+"/"+statsName]
	t.edit(n, func(r *Record) { r.Data = u.text() })
}

// countable says that all changes at and below the quota's path count for it.
func (q *quota) countable() bool { return q.limits.there && q.stats.there && q.below == 0 }

// system: the stats themselves are there, and no quota counts their changes.
func system(path string) bool { return path == SystemPath || strings.HasPrefix(path, SystemPath+"/") }

// total is the number of znodes at and below a path and the bytes of their data.
func (t *Tree) total(path string) usage {
	if n := t.Lookup(path); n != nil {
		return n.total()
	}
	return usage{}
}

func (t *Tree) totalText(path string) []byte {
	u := t.total(path)
	return u.text()
}

// isTrue reports whether a quota's stats are what a count gives.
func (t *Tree) isTrue(path string, q *quota) bool {
	return string(q.stats.data) == string(t.totalText(path))
}

// restoreQuotas finds out which stats of a restored tree are exact. ZooKeeper
// counts anew at a start; here all replicas keep the same.
func (t *Tree) restoreQuotas() {
	t.quotas.each(func(q *quota) {
		if q.exact = q.countable(); q.exact { // few are, of a deep one and all above it
			path := q.path()
			q.exact = !system(path) && t.isTrue(path, q)
		}
	})
}

// checkQuotas is the part of [Tree.Check] about quotas.
func (t *Tree) checkQuotas() error {
	fresh := newTree()
	for i := range t.Len() {
		fresh.trackQuota(&t.nodes.at(i).rec, true)
	}
	return t.compareQuotas(&t.quotas, &fresh.quotas)
}

func (t *Tree) compareQuotas(q, want *quota) error {
	path := q.path()
	alike := func(a, b quotaData) bool { return a.there == b.there && sameSlice(a.data, b.data) }
	if !alike(q.limits, want.limits) || !alike(q.stats, want.stats) || q.below != want.below || q.before != nil {
		return fmt.Errorf("znode: the quota on %s is not what its znodes say", path)
	}
	if q.exact && !t.isTrue(path, q) {
		return fmt.Errorf("znode: the stats of the quota on %s are %q, should be %q", path, q.stats.data, t.totalText(path))
	}
	for _, name := range slices.Sorted(maps.Keys(q.next)) {
		if want.next[name] == nil {
			return fmt.Errorf("znode: a quota on %s/%s, where there is none", path, name)
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

// track is the data of a limits or stats znode (StatsTrack).
type track map[string]int64

const (
	countKey     = "count"
	bytesKey     = "bytes"
	countHardKey = "countHardLimit"
	bytesHardKey = "byteHardLimit"
)

// get is a value; -1 is none.
func (s track) get(key string) int64 {
	if v, ok := s[key]; ok {
		return v
	}
	return -1
}

// parseTrack reads key=number pairs with commas and semicolons between them. It
// takes exactly what ZooKeeper takes, which follows from Java's split: text
// behind a second = of a pair means nothing, and two of them in a row are -1.
func parseTrack(data []byte) (s track, ok bool) {
	if data == nil {
		return nil, false
	}
	s = track{}
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

// usage is what stats say.
type usage struct {
	count, bytes int64
	all          track // nil if there is no other key
}

// parseUsage reads stats: quickly, if they are as the tree writes them.
func parseUsage(data []byte) (u usage, ok bool) {
	number := func(prefix string) (v int64) {
		if ok = ok && len(data) > len(prefix) && string(data[:len(prefix)]) == prefix; !ok {
			return 0
		}
		data = data[len(prefix):]
		n := 0
		for n < len(data) && n < 18 && data[n] >= '0' && data[n] <= '9' {
			v = 10*v + int64(data[n]-'0')
			n++
		}
		ok = n > 0
		data = data[n:]
		return v
	}
	whole := data
	ok = true
	u.count, u.bytes = number(countKey+"="), number(","+bytesKey+"=")
	if ok && len(data) == 0 {
		return u, true
	}
	if u.all, ok = parseTrack(whole); ok {
		u.count, u.bytes = u.all.get(countKey), u.all.get(bytesKey)
	}
	return u, ok
}

// text is the form that ZooKeeper writes. The odd = before the first semicolon
// is for readers older than the hard limits.
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

// QuotaExceeded says that an operation would go, or went, over a quota.
type QuotaExceeded struct {
	Path  string // that has the quota
	Unit  string // "count" or "bytes"
	Value int64  // that it would come to
	Limit int64
	Hard  bool // the operation was refused
}

// String is ZooKeeper's text for its log.
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

// checkQuota decides whether nodes and bytes may be added at path
// (ZooKeeperServer.checkQuota). Limits or stats that cannot be read are a
// MarshallingError, as every surprise is to a real server.
func (t *Tree) checkQuota(x *Txn, path string, nodes, bytes int) proto.Code {
	if !x.EnforceQuota {
		return proto.OK
	}
	at, q := t.quotaBefore(path)
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
		if !q.stats.there {
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

// Namespace is the first name of the quota's path.
func (e *QuotaExceeded) Namespace() string {
	name, _, _ := strings.Cut(e.Path[1:], "/")
	return name
}

// QuotaTotal sums up the quotas below one znode of the root. A limit is the
// hard one if there is one; -1 is no limit, and nil no znode that says it.
type QuotaTotal struct {
	Namespace              string // the znode's name
	CountLimit, BytesLimit *int64
	CountUsage, BytesUsage *int64
}

// QuotaTotals are the sums of all quotas, by name (QuotaMetricsUtils).
func (t *Tree) QuotaTotals() []QuotaTotal {
	add := func(sum **int64, v int64) {
		if *sum == nil {
			*sum = new(int64)
		}
		**sum += v
	}
	limit := func(limits track, key, hardKey string) int64 {
		if hard := limits.get(hardKey); hard >= 0 {
			return hard
		}
		return limits.get(key)
	}
	sorted := make([]QuotaTotal, 0, len(t.quotas.next))
	for _, name := range slices.Sorted(maps.Keys(t.quotas.next)) {
		total := QuotaTotal{Namespace: name}
		t.quotas.next[name].each(func(q *quota) {
			if q.allowed != nil {
				add(&total.CountLimit, limit(q.allowed, countKey, countHardKey))
				add(&total.BytesLimit, limit(q.allowed, bytesKey, bytesHardKey))
			}
			if q.readable {
				add(&total.CountUsage, q.used.count)
				add(&total.BytesUsage, q.used.bytes)
			}
		})
		sorted = append(sorted, total)
	}
	return sorted
}
