package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
	"github.com/lockkeeper/lockkeeper/internal/tools/migrate"
	"github.com/lockkeeper/lockkeeper/internal/tools/zkdata"
	"github.com/lockkeeper/lockkeeper/jute"
)

func migrateCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "migrate COMMAND",
		Short: "Move from ZooKeeper, or back to it, with all sessions and locks",
		Long: `Make the data directory of a lockkeeper server from that of a ZooKeeper server, or the
other way round: all znodes with their metadata, and the sessions with their passwords,
so that clients keep the locks that they hold if they come back within their timeouts.
The server that the data is from must not be running. Nothing of it is changed.

docs/migrating.md explains the move step by step, also for three servers.`,
		Example: `  lockkeeper migrate check /var/lib/zookeeper
  lockkeeper migrate from /var/lib/zookeeper --data lockkeeper-data
  lockkeeper migrate to /var/lib/zookeeper-new --data lockkeeper-data`,
	}
	c.AddCommand(migrateFromCommand(), migrateToCommand(), migrateCheckCommand(), migrateEmptyCommand())
	return c
}

type migrateOptions struct {
	source       migrate.Source
	zooCfg       string // ZooKeeper's
	whileRunning bool
	newData
	letExpire bool
	json      bool
}

func (o *migrateOptions) defineSource(c *cobra.Command) {
	f := c.Flags()
	f.BoolVar(&o.source.WithoutLog, "without-log", false, "accept a snapshot that no transaction log reaches, which may not be complete")
	f.BoolVar(&o.source.WithoutPadding, "without-padding", false, "accept a log that ends without the zeros that ZooKeeper allocates, which may be an incomplete copy")
	f.StringVar(&o.zooCfg, "config", "", "ZooKeeper's zoo.cfg, a `FILE`: nobody may listen on its ports for clients")
	f.BoolVar(&o.whileRunning, "while-running", false, "go on although ZooKeeper seems to run: two services that run give out the same locks")
}

// aboutRunning is a part of the help of the commands with the flags of defineSource.
const aboutRunning = `The command refuses to go on if ZooKeeper seems to run. On Linux it finds a process that
has the files open for writing, or that was started with a zoo.cfg that names DIR. It
also asks the ports for clients in a zoo.cfg: in that of --config FILE, or in one that is
in DIR, beside it or in /etc/zookeeper, and names DIR. It cannot notice a server on
another machine or in another container that has the same disk.`

const aboutReading = `The newest snapshot is read, and the transaction logs after it, of releases 3.4 to 3.9,
compressed or not. As when ZooKeeper starts, a damaged snapshot is skipped if the logs
go back to the one before it, and an incomplete transaction at the end of a log is
ignored. Other damage is an error, and so are missing transactions, files of several
servers, and a last log that may be an incomplete copy.`

func migrateCheckCommand() *cobra.Command {
	var o migrateOptions
	var logs []string
	c := &cobra.Command{
		Use:   "check DIR...",
		Short: "Verify ZooKeeper's data directories, and show what is in them",
		Long: `Read the data directory of a ZooKeeper server that is not running, verify it, and
print its epoch, its last zxid and what is in it. Of the servers of an ensemble, the
one with the highest epoch, and of these the one with the highest zxid, has everything
that was acknowledged: with several directories, the command names it. As JSON, these
are an object with "directories", what was found in each or the error, and "best".

` + aboutReading + "\n\n" + aboutRunning,
		Example: `  lockkeeper migrate check /var/lib/zookeeper --log /var/log/zookeeper

  # Which of three servers to start from
  lockkeeper migrate check copies/one copies/two copies/three`,
		Args: takes(1, math.MaxInt),
		RunE: func(c *cobra.Command, args []string) error { return o.check(c, args, logs) },
	}
	f := c.Flags()
	f.StringArrayVar(&logs, "log", nil, "ZooKeeper's dataLogDir, a `DIR`, if it is not the same as its dataDir; for several, once for each in the same order")
	o.defineSource(c)
	f.BoolVar(&o.json, "json", false, "print JSON")
	return c
}

// checked is what migrate check prints of one of several directories.
type checked struct {
	Dir string `json:"dir"`
	*migrate.Found
	Error string `json:"error,omitempty"`
}

