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

// poll asks the other members, all at the same time, and has what they said last. It does not block.
type poll[T any] struct {
	timeout time.Duration // of each question
	asked   time.Time
	asking  sync.WaitGroup

	mu      sync.Mutex
	busy    bool
	answers map[uint64]answer[T]
}

// answer is what a member has said, or why it has not.
type answer[T any] struct {
	said T
	err  error
}

// begin forgets what the members have said, perhaps long ago.
func (p *poll[T]) begin() { p.answers, p.asked = nil, time.Time{} }

// end waits until nothing is being asked. Each question ends after the timeout, or with the context of ask.
func (p *poll[T]) end() { p.asking.Wait() }

func (p *poll[T]) said() map[uint64]answer[T] {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.answers
}

// ask asks the other members, unless they are being asked or have been within the interval.
func (p *poll[T]) ask(ctx context.Context, st *lockkeeper.Status, interval time.Duration, question func(ctx context.Context, id uint64) (T, error)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(st.Cluster.Members) == 0 || p.busy || time.Since(p.asked) < interval {
		return
	}
	p.busy, p.asked = true, time.Now()
	p.asking.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, p.timeout)
		defer cancel()
		answers := map[uint64]answer[T]{}
		var mu sync.Mutex
		var wg sync.WaitGroup
		for _, m := range st.Cluster.Members {
			if m.ID == st.ID {
				continue
			}
			wg.Go(func() {
				said, err := question(ctx, m.ID)
				if errors.Is(err, context.DeadlineExceeded) {
					err = errSilent
				}
				mu.Lock()
				answers[m.ID] = answer[T]{said, err}
				mu.Unlock()
			})
		}
		wg.Wait()
		p.mu.Lock()
		p.answers, p.busy = answers, false
		p.mu.Unlock()
	})
}

// askInterval is the time between two questions for the status of the members.
const askInterval = time.Second

// errSilent is the error of a member that has not answered in time.
var errSilent = errors.New("it does not answer")

// brief says why a member has not answered. It shortens what another member has said, which a damaged one could make as long
// as it likes.
func brief(text string) string {
	const most = 200 // bytes
	if text = strings.TrimPrefix(text, "lockkeeper: "); len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

type peerStatus struct {
	lockkeeper.MemberStatus
	index uint64 // what this server had applied when it asked
}

// askPeers asks the other members for their status, and returns the members as they were when they were asked last.
func (v *survey) askPeers(ctx context.Context, st *lockkeeper.Status) []memberState {
	v.peers.ask(ctx, st, askInterval, func(ctx context.Context, id uint64) (peerStatus, error) {
		said, err := v.server.MemberStatus(ctx, id)
		return peerStatus{said, st.State.Index}, err
	})
	answers := v.peers.said()
	newest, differ := uint64(0), st.Cluster.Differs
	for _, a := range answers {
		newest = max(newest, a.said.index)
		if a.said.Cluster == st.Cluster.ID {
			newest = max(newest, a.said.Index)
			differ = append(slices.Clip(differ), a.said.Differs...)
		}
	}
	all := []memberState{}
	for _, m := range st.Cluster.Members {
		x := memberState{ID: m.ID, Addr: m.Addr, Self: m.ID == st.ID, Differs: differsAt(differ, m.ID)}
		a, told := answers[m.ID]
		said := a.said.MemberStatus
		if x.Self {
			said, told = lockkeeper.MemberStatus{Role: st.Role, Cluster: st.Cluster.ID, Term: st.State.Term, Index: st.State.Index}, true
		}
		switch {
		case !told:
		case a.err != nil:
			x.Note, x.Dead = brief(a.err.Error()), true
		case said.Cluster == "":
			x.Note = "in no cluster yet"
		case said.Cluster != st.Cluster.ID:
			x.Note = "belongs to cluster " + said.Cluster
		default:
			x.Role, x.Term = brief(said.Role.String()), said.Term
			x.Behind = new(max(0, int64(newest-said.Index))) // this server has applied more since it asked
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
