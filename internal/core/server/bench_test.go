package server_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/core/server"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/proto"
)

// exchange is a client's pipelined requests, always the same, and the length of the
// replies to them. It allocates nothing, so that only the server is measured.
type exchange struct {
	nc      net.Conn
	request []byte
	reply   []byte
}

// newExchange returns an exchange of n requests of the given kind. The length of the
// reply must be the same each time.
func newExchange(b *testing.B, c *rawclient.Client, n int, op proto.OpCode, body proto.Record) *exchange {
	f := must(c.Call(op, body, nil))(b)
	return &exchange{c.Conn, bytes.Repeat(rawclient.Request(nil, 1, op, body), n), make([]byte, n*(4+16+len(f.Body)))}
}

func (x *exchange) do() error {
	_, err := x.nc.Write(x.request)
	if err == nil {
		_, err = io.ReadFull(x.nc, x.reply)
	}
	return err
}

// BenchmarkRequests measures a request by 64 clients with 16 outstanding requests each,
// and by a single client that waits for each reply. Nothing is stored.
func BenchmarkRequests(b *testing.B) {
	const data = "/data"
	value := make([]byte, 128)
	for _, kind := range []struct {
		name string
		op   proto.OpCode
		body proto.Record
	}{
		{"create", proto.OpCreate, &proto.CreateRequest{Path: "/b/n-", Data: value, ACL: proto.OpenACL, Flags: proto.FlagSequential}},
		{"set", proto.OpSetData, &proto.SetDataRequest{Path: data, Data: value, Version: proto.AnyVersion}},
		{"get", proto.OpGetData, &proto.PathWatch{Path: data}},
		{"ping", proto.OpPing, nil},
	} {
		for _, many := range []struct{ clients, outstanding int }{{64, 16}, {1, 1}} {
			b.Run(fmt.Sprintf("%s/%dx%d", kind.name, many.clients, many.outstanding), func(b *testing.B) {
				dial := open(b, server.Config{}).listen(b)
				first := connect(b, dial)
				must(first.Create("/b", nil, 0))(b)
				must(first.Create(data, value, 0))(b)
				var clients []*exchange
				for range many.clients {
					clients = append(clients, newExchange(b, connect(b, dial), many.outstanding, kind.op, kind.body))
				}
				b.ReportAllocs()
				b.ResetTimer()
				var all sync.WaitGroup
				for _, x := range clients {
					all.Go(func() {
						for n := 0; n < b.N; n += many.clients * many.outstanding {
							if err := x.do(); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				all.Wait()
			})
		}
	}
}

// BenchmarkSession measures opening a connection with a session and closing both, by 32
// clients at once.
func BenchmarkSession(b *testing.B) {
	dial := open(b, server.Config{}).listen(b)
	b.ReportAllocs()
	b.SetParallelism(16) // with two processors
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			nc, err := dial()
			if err != nil {
				b.Error(err)
				return
			}
			c, err := rawclient.Open(nc, 10*time.Second)
			if err == nil {
				_, err = c.Call(proto.OpCloseSession, nil, nil)
			}
			if err != nil {
				b.Error(err)
			}
			nc.Close()
		}
	})
}

// BenchmarkFanOut measures a change of a znode that 1000 clients watch, until the last
// one has its event.
func BenchmarkFanOut(b *testing.B) {
	dial := open(b, server.Config{}).listen(b)
	writer := connect(b, dial)
	must(writer.Create("/watched", nil, 0))(b)
	var clients []*exchange
	for range 1000 {
		c := connect(b, dial)
		clients = append(clients, newExchange(b, c, 1, proto.OpGetData, &proto.PathWatch{Path: "/watched", Watch: true}))
	}
	event := 4 + 16 + 4 + 4 + 4 + len("/watched")
	b.ReportAllocs()
	for b.Loop() {
		check(b, writer.Conn.SetDeadline(time.Time{}))
		must(writer.Set("/watched", nil))(b)
		for _, x := range clients {
			must(io.ReadFull(x.nc, x.reply[:event]))(b)
		}
		b.StopTimer()
		for _, x := range clients {
			check(b, x.do())
		}
		b.StartTimer()
	}
}

// BenchmarkIdleSession measures the memory of a session whose client is idle. It
// includes a few hundred bytes for the client's end of the connection.
func BenchmarkIdleSession(b *testing.B) {
	const n = 2000
	memory := func() int64 {
		runtime.GC()
		runtime.GC() // also collects what is left in pools
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc + m.StackInuse)
	}
	for b.Loop() {
		dial := open(b, server.Config{Limits: server.Limits{MaxSessionTimeout: time.Hour}}).listen(b)
		before := memory()
		var ends []net.Conn
		for range n {
			nc := must(dial())(b)
			must(rawclient.Open(nc, time.Hour))(b)
			ends = append(ends, nc)
		}
		b.ReportMetric(float64(memory()-before)/n, "B/session")
		for _, nc := range ends {
			nc.Close()
		}
	}
}
