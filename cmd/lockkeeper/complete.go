package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockkeeper/lockkeeper/internal/tools/zkshell"
)

// completing is how long a shell waits at most for what a server knows.
const completing = 2 * time.Second

// completeLive completes the first arguments of a command, at most so many, with what find
// learns from a server, and without one with nothing.
func completeLive(most int, find func(ctx context.Context, c *cobra.Command, word string) []cobra.Completion) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, word string) (found []cobra.Completion, _ cobra.ShellCompDirective) {
		if len(args) >= most || readEnvironment(c, os.Getenv) != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(context.Background(), completing)
		defer cancel()
		for _, x := range find(ctx, c, word) {
			if strings.HasPrefix(x, word) {
				found = append(found, x)
			}
		}
		return found, cobra.ShellCompDirectiveNoFileComp
	}
}

// paths returns the paths of znodes that begin with a word.
func (o *lockOptions) paths(ctx context.Context, c *cobra.Command, word string) []cobra.Completion {
	dialer, err := o.tls.dialer(c.Flags())
	if err != nil {
		return nil
	}
	cfg := zkshell.Config{Servers: o.servers, Timeout: 10 * time.Second, Dial: dialer.DialContext}
	if scheme, auth, ok := strings.Cut(o.auth, ":"); ok {
		cfg.Auth = []zkshell.Auth{{Scheme: scheme, Auth: []byte(auth)}}
	}
	if word == "" {
		word = "/"
	}
	return zkshell.New(cfg).CompleteOnce(ctx, false, word)
}

// held returns the paths of the locks that are held, with how many sessions hold them and wait.
func (o *lockOptions) held(ctx context.Context, c *cobra.Command, _ string) (found []cobra.Completion) {
	s, err := o.open(ctx, c.Flags(), io.Discard)
	if err != nil {
		return nil
	}
	defer s.Close()
	if s.Scan(ctx, "/", false) != nil {
		return nil
	}
	for _, l := range s.Locks(false) {
		if len(l.Holders) > 0 {
			found = append(found, cobra.CompletionWithDesc(l.Path, fmt.Sprintf("%s, %d hold it, %d wait", l.Kind, len(l.Holders), len(l.Queue))))
		}
	}
	return found
}
