package differ_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/differ"
	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
	"github.com/lockkeeper/lockkeeper/proto"
)

const superDigest = "super:lK75jTNcA+U9vtVEw5vB51mj/w4="

// server starts lockkeeper with the default settings of ZooKeeper.
func server(t *testing.T) differ.Dial {
	s := lockkeepertest.Start(t, lockkeepertest.WithTickTime(2*time.Second), lockkeepertest.WithConfig(func(c *lockkeeper.Config) {
		c.Auth.SuperDigest, c.Limits.MaxSessionTimeout, c.ContainerCheckInterval = superDigest, 0, time.Hour
	}))
	return func(context.Context) (net.Conn, error) { return s.Dial("", "", 10*time.Second) }
}

// TestAlike compares lockkeeper with itself, without masks. There must be no difference.
func TestAlike(t *testing.T) {
	a, b := server(t), server(t)
	for seed, ops := range map[uint64]int{1: 10_000, testkit.Seed(t): 2500} {
		r, err := differ.Run(t.Context(), differ.Options{A: a, B: b, Seed: seed, Ops: ops, Super: "super:secret", NoMasks: true})
		if err != nil || r.Difference != nil {
			t.Fatalf("%v\n%s", err, r)
		}
		if r.Ops < ops || r.Events < ops/50 {
			t.Errorf("too few requests or events:\n%s", r)
		}
		if seed != 1 {
			continue
		}
		for i := range proto.Ops {
			if name := proto.Ops[i].Name; r.Sent[name] == 0 && proto.Ops[i].Class != proto.Part {
				t.Errorf("no %s was sent", name)
			}
		}
		for _, code := range []proto.Code{proto.OK, proto.NoNode, proto.NoAuth, proto.BadVersion, proto.NodeExists, proto.NotEmpty, proto.InvalidACL,
			proto.BadArguments, proto.MarshallingError, proto.NoWatcher, proto.NoChildrenForEphemerals, proto.Unimplemented} {
			if r.Replies[code.String()] == 0 {
				t.Errorf("no reply has the code %s", code)
			}
		}
	}
}

// TestPlantedFaults compares lockkeeper with a faulty lockkeeper. Each fault must be
// found and shown in a few steps.
func TestPlantedFaults(t *testing.T) {
	header := func(frame []byte) (xid int32, zxid int64, code proto.Code) {
		d := jute.NewDecoder(frame)
		var h proto.ReplyHeader
		h.Decode(&d)
		return h.Xid, h.Zxid, h.Code
	}
	isEvent := func(f []byte, kind proto.EventType) bool {
		xid, _, _ := header(f)
		return len(f) > 20 && xid == proto.XidEvent && proto.EventType(binary.BigEndian.Uint32(f[16:])) == kind
	}
	tests := []struct {
		name  string
		fault func(op proto.OpCode, frame []byte) [][]byte // what the client gets instead
		ends  func(op proto.OpCode) bool                   // the connection ends instead of an answer
		what  string                                       // part of Difference.What
		steps int                                          // at most
		rare  bool                                         // it takes long to be found
	}{
		{"a code", func(op proto.OpCode, f []byte) [][]byte {
			if _, _, code := header(f); op == proto.OpDelete && code == proto.NotEmpty {
				binary.BigEndian.PutUint32(f[12:], 0xffffff9a) // NoAuth
			}
			return [][]byte{f}
		}, nil, "the reply to delete", 5, false},
		{"an event is lost", func(_ proto.OpCode, f []byte) [][]byte {
			if isEvent(f, proto.EventNodeDataChanged) {
				return nil
			}
			return [][]byte{f}
		}, nil, "", 5, false},
		{"an event comes twice", func(_ proto.OpCode, f []byte) [][]byte {
			if isEvent(f, proto.EventNodeChildrenChanged) {
				return [][]byte{f, f}
			}
			return [][]byte{f}
		}, nil, "", 5, false},
		{"a zxid is left out", func(op proto.OpCode, f []byte) [][]byte {
			if _, zxid, code := header(f); op == proto.OpSetData && code == proto.BadVersion {
				binary.BigEndian.PutUint64(f[4:], uint64(zxid+1))
			}
			return [][]byte{f}
		}, nil, "the reply to setData", 5, false},
		{"a Stat's number of children", func(op proto.OpCode, f []byte) [][]byte {
			if len(f) == 16+68 && op == proto.OpExists && f[16+59] == 2 {
				f[16+59] = 3
			}
			return [][]byte{f}
		}, nil, "the reply to exists", 5, true},
		{"a Stat's times", func(op proto.OpCode, f []byte) [][]byte {
			if op == proto.OpSetData && len(f) == 16+68 {
				copy(f[16+16:16+24], f[16+24:16+32]) // ctime becomes mtime
				f[16+23]++
			}
			return [][]byte{f}
		}, nil, "the reply to setData", 5, false},
		{"data that is null", func(op proto.OpCode, f []byte) [][]byte {
			if op == proto.OpGetData && len(f) == 16+4+68 && f[16] == 0xff {
				clear(f[16:20])
			}
			return [][]byte{f}
		}, nil, "the reply to getData", 5, false},
		{"the owner of an ephemeral", func(op proto.OpCode, f []byte) [][]byte {
			if op == proto.OpExists && len(f) == 16+68 && f[16+51] != 0 {
				f[16+51]++
			}
			return [][]byte{f}
		}, nil, "the reply to exists", 5, false},
		{"a connection ends", nil, func(op proto.OpCode) bool { return op == proto.OpWhoAmI }, "", 3, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if test.rare && !testkit.Thorough {
				t.Skip("the run under the race detector includes it")
			}
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { // in virtual time, so that the search has enough time
				a, b := server(t), server(t)
				asked := false
				faulty := func(ctx context.Context) (net.Conn, error) {
					nc, err := b(ctx)
					if err != nil || !asked { // the first connection asks for the version
						asked = true
						return nc, err
					}
					client, ours := net.Pipe()
					var wg sync.WaitGroup
					p := &proxy{ops: map[int32]proto.OpCode{}, fault: test.fault, ends: test.ends}
					for _, replies := range []bool{true, false} {
						wg.Go(func() {
							p.run(nc, ours, replies)
							nc.Close()
							ours.Close()
						})
					}
					t.Cleanup(func() { client.Close(); wg.Wait() })
					return client, nil
				}
				r, err := differ.Run(t.Context(), differ.Options{A: a, B: faulty, Seed: 7, Ops: 20_000, Minimize: 24 * time.Hour})
				if err != nil {
					t.Fatal(err)
				}
				d := r.Difference
				if d == nil {
					t.Fatal("not found")
				}
				if !strings.Contains(d.What, test.what) || !d.Reproduced || d.Steps > test.steps {
					t.Errorf("found as %q with %d steps, reproduced %v; want %q with %d steps at most\n%s", d.What, d.Steps, d.Reproduced, test.what, test.steps, r)
				}
			})
		})
	}
}

