package storage

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/go-hclog"
)

// TestMetaBits: one wrong bit in meta.json is damage, and is named as such.
func TestMetaBits(t *testing.T) {
	disk := testedDisk{diskStore: must(LogStores[0].disk(hclog.NewNullLogger()))(t)}
	dir, _ := sample(t, disk)
	s := must(openAs(dir, ""))(t)
	check(t, s.SetIdentity(Identity{Cluster: 0x1234567890abcdef, Agreed: true, Since: 17}))
	want := s.Identity()
	check(t, s.Close())
	path := filepath.Join(dir, metaFile)
	good := must(os.ReadFile(path))(t)
	for i := range good {
		for bit := range 8 {
			bad := append([]byte{}, good...)
			bad[i] ^= 1 << bit
			check(t, os.WriteFile(path, bad, fileMode))
			m, err := readMeta(dir)
			switch {
			case err == nil:
				if x, err := m.decode(); err != nil || x.Cluster != want.Cluster || x.Since != want.Since || m.ServerID != 1 || m.logStore() != LogStores[0] {
					t.Errorf("%q: %+v, %v", bad, m, err)
				}
			case !errors.Is(err, ErrDamaged):
				t.Errorf("%q: %v", bad, err)
			}
		}
	}
}
