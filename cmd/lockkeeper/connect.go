package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/lockkeeper/lockkeeper/internal/tools/connect"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/internal/tools/tlsfiles"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/znode"
)

// serverUsage is the end of the usage of a flag that lists servers.
const serverUsage = "`HOST[:PORT][,...][/PATH]`; the port is 2181 by default"

// serversIn returns the servers that a flag lists, and the path below which the client works:
// "" or a path.
func serversIn(flags *pflag.FlagSet, name string) (servers []string, chroot string, err error) {
	if servers, chroot, err = parseServers(flags.Lookup(name).Value.String()); err != nil {
		err = badFlag(flags, name, "%w", err)
	}
	return servers, chroot, err
}

func parseServers(text string) (servers []string, chroot string, err error) {
	servers, chroot, err = connect.Parse(text)
	if err == nil && chroot != "" && !znode.ValidPath(chroot) {
		err = fmt.Errorf("%q is not the path of a znode", chroot)
	}
	return servers, chroot, err
}

// oneServer returns the address of the server that an argument or a flag names.
func oneServer(text string) (string, error) {
	servers, _, err := connect.Parse(text)
	switch {
	case err != nil:
		return "", err
	case len(servers) > 1 || strings.Contains(text, "/"):
		return "", fmt.Errorf("%q is not HOST or HOST:PORT of one server", text)
	}
	return servers[0], nil
}

// clientTLS are the flags for TLS of a client.
type clientTLS struct {
	on            bool
	cert, key, ca string
}

func (t *clientTLS) define(f *pflag.FlagSet) {
	f.BoolVar(&t.on, "tls", false, "use TLS; the other flags for it imply this")
	f.StringVar(&t.ca, "tls-ca", "", "PEM `FILE` with the authorities of the server's certificate; by default those of the system")
	f.StringVar(&t.cert, "tls-cert", "", "PEM `FILE` with a client certificate and its intermediate certificates")
	f.StringVar(&t.key, "tls-key", "", "PEM `FILE` with its key; by default that of --tls-cert")
}

// dialer returns what connects to servers as the flags say.
func (t *clientTLS) dialer(flags *pflag.FlagSet) (*connect.Dialer, error) {
	if !t.on && t.cert+t.key+t.ca == "" {
		return &connect.Dialer{}, nil
	}
	if t.cert == "" && t.key != "" {
		return nil, badFlag(flags, "tls-cert", "--tls-key needs it")
	}
	keeper, err := openTLS(flags, "tls-", tlsfiles.Files{Cert: t.cert, Key: t.key, CA: t.ca}, tlsfiles.Settings{}, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	return &connect.Dialer{TLS: keeper.Dial()}, nil
}

// whyNot returns why one of the servers opens no session, if that is so, in place of an error that may have followed from it.
func whyNot(ctx context.Context, d *connect.Dialer, err error, servers ...string) error {
	if err == nil || ctx.Err() != nil {
		return err
	}
	for _, addr := range servers {
		c, end, e := meet(ctx, d, addr)
		if e == nil {
			c.Call(proto.OpCloseSession, nil, nil)
			end()
		} else if errors.As(e, new(*noMeeting)) || errors.As(e, new(*connect.NotServing)) || errors.As(e, new(connect.Hopeless)) {
			return d.Explain(ctx, []error{e})[0]
		}
	}
	return err
}

// noMeeting is the error of a server to which there is no connection.
type noMeeting struct {
	addr string
	error
}

func (e *noMeeting) Error() string { return fmt.Sprintf("cannot connect to %s: %v", e.addr, e.error) }
func (e *noMeeting) Unwrap() error { return e.error }

// meet opens a session at a server, also in read-only mode. What it returns with the client closes the connection.
func meet(ctx context.Context, d *connect.Dialer, addr string) (*rawclient.Client, func(), error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	nc, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		cancel()
		if errors.As(err, new(connect.Hopeless)) {
			return nil, nil, err
		}
		return nil, nil, &noMeeting{addr, err}
	}
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	end := func() {
		stop()
		nc.Close()
		cancel()
	}
	c := rawclient.New(nc)
	q := rawclient.NewSession(10 * time.Second)
	q.ReadOnly = true
	if err = c.Handshake(q); err == nil {
		return c, end, nil
	}
	if err = cmp.Or(ctx.Err(), err); errors.Is(err, io.EOF) {
		err = &connect.NotServing{Server: addr}
	}
	end()
	return nil, nil, err
}

// untilHopeless returns a context that ends when d cannot reach a server in any case, and a
// function that returns the reason for that instead of an error that followed from it.
func untilHopeless(ctx context.Context, d *connect.Dialer) (context.Context, func(error) error) {
	ctx, giveUp := context.WithCancelCause(ctx)
	d.OnHopeless = func(h connect.Hopeless) { giveUp(h) }
	return ctx, func(err error) error {
		if h := (connect.Hopeless{}); errors.As(context.Cause(ctx), &h) {
			return h
		}
		return err
	}
}
