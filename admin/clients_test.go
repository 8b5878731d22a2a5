package admin_test

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/internal/core/report"
	"github.com/lockkeeper/lockkeeper/internal/core/request"
	"github.com/lockkeeper/lockkeeper/internal/core/testhooks"
	"github.com/lockkeeper/lockkeeper/internal/testing/memnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient/rawtest"
)

// consoleClients is what the tests read of the clients in an event of the console.
type consoleClients struct {
	Servers []consoleServer
	List    []struct {
		Server                    uint64
		Number, Session, Addr, Op string
		Since, OpAt, Requests     int64
	}
	Total, Matching, Page, Pages int
	Unknown                      []uint64
}

type consoleServer struct {
	ID                    uint64
	Self, Folded          bool
	Total, Told, Matching int
	Note                  string
}

// from is a connection that comes from an address.
type from struct {
	net.Conn
	addr net.Addr
}

func (c from) RemoteAddr() net.Addr { return c.addr }

// clientAt is the address of client n of server id.
func clientAt(id uint64, n int) *net.TCPAddr {
	return &net.TCPAddr{IP: net.IPv4(10, byte(id), byte(n>>8), byte(n)), Port: 1000 + n}
}

// startCrowd is startMembers for clients whose sessions last, each with an address of its own.
func startCrowd(t *testing.T, n int) *members {
	t.Helper()
	return startMembers(t, n, func(c *lockkeeper.Config) {
		c.Limits.MaxSessionTimeout = 10 * time.Hour
		var count atomic.Int64
		id := c.ID
		testhooks.In(c).Tap = func(nc net.Conn) net.Conn { return from{nc, clientAt(id, int(count.Add(1)))} }
	})
}

// enter connects clients to a server.
func enter(t testing.TB, s *lockkeeper.Server, n int) (all []*rawclient.Client) {
	t.Helper()
	for range n {
		all = append(all, rawtest.ConnectFor(t, inMemory(s), 10*time.Hour))
	}
	return all
}

// knowsAll reports whether an event has the clients of all members.
func knowsAll(total int) func(s *consoleState) bool {
	return func(s *consoleState) bool {
		return s.Clients.Total == total && len(s.Clients.Unknown) == 0
	}
}

