package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"

	"github.com/spf13/pflag"
)

// owner is the user that a new directory is given to: the flag --owner of commands that root may run for a server which runs as that
// user.
type owner struct {
	name     string
	uid, gid int
}

func (o *owner) define(f *pflag.FlagSet) {
	f.StringVar(&o.name, "owner", "", "the `USER` that the new directory and all in it belong to; only root can say it")
}

func (o *owner) find(f *pflag.FlagSet) error {
	if from, _ := sourceOf(f.Lookup("owner")); from == byDefault {
		return nil
	}
	switch os.Geteuid() {
	case 0:
	case -1: // Windows
		return badFlag(f, "owner", "files of this system do not have such an owner")
	default:
		return badFlag(f, "owner", "only root can give files to another user")
	}
	u, err := user.Lookup(o.name)
	if err != nil {
		if u, err = user.LookupId(o.name); err != nil {
			return badFlag(f, "owner", "there is no user %q", o.name)
		}
	}
	if o.uid, err = strconv.Atoi(u.Uid); err == nil {
		o.gid, err = strconv.Atoi(u.Gid)
	}
	return err
}

// give calls made, which makes dir, and gives what is new to the user: dir with all that is in it, and those of its parents that
// did not exist.
func (o *owner) give(dir string, made func() error) error {
	if o.name == "" {
		return made()
	}
	top, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	for up := filepath.Dir(top); ; up = filepath.Dir(up) {
		if _, err := os.Lstat(up); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		top = up
	}
	if err := made(); err != nil {
		return err
	}
	err = filepath.WalkDir(top, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, o.uid, o.gid)
	})
	if err != nil {
		return fmt.Errorf("%s is made, but cannot be given to %s: %w", dir, o.name, err)
	}
	return nil
}
