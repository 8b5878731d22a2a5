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

// quota is an entry of the tree's table of quotas, which has one for every path
// with limits or stats and for those above one with limits. It follows from the
// znodes, apart from exact.
type quota struct {
	limits, stats quotaData
	allowed       track // the limits; nil if they cannot be read
	below         int   // quotas with limits strictly below the path
	// exact says that the stats are what a count would give. ZooKeeper keeps on
	// counting from wrong numbers too: those that a client wrote, those of stats that are
	// older than the limits, or of a quota with another one below it.
	exact bool
}

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

// trackQuota keeps the table: r was linked or has other data, or is not there any more.
func (t *Tree) trackQuota(r *Record, there bool) {
	path, name, ok := quotaNode(r.Path)
	if !ok || path == "" { // nothing counts for the root: ZooKeeper dies of limits for it
		return
	}
	q := t.quotaAt(path)
	now := quotaData{}
	if there {
		now = quotaData{r.Data, true}
	}
	if name == statsName {
		q.stats, q.exact = now, false
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
			for p := parentPath(path); p != ""; p = parentPath(p) {
				above := t.quotaAt(p)
				above.below += d
				above.exact = false
				t.dropIdle(p, above)
			}
		}
	}
	t.dropIdle(path, q)
}

// quotaAt is the entry of a path, made if need be. During a multi it notes what
// the entry was before.
func (t *Tree) quotaAt(path string) *quota {
	q := t.quotas[path]
	if q == nil {
		q = &quota{}
		t.quotas[path] = q
	}
	if t.inMulti {
		if _, seen := t.before[path]; !seen {
			if t.before == nil {
				t.before = map[string]quota{}
			}
			t.before[path] = *q
		}
	}
	return q
}

func (t *Tree) dropIdle(path string, q *quota) {
	if !q.limits.there && !q.stats.there && q.below == 0 {
		delete(t.quotas, path)
	}
}

// quotaOf is the nearest quota with limits at or above path, or nil
// (PathTrie.findMaxPrefix).
func (t *Tree) quotaOf(path string) (at string, found *quota) {
	if len(t.quotas) == 0 {
		return "", nil
	}
	for end := 0; end < len(path); {
		if i := strings.IndexByte(path[end+1:], '/'); i >= 0 {
			end += 1 + i
		} else {
			end = len(path)
		}
		q := t.quotas[path[:end]]
		if q == nil {
			break
		}
		if q.limits.there {
			at, found = path[:end], q
		}
	}
	return at, found
}

// quotaBefore is quotaOf as it was before the running multi: what an operation
// of a multi is checked against, whatever those before it did.
func (t *Tree) quotaBefore(path string) (at string, found *quota) {
	if len(t.before) == 0 {
		return t.quotaOf(path)
	}
	for p := path; p != ""; p = parentPath(p) {
		q, seen := t.before[p]
		if now := t.quotas[p]; !seen && now != nil {
			q = *now
		}
		if q.limits.there {
			return p, &q
		}
	}
	return "", nil
}

// count adds to the stats of the quota that counts path (DataTree.updateQuotaStat).
// Nothing but their data changes, and no watch fires.
func (t *Tree) count(path string, nodes, bytes int) {
	at, q := t.quotaOf(path)
	if q == nil || !q.stats.there {
		return
	}
	u, ok := parseUsage(q.stats.data)
	if !ok { // which a real server does not survive
		t.recount(at)
		return
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
	if q := t.quotas[path]; q != nil {
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

// total counts the znodes at and below a path and the bytes of their data.
func (t *Tree) total(path string) (u usage) {
	var add func(n *Node)
	add = func(n *Node) {
		u.count++
		u.bytes += int64(len(n.rec.Data))
		if n.children != nil {
			for _, c := range n.children.nodes {
				add(c)
			}
		}
	}
	if n := t.Lookup(path); n != nil {
		add(n)
	}
	return u
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
	for path, q := range t.quotas {
		q.exact = q.countable() && !system(path) && t.isTrue(path, q)
	}
}

// checkQuotas is the part of [Tree.Check] about quotas.
func (t *Tree) checkQuotas() error {
	fresh := newTree()
	for i := range t.Len() {
		fresh.trackQuota(&t.nodes.at(i).rec, true)
	}
	if len(fresh.quotas) != len(t.quotas) {
		return fmt.Errorf("znode: %d entries for quotas, should be %d", len(t.quotas), len(fresh.quotas))
	}
	for _, path := range slices.Sorted(maps.Keys(t.quotas)) {
		q, want := t.quotas[path], fresh.quotas[path]
		alike := func(a, b quotaData) bool { return a.there == b.there && sameSlice(a.data, b.data) }
		if want == nil || !alike(q.limits, want.limits) || !alike(q.stats, want.stats) || q.below != want.below {
			return fmt.Errorf("znode: the quota on %s is not what its znodes say", path)
		}
		if q.exact && !t.isTrue(path, q) {
			return fmt.Errorf("znode: the stats of the quota on %s are %q, should be %q", path, q.stats.data, t.totalText(path))
		}
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
		u, ok := parseUsage(q.stats.data)
		if !ok {
			return proto.MarshallingError
		}
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
func (e *QuotaExceeded) Namespace() string { return namespace(e.Path) }

func namespace(path string) string {
	name, _, _ := strings.Cut(path[1:], "/")
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
	totals := map[string]*QuotaTotal{}
	add := func(sum **int64, v int64) {
		if *sum == nil {
			*sum = new(int64)
		}
		**sum += v
	}
	for path, q := range t.quotas {
		total := totals[namespace(path)]
		if total == nil {
			total = &QuotaTotal{Namespace: namespace(path)}
			totals[total.Namespace] = total
		}
		limit := func(limits track, key, hardKey string) int64 {
			if hard := limits.get(hardKey); hard >= 0 {
				return hard
			}
			return limits.get(key)
		}
		if q.allowed != nil {
			add(&total.CountLimit, limit(q.allowed, countKey, countHardKey))
			add(&total.BytesLimit, limit(q.allowed, bytesKey, bytesHardKey))
		}
		if u, ok := parseUsage(q.stats.data); ok && q.stats.there {
			add(&total.CountUsage, u.count)
			add(&total.BytesUsage, u.bytes)
		}
	}
	sorted := make([]QuotaTotal, 0, len(totals))
	for _, name := range slices.Sorted(maps.Keys(totals)) {
		sorted = append(sorted, *totals[name])
	}
	return sorted
}
