package admin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/core/locks"
	"github.com/lockkeeper/lockkeeper/internal/core/report"
)

// This file finds out which clients are connected to which member.

// clientsState has the clients of all members, one page of them.
type clientsState struct {
	Servers  []serverClients `json:"servers"` // those of which there is something on the page, by id
	List     []clientState   `json:"list"`    // in the order of their servers
	Total    int             `json:"total"`   // of all members that have told theirs
	Unknown  []uint64        `json:"unknown"` // ids of the other members
	Matching int             `json:"matching"`
	Page     int             `json:"page"` // from 1
	Pages    int             `json:"pages"`
}

// serverClients says how many clients a member has.
type serverClients struct {
	ID       uint64 `json:"id"`
	Self     bool   `json:"self"`
	Total    int    `json:"total"`    // -1 if it is not known
	Told     int    `json:"told"`     // how many of them are known here
	Matching int    `json:"matching"` // how many of these the filter finds
	Note     string `json:"note"`     // why they are not known; "" if they are, or if it is being asked for the first time
	Folded   bool   `json:"folded"`
}

// clientState is a connection of a client.
type clientState struct {
	Server   uint64 `json:"server"`
	Number   string `json:"number"`  // no other connection of the server has it
	Session  string `json:"session"` // "" if it has none yet
	Addr     string `json:"addr"`
	Since    int64  `json:"since"`
	Requests int64  `json:"requests"`
	Op       string `json:"op"` // of the request that was answered last; "" if there was none
	OpAt     int64  `json:"opAt"`
}

// place is where the client of a session is connected.
type place struct {
	Addr string `json:"addr"` // "" if it is not known
	// Server is the member that it is connected to, or was last; 0 if that is not known.
	Server uint64 `json:"server"`
	Gone   bool   `json:"gone"` // it is connected to no member

	here bool // it is connected to this server
}

// told is what a member has said of its clients.
type told struct {
	list report.ClientList
	at   time.Time // when the answer came
	last int       // how many clients it had when it answered last; -1 if it never has
	find []string  // with which it was asked
	// owners are the servers of the sessions, as this server knew them when it asked.
	owners map[int64]uint64
}

// Times of clients. A list of clients is longer than a status, so the members are asked for it less often.
const (
	clientsInterval = 3 * time.Second
	clientsTimeout  = 2 * time.Second
)

// askClients asks the other members for their clients, and returns all members by their ids with what they said last. If one
// could not tell all of its clients, new texts to find are asked for sooner.
func (v *survey) askClients(ctx context.Context, st *lockkeeper.Status, find []string) (all []member) {
	owners, before := v.owners, v.clients.said()
	last := func(id uint64) int {
		if a, ok := before[id]; ok {
			return a.said.last
		}
		return -1
	}
	interval := clientsInterval
	for _, a := range before {
		if a.err == nil && a.said.list.Total > len(a.said.list.Some) && !slices.Equal(find, a.said.find) {
			interval = askInterval
		}
	}
	v.clients.ask(ctx, st, interval, func(ctx context.Context, id uint64) (told, error) {
		list, err := v.askMember(ctx, id, find)
		t := told{list, time.Now(), list.Total, find, owners}
		if err != nil {
			t.last = last(id)
		}
		return t, err
	})
	own := v.report.Clients(find)
	all = []member{{id: st.ID, self: true, told: told{list: own, at: time.Now(), last: own.Total, owners: owners}}}
	for _, m := range st.Cluster.Members {
		if m.ID != st.ID {
			a := before[m.ID]
			a.said.last = last(m.ID)
			all = append(all, member{m.ID, false, a.said, a.err})
		}
	}
	slices.SortFunc(all, func(a, b member) int { return cmp.Compare(a.id, b.id) })
	return all
}

type member struct {
	id   uint64
	self bool
	told // at is zero if it has not been asked
	err  error
}

// knows reports whether all clients of the member are known.
func (m *member) knows() bool { return m.complete() && m.list.Total == len(m.list.Some) }

