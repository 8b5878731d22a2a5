package locks

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
)

const (
	guid  = "0123456789abcdef0123456789abcdef"
	guid2 = "fedcba9876543210fedcba9876543210"
	dash  = "01234567-89ab-cdef-0123-456789abcdef"
)

// tree builds directories from lines "PATH OWNER", in the order of creation. A line with
// only a path is a directory.
func tree(lines ...string) map[string]*Directory {
	dirs := map[string]*Directory{}
	for i, line := range lines {
		var at string
		var owner int64
		if n, _ := fmt.Sscan(line, &at, &owner); n == 1 {
			dirs[at] = &Directory{}
			continue
		}
		cut := strings.LastIndexByte(at, '/')
		if dirs[at[:cut]] == nil {
			dirs[at[:cut]] = &Directory{}
		}
		d := dirs[at[:cut]]
		d.Nodes = append(d.Nodes, Node{Name: at[cut+1:], Owner: owner, Czxid: int64(i + 1), Ctime: int64(1000 * i)})
	}
	return dirs
}

// text describes locks: path, kind, client, sessions of the holders, of the queue.
func text(all []Lock) (lines []string) {
	ids := func(cs []Contender) (s []int64) {
		for _, c := range cs {
			s = append(s, c.Session)
		}
		return s
	}
	for _, l := range all {
		lines = append(lines, fmt.Sprintf("%s %s %s %d %v %v", l.Path, l.Kind, l.Client, l.Slots, ids(l.Holders), ids(l.Queue)))
	}
	return lines
}

