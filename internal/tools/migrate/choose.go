package migrate

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"

	"github.com/lockkeeper/lockkeeper/internal/tools/zkdata"
)

// Compare compares how far two servers of an ensemble are, as ZooKeeper's election does: by the epoch, then by the zxid. A server that
// none is ahead of has everything that was acknowledged.
func Compare(a, b *Found) int {
	return cmp.Or(cmp.Compare(a.epoch(), b.epoch()), cmp.Compare(a.Zxid, b.Zxid))
}

// epoch is the epoch of the last zxid if there is no currentEpoch, as for ZooKeeper.
func (f *Found) epoch() int64 { return max(f.Epoch, f.Zxid>>32) }

// NoteOthers notes which directories beside that of src are of servers that are further than what was found there, if they
// are of the same ensemble: /copies/two beside /copies/one, and /copies/two/data beside /copies/one/data. It only
// looks at the ends of their files.
func (f *Found) NoteOthers(src Source) {
	dir, err := filepath.Abs(src.Data)
	if err != nil {
		return
	}
	for _, pattern := range [][2]string{{filepath.Dir(dir), ""}, {filepath.Dir(filepath.Dir(dir)), filepath.Base(dir)}} {
		entries, _ := os.ReadDir(pattern[0]) // as far as it can be read
		for _, e := range entries {
			other := Source{Data: filepath.Join(pattern[0], e.Name(), pattern[1])}
			if x := other.glance(); x != nil && other.Data != dir && Compare(x, f) > 0 {
				f.note("%s is further, with %s: if it is of a server of the same ensemble, migrate that one", other.Data, x.Reached())
			}
		}
	}
}

// glance returns the epoch of a dataDir and its last zxid, as far as the ends of its files show them; nil if it has no snapshot.
func (src *Source) glance() *Found {
	d, err := src.list()
	if err != nil || len(d.snapshots) == 0 {
		return nil
	}
	f := &Found{Zxid: d.snapshots[len(d.snapshots)-1].zxid}
	f.Epoch, _ = readEpoch(filepath.Join(src.Data, versionDir, "currentEpoch"))
	for _, x := range d.logs[max(0, len(d.logs)-2):] { // the last one may be empty
		if in, err := os.Open(x.path); err == nil {
			if zxid, known, err := zkdata.LastZxid(in, x.size); err == nil && known {
				f.Zxid = max(f.Zxid, zxid)
			}
			in.Close()
		}
	}
	return f
}

// Best returns the indexes of the directories that no other one is ahead of, in order; those that are nil are left out.
func Best(all []*Found) (best []int) {
	for i, f := range all {
		if f == nil {
			continue
		}
		order := 1
		if len(best) > 0 {
			order = Compare(f, all[best[0]])
		}
		if order > 0 {
			best = best[:0]
		}
		if order >= 0 {
			best = append(best, i)
		}
	}
	return best
}

// Reached says how far the server is.
func (f *Found) Reached() string { return fmt.Sprintf("epoch %d, zxid 0x%x", f.epoch(), f.Zxid) }