// proxy forwards frames between a client and a server, and adds a fault.
type proxy struct {
	mu    sync.Mutex
	ops   map[int32]proto.OpCode // by xid
	fault func(op proto.OpCode, frame []byte) [][]byte
	ends  func(op proto.OpCode) bool
}

func (p *proxy) run(server, client net.Conn, replies bool) {
	from, to, limit := client, server, jute.DefaultMaxFrame
	if replies {
		from, to, limit = server, client, 1<<24
	}
	for first := true; ; first = false {
		f, err := jute.ReadFrame(from, limit, nil)
		if errors.Is(err, jute.ErrFrame) { // let the server see it, too
			to.Write([]byte{0xff, 0xff, 0xff, 0xff})
			io.Copy(io.Discard, from)
		}
		if err != nil {
			return
		}
		frames := [][]byte{f}
		if !first && len(f) >= 8 {
			p.mu.Lock()
			xid := int32(binary.BigEndian.Uint32(f))
			if !replies {
				p.ops[xid] = proto.OpCode(int32(binary.BigEndian.Uint32(f[4:])))
			}
			op := p.ops[xid]
			p.mu.Unlock()
			if !replies && p.ends != nil && p.ends(op) {
				return
			}
			if replies && p.fault != nil && len(f) >= 16 {
				frames = p.fault(op, f)
			}
		}
		for _, f := range frames {
			out := binary.BigEndian.AppendUint32(nil, uint32(len(f)))
			if _, err := to.Write(append(out, f...)); err != nil {
				return
			}
		}
	}
}

// TestOptions checks the errors for invalid options and unreachable endpoints.
func TestOptions(t *testing.T) {
	a := server(t)
	for _, o := range []differ.Options{{Masks: []string{"nope"}}, {Without: []string{"nope"}}} {
		o.A, o.B, o.Ops = a, a, 1
		if _, err := differ.Run(t.Context(), o); !errors.Is(err, differ.ErrOptions) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	broken := errors.New("no network today")
	o := differ.Options{A: a, B: func(context.Context) (net.Conn, error) { return nil, broken }, Ops: 1}
	if _, err := differ.Run(t.Context(), o); !errors.Is(err, broken) || !strings.Contains(fmt.Sprint(err), "endpoint B: ") {
		t.Errorf("an endpoint that cannot be reached: %v", err)
	}
}

// TestMaskTable checks that each mask has a unique name and a reason, and that
// docs/compatibility.md lists it. With -rewrite it updates that page.
func TestMaskTable(t *testing.T) {
	seen := map[string]bool{}
	table := "| name | difference |\n|---|---|\n"
	for _, m := range differ.Masks {
		if m.Name == "" || seen[m.Name] || len(m.Reason) < 20 {
			t.Errorf("mask %q, because %q", m.Name, m.Reason)
		}
		seen[m.Name] = true
		table += "| `" + m.Name + "` | " + m.Reason + " |\n"
	}
	testkit.Generated(t, "../../../docs/compatibility.md", "masks", table)
}