func (o *migrateOptions) check(c *cobra.Command, dirs, logs []string) error {
	if len(logs) > 0 && len(logs) != len(dirs) {
		return badFlag(c.Flags(), "log", "it is given %d times for %d directories", len(logs), len(dirs))
	}
	if o.zooCfg != "" && len(dirs) > 1 {
		return badFlag(c.Flags(), "config", "a zoo.cfg is that of one directory")
	}
	found, all := make([]*migrate.Found, len(dirs)), make([]checked, len(dirs))
	var bad []string
	for i, dir := range dirs {
		o.source.Data = dir
		if len(logs) > 0 {
			o.source.Log = logs[i]
		}
		_, f, err := o.read()
		switch {
		case err != nil && len(dirs) == 1:
			return err
		case err != nil:
			bad = append(bad, dir)
			all[i] = checked{Dir: dir, Error: err.Error()}
			if !o.json {
				fmt.Fprintf(c.OutOrStdout(), "%s cannot be used: %v\n", dir, err)
			}
			continue
		}
		found[i], all[i] = f, checked{Dir: dir, Found: f}
		if !o.json || len(dirs) == 1 {
			if err := o.show(c, f, fmt.Sprintf("%s is good", dir)); err != nil {
				return err
			}
		}
	}
	if len(dirs) == 1 {
		return nil
	}
	var best []string
	for _, i := range migrate.Best(found) {
		best = append(best, dirs[i])
	}
	if o.json {
		if err := json.NewEncoder(c.OutOrStdout()).Encode(struct {
			Directories []checked `json:"directories"`
			Best        []string  `json:"best"` // those that no other one is ahead of
		}{all, best}); err != nil {
			return err
		}
	} else if len(best) > 0 {
		reached := found[slices.Index(dirs, best[0])].Reached()
		if len(best) == 1 {
			fmt.Fprintf(c.OutOrStdout(), "start from %s: with %s it is further than the others\n", best[0], reached)
		} else {
			fmt.Fprintf(c.OutOrStdout(), "start from %s, which are equally far: %s\n", strings.Join(best, " or "), reached)
		}
	}
	if len(bad) > 0 {
		return fmt.Errorf("%d of %d directories cannot be used, and may be of a server that is further: %s. The others are enough if they are those of a majority of the ensemble", len(bad), len(dirs), strings.Join(bad, ", "))
	}
	return nil
}

func migrateFromCommand() *cobra.Command {
	var o migrateOptions
	c := &cobra.Command{
		Use:   "from DIR",
		Short: "Make a data directory from that of ZooKeeper",
		Long: `Make the data directory of a server that begins with the state of a ZooKeeper server
that has been stopped. The directory must be empty or not exist. Without --peers it is
for a standalone server; with --peers it is for a member of that new cluster. Then run
the command for every member, with the same DIR or a copy of it and the same --peers,
each with its --id, before any of them is started.

Sessions live on, with their ephemeral znodes: their clients resume them with the
passwords that ZooKeeper gave them, if they come back within their timeouts. Zxids,
and so fencing tokens, go on far above those of ZooKeeper. Quotas are counted again,
as when ZooKeeper starts, and /zookeeper/config shows the new members.

` + aboutReading + `

` + aboutRunning + `

A note says so if a directory beside DIR is that of a server that is further.`,
		Example: `  lockkeeper migrate from /var/lib/zookeeper --data lockkeeper-data

  # The first of three servers; the others have --id 2 and --id 3
  lockkeeper migrate from /var/lib/zookeeper --data lockkeeper-data --id 1 --peers 1=a:7000,2=b:7000,3=c:7000`,
		Args: takes(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			o.source.Data = args[0]
			return o.from(c)
		},
	}
	o.define(c)
	c.Flags().StringVar(&o.source.Log, "log", "", "ZooKeeper's dataLogDir, a `DIR`, if it is not the same as its dataDir")
	o.defineSource(c)
	c.Flags().BoolVar(&o.json, "json", false, "print JSON")
	return c
}

