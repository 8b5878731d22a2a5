package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockkeeper/lockkeeper/internal/core/locks"
	"github.com/lockkeeper/lockkeeper/internal/tools/lockscan"
)

func (o *lockOptions) lsCommand() *cobra.Command {
	watch := false
	c := &cobra.Command{
		Use:   "ls [PATH]",
		Short: "Show who holds locks, and who waits",
		Long: `Show the locks at PATH and below, by default all: who holds each, and the queue in
order. Each entry shows when its znode was created, that is, when the session asked for
the lock. The token is the fencing token, the znode's czxid.

Two four-letter words show more, if the servers answer them (4lw.commands.whitelist):

  cons  the addresses of clients; each server knows those of its own clients
  dump  the time, in whole seconds, after which a session ends if it stays silent; only
        the leader knows it

So give all servers with --server. What no server answers is left out.

The data of a holder's znode, by which many clients say who they are, is shown up to 100
characters, with what cannot be printed escaped as in Go.`,
		Example: `  lockkeeper lock ls
  lockkeeper lock ls /locks --watch
  lockkeeper lock ls --json | jq '.locks[] | select(.queue | length > 10)'`,
		Args: takes(0, 1),
		RunE: func(c *cobra.Command, args []string) error {
			return o.ls(c, rootOf(args), watch)
		},
	}
	o.looks(c)
	c.Flags().BoolVar(&watch, "watch", false, "show the locks again whenever they change, without the times at which sessions end")
	c.Flags().BoolVar(&o.all, "all", false, "show all ephemeral and sequential znodes, also those of unknown recipes, which need not be locks")
	return c
}

func (o *lockOptions) ls(c *cobra.Command, root string, watch bool) error {
	if err := lockPath(root); err != nil {
		return err
	}
	if err := needPositive(c.Flags(), "timeout"); err != nil {
		return err
	}
	ctx, cancel := interruptible()
	defer cancel()
	first, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	s, err := o.open(first, c.Flags(), c.ErrOrStderr())
	if err != nil {
		return o.waited(first, err)
	}
	defer s.Close()
	if err := s.Scan(first, root, watch); err != nil {
		return o.waited(first, err)
	}
	stdout, stderr := c.OutOrStdout(), c.ErrOrStderr()
	if !watch {
		s.ask(first, "cons", "dump")
		found, err := s.described(first, o.all)
		if err != nil {
			return o.waited(first, err)
		}
		l := s.listing(root, found)
		if o.json {
			return json.NewEncoder(stdout).Encode(l)
		}
		if _, err := fmt.Fprint(stdout, l); err != nil {
			return err
		}
		for _, note := range l.Notes {
			fmt.Fprintf(stderr, "lockkeeper: %s\n", note)
		}
		return nil
	}
	shown, clear, end := "", "", "\n"
	if isTerminal(stdout) {
		clear, end = "\x1b[H\x1b[2J", ""
	}
	for {
		found, err := s.described(ctx, o.all)
		if ctx.Err() != nil {
			return nil // that is how a user ends it
		}
		if err != nil {
			return err
		}
		if state := fmt.Sprint(found); state != shown || shown == "" {
			shown = state
			s.ask(ctx, "cons")
			l := s.listing(root, found)
			l.Notes = nil
			switch {
			case o.json:
				err = json.NewEncoder(stdout).Encode(l)
			case len(l.Locks) == 0:
				_, err = fmt.Fprintf(stdout, "%s%s\n%s\n%s", clear, l.At.Format(timeFormat), nothing(root), end)
			default:
				_, err = fmt.Fprintf(stdout, "%s%s\n%s%s", clear, l.At.Format(timeFormat), l, end)
			}
			if err != nil {
				return err
			}
		}
		if err := s.Next(ctx); err != nil {
			if ctx.Err() != nil {
				return nil // that is how a user ends it
			}
			return err
		}
	}
}

// described returns the locks with the data of their holders.
func (s *look) described(ctx context.Context, all bool) ([]locks.Lock, error) {
	stop := context.AfterFunc(ctx, s.Conn().Close) // which ends requests that wait for a connection
	defer stop()
	found := s.Locks(all)
	return found, s.Describe(ctx, found)
}

// nothing says that there are no locks.
func nothing(root string) string { return fmt.Sprintf("nobody holds a lock at %s or below", root) }

// listing is what ls shows, in JSON and as text.
type listing struct {
	At         time.Time   `json:"at"`
	Locks      []shownLock `json:"locks"`
	Unreadable []string    `json:"unreadable,omitempty"`
	Notes      []string    `json:"notes,omitempty"`
}

type shownLock struct {
	Path    string         `json:"path"`
	Kind    locks.Kind     `json:"kind"`
	Client  locks.Client   `json:"client,omitempty"`
	Slots   int            `json:"slots,omitempty"`
	Holders []shownSession `json:"holders"`
	Queue   []shownSession `json:"queue"`
}