// TestConsoleClients: the console of each member shows the clients of all members, and says of each
// session where its client is connected. The commands show those of their own server only.
func TestConsoleClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := startCrowd(t, 3)
		at := map[string]uint64{} // sessions by their servers
		var all [3][]*rawclient.Client
		for i, s := range m.servers {
			all[i] = enter(t, s, i+1)
			for _, c := range all[i] {
				at[idOf(c)] = uint64(i + 1)
			}
		}
		holder, waiter := all[1][0], all[2][2]
		must(holder.Create("/l", nil, 0))(t)
		enqueue(t, holder, "/l")
		enqueue(t, waiter, "/l")
		time.Sleep(time.Minute)
		for i, s := range m.servers {
			h := admin.New(s, admin.Options{})
			b := browse(t, h)
			st := b.until("all clients", func(s *consoleState) bool { return knowsAll(6)(s) && s.Totals.Waiting == 1 })
			for j, x := range st.Clients.Servers {
				if x.ID != uint64(j+1) || x.Self != (j == i) || x.Total != j+1 || x.Told != j+1 || x.Matching != j+1 || x.Note != "" {
					t.Errorf("server %d shows of server %d: %+v", i+1, j+1, x)
				}
			}
			shown := map[string]uint64{}
			for _, c := range st.Clients.List {
				shown[c.Session] = c.Server
				age := st.Now - c.Since
				if !strings.HasPrefix(c.Addr, fmt.Sprintf("10.%d.0.", c.Server)) || c.Number == "" || age < 60_000 || age > 65_000+60_000*int64(i) {
					t.Errorf("server %d: %+v, %d ms old", i+1, c, age)
				}
				if c.Session == idOf(holder) && (c.Requests != 3 || c.Op != "CRE2" && c.Op != "CREA" || c.OpAt < c.Since || c.OpAt > st.Now) {
					t.Errorf("the holder: %+v", c)
				}
			}
			if len(shown) != 6 || len(st.Clients.List) != 6 {
				t.Errorf("server %d shows %+v", i+1, st.Clients.List)
			}
			for id, server := range at {
				if shown[id] != server {
					t.Errorf("server %d says that %s is connected to server %d, not %d", i+1, id, shown[id], server)
				}
			}
			for _, x := range st.Sessions {
				if x.Server != at[x.ID] || x.Gone || !strings.HasPrefix(x.Addr, fmt.Sprintf("10.%d.0.", x.Server)) {
					t.Errorf("server %d: session %+v is at server %d", i+1, x, at[x.ID])
				}
			}
			if l := st.Locks[0]; l.Holders[0].Server != 2 || !strings.HasPrefix(l.Holders[0].Addr, "10.2.") || l.Queue[0].Server != 3 || !strings.HasPrefix(l.Queue[0].Addr, "10.3.") {
				t.Errorf("server %d: %+v", i+1, l)
			}
			// Nobody but its own server knows that the one who waits watches nothing.
			late := st.Now + 5000
			st = b.until("five more seconds", func(s *consoleState) bool { return s.Now >= late })
			if n := map[bool]int{true: 1}[i == 2]; len(st.Problems) != n {
				t.Errorf("server %d: problems %+v", i+1, st.Problems)
			}
			if own := command(t, h, "connections")["connections"].([]any); len(own) != i+1 {
				t.Errorf("the command shows %d connections of server %d", len(own), i+1)
			}
			b.stop()
		}

		// What a browser may want of it.
		h := admin.New(m.servers[0], admin.Options{})
		b := browse(t, h)
		b.until("all clients", knowsAll(6))
		look := func(query string) consoleState {
			t.Helper()
			o := browseView(t, h, query)
			defer o.stop()
			st := o.next()
			if st.Clients.Total != 6 {
				t.Errorf("%s: %+v", query, st.Clients)
			}
			return st
		}
		for query, want := range map[string]string{
			"client=server+2": "2 2", "client=%20SERVER+3": "3 3 3", "client=serv": "1 2 2 3 3 3", "client=" + idOf(all[2][1]): "3", "client=10.2.0.": "2 2", "client=nothing": "", "client=2": "*",
			"foldServer=2": "1 3 3 3", "foldServer=1&foldServer=3": "2 2", "q=nothing": "1 2 2 3 3 3",
		} {
			st := look(query)
			var got []string
			for _, c := range st.Clients.List {
				got = append(got, fmt.Sprint(c.Server))
			}
			if list := strings.Join(got, " "); list != want && want != "*" {
				t.Errorf("%s: %s, not %s", query, list, want)
			}
			if fold := strings.HasPrefix(query, "fold"); fold && (len(st.Clients.Servers) != 3 || st.Clients.Servers[1].Folded != (query == "foldServer=2") || st.Clients.Servers[1].Matching != 2) {
				t.Errorf("%s: %+v", query, st.Clients.Servers)
			}
		}
		if st := look("client=nothing"); len(st.Clients.Servers) != 0 || st.Clients.Matching != 0 {
			t.Errorf("nothing is found in %+v", st.Clients)
		}
		for _, query := range []string{"client=" + strings.Repeat("x", 401), "foldServer=" + strings.Repeat("1", 5000)} {
			if status, _ := ask(h, "/console/events?"+query); status != 400 {
				t.Errorf("%.20s: %d", query, status)
			}
		}

		// The connection of a session ends, and another session moves.
		if !testhooks.Of(m.servers[1]).Disconnect(holder.Session.SessionID) {
			t.Fatal("it was not connected")
		}
		st := b.until("that a client is gone", func(s *consoleState) bool { return s.Clients.Total == 5 && s.Locks[0].Holders[0].Gone })
		if x := st.Locks[0].Holders[0]; x.Server != 2 || x.Addr != "" {
			t.Errorf("gone: %+v", x)
		}
		check(t, waiter.Close())
		moved := resume(t, m.servers[0], waiter)
		st = b.until("that a client has moved", func(s *consoleState) bool { return s.Locks[0].Queue[0].Server == 1 })
		if x := st.Locks[0].Queue[0]; x.Gone || !strings.HasPrefix(x.Addr, "10.1.") || x.Session != idOf(moved) {
			t.Errorf("moved: %+v", x)
		}
		b.stop()
	})
}