func migrateEmptyCommand() *cobra.Command {
	var o migrateOptions
	var above string
	c := &cobra.Command{
		Use:   "empty",
		Short: "Make a data directory without znodes, with zxids above a given one",
		Long: `Make the data directory of a server without znodes and sessions whose zxids, and so
fencing tokens, are above a zxid of other servers. Then 'lockkeeper zk import' can put
their znodes there, and what remembers the highest token goes on to work. With --peers
it is for a member of a new cluster, as in 'lockkeeper migrate from'.

The servers of a ZooKeeper or lockkeeper say their last zxid in the answer to srvr.`,
		Example: "  lockkeeper migrate empty --above 0x50000002a --data lockkeeper-data",
		Args:    noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			zxid, err := strconv.ParseInt(above, 0, 64)
			if err != nil || zxid < 0 {
				return badFlag(c.Flags(), "above", "%q is not a zxid, such as 0x50000002a", above)
			}
			if err := o.newData.check(c.Flags()); err != nil {
				return err
			}
			s := zkdata.NewState()
			s.Zxid = zxid
			m, err := migrate.Machine(s, &migrate.Found{})
			if err != nil {
				return err
			}
			if err := o.fill(c.Flags(), m.Snapshot().Write); err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "made %s; start it with: %s\n", o.config.DataDir, o.serveLine())
			return err
		},
	}
	o.define(c)
	c.Flags().StringVar(&above, "above", "", "the last `ZXID` of the other servers, in hexadecimal after 0x, or decimal")
	return c
}

func (o *migrateOptions) read() (write func(io.Writer) error, found *migrate.Found, err error) {
	why, doubts, err := o.source.InUse(o.zooCfg)
	if err != nil {
		return nil, nil, err
	}
	if why != "" && !o.whileRunning {
		return nil, nil, fmt.Errorf("ZooKeeper seems to run on %s: %s. Stop it first; --while-running goes on, but two services give out the same locks", o.source.Data, why)
	}
	s, found, err := migrate.Read(o.source)
	if err != nil {
		return nil, nil, err
	}
	if found.Notes = append(found.Notes, doubts...); why != "" {
		found.Notes = append(found.Notes, fmt.Sprintf("ZooKeeper seems to run on %s: %s. What it does from now on is not here, and two services give out the same locks", o.source.Data, why))
	}
	m, err := migrate.Machine(s, found)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", o.source.Data, err)
	}
	return m.Snapshot().Write, found, nil
}

func (o *migrateOptions) from(c *cobra.Command) error {
	if err := o.newData.check(c.Flags()); err != nil {
		return err
	}
	begin := time.Now()
	write, found, err := o.read()
	if err == nil {
		err = o.fill(c.Flags(), write)
	}
	if err != nil {
		return err
	}
	found.NoteOthers(o.source)
	return o.show(c, found, fmt.Sprintf("migrated %s to %s in %v; start it with: %s", o.source.Data, o.config.DataDir,
		time.Since(begin).Round(time.Millisecond), o.serveLine()))
}

// fill makes the data directory from the snapshot that write writes.
func (o *migrateOptions) fill(flags *pflag.FlagSet, write func(io.Writer) error) error {
	r, w := io.Pipe()
	written := make(chan struct{}) // closed when the writer has ended, which is when the reader has
	go func() {
		defer close(written)
		w.CloseWithError(write(w))
	}()
	err := o.make(flags, func() error { return lockkeeper.Restore(o.config, r) })
	r.Close()
	<-written
	return err
}

// show prints what was read from ZooKeeper, and a text about what was done with it.
func (o *migrateOptions) show(c *cobra.Command, found *migrate.Found, text string) error {
	if o.json {
		return json.NewEncoder(c.OutOrStdout()).Encode(found)
	}
	for _, note := range found.Notes {
		fmt.Fprintf(c.OutOrStdout(), "note: %s\n", note)
	}
	_, err := fmt.Fprintf(c.OutOrStdout(), "ZooKeeper: epoch %d, zxid 0x%x, %d znodes (%d ephemeral, %d containers, %d with a TTL), %d sessions, %d transactions after %s, %d digests compared\n%s\n",
		found.Epoch, found.Zxid, found.Znodes, found.Ephemerals, found.Containers, found.TTLs, found.Sessions, found.Transactions, cmp.Or(found.Snapshot, "no snapshot"), found.Digests, text)
	return err
}