// complete reports whether the member has answered.
func (m *member) complete() bool { return !m.at.IsZero() && m.err == nil }

// locate sets where the clients of the sessions are connected. Those of this server are known already,
// all of them if whole is true. The map has the server of each session in the state; it is nil if
// those are not known.
func (c *scene) locate(whole bool, owners map[int64]uint64) {
	type connection struct {
		server uint64
		*report.Client
	}
	connected := map[int64]connection{}
	byID := map[uint64]*member{}
	for i := range c.members {
		m := &c.members[i]
		byID[m.id] = m
		if !m.complete() {
			continue
		}
		for i := range m.list.Some {
			x := connection{m.id, &m.list.Some[i]}
			// A client that has just moved may be in the lists of two members.
			if before, twice := connected[x.Session]; !twice || owners[x.Session] == m.id || owners[x.Session] != before.server && x.Age < before.Age {
				connected[x.Session] = x
			}
		}
	}
	self := c.state.Server.ID
	for id, s := range c.sessions {
		if s.here {
			s.Server = self
			continue
		}
		if x, ok := connected[id]; ok && (x.server != self || !whole) {
			s.Addr, s.Server, s.here = x.Addr, x.server, x.server == self
			continue
		}
		owner, ok := owners[id]
		m := byID[owner]
		switch {
		case !ok:
		case m == nil: // not a member any more
			s.Gone = true
		default:
			// It is connected nowhere if its server does not have it, although it was its server
			// already when that was asked.
			s.Server, s.Gone = owner, (m.knows() || m.self && whole) && m.owners[id] == owner
		}
	}
}

// listClients adds one page of clients, in groups by their servers.
func (c *scene) listClients(s *state, w *view) {
	l := clientsState{Servers: []serverClients{}, List: []clientState{}, Unknown: []uint64{}}
	// A row is the head of a group, or a client.
	type row struct {
		server *serverClients
		client *clientState
	}
	var rows []row
	for i := range c.members {
		m := &c.members[i]
		g := &serverClients{ID: m.id, Self: m.self, Total: m.last, Told: len(m.list.Some), Folded: strings.Contains(w.foldedServers, fmt.Sprintf("\x00%d\x00", m.id))}
		if m.err != nil {
			g.Note = brief(m.err.Error())
		}
		known := m.complete()
		if known {
			l.Total += m.last
		} else {
			l.Unknown, g.Told = append(l.Unknown, m.id), 0
		}
		whole := strings.HasPrefix("server "+strconv.FormatUint(m.id, 10), w.client)
		head := len(rows)
		rows = append(rows, row{server: g})
		if known {
			for i := range m.list.Some {
				x := &m.list.Some[i]
				if !whole && !x.Matches(w.client) {
					continue
				}
				if g.Matching++; !g.Folded {
					rows = append(rows, row{g, m.client(x)})
				}
			}
		}
		l.Matching += g.Matching
		if !whole && g.Matching == 0 && m.knows() {
			rows = rows[:head] // it has surely none
		}
	}
	l.Pages = max(1, (len(rows)+shownClients-1)/shownClients)
	l.Page = min(w.clientPage, l.Pages-1) + 1
	rows = rows[min((l.Page-1)*shownClients, len(rows)):]
	var last *serverClients
	for _, r := range rows[:min(shownClients, len(rows))] {
		if r.server != last {
			l.Servers = append(l.Servers, *r.server)
		}
		if last = r.server; r.client != nil {
			l.List = append(l.List, *r.client)
		}
	}
	s.Clients = l
}

func (m *member) client(x *report.Client) *clientState {
	ago := func(d time.Duration) int64 { return m.at.Add(-d).UnixMilli() }
	s := &clientState{Server: m.id, Number: strconv.FormatUint(x.Number, 10), Addr: x.Addr, Since: ago(x.Age), Requests: x.Requests, Op: x.Op}
	if x.Session != 0 {
		s.Session = locks.ID(x.Session)
	}
	if x.Op != "" {
		s.OpAt = ago(x.OpAge)
	}
	return s
}
