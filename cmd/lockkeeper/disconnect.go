package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

type disconnectOptions struct {
	servers   string
	tokenFile string
	timeout   time.Duration
	json      bool
}

func disconnectCommand() *cobra.Command {
	var o disconnectOptions
	c := &cobra.Command{
		Use:   "disconnect IDENTITY --admin SERVERS",
		Short: "End the connections of an identity, which must then prove itself anew",
		Long: `End all client connections of an identity, SCHEME:ID as in an ACL: digest:NAME with any
password, digest:NAME:HASH, x509:SUBJECT, sasl:USER, ip:ADDRESS or ip:ADDRESS/BITS.

A certificate or a password that is no longer valid keeps nobody out who is already
connected. So let the servers read the new files first (docs/operations.md, "Revoking a
certificate or a password"). The sessions go on until they expire, or the
client resumes them; 'lockkeeper lock ls' shows what they hold.

Each server ends its own clients' connections, so name all members of the cluster. They
must run with --admin and --admin-write=sessions. All are asked even if one does not
answer; then the exit code is 1.`,
		Example: `  lockkeeper disconnect x509:CN=bob,O=example --admin a:8080,b:8080,c:8080 --admin-token-file token
  lockkeeper disconnect digest:bob --admin 127.0.0.1:8080
  lockkeeper disconnect ip:10.0.0.0/24 --admin https://a:8080 --json`,
		Args: takes(1, 1),
		RunE: func(c *cobra.Command, args []string) error { return o.run(c, args[0]) },
	}
	f := c.Flags()
	f.StringVar(&o.servers, "admin", "", "the HTTP ports for operators of all `SERVERS`, separated by commas: HOST:PORT or URLs")
	f.StringVar(&o.tokenFile, "admin-token-file", "", "`FILE` with their token")
	f.DurationVar(&o.timeout, "timeout", 15*time.Second, "how long to wait for all")
	f.BoolVar(&o.json, "json", false, "print JSON, one object for each server")
	return c
}

// disconnected is what disconnect prints of a server.
type disconnected struct {
	Server      string   `json:"server"`
	Connections int      `json:"connections"`
	Sessions    []string `json:"sessions"`
	Error       string   `json:"error,omitempty"`
}

func (o *disconnectOptions) run(c *cobra.Command, identity string) error {
	if scheme, id, ok := strings.Cut(identity, ":"); !ok || scheme == "" || id == "" {
		return usageError{fmt.Errorf("%q is not an identity, SCHEME:ID", identity)}
	}
	var urls []string
	servers := list(o.servers)
	for _, text := range servers {
		u, err := adminURL(text, "console/connections/end")
		if err != nil {
			return badFlag(c.Flags(), "admin", "%w", err)
		}
		urls = append(urls, u)
	}
	if len(urls) == 0 {
		return badFlag(c.Flags(), "admin", "say which servers to ask: all members of the cluster")
	}
	token, err := readToken(c.Flags(), o.tokenFile)
	if err = cmp.Or(err, needPositive(c.Flags(), "timeout")); err != nil {
		return err
	}
	ctx, cancel := interruptible()
	defer cancel()
	ctx, cancel = context.WithTimeout(ctx, o.timeout)
	defer cancel()
	all := make([]chan disconnected, len(urls))
	for i, u := range urls {
		all[i] = make(chan disconnected, 1)
		go func() { all[i] <- disconnect(ctx, servers[i], u, token, identity) }() // ends with ctx
	}
	failed := 0
	for _, answer := range all {
		d := <-answer
		if d.Error != "" {
			failed++
		}
		if o.json {
			err = json.NewEncoder(c.OutOrStdout()).Encode(d)
		} else {
			_, err = fmt.Fprintln(c.OutOrStdout(), d)
		}
		if err != nil {
			return err
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d servers have ended no connections", failed, len(urls))
	}
	return nil
}

func (d disconnected) String() string {
	switch {
	case d.Error != "":
		return d.Server + ": failed: " + d.Error
	case len(d.Sessions) == 0:
		return fmt.Sprintf("%s: %d connections ended", d.Server, d.Connections)
	}
	return fmt.Sprintf("%s: %d connections ended, of the sessions %s", d.Server, d.Connections, strings.Join(d.Sessions, " "))
}

func disconnect(ctx context.Context, server, url, token, identity string) disconnected {
	d := disconnected{Server: server, Sessions: []string{}}
	body, _ := json.Marshal(map[string]string{"identity": identity})
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err == nil {
		r.Header.Set("Content-Type", "application/json")
		var answer io.ReadCloser
		if answer, err = askAdmin(r, token); err == nil {
			defer answer.Close()
			err = json.NewDecoder(answer).Decode(&d)
		}
	}
	if err != nil {
		d.Error = cmp.Or(context.Cause(ctx), err).Error()
	}
	return d
}
