package admin

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper"
)

// memberState is what the page shows of a member.
type memberState struct {
	ID     uint64 `json:"id"`
	Addr   string `json:"addr"` // of the peer port
	Self   bool   `json:"self"`
	Role   string `json:"role"` // "" if it has not answered
	Term   uint64 `json:"term"`
	Behind *int64 `json:"behind"` // log entries that another member has applied and it has not; nil if unknown
	Note   string `json:"note"`   // why something is unknown, or which other cluster it belongs to
	Dead   bool   `json:"dead"`   // it was asked, and did not answer
	// Differs is the log entry at which its state was first seen to differ from the leader's;
	// 0 if nobody has said that it does.
	Differs uint64 `json:"differs"`
}

// peers asks the other members for their status. It does not block: the console shows what
// they have said last.
type peers struct {
	server *lockkeeper.Server
	asked  time.Time
	asking sync.WaitGroup

	mu      sync.Mutex
	busy    bool
	answers map[uint64]answer
	index   uint64 // what this server had applied when it asked
}

// answer is what a member has said, or why it has not.
type answer struct {
	lockkeeper.MemberStatus
	err error
}

// Times of peers.
const (
	askInterval = time.Second
	askTimeout  = time.Second
)

// errSilent is the error of a member that has not answered in time.
var errSilent = errors.New("it does not answer")

// brief shortens a text of another member, which a damaged one could make as long as it likes.
func brief(text string) string {
	const most = 200 // bytes
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// begin forgets what the members have said, perhaps long ago.
func (p *peers) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answers, p.asked = nil, time.Time{}
}

// end waits until nothing is being asked. Each question ends after askTimeout, or with the
// context of states.
func (p *peers) end() { p.asking.Wait() }

// states returns the members as they were when they were asked last, and asks again.
func (p *peers) states(ctx context.Context, st *lockkeeper.Status) []memberState {
	p.ask(ctx, st)
	p.mu.Lock()
	defer p.mu.Unlock()
	newest, differ := p.index, st.Cluster.Differs
	for _, a := range p.answers {
		if a.Cluster == st.Cluster.ID {
			newest = max(newest, a.Index)
			differ = append(slices.Clip(differ), a.Differs...)
		}
	}
	all := []memberState{}
	for _, m := range st.Cluster.Members {
		x := memberState{ID: m.ID, Addr: m.Addr, Self: m.ID == st.ID, Differs: differsAt(differ, m.ID)}
		a, told := p.answers[m.ID]
		if x.Self {
			a, told = answer{MemberStatus: lockkeeper.MemberStatus{Role: st.Role, Cluster: st.Cluster.ID, Term: st.State.Term, Index: st.State.Index}}, true
		}
		switch {
		case !told:
		case a.err != nil:
			x.Note, x.Dead = brief(strings.TrimPrefix(a.err.Error(), "lockkeeper: ")), true
		case a.Cluster == "":
			x.Note = "in no cluster yet"
		case a.Cluster != st.Cluster.ID:
			x.Note = "belongs to cluster " + a.Cluster
		default:
			behind := max(0, int64(newest-a.Index)) // this server has applied more since it asked
			x.Role, x.Term, x.Behind = brief(a.Role.String()), a.Term, &behind
		}
		all = append(all, x)
	}
	return all
}

// differsAt returns the log entry at which the state of a member was seen to differ; 0 if it
// is not among those that differ.
func differsAt(all []lockkeeper.Difference, id uint64) uint64 {
	for _, d := range all {
		if d.ID == id {
			return d.Index
		}
	}
	return 0
}

// ask asks the other members, unless they are being asked or have been just now.
func (p *peers) ask(ctx context.Context, st *lockkeeper.Status) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(st.Cluster.Members) == 0 || p.busy || time.Since(p.asked) < askInterval {
		return
	}
	p.busy, p.asked = true, time.Now()
	index := st.State.Index
	p.asking.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		answers := map[uint64]answer{}
		var mu sync.Mutex
		var wg sync.WaitGroup
		for _, m := range st.Cluster.Members {
			if m.ID == st.ID {
				continue
			}
			wg.Go(func() {
				s, err := p.server.MemberStatus(ctx, m.ID)
				if errors.Is(err, context.DeadlineExceeded) {
					err = errSilent
				}
				mu.Lock()
				answers[m.ID] = answer{s, err}
				mu.Unlock()
			})
		}
		wg.Wait()
		p.mu.Lock()
		p.answers, p.index, p.busy = answers, index, false
		p.mu.Unlock()
	})
}
