package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/fsync"
	"github.com/lockkeeper/lockkeeper/internal/core/storage"
)

func snapshotCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "snapshot COMMAND",
		Short: "Save the state of a server in a file, or restore it",
		Long: `Save the state of a server in a file, or make the data directories of new servers
from it.

The file has all data whatever the ACLs say, the digests of passwords in ACLs, and
the passwords of sessions. Everything in it has a checksum.`,
		Example: `  lockkeeper snapshot save backup --admin 127.0.0.1:8080
  lockkeeper snapshot restore backup --data lockkeeper-data`,
	}
	c.AddCommand(saveCommand(), restoreCommand())
	return c
}

type saveOptions struct {
	admin, tokenFile, data string
	force, json            bool
}

func saveCommand() *cobra.Command {
	var o saveOptions
	c := &cobra.Command{
		Use:   "save FILE",
		Short: "Save the state of a server in a file",
		Long: `Save the state of a server in a file, verify the file, and print what is in it. The
server either runs, with --admin and --admin-write, and goes on serving, or it does
not run, and its data directory is read.

A running server saves what it has applied. One that lags, or has no contact with a
majority of its cluster, saves an older state. The directory of a cluster's member may
also have writes that were never acknowledged.

Only the user who saves it may read the file. It appears when it is complete and on
the disk. If its server uses a certificate that this system does not trust, the
variable SSL_CERT_FILE names the file with its authority.`,
		Example: `  lockkeeper snapshot save backup --admin 127.0.0.1:8080
  lockkeeper snapshot save backup --admin https://a:8080 --admin-token-file token
  lockkeeper snapshot save backup --data lockkeeper-data`,
		Args: takes(1, 1),
		RunE: func(c *cobra.Command, args []string) error { return o.save(c, args[0]) },
	}
	f := c.Flags()
	f.StringVar(&o.admin, "admin", "", "a running server: the `ADDRESS` of its HTTP port for operators, HOST:PORT or a URL")
	f.StringVar(&o.tokenFile, "admin-token-file", "", "`FILE` with the token of --admin")
	f.StringVar(&o.data, "data", "", "the data `DIR` of a server that is not running")
	f.BoolVar(&o.force, "force", false, "replace FILE if it exists")
	f.BoolVar(&o.json, "json", false, "print JSON")
	return c
}

// source returns a function that writes a snapshot from where the flags say, and the name
// of that.
func (o *saveOptions) source(flags *pflag.FlagSet) (write func(ctx context.Context, w io.Writer) error, from string, err error) {
	byAdmin, admin := sourceOf(flags.Lookup("admin"))
	byData, data := sourceOf(flags.Lookup("data"))
	switch {
	case byAdmin == byDefault && byData == byDefault:
		return nil, "", usageError{errors.New("say what to save: a running server with --admin, or the data directory of one that is not running with --data")}
	case byAdmin == byData:
		return nil, "", badFlag(flags, "data", "not together with %s", admin)
	case byAdmin == byDefault && o.tokenFile != "":
		return nil, "", badFlag(flags, "admin-token-file", "only together with --admin, not with %s", data)
	case byData > byAdmin && o.data == "":
		return nil, "", badFlag(flags, "data", "it cannot be empty")
	case byData > byAdmin:
		return func(_ context.Context, w io.Writer) error {
			_, err := storage.Save(o.data, w)
			return err
		}, o.data, nil
	}
	if from, err = adminURL(o.admin, "snapshot"); err != nil {
		return nil, "", badFlag(flags, "admin", "%w", err)
	}
	token, err := readToken(flags, o.tokenFile)
	if err != nil {
		return nil, "", err
	}
	return func(ctx context.Context, w io.Writer) error { return fetchSnapshot(ctx, from, token, w) }, from, nil
}

// saved is what snapshot save prints.
type saved struct {
	File string `json:"file"`
	storage.State
	Bytes int64 `json:"bytes"`
}

func (o *saveOptions) save(c *cobra.Command, file string) error {
	write, from, err := o.source(c.Flags())
	if err != nil {
		return err
	}
	ctx, cancel := interruptible()
	defer cancel()
	if err := o.mayReplace(file); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+".*.tmp") // only for this user
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // unless it was renamed
	s := saved{File: file}
	if err = write(ctx, f); err == nil {
		s.Bytes, err = f.Seek(0, io.SeekCurrent)
	}
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err == nil {
		if s.State, err = storage.VerifySnapshot(f); err != nil {
			err = fmt.Errorf("the snapshot of %s: %w", from, err)
		}
	}
	if err == nil {
		err = cmp.Or(f.Sync(), ctx.Err(), o.mayReplace(file))
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), file); err != nil {
		return err
	}
	if err := fsync.Dir(filepath.Dir(file)); err != nil {
		return err
	}
	if o.json {
		return json.NewEncoder(c.OutOrStdout()).Encode(s)
	}
	of := ""
	if s.Cluster != 0 {
		of = fmt.Sprintf("cluster %v, ", s.Cluster)
	}
	fmt.Fprintf(c.OutOrStdout(), "saved %s: %szxid 0x%x, %d znodes, %d sessions, %d bytes, digest %s\n", file, of, s.Zxid, s.Znodes, s.Sessions, s.Bytes, s.Digest)
	return nil
}

// mayReplace returns an error if there is something at the path of the file that must stay.
func (o *saveOptions) mayReplace(file string) error {
	switch info, err := os.Lstat(file); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a file", file)
	case !o.force:
		return fmt.Errorf("%s exists; --force replaces it", file)
	}
	return nil
}

