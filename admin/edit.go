package admin

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"net/http"
	"path"
	"strconv"
	"strings"

	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/proto"
)

// This file has what Options.EditZnodes permits. An operator changes znodes as a client on this machine
// does that has not authenticated, so the ACLs decide, and the entries in the log are those of any client.

// Limits of an edit.
const (
	maxEdit     = 64 << 10    // bytes of data
	maxEditBody = 8 * maxEdit // JSON has up to six for one of the data
)

func (h *Handler) edits() {
	g := grant{h.options.EditZnodes, "znodes"}
	h.mux.HandleFunc("POST /console/znodes/set", action(h, g, maxEditBody, "set the data of a znode", "set the data of a znode", h.set))
	h.mux.HandleFunc("POST /console/znodes/create", action(h, g, maxEditBody, "created a znode", "create a znode", h.create))
	h.mux.HandleFunc("POST /console/znodes/delete", action(h, g, maxBody, "deleted a znode", "delete a znode", h.delete))
}

// seen says which znode an operator saw, in which version. Its czxid, as the page shows it, tells it from one that
// was created later under the same path.
type seen struct {
	Path    string `json:"path"`
	Czxid   string `json:"czxid"`
	Version *int32 `json:"version"` // nil for any, but only inside of this program

	czxid int64
}

func (z *seen) check() error {
	n, err := strconv.ParseUint(z.Czxid, 0, 64)
	switch {
	case err != nil:
		return refuse(http.StatusBadRequest, "%q is not a czxid", z.Czxid)
	case z.Version == nil || *z.Version == proto.AnyVersion:
		return refuse(http.StatusBadRequest, "the version of the data must be given")
	}
	z.czxid = int64(n)
	return editable(z.Path)
}

// find returns the version of the znode, or refuses if it is not any more what the operator saw.
func (z *seen) find(ctx context.Context, c *rawclient.Client, what string) (version int32, err error) {
	stat, err := c.Exists(z.Path, false)
	switch {
	case err != nil:
		err = undone(ctx, what, err)
	case stat.Czxid != z.czxid:
		err = refuse(http.StatusConflict, "nothing was %s: the znode was deleted in the meantime, and replaced by one with the czxid %d", what, stat.Czxid)
	case z.Version != nil && stat.Version != *z.Version:
		err = refuse(http.StatusConflict, "nothing was %s: the data of the znode was changed in the meantime: it has version %d, not %d", what, stat.Version, *z.Version)
	}
	return stat.Version, err
}

// editable refuses paths that nobody may change here.
func editable(at string) error {
	switch {
	case !strings.HasPrefix(at, "/"):
		return refuse(http.StatusBadRequest, "%.100q is not a path", at)
	case len(at) > maxPath:
		return refuse(http.StatusBadRequest, "the path has more than %d bytes", maxPath)
	case strings.HasPrefix(at+"/", "/zookeeper/"):
		return refuse(http.StatusForbidden, "the console does not change what is in /zookeeper; lockkeeper zk and lockkeeper cluster do")
	}
	return nil
}

// newData is data that an operator writes, as text or in hexadecimal digits.
type newData struct {
	Text *string `json:"text"`
	Hex  *string `json:"hex"`

	data []byte // not nil, after decode
}

func (d *newData) decode() (err error) {
	switch {
	case (d.Text == nil) == (d.Hex == nil):
		return refuse(http.StatusBadRequest, "the data must be given, either as text or in hex")
	case d.Text != nil:
		d.data = []byte(*d.Text)
	default:
		if d.data, err = hex.DecodeString(*d.Hex); err != nil {
			return refuse(http.StatusBadRequest, "these are not the hexadecimal digits of bytes: %v", err)
		}
	}
	if len(d.data) > maxEdit {
		return refuse(http.StatusRequestEntityTooLarge, "the data has %d bytes; the console writes %d at most", len(d.data), maxEdit)
	}
	return nil
}

type setting struct {
	seen
	newData
}

func (h *Handler) set(ctx context.Context, _ *http.Request, q *setting) (any, []any, error) {
	if err := cmp.Or(q.check(), q.decode()); err != nil {
		return nil, nil, err
	}
	err := h.asClient(ctx, wasChanged, q.Path, func(c *rawclient.Client) error {
		if _, err := q.find(ctx, c, wasChanged); err != nil {
			return err
		}
		var now proto.Stat
		_, err := c.Call(proto.OpSetData, &proto.SetDataRequest{Path: q.Path, Data: q.data, Version: *q.Version}, &now)
		if err == nil && now.Czxid != q.czxid {
			return refuse(http.StatusInternalServerError, "another znode was changed: this one was deleted at that moment, and created again, and the new one has this data now")
		}
		return outcome(ctx, wasChanged, err, q.Path, "write it")
	})
	return nil, []any{"znode", q.Path, "version", *q.Version, "bytes", len(q.data)}, err
}

// delete deletes a znode that has no children.
func (h *Handler) delete(ctx context.Context, _ *http.Request, q *seen) (any, []any, error) {
	if q.Path == "/" {
		return nil, nil, refuse(http.StatusBadRequest, "the root cannot be deleted")
	}
	if err := q.check(); err != nil {
		return nil, nil, err
	}
	return nil, []any{"znode", q.Path, "version", *q.Version}, h.remove(ctx, q)
}

// creation is what create reads, and creating what it answers.
type (
	creation struct {
		Path       string `json:"path"`
		Sequential bool   `json:"sequential"`
		newData
	}
	creating struct {
		Path string `json:"path"`
	}
)

// create creates a persistent znode, and answers with its path. Its ACL lets everybody do everything, as
// that of zkCli's create does: the parent's may name users, of whom a client without permissions sees only a part.
func (h *Handler) create(ctx context.Context, _ *http.Request, q *creation) (any, []any, error) {
	if err := cmp.Or(editable(q.Path), q.decode()); err != nil {
		return nil, nil, err
	}
	flags := proto.FlagPersistent
	if q.Sequential {
		flags = proto.FlagSequential
	}
	at := q.Path
	err := h.asClient(ctx, wasCreated, q.Path, func(c *rawclient.Client) error {
		created, err := c.Create(q.Path, q.data, flags)
		switch {
		case err == nil:
			at = created
		case errors.Is(err, proto.NoNode):
			return refuse(http.StatusNotFound, "nothing was created: there is no znode %s", path.Dir(q.Path))
		}
		return outcome(ctx, wasCreated, err, path.Dir(q.Path), "create children")
	})
	return creating{at}, []any{"znode", at, "bytes", len(q.data)}, err
}

// outcome returns the error of an edit for that of its request, which needs the permission of the ACL of a znode
// that verb says.
func outcome(ctx context.Context, what string, err error, at, verb string) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, proto.NoAuth):
		return refuse(http.StatusForbidden, "nothing was %s: the ACL of %s does not let everybody %s, and the console has no permissions of its own", what, at, verb)
	case errors.As(err, new(proto.Code)):
		return undone(ctx, what, err)
	}
	return refuse(http.StatusGatewayTimeout, "there was no answer: the znode may have been %s or not, or may be %s later", what, what)
}