func migrateToCommand() *cobra.Command {
	var o migrateOptions
	c := &cobra.Command{
		Use:   "to DIR",
		Short: "Make a data directory of ZooKeeper",
		Long: `Make a dataDir of ZooKeeper 3.8 or 3.9 that begins with the state of a server that has
been stopped. DIR must be empty or not exist. With --id it also gets that myid, for a
server of an ensemble. Then run the command for every server of the ensemble, with the
same data directory or a copy of it, before any of them is started.

Of the members of a cluster, use the data of the one with the highest term, and of
these the one with the highest index (lockkeeper check shows them): it has everything
that was acknowledged.

ZooKeeper computes the password of a session from its id. So only those sessions live
on that are from a ZooKeeper, or were opened while the server ran with
--zookeeper-passwords. If there are others, the command refuses to go on, unless
--let-sessions-expire says that they may end.`,
		Example: `  lockkeeper migrate to /var/lib/zookeeper-new --data lockkeeper-data
  lockkeeper migrate to /var/lib/zookeeper-new --data lockkeeper-data --id 1`,
		Args: takes(1, 1),
		RunE: func(c *cobra.Command, args []string) error { return o.to(c, args[0]) },
	}
	f := c.Flags()
	f.StringVar(&o.config.DataDir, "data", "", "the data `DIR` of a server that is not running")
	f.Uint64Var(&o.config.ID, "id", 0, "the `ID` of the server in ZooKeeper's ensemble, from 1 to 255")
	o.owner.define(f)
	f.BoolVar(&o.letExpire, "let-sessions-expire", false, "go on although ZooKeeper will not accept the passwords of some sessions: they expire there after their timeouts")
	f.BoolVar(&o.json, "json", false, "print JSON")
	return c
}

// migratedTo is what migrate to prints.
type migratedTo struct {
	Dir      string `json:"dir"`
	Epoch    int64  `json:"epoch"`
	Zxid     int64  `json:"zxid"`
	Znodes   int    `json:"znodes"`
	Sessions int    `json:"sessions"`
	// Expiring is how many of the sessions ZooKeeper does not accept.
	Expiring int `json:"expiring"`
	// TTLs is how many znodes ZooKeeper only keeps if it knows TTLs.
	TTLs int `json:"ttls"`
	// LongestData is the length of the longest data of a znode, in bytes.
	LongestData int `json:"longestData"`
}

func (o *migrateOptions) to(c *cobra.Command, dir string) error {
	switch {
	case o.config.DataDir == "":
		return badFlag(c.Flags(), "data", "it must say where the state is")
	case o.config.ID > 255, o.config.ID == 0 && c.Flags().Changed("id"):
		return badFlag(c.Flags(), "id", "%d is not between 1 and 255", o.config.ID)
	}
	if err := o.owner.find(c.Flags()); err != nil {
		return err
	}
	_, m, err := storage.Load(o.config.DataDir)
	if err != nil {
		return err
	}
	s, err := migrate.ForZooKeeper(c.Context(), m.Snapshot())
	if err != nil {
		return fmt.Errorf("%s: %w", o.config.DataDir, err)
	}
	if len(s.Strangers) > 0 && !o.letExpire {
		return fmt.Errorf("ZooKeeper would not accept the passwords of %d of %d sessions, the first is 0x%x: they were opened without --zookeeper-passwords; --let-sessions-expire goes on without them", len(s.Strangers), len(s.Sessions), uint64(s.Strangers[0]))
	}
	if err := o.owner.give(dir, func() error { return migrate.Write(dir, o.config.ID, &s.Content) }); err != nil {
		return err
	}
	made := migratedTo{dir, s.Zxid >> 32, s.Zxid, s.Znodes, len(s.Sessions), len(s.Strangers), s.TTLs, s.LongestData}
	if o.json {
		return json.NewEncoder(c.OutOrStdout()).Encode(made)
	}
	fmt.Fprintf(c.OutOrStdout(), "migrated %s to %s: epoch %d, zxid 0x%x, %d znodes, %d sessions\n", o.config.DataDir, dir, made.Epoch, made.Zxid, made.Znodes, made.Sessions)
	if made.Expiring > 0 {
		fmt.Fprintf(c.OutOrStdout(), "note: %d of the sessions will expire, since ZooKeeper does not accept their passwords\n", made.Expiring)
	}
	if made.TTLs > 0 {
		fmt.Fprintf(c.OutOrStdout(), "note: %d znodes have a TTL: start ZooKeeper with -Dzookeeper.extendedTypesEnabled=true, or it deletes them\n", made.TTLs)
	}
	if made.LongestData > jute.DefaultMaxFrame {
		fmt.Fprintf(c.OutOrStdout(), "note: a znode has %d bytes of data: start ZooKeeper with a higher -Djute.maxbuffer, or it may not be able to read it\n", made.LongestData)
	}
	return nil
}
