package migrate

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/lockkeeper/lockkeeper/internal/core/fsync"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/tools/zkdata"
)

const (
	dirMode  = 0o700
	fileMode = 0o600
)

// Write makes dir, which must be empty or not exist, a dataDir of ZooKeeper that starts with the
// state. id is the server's in an ensemble; 0 makes the directory one of a standalone server, which
// may get its myid later. After a crash, dir has nothing that ZooKeeper reads ([storage.MakeDir]): one that is started
// there begins empty.
func Write(dir string, id uint64, c *zkdata.Content) error {
	return storage.MakeDir(dir, func(making string) ([]string, error) {
		version := filepath.Join(making, versionDir)
		if err := os.Mkdir(version, dirMode); err != nil {
			return nil, err
		}
		epoch := []byte(fmt.Sprintf("%d\n", c.Zxid>>32))
		err := cmp.Or(
			writeFile(filepath.Join(version, fmt.Sprintf("%s.%x", snapshotPrefix, c.Zxid)), c.Write),
			writeFile(filepath.Join(version, "acceptedEpoch"), of(epoch)),
			writeFile(filepath.Join(version, "currentEpoch"), of(epoch)),
		)
		names := []string{versionDir}
		if err == nil && id != 0 {
			names = []string{"myid", versionDir}
			err = writeFile(filepath.Join(making, "myid"), of(fmt.Appendf(nil, "%d\n", id)))
		}
		return names, cmp.Or(err, fsync.Dir(version), fsync.Dir(making))
	})
}

func of(b []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write(b)
		return err
	}
}

// writeFile makes a new file, which only its owner may read, and syncs it.
func writeFile(path string, write func(io.Writer) error) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, fileMode)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Sync(), f.Close())
}
