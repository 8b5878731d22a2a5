package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lockkeeper/lockkeeper"
)

// newData are the flags of commands that make the data directory of a server.
type newData struct {
	config lockkeeper.Config
	peers  string
	owner  owner
}

func (d *newData) define(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&d.config.DataDir, "data", "", "`DIR` for the state, which must be empty or not exist")
	f.StringVar((*string)(&d.config.LogStore), "log-store", "", logStoreUsage)
	f.Uint64Var(&d.config.ID, "id", 1, idUsage)
	f.StringVar(&d.peers, "peers", "", peersUsage)
	d.owner.define(f)
	completeWith(c, "log-store", "wal", "boltdb")
}

// check checks the flags, as far as lockkeeper.Restore does not.
func (d *newData) check(flags *pflag.FlagSet) (err error) {
	switch {
	case d.config.DataDir == "":
		return badFlag(flags, "data", "it must say where to put the state")
	case d.config.ID == 0: // in Config, it would mean the default
		return badFlag(flags, "id", `it cannot be "0"`)
	}
	if err := d.owner.find(flags); err != nil {
		return err
	}
	if d.peers != "" {
		if d.config.Peers, err = parsePeers(d.peers); err != nil {
			return badFlag(flags, "peers", "%w", err)
		}
	}
	return nil
}

// make calls restore, which makes the directory, and gives it to its owner.
func (d *newData) make(flags *pflag.FlagSet, restore func() error) error {
	err := d.owner.give(d.config.DataDir, restore)
	if bad := (*lockkeeper.ConfigError)(nil); errors.As(err, &bad) {
		return badField(flags, bad)
	}
	return err
}

// serveLine is the command that starts a server on the directory.
func (d *newData) serveLine() string {
	line := fmt.Sprintf("lockkeeper serve --data %s --id %d", d.config.DataDir, d.config.ID)
	peers := d.peers
	if strings.Contains(peers, ";") { // which ends a shell's command
		peers = "'" + peers + "'"
	}
	if peers != "" {
		line += " --peers " + peers
	}
	return line
}
