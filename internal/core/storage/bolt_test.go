package storage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// sampleBolt makes a database with small and large entries, and free pages.
func sampleBolt(t *testing.T, entries int) string {
	t.Helper()
	path := filepath.Join(testkit.MemoryDir(t), "raft.db")
	db := must(openBolt(path, false))(t)
	log, stable := checksumLog{db}, checksumStable{db}
	for i := 1; i <= entries; i++ {
		data := bytes.Repeat([]byte{byte(i)}, 20*i)
		if i%17 == 0 {
			data = bytes.Repeat([]byte{byte(i)}, 9000) // spreads over pages
		}
		check(t, log.StoreLog(&raft.Log{Index: uint64(i), Term: 2, Data: data}))
	}
	check(t, errors.Join(stable.SetUint64([]byte(TermKey), 2), stable.Set([]byte(voteKey), []byte("x")), log.DeleteRange(1, uint64(entries/3)), db.Close()))
	return path
}

type keyValue struct{ bucket, key, value string }

// content is all that is found in a file.
func content(file []byte) (list []keyValue, err error) {
	keys := raftKeys()
	c := pageChecker{f: bytes.NewReader(file), each: func(bucket, key, value []byte) error {
		list = append(list, keyValue{string(bucket), string(key), string(value)})
		return keys(bucket, key, value)
	}}
	return list, c.check()
}

// TestCheckPages flips a bit in every byte of every page's head, and in others.
// Either that is found, or every key is still there, with its value or one
// that has other bytes or another length: a value's checksum tells.
func TestCheckPages(t *testing.T) {
	r := rand.New(rand.NewPCG(testkit.Seed(t), 0))
	for _, entries := range []int{0, 2, 60} {
		t.Run(fmt.Sprint(entries, " entries"), func(t *testing.T) {
			file := must(os.ReadFile(sampleBolt(t, entries)))(t)
			want := must(content(file))(t)
			found, same := 0, 0
			for at := range file {
				if at%4096 >= 100 && r.IntN(50) > 0 || !testkit.Thorough && r.IntN(3) > 0 {
					continue
				}
				bit := byte(1) << r.IntN(8)
				file[at] ^= bit
				got, err := content(file)
				file[at] ^= bit
				switch {
				case err != nil:
					found++
				case slices.Equal(got, want):
					same++
				case !slices.EqualFunc(got, want, func(g, w keyValue) bool {
					return g.bucket == w.bucket && g.key == w.key && (len(g.value) == len(w.value) || strings.HasPrefix(g.value, w.value) || strings.HasPrefix(w.value, g.value))
				}):
					t.Errorf("bit %#x at %d (of page %d) goes unseen, and changes what is found", bit, at%4096, at/4096)
				}
			}
			t.Logf("%d found, %d of no effect", found, same)
			for at := 0; at < len(file); at += 997 {
				if got, err := content(file[:at]); err == nil && !slices.Equal(got, want) {
					t.Errorf("cut at %d goes unseen", at)
				}
			}
		})
	}
}

// TestCheckMetaPages: every flipped bit in the two pages that say where everything is
// is found, also where it would change nothing.
func TestCheckMetaPages(t *testing.T) {
	file := must(os.ReadFile(sampleBolt(t, 2)))(t)
	for page := range 2 {
		for at := page*4096 + pageHeader; at < page*4096+pageHeader+64; at++ {
			for bit := byte(1); bit != 0; bit <<= 1 {
				file[at] ^= bit
				if _, err := content(file); err == nil {
					t.Errorf("bit %#x at %d of page %d goes unseen", bit, at%4096, page)
				}
				file[at] ^= bit
			}
		}
	}
}

// TestRaftKeys: the keys of a log are its indices, which begin with 1 or later and
// have no gap. A flipped bit in the first one can make it 0.
func TestRaftKeys(t *testing.T) {
	for _, c := range []struct {
		indices []uint64
		good    bool
	}{
		{[]uint64{1, 2, 3}, true},
		{[]uint64{7, 8}, true},
		{[]uint64{0}, false},
		{[]uint64{0, 2}, false},
		{[]uint64{1, 3}, false},
		{[]uint64{2, 2}, false},
	} {
		keys := raftKeys()
		var err error
		for _, i := range c.indices {
			err = errors.Join(err, keys([]byte("logs"), binary.BigEndian.AppendUint64(nil, i), nil))
		}
		if good := err == nil; good != c.good {
			t.Errorf("%v: %v", c.indices, err)
		}
	}
}

// TestBoltSyncs: the database that holds the log, the term and the vote syncs every
// write. (TestStoredIsOnDisk asks the kernel, where it can tell.)
func TestBoltSyncs(t *testing.T) {
	dir := testkit.MemoryDir(t)
	check(t, os.Mkdir(filepath.Join(dir, raftDir), dirMode))
	store := must(boltStore{}.open(dir, false))(t)
	defer store.Close()
	db := reflect.ValueOf(store).Elem().FieldByName("conn").Elem()
	for _, option := range []string{"NoSync", "NoGrowSync", "NoFreelistSync"} {
		if db.FieldByName(option).Bool() {
			t.Errorf("the database is open with %s", option)
		}
	}
}