// adminURL returns the URL of a path on the HTTP port of a server, given what --admin says.
func adminURL(text, path string) (string, error) {
	if !strings.Contains(text, "://") {
		addr, _, err := adminAddr(text)
		return "http://" + addr + "/" + path, err
	}
	u, err := url.Parse(text)
	if err != nil {
		return "", err
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return "", fmt.Errorf("%q is not HOST:PORT, http://HOST:PORT or https://HOST:PORT", text)
	}
	return u.JoinPath(path).String(), nil
}

// silence is how long a server may send nothing of a snapshot.
const silence = time.Minute

var errSilent = fmt.Errorf("it has sent nothing for %v", silence)

// fetchSnapshot writes what the server sends.
func fetchSnapshot(ctx context.Context, from, token string, w io.Writer) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch := time.AfterFunc(silence, func() { cancel(errSilent) })
	defer watch.Stop()
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", from, cmp.Or(context.Cause(ctx), err))
		}
	}()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return err
	}
	body, err := askAdmin(r, token)
	if err != nil {
		return err
	}
	defer body.Close()
	_, err = io.Copy(w, readerFunc(func(b []byte) (int, error) {
		watch.Reset(silence)
		return body.Read(b)
	}))
	return err
}

// askAdmin sends a request to the HTTP port of a server, and returns the body of the answer if that is what was asked for.
func askAdmin(r *http.Request, token string) (io.ReadCloser, error) {
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DisableKeepAlives = true
	reply, err := transport.RoundTrip(r)
	if other, ok := errors.AsType[tls.RecordHeaderError](err); ok && string(other.RecordHeader[:]) == "HTTP/" {
		return nil, errors.New("this port has no TLS: use http://")
	}
	if noHTTP(err) {
		return nil, fmt.Errorf("no HTTP server answers there (%w): it must be the port that serve --admin opens, not one for clients or for members", err)
	}
	if err != nil {
		return nil, err
	}
	if reply.StatusCode != http.StatusOK {
		defer reply.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(reply.Body, 4096))
		var refusal struct{ Error string }
		if json.Unmarshal(text, &refusal) != nil {
			refusal.Error = strings.TrimSpace(string(text))
		}
		return nil, fmt.Errorf("%s: %s", reply.Status, refusal.Error)
	}
	return reply.Body, nil
}

// noHTTP reports whether err is what a port of another protocol makes of a request of HTTP: it
// closes the connection, or answers something else.
func noHTTP(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		errors.As(err, new(tls.RecordHeaderError)) || err != nil && strings.Contains(err.Error(), "malformed HTTP")
}

type readerFunc func(b []byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

type restoreOptions struct {
	newData
	setAside bool
}

func restoreCommand() *cobra.Command {
	var o restoreOptions
	c := &cobra.Command{
		Use:   "restore FILE",
		Short: "Make the data directory of a server from a file",
		Long: `Make the data directory of a server that begins with a saved state. If FILE is -, it is
read from standard input. The directory must be empty or not exist, or with --set-aside it is kept under another
name. Without --peers it is for a standalone server; with --peers
it is for a member of that new cluster. Restore the same file with the same --peers for
every member, each with its --id, before any of them is started. The cluster gets an id
of its own when all of them have been started.

First stop the servers whose state it was: while they run, they give out the same locks.
The restored cluster and they refuse each other, since their ids differ. Sessions live
on, with their locks, if their clients come back within their timeouts.`,
		Example: `  lockkeeper snapshot restore backup --data lockkeeper-data

  # The first of three servers; the others have --id 2 and --id 3
  lockkeeper snapshot restore backup --data lockkeeper-data --id 1 --peers 1=a:7000,2=b:7000,3=c:7000

  # In a container without the file
  podman run -i -v data:/data IMAGE snapshot restore - --data /data/lockkeeper <backup`,
		Args: takes(1, 1),
		RunE: func(c *cobra.Command, args []string) error { return o.restore(c, args[0]) },
	}
	o.define(c)
	c.Flags().BoolVar(&o.setAside, "set-aside", false, "if there is something in --data, keep it as DIR.old- and the time. No server may be running on it")
	return c
}

func (o *restoreOptions) restore(c *cobra.Command, file string) (err error) {
	cfg, flags := &o.config, c.Flags()
	if err := o.check(flags); err != nil {
		return err
	}
	from := c.InOrStdin()
	if file == "-" {
		file = "standard input"
	} else {
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		defer f.Close()
		from = f
	}
	defer keepMemoryLimit(os.Getenv, os.DirFS("/"))()
	old := ""
	err = o.make(flags, func() (err error) {
		if !o.setAside {
			return lockkeeper.Restore(*cfg, from)
		}
		old, err = storage.SetAside(cfg.DataDir, func(dir string) error {
			there := *cfg
			there.DataDir = dir
			return lockkeeper.Restore(there, from)
		})
		return err
	})
	if old != "" { // also if there is an error now
		fmt.Fprintf(c.OutOrStdout(), "kept what was in %s as %s\n", cfg.DataDir, old)
	}
	if errors.Is(err, fsm.ErrSnapshot) || errors.Is(err, fsm.ErrVersion) {
		return fmt.Errorf("%s: %w", file, err)
	} else if err != nil {
		return err
	}
	r, err := storage.Check(cfg.DataDir)
	if err != nil {
		return fmt.Errorf("%s was restored, but looking at it once more failed: %w", cfg.DataDir, err)
	}
	fmt.Fprintf(c.OutOrStdout(), "restored %s: server %d, zxid 0x%x, %d znodes, %d sessions, digest %s; start it with: %s\n", file, r.ServerID, r.Zxid, r.Znodes, r.Sessions, r.Digest, o.serveLine())
	return nil
}
