package cluster

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/proto"
)

// otherClusters is what a server without data that has a list of members knows of clusters
// other than the one that those in the list form. Its own may be one of them: all others in
// the list may have been removed from that, or their addresses may be another cluster's now.
// While that may be so it neither forms a cluster nor joins one that does not have it as a member.
// Without a Join it does not wait for calls of its own cluster, and forms another one if none has come before.
type otherClusters struct {
	*lifecycle
	cfg     *Config
	pulse   *pulse
	peers   *peerPort
	outside bool // the server at Join is not in the list

	mu       sync.Mutex
	began    int64     // since when others can call this server; this and called are running times
	caller   hello     // the last member of a cluster that has called this server as a member
	called   int64     // when it called last
	asking   bool      // a question to the server at Join is under way
	answered bool      // the server at Join has answered
	cut      error     // why TLS with it fails, if it did so last
	joined   ClusterID // the cluster that it belongs to, by its answers; 0 if to none
	left     int64     // since when each of its answers was that it is in no cluster, although joined is set; 0 if the last one was not
}

// Limits of what is waited for before a cluster is formed, or joined by a server that is no member.
const (
	// A server that does not answer for so long is taken for one that is not there, and one whose answers are for
	// so long that it is in no cluster for one that is in none. It may have lost its disk, and be about to be taken in again.
	joinPatience = 10 * time.Second
	// A member that has not called again for so long is taken for one that is gone, or does not take
	// this server for a member any more.
	callLasts = 10 * time.Second
)

func newOtherClusters(cfg *Config, p *pulse) *otherClusters {
	return &otherClusters{lifecycle: p.lifecycle, cfg: cfg, pulse: p, peers: p.peers}
}

// begin is called before others can call this server, which has this list.
func (x *otherClusters) begin(list []proto.Peer) {
	x.began = x.pulse.moment().ran
	x.outside = x.matter() && x.cfg.Join != x.cfg.addr() && !slices.ContainsFunc(list, func(y proto.Peer) bool { return y.Addr == x.cfg.Join })
}

// matter reports whether this server looks and waits for other clusters.
func (x *otherClusters) matter() bool { return x.cfg.Join != "" && !x.cfg.joins() }

// calledBy notes that a member of a cluster has called this server as a member of that.
func (x *otherClusters) calledBy(h *hello) {
	now := x.pulse.moment().ran
	x.mu.Lock()
	defer x.mu.Unlock()
	x.caller, x.called = *h, now
}

// look asks the server at Join which cluster it belongs to, unless it is in the list: those are asked
// anyway. It does not wait for the answer.
func (x *otherClusters) look() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.asking || !x.outside {
		return
	}
	x.asking = true
	x.wg.Go(func() {
		ctx, cancel := context.WithTimeout(x.peers.ctx, peerTimeout)
		defer cancel()
		r, err := ask(ctx, x.peers.network, x.cfg.Join, Request{Status: true})
		x.mu.Lock()
		defer x.mu.Unlock()
		x.asking, x.cut = false, nil
		if errors.As(err, new(*TLSError)) {
			x.cut = err
		}
		if err != nil || r.Status == nil {
			x.left = 0 // it may say something else by now
			return
		}
		x.answered = true
		switch now := x.pulse.moment().ran; {
		case r.Status.Formed:
			x.joined, x.left = r.Status.Cluster, 0
		case x.joined != 0 && x.left == 0:
			x.left = now
		case now-x.left >= joinPatience.Milliseconds():
			x.joined = 0
		}
	})
}

// none returns an error while this server may belong to another cluster than of, or while the server at Join does. of is 0
// for a cluster that is to be formed. own is the cluster that has this server as a member, as far as it
// knows. data is whether it has data, which then comes from a snapshot: such a server forms a new cluster although
// members of the earlier one may call it.
func (x *otherClusters) none(of, own ClusterID, data bool) error {
	now := x.pulse.moment().ran
	x.mu.Lock()
	defer x.mu.Unlock()
	switch since := time.Duration(now-x.began) * time.Millisecond; {
	case own != 0 && own != of:
		return refuse(proto.BadArguments, "cluster %v has this server as a member; if that cluster is gone for good, start this server again", own)
	case x.joined != 0 && x.joined != of:
		return refuse(proto.BadArguments, "the server at %s, which is to be joined, belongs to cluster %v, and no server in the list of members does; to join that cluster, start this server without the list; to form another one, start it without a server to join", x.cfg.Join, x.joined)
	case data:
	case x.caller.cluster != 0 && x.caller.cluster != of && now-x.called < callLasts.Milliseconds():
		return refuse(proto.BadArguments, "server %d at %s, a member of cluster %v, calls this server as a member of that cluster; to join it, start this server without the list of members, and with %s as the server to join; otherwise remove server %d from it", x.caller.from, x.caller.addr, x.caller.cluster, x.caller.addr, x.cfg.ID)
	case x.outside && !x.answered && since < joinPatience && x.cut != nil:
		return refuse(proto.OK, "the server at %v", x.cut)
	case x.outside && !x.answered && since < joinPatience:
		return refuse(proto.OK, "the server at %s, which is to be joined, does not answer yet", x.cfg.Join)
	case x.matter() && since < x.pulse.contacts.silence:
		return refuse(proto.OK, "waiting for calls from a cluster that has this server as a member")
	}
	return nil
}