// resume connects the client of a session to another server.
func resume(t testing.TB, s *lockkeeper.Server, c *rawclient.Client) *rawclient.Client {
	t.Helper()
	nc := must(inMemory(s)())(t)
	t.Cleanup(func() { nc.Close() })
	other := must(rawclient.Resume(nc, c.Session))(t)
	return other
}

// TestConsoleSilentMembers: of a member that is dead, and of one that is frozen, the console shows why
// their clients are not known, and how many they were. The others' are shown meanwhile.
func TestConsoleSilentMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := startCrowd(t, 5)
		leader, _ := m.roles(t)
		var others []*lockkeeper.Server
		for i, s := range m.servers {
			enter(t, s, i+1)
			if s != leader {
				others = append(others, s)
			}
		}
		dead, frozen := others[0].Status().ID, others[1].Status().ID
		h := admin.New(leader, admin.Options{})
		b := browse(t, h)
		st := b.until("all clients", knowsAll(15))
		var at []string // sessions of the dead and of the frozen member
		for _, c := range st.Clients.List {
			if c.Server == dead || c.Server == frozen {
				at = append(at, c.Session)
			}
		}
		began := time.Now()
		m.net.Pause(host(int(frozen)-1), true)
		check(t, others[0].Close())
		st = b.until("that two do not answer", func(s *consoleState) bool { return len(s.Clients.Unknown) == 2 })
		if took := time.Since(began); took > 8*time.Second {
			t.Errorf("it took %v", took)
		}
		for _, x := range st.Clients.Servers {
			silent := x.ID == dead || x.ID == frozen
			if x.Total != int(x.ID) || (x.Note != "") != silent || silent != (x.Told == 0) {
				t.Errorf("%+v", x)
			}
			if x.ID == frozen && x.Note != "it does not answer" {
				t.Errorf("frozen: %q", x.Note)
			}
		}
		if want := 15 - int(dead+frozen); st.Clients.Total != want || len(st.Clients.List) != want {
			t.Errorf("%d clients in all, not %d: %+v", st.Clients.Total, want, st.Clients.List)
		}
		for _, x := range st.Sessions {
			if lost := slices.Contains(at, x.ID); lost != (x.Addr == "") || x.Gone || x.Server == 0 {
				t.Errorf("session %+v", x)
			}
		}
		// Whoever opens the console now does not get what the members said to somebody else.
		b.stop()
		b = browse(t, h)
		st = b.until("that two do not answer", func(s *consoleState) bool {
			return len(s.Clients.Unknown) == 2 && s.Clients.Servers[frozen-1].Note != ""
		})
		for _, x := range st.Clients.Servers {
			if silent := x.ID == dead || x.ID == frozen; silent != (x.Total < 0) {
				t.Errorf("%+v", x)
			}
		}
		m.net.Pause(host(int(frozen)-1), false)
		b.until("that one answers again", func(s *consoleState) bool {
			return slices.Equal(s.Clients.Unknown, []uint64{dead}) && s.Clients.Servers[frozen-1].Total >= 0
		})
		b.stop()
	})
}

