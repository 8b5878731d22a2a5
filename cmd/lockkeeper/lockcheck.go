package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockkeeper/lockkeeper/internal/core/locks"
	"github.com/lockkeeper/lockkeeper/znode"
)

// exitProblems is the exit code of lock check if it finds problems.
const exitProblems = 3

func (o *lockOptions) checkCommand() *cobra.Command {
	var settle time.Duration
	noWatches := false
	c := &cobra.Command{
		Use:   "check [PATH]",
		Short: "Look for orphans, for clients that wait in vain, and for deadlocks",
		Long: `Look for what is wrong with the locks at PATH and below, by default all:

  orphan            a lock's znode is not ephemeral, so it does not go with a session
  duplicate         one attempt to lock made two znodes, and the client knows only one
  watches-nobody    a client waits without watching a znode before its own
  cycle             sessions hold locks and wait for each other's
  waits-for-itself  a session waits for a lock that it holds. That happens if several
                    threads share one session, and does not count as a problem.

What a client watches is known only if the servers allow the four-letter word wchp.
Unless --server lists all servers, they must allow cons too. If they allow only wchs,
just the number of watches is compared, and --server must list all servers. wchp is
slow on a server with very many watches. With --no-watches, no server needs to allow
a word, and a client that waits without a watch is not found.

Clients go on working while the locks are read, so a problem counts only if a second
look finds it again.

The exit code is 0 if everything was looked at and there is no problem, 3 if there is
one, 1 if something could not be looked at, and 2 if the command line is wrong.`,
		Example: `  lockkeeper lock check --server a:2181,b:2181,c:2181
  lockkeeper lock check /locks || alert`,
		Args: takes(0, 1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := needPositive(c.Flags(), "timeout"); err != nil {
				return err
			}
			if settle < 0 {
				return badFlag(c.Flags(), "settle", "it must not be negative")
			}
			return o.check(c, rootOf(args), settle, !noWatches)
		},
	}
	o.looks(c)
	c.Flags().DurationVar(&settle, "settle", 2*time.Second, "how long to wait between the two looks")
	c.Flags().BoolVar(&noWatches, "no-watches", false, "do not look at what clients watch")
	return c
}

type finding struct {
	Problem locks.Fault `json:"problem"`
	Harmful bool        `json:"harmful"`
	Path    string      `json:"path,omitempty"`
	Znodes  []string    `json:"znodes,omitempty"`
	Text    string      `json:"text"`
}

func (o *lockOptions) check(c *cobra.Command, root string, settle time.Duration, watches bool) error {
	if err := lockPath(root); err != nil {
		return err
	}
	ctx, cancel := interruptible()
	defer cancel()
	ctx, cancel = context.WithTimeout(ctx, o.timeout+settle)
	defer cancel()
	s, err := o.open(ctx, c.Flags(), c.ErrOrStderr())
	if err != nil {
		return o.waited(ctx, err)
	}
	defer s.Close()
	problems, err := s.problems(ctx, root, watches)
	if err == nil && len(problems) > 0 {
		timer := time.NewTimer(settle)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return o.waited(ctx, ctx.Err())
		}
		first := problems
		problems, err = s.problems(ctx, root, watches)
		problems = slices.DeleteFunc(problems, func(p locks.Problem) bool {
			return !slices.ContainsFunc(first, func(q locks.Problem) bool { return p.Same(&q) })
		})
	}
	if err != nil {
		return o.waited(ctx, err)
	}
	harmful, findings := 0, []finding{}
	for _, p := range problems {
		f := finding{Problem: p.Fault, Harmful: p.Harm, Path: p.Path, Text: p.Text}
		for _, z := range p.Znodes {
			f.Znodes = append(f.Znodes, z.Path)
		}
		if p.Harm {
			harmful++
		}
		findings = append(findings, f)
	}
	stdout, all := c.OutOrStdout(), s.Locks(false)
	notes, complete := s.unknown(all, watches)
	if o.json {
		err = json.NewEncoder(stdout).Encode(struct {
			Queues   int       `json:"queues"` // that were checked
			Problems []finding `json:"problems"`
			Notes    []string  `json:"notes,omitempty"`
			Complete bool      `json:"complete"` // everything was looked at
		}{len(all), findings, notes, complete})
	} else {
		for _, f := range findings {
			if _, err = fmt.Fprintf(stdout, "%s %s: %s\n", f.Problem, f.Path, f.Text); err != nil {
				break
			}
		}
		if err == nil && harmful == 0 && complete {
			_, err = fmt.Fprintf(stdout, "checked %s, nothing wrong\n", queues(len(all)))
		}
		for _, note := range notes {
			fmt.Fprintf(c.ErrOrStderr(), "lockkeeper: %s\n", note)
		}
	}
	switch {
	case err != nil:
		return err
	case harmful == 1:
		return &exitError{exitProblems, errors.New("there is a problem with locks")}
	case harmful > 1:
		return &exitError{exitProblems, fmt.Errorf("there are %d problems with locks", harmful)}
	case !complete:
		return fmt.Errorf("checked %s, but not everything; nothing is wrong with the rest", queues(len(all)))
	}
	return nil
}

func queues(n int) string {
	if n == 1 {
		return "1 queue"
	}
	return fmt.Sprintf("%d queues", n)
}

// problems reads the locks and, if wanted, what clients watch.
func (s *look) problems(ctx context.Context, root string, watches bool) ([]locks.Problem, error) {
	if err := s.Scan(ctx, root, false); err != nil {
		return nil, err
	}
	all := s.Locks(false)
	if !watches {
		return locks.Check(all, nil), nil
	}
	s.ask(ctx, "cons", "wchp", "wchs")
	if config, _, err := s.Conn().Get(znode.ConfigPath); err == nil {
		s.words.KnowMembers(string(config))
	}
	problems := locks.Check(all, s.watched)
	if s.counted() {
		if waiting := locks.Watchers(all); s.words.Total < waiting {
			problems = append(problems, locks.Problem{Fault: locks.Unwatched, Path: root, Harm: true,
				Text: fmt.Sprintf("%d znodes wait in queues, but all servers together have only %d watches", waiting, s.words.Total)})
		}
	}
	return problems, nil
}

func (s *look) watched(session int64) ([]string, bool) { return s.Watched(s.words, session) }

// counted reports whether only the number of watches is known.
func (s *look) counted() bool { return !s.words.Complete("wchp") && s.words.Complete("wchs") }

// unknown says what could not be looked at. The rest is complete if nothing says more than that
// watches were only counted.
func (s *look) unknown(all []locks.Lock, watches bool) (notes []string, complete bool) {
	for _, at := range s.Unreadable() {
		notes = append(notes, fmt.Sprintf("not checked: no permission to read all of %s", at))
	}
	complete = len(notes) == 0
	unseen := 0
	if watches {
		unseen = locks.Unseen(all, s.watched)
	}
	if unseen == 0 {
		return notes, complete
	}
	for _, e := range s.words.Refused["wchp"] {
		notes = append(notes, fmt.Sprintf("not checked: what clients of %s watch: %v", e.Server, e.Err))
	}
	if len(s.words.Refused["wchp"]) == 0 {
		notes = append(notes, "not checked: what some of those who wait watch: --server does not list their servers, or these do not allow cons")
	}
	return notes, complete && s.counted()
}