func TestFind(t *testing.T) {
	kazooSemaphore := tree("/s", "/s-__lock__", "/s/"+guid+" 1", "/s/"+guid2+" 2", "/s-__lock__/"+guid+"__lock__0000000004 3", "/s-__lock__/"+guid2+"__lock__0000000005 4")
	kazooSemaphore["/s"].Data = []byte("2")
	for _, c := range []struct {
		name string
		dirs map[string]*Directory
		want []string
	}{
		{"nothing", tree("/", "/a", "/a/b 0", "/a/c 7", "/a/n-0000000001 7"), nil},
		{"go-zookeeper", tree("/l/_c_"+guid+"-lock-0000000010 3", "/l/_c_"+guid2+"-lock-0000000009 2", "/l/config 0"),
			[]string{"/l mutex go-zookeeper 0 [2] [3]"}},
		{"Curator's mutex", tree("/l/_c_"+dash+"-lock-0000000001 3", "/l/_c_"+dash+"-lock-0000000002 4"), []string{"/l mutex curator 0 [3] [4]"}},
		{"readers", tree("/l/_c_"+dash+"-__READ__0000000001 1", "/l/_c_"+dash+"-__READ__0000000002 2", "/l/_c_"+dash+"-__WRIT__0000000003 3", "/l/_c_"+dash+"-__READ__0000000004 4"),
			[]string{"/l read/write curator 0 [1 2] [3 4]"}},
		{"a writer", tree("/l/"+guid+"__lock__0000000001 1", "/l/"+guid+"__rlock__0000000002 2"), []string{"/l read/write kazoo 0 [1] [2]"}},
		{"latch", tree("/l/_c_"+dash+"-latch-0000000001 1", "/l/_c_"+dash+"-latch-0000000002 2"), []string{"/l election curator 0 [1] [2]"}},
		{"mixed clients", tree("/l/"+guid+"__lock__0000000001 1", "/l/_c_"+dash+"-lock-0000000002 2", "/l/_c_"+guid+"-lock-0000000003 3"),
			[]string{"/l mutex  0 [1] [2 3]"}},
		{"kazoo's semaphore", kazooSemaphore, []string{"/s semaphore kazoo 2 [1 2] [3 4]"}},
		{"Curator's semaphore", tree("/s", "/s/leases", "/s/locks", "/s/leases/_c_"+dash+"-lease-0000000001 1", "/s/leases/_c_"+dash+"-lease-0000000002 2"),
			[]string{"/s semaphore curator 0 [1 2] []"}},
		{"one waits for a lease, another behind it", tree("/s", "/s/leases/_c_"+dash+"-lease-0000000001 1", "/s/locks/_c_"+dash+"-lock-0000000005 2", "/s/locks/_c_"+dash+"-lock-0000000006 3", "/s/leases/_c_"+dash+"-lease-0000000002 2"),
			[]string{"/s semaphore curator 0 [1] [2 3]"}},
		{"the next has no lease yet", tree("/s", "/s/leases/_c_"+dash+"-lease-0000000001 1", "/s/locks/_c_"+dash+"-lock-0000000005 2"),
			[]string{"/s semaphore curator 0 [1] [2]"}},
		{"directories with the names of a semaphore", tree("/s", "/s/leases", "/s/_c_"+guid+"-lock-0000000001 1"), []string{"/s mutex go-zookeeper 0 [1] []"}},
		{"not ephemeral", tree("/l/_c_"+guid+"-lock-0000000001 0", "/l/_c_"+guid2+"-lock-0000000002 2", "/m/_c_"+guid+"-lock-0000000001 "+fmt.Sprint(int64(math.MinInt64))),
			[]string{"/l mutex go-zookeeper 0 [0] [2]", "/m mutex go-zookeeper 0 [0] []"}},
		{"odd names", tree("/l/lock-0000000001 0", "/l/x-lock-0000000002 2", "/l/"+dash+"-lock-0000000003 3", "/l/_c_"+guid+"-lock-0000000004 4", "/l/x__lock__0000000005 0"),
			[]string{"/l mutex  0 [0] [2 3 4 0]"}},
		{"names that are not of locks", tree("/l/clock-0000000001 1", "/l/lock-1 1", "/l/lock-00000000011 1", "/l/lock-x 1", "/l/-lock-000000001 1"), nil},
		{"leases are not in the queue of a lock", tree("/l/_c_"+dash+"-lease-0000000001 1", "/l/_c_"+guid+"-lock-0000000002 2"), []string{"/l mutex go-zookeeper 0 [2] []"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := text(Find(c.dirs, false)); !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
	if got, want := text(Find(tree("/a/n-0000000001 7", "/a/lock-0000000002 8"), true)), []string{"/a mutex  0 [8] []", "/a unknown  0 [7] []"}; !slices.Equal(got, want) {
		t.Errorf("any: got %q, want %q", got, want)
	}
	if got, want := text(Find(tree("/a/n-0000000002 7", "/a/n-0000000001 8", "/a/p-0000000000 0"), true)), []string{"/a unknown  0 [8] [7]"}; !slices.Equal(got, want) {
		t.Errorf("any: got %q, want %q", got, want)
	}
}

// TestQueue: those who wait, those who list and those who check see the same queue.
func TestQueue(t *testing.T) {
	inOrder := []string{
		"_c_" + guid + "-lock-0000000001", dash + "-lock-0000000002", "x-lock-0000000002", guid + "__rlock__0000000003", "__WRIT__0000000004",
		"_c_" + dash + "-__READ__0000000005", "_c_" + dash + "-latch-0000000006", "anything__lock__0000000007", "lock-2147483647",
		"lock--2147483648", "x-lock--2147483647", "lock--1000000000", "lock--999999999", "lock--000000001", "lock-4294967296", "lock-10000000000",
	}
	shuffled := slices.Concat(inOrder, []string{"config", "lock", "lock-", "clock-0000000001", "lock-1", "lock-00000000001", "lock--0000000001", "_c_" + dash + "-lease-0000000001", "n-0000000000"})
	slices.Sort(shuffled)
	var got []string
	dir := &Directory{}
	for _, e := range Queue(shuffled, false) {
		got = append(got, e.Name)
		if shared := strings.Contains(e.Name, "rlock") || strings.Contains(e.Name, "READ"); e.Shared != shared {
			t.Errorf("%s: shared %v", e.Name, e.Shared)
		}
	}
	if !slices.Equal(got, inOrder) {
		t.Errorf("got %q, want %q", got, inOrder)
	}
	for i, name := range shuffled {
		dir.Nodes = append(dir.Nodes, Node{Name: name, Owner: int64(i % 2), Czxid: int64(i + 1)})
	}
	found := Find(map[string]*Directory{"/l": dir}, false)
	got = nil
	for _, c := range found[0].All() {
		got = append(got, strings.TrimPrefix(c.Path, "/l/"))
	}
	if len(found) != 1 || !slices.Equal(got, inOrder) {
		t.Errorf("Find: got %q, want %q", got, inOrder)
	}
	if leases := Queue(shuffled, true); len(leases) != 1 || leases[0].Name != "_c_"+dash+"-lease-0000000001" {
		t.Errorf("leases: %v", leases)
	}
}

func TestDataText(t *testing.T) {
	for _, c := range []struct{ data, want string }{
		{"", ""}, {"host-1 pid 7", "host-1 pid 7"}, {`a "b"`, `a "b"`}, {"a\nb\tc\\", `a\nb\tc\\`}, {"\x1b[2J\x00\xff", `\x1b[2J\x00\xff`}, {"grün", "grün"}, {"a\u202eb", `a\u202eb`},
		{strings.Repeat("ü", 100), strings.Repeat("ü", 100)}, {strings.Repeat("ü", 101), strings.Repeat("ü", 100) + "…"},
	} {
		if got := DataText([]byte(c.data), int32(len(c.data))); got != c.want {
			t.Errorf("%q: %q", c.data, got)
		}
	}
	if got := DataText(nil, MaxData+1); got != "(4097 bytes)" {
		t.Error(got)
	}
}

func TestInteresting(t *testing.T) {
	for name, want := range map[string]bool{
		"_c_" + guid + "-lock-0000000001": true, guid + "__rlock__0000000001": true, guid: true, "x-0000000001": true,
		"lock": false, "_c_" + guid + "-lock-": false, "": false,
	} {
		if got := Interesting(name); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
}

func TestCheck(t *testing.T) {
	lock := func(l, guid string, n, session int) string {
		return fmt.Sprintf("/%s/_c_%s-lock-%010d %d", l, guid, n, session)
	}
	g := func(i int) string { return fmt.Sprintf("%032x", i) }
	watches := map[int64][]string{1: {"/other"}, 2: {"/x/_c_" + g(1) + "-lock-0000000001"}, 3: {"/x"}}
	for _, c := range []struct {
		name string
		dirs map[string]*Directory
		want []string // fault, path, and the sessions of the znodes
	}{
		{"a queue", tree(lock("x", g(1), 1, 1), lock("x", g(2), 2, 2), lock("x", g(3), 3, 3)), nil},
		{"an orphan", tree(lock("x", g(1), 1, 0), lock("x", g(2), 2, 2)), []string{"orphan /x [0] true"}},
		{"a duplicate", tree(lock("x", g(1), 1, 1), lock("x", g(1), 2, 1)), []string{"duplicate /x [1 1] true", "watches-nobody /x [1] true", "waits-for-itself /x [1 1] false"}},
		{"watches nobody", tree(lock("x", g(9), 1, 9), lock("x", g(1), 2, 1), lock("x", g(8), 3, 8)), []string{"watches-nobody /x [1] true"}},
		{"two sessions", tree(lock("a", g(1), 1, 21), lock("b", g(2), 1, 22), lock("a", g(3), 2, 22), lock("b", g(4), 2, 21)), []string{"cycle /a [22 21 21 22] true"}},
		{"three sessions, and one behind them", tree(lock("a", g(1), 1, 21), lock("b", g(2), 1, 22), lock("c", g(3), 1, 23),
			lock("a", g(4), 2, 22), lock("b", g(5), 2, 23), lock("c", g(6), 2, 21), lock("c", g(7), 3, 29)), []string{"cycle /a [22 21 21 23 23 22] true"}},
		{"no cycle, since one can go on", tree(lock("a", g(1), 1, 21), lock("b", g(2), 1, 22), lock("a", g(3), 2, 22)), nil},
		{"a cycle through one of two readers", tree("/a/"+g(1)+"__rlock__0000000001 21", "/a/"+g(2)+"__rlock__0000000002 22", "/a/"+g(3)+"__lock__0000000003 23",
			lock("b", g(4), 1, 23), lock("b", g(5), 2, 22)), []string{"cycle /a [23 22 22 23] true"}},
		{"a semaphore with a slot that will be free", tree("/s", "/s/leases/_c_"+dash+"-lease-0000000001 21", "/s/leases/_c_"+dash+"-lease-0000000002 22", "/s/locks/_c_"+dash+"-lock-0000000003 23",
			lock("b", g(4), 1, 23), lock("b", g(5), 2, 22)), nil},
		{"a semaphore without", tree("/s", "/s/leases/_c_"+dash+"-lease-0000000001 21", "/s/leases/_c_"+dash+"-lease-0000000002 22", "/s/locks/_c_"+dash+"-lock-0000000003 23",
			lock("b", g(4), 1, 23), lock("b", g(5), 2, 22), lock("b", g(6), 3, 21)), []string{"cycle /b [22 23 23 22] true"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			problems := Check(Find(c.dirs, false), func(s int64) ([]string, bool) { paths, ok := watches[s]; return paths, ok })
			for i, p := range problems {
				var ids []int64
				for _, z := range p.Znodes {
					ids = append(ids, z.Session)
				}
				got = append(got, fmt.Sprintf("%s %s %v %v", p.Fault, p.Path, ids, p.Harm))
				if !p.Same(&problems[i]) || i > 0 && p.Same(&problems[i-1]) {
					t.Errorf("Same is wrong for %v", p)
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