// TestConsoleManyClients: of a member with more clients than one answer has, the console shows some,
// says so, and finds the others by its filter.
func TestConsoleManyClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many, most = 1003, 1000
		m := startCrowd(t, 3)
		all := enter(t, m.servers[1], many)
		last := all[many-1]
		must(last.Create("/l", nil, 0))(t)
		enqueue(t, last, "/l")
		h := admin.New(m.servers[0], admin.Options{})
		b := browse(t, h)
		st := b.until("all clients", func(s *consoleState) bool { return knowsAll(many)(s) && s.Totals.Locks == 1 })
		if x := st.Clients.Servers[1]; x.ID != 2 || x.Total != many || x.Told != most || st.Clients.Pages != 21 || len(st.Clients.List) != 48 {
			t.Errorf("%+v, %d pages, %d on the first", x, st.Clients.Pages, len(st.Clients.List))
		}
		if st.Clients.List[0].Session != idOf(all[0]) {
			t.Errorf("the oldest is not the first: %+v", st.Clients.List[0])
		}
		if x := st.Locks[0].Holders[0]; x.Server != 2 || x.Addr != "" || x.Gone {
			t.Errorf("the holder is not among those that were told: %+v", x)
		}
		for query, want := range map[string]string{
			"client=" + idOf(last):                                 idOf(last),
			"client=" + clientAt(2, many-1).String():               idOf(all[many-2]),
			"client=" + clientAt(2, 1).String():                    idOf(all[0]),
			"client=server+2&clientPage=20":                        idOf(all[949]),
			"clientPage=1000&client=" + clientAt(2, 7).IP.String(): "*",
		} {
			began := time.Now()
			o := browseView(t, h, query)
			st := o.until(query, func(s *consoleState) bool {
				return len(s.Clients.List) > 0 && (want == "*" || s.Clients.List[0].Session == want)
			})
			if took := time.Since(began); took > 2500*time.Millisecond { // the server is asked again after a second at the latest
				t.Errorf("%s: found after %v", query, took)
			}
			if n := len(must(json.Marshal(st.Clients))(t)); n > 20_000 {
				t.Errorf("%s: the clients have %d bytes", query, n)
			}
			if st.Clients.Total != many || st.Clients.Servers[0].Told != most {
				t.Errorf("%s: %+v", query, st.Clients.Servers)
			}
			o.stop()
		}
		b.stop()
		own := browse(t, admin.New(m.servers[1], admin.Options{}))
		if st := own.until("its own clients", func(s *consoleState) bool { return s.Clients.Total == many && s.Totals.Locks == 1 }); st.Locks[0].Holders[0].Addr == "" {
			t.Errorf("its own client: %+v", st.Locks[0])
		}
		own.stop()
	})
}

// falsePeer answers requests about the members in the place of a member.
type falsePeer struct {
	id, cluster uint64
	l           net.Listener
	wg          sync.WaitGroup
	questions   atomic.Int64 // for clients

	mu     sync.Mutex
	answer func(c net.Conn, q *request.Request)
	conns  []net.Conn
}

func startFalsePeer(t *testing.T, h memnet.Host, addr string, id, of uint64) *falsePeer {
	t.Helper()
	p := &falsePeer{id: id, cluster: of, l: must(h.Listen(addr))(t)}
	p.wg.Go(func() {
		for {
			c, err := p.l.Accept()
			if err != nil {
				return
			}
			p.mu.Lock()
			p.conns = append(p.conns, c)
			p.mu.Unlock()
			p.wg.Go(func() {
				defer c.Close()
				p.serve(c)
			})
		}
	})
	t.Cleanup(func() {
		p.l.Close()
		p.mu.Lock()
		for _, c := range p.conns {
			c.Close()
		}
		p.mu.Unlock()
		p.wg.Wait()
	})
	return p
}

// serve reads the greeting of a connection (see peer.Hello), welcomes it, and answers
// one request.
func (p *falsePeer) serve(c net.Conn) {
	r := bufio.NewReader(c)
	hello := make([]byte, 2+3*8+2)
	if _, err := io.ReadFull(r, hello); err != nil || hello[0] != 'A' {
		return
	}
	if _, err := r.Discard(int(binary.BigEndian.Uint16(hello[len(hello)-2:]))); err != nil {
		return
	}
	welcome := binary.BigEndian.AppendUint64([]byte{hello[1], 0}, p.cluster)
	if _, err := c.Write(binary.BigEndian.AppendUint64(welcome, p.id)); err != nil {
		return
	}
	line, err := r.ReadBytes('\n')
	var q request.Request
	if err != nil || json.Unmarshal(line, &q) != nil {
		return
	}
	if q.Clients != nil {
		p.questions.Add(1)
	}
	p.mu.Lock()
	answer := p.answer
	p.mu.Unlock()
	answer(c, &q)
}

