package request

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/core/peer"
	"github.com/lockkeeper/lockkeeper/internal/core/report"
	"github.com/lockkeeper/lockkeeper/internal/core/timing"
	"github.com/lockkeeper/lockkeeper/proto"
)

// Times of requests about the members.
const (
	AdminTimeout = 10 * time.Second // for one change
	AskTimeout   = 3 * AdminTimeout // how long Ask waits for a leader
	// The time between two attempts is AskSoon at first, and then twice as long each
	// time, up to AskAgain, or up to a second where a member waits for the cluster.
	AskSoon  = 2 * time.Millisecond
	AskAgain = 50 * time.Millisecond
)

// maxReply is how many bytes of a reply are read. A list of clients is the longest, with at most some
// 350 bytes each. Its commas tell how much memory a reply can fill when it is unpacked: a thousand clients have nine
// thousand.
const (
	maxReply  = 1 << 20
	maxCommas = 1 << 15
)

// Ask sends a request to the member whose peer port is at addr and, if that member
// does not lead, on to the leader. While there is no leader it retries, for up to half
// a minute, and then returns [ErrNoLeader]. It returns [ErrNoMember] if the request is about a
// server that is not a member, and [ErrUnknownOutcome], with the reason, if a change may have
// been made. A nil network means TCP.
func Ask(ctx context.Context, network peer.Network, addr string, q Request) (*Status, error) {
	r, err := ToLeader(ctx, Over(network), addr, q)
	return r.Status, err
}

// An Asker sends a request to the member at addr, as [Send] does.
type Asker func(ctx context.Context, addr string, q Request) (Reply, error)

// Over returns an Asker that connects over a network.
func Over(network peer.Network) Asker {
	return func(ctx context.Context, addr string, q Request) (Reply, error) { return Send(ctx, network, addr, q) }
}

// ToLeader does what [Ask] says.
func ToLeader(ctx context.Context, ask Asker, addr string, q Request) (Reply, error) {
	ctx, cancel := context.WithTimeout(ctx, AskTimeout)
	defer cancel()
	unsure := false
	var tlsErr error // why TLS with the leader fails
	// fails returns the error of a request that has failed.
	fails := func(err error) error {
		if unsure {
			return fmt.Errorf("%w: %w", ErrUnknownOutcome, err)
		}
		return err
	}
	for to, wait := addr, AskSoon; ; {
		r, err := ask(ctx, to, q)
		unsure = unsure || r.Unsure || q.Changes() && errors.As(err, new(Unsure))
		switch {
		case err != nil && (to == addr || !Unreachable(err)):
			return r, fails(err)
		case err == nil && r.Error == "":
			return r, nil
		case errors.As(err, new(*peer.TLSError)):
			tlsErr = err
		case err == nil && !r.NotLeader:
			return r, fails(&Refusal{r.Code, fmt.Sprintf("%s: %s", to, r.Error)})
		}
		if r.Leader != "" && r.Leader != to && to == addr {
			to = r.Leader
			continue
		}
		to = addr // the leader is not known yet, or has just changed: two members may each name the other
		select {
		case <-time.After(wait):
			wait = min(2*wait, AskAgain)
		case <-ctx.Done():
			if tlsErr != nil {
				return r, fails(fmt.Errorf("%s: %w: %w", addr, ErrNoLeader, tlsErr))
			}
			return r, fails(fmt.Errorf("%s: %w", addr, ErrNoLeader))
		}
	}
}

// Send sends a request to the member at addr and returns its reply. An error is an Unsure if the
// request may have reached that member. A nil network means TCP.
func Send(ctx context.Context, network peer.Network, addr string, q Request) (r Reply, err error) {
	dial, cancel := context.WithTimeout(ctx, timing.PeerTimeout)
	defer cancel()
	if network == nil {
		network = peer.TCP{}
	}
	nc, err := network.Dial(dial, addr)
	var c net.Conn
	if err == nil {
		c, err = peer.Greet(nc, addr, &peer.Hello{Kind: peer.KindAdmin}, nil)
	}
	if err != nil {
		if !Unreachable(err) || errors.As(err, new(*peer.TLSError)) { // the others already name the address
			err = fmt.Errorf("%s: %w", addr, err)
		}
		return r, err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	c.SetDeadline(time.Now().Add(2 * AdminTimeout))
	if err = json.NewEncoder(c).Encode(q); err == nil {
		r, err = readReply(c)
	}
	if err == nil {
		return r, nil
	}
	err = fmt.Errorf("%s: %w", addr, peer.ExplainTLS(err))
	if !errors.As(err, new(*peer.TLSError)) { // otherwise it has read nothing
		err = Unsure{err}
	}
	return Reply{}, err
}

func readReply(c net.Conn) (r Reply, err error) {
	reply := &io.LimitedReader{R: c, N: maxReply}
	var text json.RawMessage
	switch err = json.NewDecoder(bufio.NewReader(reply)).Decode(&text); {
	case err != nil && reply.N == 0:
		err = errors.New("its answer is too long")
	case err != nil:
	case bytes.Count(text, []byte(",")) > maxCommas:
		err = errors.New("its answer has too many parts")
	default:
		err = json.Unmarshal(text, &r)
	}
	return r, err
}

// AskStatus asks the member whose peer port is at addr for its status and, unless q is nil, for clients
// that are connected to it. Only this member is asked, and once. A nil network means TCP.
func AskStatus(ctx context.Context, network peer.Network, addr string, q *ClientQuery) (*Status, *report.ClientList, error) {
	r, err := Send(ctx, network, addr, Request{Status: true, Clients: q})
	switch {
	case err != nil:
		return nil, nil, err
	case r.Status == nil:
		return nil, nil, fmt.Errorf("%s: %s", addr, cmp.Or(r.Error, "it does not tell its status"))
	}
	return r.Status, Bounded(r.Clients), nil
}

// Unreachable reports whether err means that the connection failed.
func Unreachable(err error) bool { return errors.As(err, new(*net.OpError)) }

// StatusOf asks the server at x's address for its status. It fails if that server
// has another id.
func StatusOf(ctx context.Context, network peer.Network, x proto.Peer) (*Status, error) {
	s, _, err := AskStatus(ctx, network, x.Addr, nil)
	if err == nil && s.ID != x.ID {
		return nil, fmt.Errorf("%s is the address of server %d", x.Addr, s.ID)
	}
	return s, err
}

// Polled is what Poll has learned of a server.
type Polled struct {
	proto.Peer
	Status *Status
	Err    error
}

// Poll asks servers, all at once, as for their status.
func Poll(servers []proto.Peer, ask func(x proto.Peer) (*Status, error)) []Polled {
	answers := make([]Polled, len(servers))
	var asked sync.WaitGroup
	for i, x := range servers {
		asked.Go(func() {
			s, err := ask(x)
			answers[i] = Polled{x, s, err}
		})
	}
	asked.Wait()
	return answers
}