type shownSession struct {
	Session   string    `json:"session,omitempty"` // absent if the znode is not ephemeral
	Token     int64     `json:"token"`
	Znode     string    `json:"znode"`
	Shared    bool      `json:"shared,omitempty"`
	Since     time.Time `json:"since"`
	ForMS     int64     `json:"for_ms"`
	Address   string    `json:"address,omitempty"`
	Server    string    `json:"server,omitempty"`
	TimeoutMS int64     `json:"session_timeout_ms,omitempty"`
	LeftMS    *int64    `json:"session_left_ms,omitempty"`
	Data      string    `json:"data,omitempty"` // only of holders; see locks.DataText
}

// listing gathers what is known. now is this machine's time; the servers' may differ.
func (s *look) listing(root string, found []locks.Lock) *listing {
	l := &listing{At: time.Now(), Locks: []shownLock{}, Unreadable: s.Unreadable()}
	show := func(from []locks.Contender) []shownSession {
		to := []shownSession{}
		for i := range from {
			to = append(to, s.shown(&from[i], l.At))
		}
		return to
	}
	for _, x := range found {
		l.Locks = append(l.Locks, shownLock{x.Path, x.Kind, x.Client, x.Slots, show(x.Holders), show(x.Queue)})
	}
	if len(l.Locks) == 0 {
		l.Notes = append(l.Notes, nothing(root))
	} else {
		l.Notes = append(l.Notes, unknown(s.words)...)
	}
	for _, at := range l.Unreadable {
		l.Notes = append(l.Notes, fmt.Sprintf("no permission to read all of %s", at))
	}
	return l
}

// unknown says what is not known because servers did not answer a word.
func unknown(w *lockscan.Words) (notes []string) {
	for _, word := range []struct{ name, what string }{{"cons", "clients"}, {"dump", "ends of sessions"}} {
		for _, e := range w.Refused[word.name] {
			notes = append(notes, fmt.Sprintf("%s are not known from %s: %v", word.what, e.Server, e.Err))
		}
	}
	return notes
}

func (s *look) shown(c *locks.Contender, now time.Time) shownSession {
	x := shownSession{Token: c.Token, Znode: path.Base(c.Path), Shared: c.Shared, Since: time.UnixMilli(c.Since), Data: c.Data}
	x.ForMS = max(0, now.Sub(x.Since).Milliseconds())
	if c.Session == 0 {
		return x
	}
	x.Session = locks.ID(c.Session)
	client := s.words.Clients[c.Session]
	x.Address, x.Server, x.TimeoutMS = client.Addr, client.Server, client.Timeout.Milliseconds()
	if end, ok := s.words.Expiry[c.Session]; ok {
		x.LeftMS = new(max(0, end.Sub(now).Milliseconds()))
	}
	return x
}

// String formats the listing as text. Columns of which nothing is known are left out.
func (l *listing) String() string {
	addresses, ends, data := false, false, false
	for _, x := range l.Locks {
		for _, c := range append(x.Holders[:len(x.Holders):len(x.Holders)], x.Queue...) {
			addresses = addresses || c.Address != ""
			ends = ends || c.LeftMS != nil
			data = data || c.Data != ""
		}
	}
	var rows, b strings.Builder
	t := tabwriter.NewWriter(&rows, 0, 0, 2, ' ', 0)
	var titles []string // of each line after the first: the line to show before it, or ""
	if len(l.Locks) > 0 {
		fmt.Fprint(t, "\tSESSION\tTOKEN\tSINCE\tFOR")
		if addresses {
			fmt.Fprint(t, "\tCLIENT")
		}
		if ends {
			fmt.Fprint(t, "\tENDS IN")
		}
		if data {
			fmt.Fprint(t, "\tDATA")
		}
		fmt.Fprintln(t)
	}
	for _, x := range l.Locks {
		about := string(x.Kind)
		if x.Slots > 0 {
			about += fmt.Sprintf(" of %d slots", x.Slots)
		}
		if x.Client != "" {
			about += ", " + string(x.Client)
		}
		title := fmt.Sprintf("%s (%s)\n", x.Path, about)
		line := func(does string, c *shownSession) {
			fmt.Fprintf(t, "  %s\t%s\t%d\t%s\t%s", does, cmp.Or(c.Session, "not ephemeral"), c.Token, c.Since.Format(timeFormat), brief(time.Duration(c.ForMS)*time.Millisecond))
			if addresses {
				fmt.Fprintf(t, "\t%s", cmp.Or(c.Address, "-"))
			}
			if ends && c.LeftMS != nil {
				fmt.Fprintf(t, "\t%s", brief(time.Duration(*c.LeftMS)*time.Millisecond))
			} else if ends {
				fmt.Fprint(t, "\t-")
			}
			if data {
				fmt.Fprintf(t, "\t%s", cmp.Or(c.Data, "-"))
			}
			fmt.Fprintln(t)
			titles, title = append(titles, title), ""
		}
		for i := range x.Holders {
			line("holds", &x.Holders[i])
		}
		for i := range x.Queue {
			line("waits", &x.Queue[i])
		}
	}
	t.Flush()
	for i, row := range slices.Collect(strings.Lines(rows.String())) {
		if i > 0 {
			b.WriteString(titles[i-1])
		}
		b.WriteString(row)
	}
	return b.String()
}

// brief formats a duration for people.
func brief(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d < 100*time.Hour:
		return d.Round(time.Second).String()
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}