func (p *falsePeer) set(answer func(c net.Conn, q *request.Request)) {
	p.mu.Lock()
	p.answer = answer
	p.mu.Unlock()
}

// TestConsoleFalseMember: what a member of an earlier version, a damaged or a hostile one answers does no
// harm: the console says what is wrong, shows the other members as ever, and sends no browser much.
func TestConsoleFalseMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := startCrowd(t, 3)
		leader, other := m.roles(t)
		enter(t, leader, 2)
		at := int(other.Status().ID) - 1
		var id request.ClusterID
		check(t, id.UnmarshalText([]byte(leader.Status().Cluster.ID)))
		check(t, other.Close())
		p := startFalsePeer(t, m.net.Host(host(at)), host(at)+":7000", uint64(at+1), uint64(id))
		stranger := must(m.net.Host("stranger").Listen("stranger:1"))(t)
		t.Cleanup(func() { stranger.Close() })
		led := make(chan struct{})
		go func() { // until the listener is closed
			if c, err := stranger.Accept(); err == nil {
				c.Close()
				close(led)
			}
		}()
		status := func() *request.Status {
			return &request.Status{ID: uint64(at + 1), Cluster: id, Formed: true, Role: "follower", About: request.About{Version: "0.0.9"}}
		}
		says := func(change func(r *request.Reply)) func(net.Conn, *request.Request) {
			return func(c net.Conn, q *request.Request) {
				r := request.Reply{Status: status()}
				if change(&r); !q.Status {
					r = request.Reply{Error: "an empty request"}
				}
				json.NewEncoder(c).Encode(r)
			}
		}
		text := func(s string) func(net.Conn, *request.Request) {
			return func(c net.Conn, q *request.Request) { io.WriteString(c, s) }
		}
		start := string(must(json.Marshal(status()))(t))
		var sent atomic.Int64
		h := admin.New(leader, admin.Options{})
		defer h.Close()
		for _, x := range []struct {
			name, note string
			answer     func(net.Conn, *request.Request)
		}{
			{"no clients", "it does not tell its clients", says(func(r *request.Reply) {})},
			{"an endless list", "too long", func(c net.Conn, q *request.Request) {
				io.WriteString(c, `{"status":`+start+`,"clients":{"total":5,"some":[{}`)
				part := strings.Repeat(`,{"number":7,"addr":"x"}`, 1000)
				for n := 0; ; n += len(part) {
					if _, err := io.WriteString(c, part); err != nil {
						sent.Store(max(sent.Load(), int64(n))) // a question that the end of the page interrupts gets nothing
						return
					}
				}
			}},
			{"an endless text", "too long", text(`{"error":"` + strings.Repeat("x", 3<<20))},
			{"nonsense", "invalid character", text("\x00\xffnonsense\n")},
			{"half an answer", "EOF", text(`{"status":` + start)},
			{"nothing", "EOF", text("")},
			{"other types", "cannot unmarshal", text(`{"status":` + start + `,"clients":{"total":"many"}}`)},
			{"a number that is too large", "cannot unmarshal", text(`{"status":` + start + `,"clients":{"total":1e300}}`)},
			{"a deep answer", "exceeded max depth", text(`{"x":` + strings.Repeat("[", 100_000))},
			{"silence", "it does not answer", func(c net.Conn, q *request.Request) { c.Read(make([]byte, 1)) }},
			{"a long error", "xxx", says(func(r *request.Reply) { *r = request.Reply{Error: strings.Repeat("x", 1_000_000)} })},
			{"another id", "is not the address of member", says(func(r *request.Reply) { r.Status.ID = 77 })},
			{"another cluster", "belongs to cluster", says(func(r *request.Reply) { r.Status.Cluster++ })},
			{"no cluster", "in no cluster yet", says(func(r *request.Reply) { r.Status.Cluster = 0 })},
			{"another leader", "not the leader", says(func(r *request.Reply) {
				*r = request.Reply{Error: "not the leader", NotLeader: true, Leader: "stranger:1"}
			})},
			{"lies", "", says(func(r *request.Reply) {
				r.Status.Role = strings.Repeat("r", 100_000)
				r.Clients = &report.ClientList{Total: -5}
				for i := range 3000 {
					r.Clients.Some = append(r.Clients.Some, report.Client{Number: uint64(i / 2), Session: int64(i), Addr: "\u202e<b>\x00", Age: -time.Hour, OpAge: -1, Op: "<i>", Requests: -1})
				}
				r.Clients.Some[0].Addr = strings.Repeat("a", 100_000)
			})},
		} {
			p.set(x.answer)
			b := browse(t, h)
			st := b.until(x.name, func(s *consoleState) bool {
				return !slices.ContainsFunc(s.Clients.Servers, func(x consoleServer) bool { return x.Note == "" && x.Total < 0 })
			})
			known := 2
			for _, s := range st.Clients.Servers {
				switch {
				case s.ID != uint64(at+1):
					if n := map[bool]int{true: 2}[s.Self]; s.Note != "" || s.Total != n || s.Told != n {
						t.Errorf("%s: another member: %+v", x.name, s)
					}
				case !strings.Contains(s.Note, x.note) || len(s.Note) > 250 || (x.note == "") != (s.Note == "") || x.note != "" && s.Total != -1:
					t.Errorf("%s: %+v", x.name, s)
				case x.note == "":
					if known += s.Total; s.Total != 500 || s.Told != 500 {
						t.Errorf("%s: %+v", x.name, s)
					}
				}
			}
			for _, c := range st.Clients.List {
				if len(c.Addr) > 100 || c.Since > st.Now || c.OpAt > st.Now || c.Requests < 0 {
					t.Errorf("%s: %+v", x.name, c)
				}
			}
			if st.Clients.Total != known || len(st.Sessions) != 2 {
				t.Errorf("%s: %d clients, sessions %+v", x.name, st.Clients.Total, st.Sessions)
			}
			if n := len(must(json.Marshal(st))(t)); n > 50_000 {
				t.Errorf("%s: an event of %d bytes", x.name, n)
			}
			b.stop()
		}
		synctest.Wait()
		if n := sent.Load(); n == 0 || n > 2<<20 {
			t.Errorf("%d bytes of an endless list were read", n)
		}
		select {
		case <-led:
			t.Error("a member can have this server ask somebody else")
		default:
		}

		// It is asked only while somebody looks, and not often.
		p.set(says(func(r *request.Reply) { r.Clients = &report.ClientList{} }))
		p.questions.Store(0)
		time.Sleep(time.Minute)
		if n := p.questions.Load(); n != 0 {
			t.Errorf("it was asked %d times although nobody looks", n)
		}
		b := browse(t, h)
		for began := time.Now(); time.Since(began) < time.Minute; {
			b.next()
		}
		b.stop()
		if n := p.questions.Load(); n < 10 || n > 22 {
			t.Errorf("it was asked %d times in a minute", n)
		}
	})
}

// TestConsoleStandaloneClients: a standalone server shows its own clients, and knows of each session whether its
// client is connected.
func TestConsoleStandaloneClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		testkit.NoGoroutineLeft(t)
		s := open(t, lockkeeper.Config{Limits: lockkeeper.Limits{MaxSessionTimeout: time.Hour}})
		all := enter(t, s, 2)
		must(all[0].Create("/l", nil, 0))(t)
		enqueue(t, all[0], "/l")
		h := admin.New(s, admin.Options{})
		b := browse(t, h)
		st := b.until("the clients", func(s *consoleState) bool { return s.Totals.Locks == 1 })
		if x := st.Clients; x.Total != 2 || len(x.Servers) != 1 || !x.Servers[0].Self || len(x.List) != 2 || len(x.Unknown) != 0 || st.Locks[0].Holders[0].Server != x.Servers[0].ID {
			t.Errorf("%+v", x)
		}
		check(t, all[0].Close())
		b.until("that a client is gone", func(s *consoleState) bool { return s.Clients.Total == 1 && s.Locks[0].Holders[0].Gone })
		b.stop()
	})
}
