package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// refusal is an error with the status of the reply.
type refusal struct {
	status int
	error
}

// deny ends a request with an error.
func deny(status int, format string, args ...any) {
	panic(refusal{status, fmt.Errorf(format, args...)})
}

func badRequest(format string, args ...any) { deny(http.StatusBadRequest, format, args...) }

// orFail ends a request if there is an error.
func orFail(err error) {
	if err != nil {
		panic(failure{err.Error(), err})
	}
}

// get returns an endpoint that changes nothing. Its parameters are those of the example, all
// of which may be omitted.
func get(path, example, does string, serve func(c controlRequest, q url.Values) any) endpoint {
	known, err := url.ParseQuery(example)
	must(err)
	e := endpoint{method: http.MethodGet, path: path, example: example, does: does, status: http.StatusInternalServerError}
	e.serve = func(c controlRequest) any {
		q, err := url.ParseQuery(c.r.URL.RawQuery)
		if err != nil {
			badRequest("the query is not valid: %w", err)
		}
		for name, values := range q {
			if known[name] == nil {
				badRequest("there is no parameter %q; %s has %s", name, path, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
			}
			if len(values) > 1 {
				badRequest("the parameter %q is given more than once", name)
			}
		}
		return serve(c, q)
	}
	return e
}

// post returns an endpoint with a JSON object as body.
func post[B any](path, example, does string, serve func(c controlRequest, body B) any) endpoint {
	e := endpoint{method: http.MethodPost, path: path, example: example, does: does, body: *new(B), status: http.StatusBadRequest}
	e.serve = func(c controlRequest) any {
		if c.r.URL.RawQuery != "" {
			badRequest("%s takes its parameters as JSON in the body, not in the query", path)
		}
		var body B
		decode(c.r.Body, &body)
		return serve(c, body)
	}
	return e
}

func (e endpoint) failsWith(status int) endpoint {
	e.status = status
	return e
}

func (e endpoint) inCluster() endpoint {
	e.clustered = true
	return e
}

func (e endpoint) perProcess() endpoint {
	e.ofProcess = true
	return e
}

const maxBody = 1 << 20

// decode decodes a body. An empty one counts as an empty object.
func decode(r io.Reader, to any) {
	text, err := io.ReadAll(io.LimitReader(r, maxBody+1))
	switch {
	case err != nil:
		badRequest("the body cannot be read: %w", err)
	case len(text) > maxBody:
		deny(http.StatusRequestEntityTooLarge, "the body is longer than %d bytes", maxBody)
	case len(bytes.TrimSpace(text)) == 0:
		return
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	err = d.Decode(to)
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &kind) && kind.Field == "":
		badRequest("the body is not a JSON object, but %s", kind.Value)
	case errors.As(err, &kind):
		field := kind.Field[strings.LastIndex(kind.Field, ".")+1:] // without the name of what it is embedded in
		badRequest("%q has the wrong type: %s", field, kind.Value)
	case err != nil:
		badRequest("the body: %s", strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := d.Token(); err != io.EOF {
		badRequest("the body has more than one JSON object")
	}
}

func (p *testPort) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var e endpoint
	var reply any
	err := attempt(func() {
		var c *control
		c, e = p.find(w, r)
		reply = e.serve(controlRequest{c, r})
	})
	status := http.StatusOK
	if err != nil {
		status = statusOf(err, e.status)
		reply = map[string]string{"error": oneLine(err)}
	} else if reply == nil {
		reply = struct{}{}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	out.Encode(reply) // an error means that the client is gone
}

// statusOf returns the status of the reply to a request that an error has ended.
func statusOf(err error, otherwise int) int {
	refused, badConfig, badTree := refusal{}, (*lockkeeper.ConfigError)(nil), (*lockkeepertest.TreeError)(nil)
	switch {
	case errors.As(err, &refused):
		return refused.status
	case errors.As(err, &badConfig), errors.As(err, &badTree):
		return http.StatusBadRequest
	case errors.Is(err, proto.NodeExists):
		return http.StatusConflict
	}
	return otherwise
}

// find returns the server and the endpoint that a request is for.
func (p *testPort) find(w http.ResponseWriter, r *http.Request) (*control, endpoint) {
	c, path := p.server(r.URL.Path)
	var paths, methods []string
	for _, e := range endpoints {
		switch {
		case e.path != path || e.ofProcess && path != r.URL.Path:
			if !slices.Contains(paths, e.path) {
				paths = append(paths, e.path)
			}
		case e.method != r.Method:
			methods = append(methods, e.method)
		case e.clustered && c.cluster == nil:
			badRequest("%s needs a cluster: start the server with --cluster, or with \"cluster\" in /servers; a cluster may have one member", e.path)
		default:
			return c, e
		}
	}
	if methods != nil {
		w.Header().Set("Allow", strings.Join(methods, ", "))
		deny(http.StatusMethodNotAllowed, "%s needs %s, not %s", path, strings.Join(methods, " or "), r.Method)
	}
	deny(http.StatusNotFound, "there is no %s, only %s", r.URL.Path, strings.Join(paths, " "))
	return nil, endpoint{}
}

// The following types have their own form in JSON.

// sessionID is a session's id: a string, as lockkeeper prints it everywhere, or also a
// number in what is received.
type sessionID int64

func (s sessionID) String() string               { return session.FormatID(int64(s)) }
func (s sessionID) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

func (s *sessionID) UnmarshalJSON(b []byte) error {
	if n, err := strconv.ParseInt(string(b), 10, 64); err == nil && n != 0 {
		*s = sessionID(n)
		return nil
	}
	text := strings.Trim(string(b), `"`)
	if n, err := strconv.ParseUint(text, 0, 64); err == nil && n == 0 {
		return fmt.Errorf("%q is not the id of a session: the client has not connected yet", text)
	}
	id, err := session.ParseID(text)
	*s = sessionID(id)
	return err
}

// millis is a number of milliseconds.
type millis time.Duration

func (m *millis) UnmarshalJSON(b []byte) error {
	d, err := time.ParseDuration(string(b) + "ms")
	if *m = millis(d); err != nil {
		return fmt.Errorf("%s is not a number of milliseconds", b)
	}
	return nil
}

// code is an error code: ZooKeeper's name or its number.
type code proto.Code

func (c *code) UnmarshalJSON(b []byte) error {
	for known := proto.Code(-1); known > -1000; known-- {
		if string(b) == strconv.Itoa(int(known)) || string(b) == strconv.Quote(known.String()) {
			*c = code(known)
			return nil
		}
	}
	return fmt.Errorf("%s is not an error of ZooKeeper, such as \"NoNode\" or -101", b)
}

// notNull returns a slice that is [] in JSON if it is empty.
func notNull[T any](all []T) []T {
	if all == nil {
		return []T{}
	}
	return all
}
