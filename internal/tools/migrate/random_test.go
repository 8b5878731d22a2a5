package migrate_test

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/tools/migrate"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
	"github.com/lockkeeper/lockkeeper/znode"
)

// TestSentAtRandom: whatever state is sent by the command snapshot, migrate from makes the same state of it: every znode with its
// whole Stat, data that is null, empty or long, counters of sequential names, and sessions with their ephemeral znodes.
func TestSentAtRandom(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 0))
		sessions := map[int64]session.Session{}
		var ids []int64
		for range r.IntN(6) {
			id := r.Int64N(1<<56) | int64(r.IntN(255))<<56
			if _, twice := sessions[id]; !twice {
				ids = append(ids, id)
			}
			sessions[id] = session.Session{ID: id, Timeout: 1 + r.Int32N(1e6), Password: session.ZooKeeperPassword(id)}
		}
		data := func() []byte {
			switch r.IntN(4) {
			case 0:
				return nil
			case 1:
				return []byte{}
			}
			return bytes.Repeat([]byte{byte(r.IntN(256))}, r.IntN(100_000))
		}
		acls := [][]proto.ACL{
			proto.OpenACL, digestACL, {{Perms: -1, ID: proto.ID{Scheme: "x509", ID: "CN=é,O=\U0001F600"}}},
			{{Perms: 1, ID: proto.ID{Scheme: "ip", ID: "10.0.0.0/8"}}, proto.OpenACL[0]},
		}
		random := func(path string) *znode.Record {
			return &znode.Record{
				Path: path, Data: data(), ACL: acls[r.IntN(len(acls))], Czxid: r.Int64(), Mzxid: r.Int64(), Pzxid: r.Int64(),
				Ctime: int64(r.Uint64()), Mtime: int64(r.Uint64()), Version: int32(r.Uint32()), Aversion: int32(r.Uint32()),
			}
		}
		all := map[string]*znode.Record{}
		var paths []string
		children := map[string]int64{znode.Root: 1, znode.SystemPath: 2}
		add := func(x *znode.Record) {
			all[x.Path] = x
			paths = append(paths, x.Path)
		}
		for _, path := range []string{znode.Root, znode.SystemPath, znode.QuotaPath, znode.ConfigPath} {
			add(random(path))
		}
		all[znode.ConfigPath].Data = []byte{}
		all[znode.ConfigPath].Mzxid = 0 // migrate from sets both
		for range r.IntN(60) {
			up := paths[r.IntN(len(paths))]
			path := up + "/" + []string{"a", "é", "zookeeper", "x-0000000003", "lock-2147483647", "b c"}[r.IntN(6)]
			if up == znode.Root {
				path = path[1:]
			}
			if all[path] != nil || all[up].Kind == znode.Ephemeral {
				continue
			}
			x := random(path)
			switch kind := znode.Kind(r.IntN(4)); {
			case kind == znode.TTL:
				x.Kind, x.Owner = kind, 1+r.Int64N(1<<40-1)
			case kind == znode.Container:
				x.Kind = kind
			case kind == znode.Ephemeral && len(ids) > 0:
				x.Kind, x.Owner = kind, ids[r.IntN(len(ids))]
			}
			add(x)
			children[up]++
		}
		if all["/a"] != nil && all[znode.QuotaPath+"/a"] == nil {
			add(random(znode.QuotaPath + "/a"))
			children[znode.QuotaPath]++
			for name, text := range map[string]string{"limits": "count=100000,bytes=-1", "stats": "count=0,bytes=0"} {
				x := random(znode.QuotaPath + "/a/zookeeper_" + name)
				x.Data = []byte(text)
				add(x)
				children[znode.QuotaPath+"/a"]++
			}
		}
		nodes := znode.NewRestorer()
		for _, i := range r.Perm(len(paths)) {
			x := all[paths[i]]
			if x.Creates = children[x.Path] + r.Int64N(3); r.IntN(5) == 0 {
				x.Creates = math.MaxInt32
			}
			check(t, nodes.Add(x))
		}
		var list []session.Session
		for _, x := range sessions {
			list = append(list, x)
		}
		m := must(fsm.Import(r.Int64N(1<<60), nodes, list))(t)
		c := must(migrate.ForZooKeeper(t.Context(), m.Snapshot()))(t)
		var b bytes.Buffer
		check(t, c.WriteSent(&b))
		s, f, err := migrate.Read(migrate.Source{Data: directory(t, map[string][]byte{fmt.Sprintf("snapshot.%x", c.Zxid): b.Bytes()}), WithoutLog: true})
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		got, err := migrate.Machine(s, f)
		if err != nil || len(f.Notes) > 0 {
			t.Fatalf("seed %d: %v, notes %q", seed, err, f.Notes)
		}
		if n, wrong := s.Digests(); n != 1 || wrong != 0 {
			t.Errorf("seed %d: %d digests, wrong at %#x", seed, n, wrong)
		}
		if got.Tree().Len() != len(paths) || got.Sessions().Len() != len(sessions) || got.Zxid() <= m.Zxid() {
			t.Errorf("seed %d: %d znodes, %d sessions, zxid %#x after %#x", seed, got.Tree().Len(), got.Sessions().Len(), got.Zxid(), m.Zxid())
		}
		for _, path := range paths {
			is, was := got.Tree().Lookup(path).Record(), m.Tree().Lookup(path).Record()
			if path == znode.ConfigPath {
				was.Mzxid = is.Mzxid
			}
			if !reflect.DeepEqual(is, was) {
				t.Errorf("seed %d: %.500v, was %.500v", seed, fmt.Sprintf("%+v", is), fmt.Sprintf("%+v", was))
			}
		}
		for id, was := range sessions {
			if is := got.Sessions().Get(id); is == nil || is.Timeout != was.Timeout || is.Password != was.Password {
				t.Errorf("seed %d: session %#x is %+v, was %+v", seed, id, is, was)
			}
		}
	}
}
