//go:build interop

package interop

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/proto"
)

const (
	streamRoot  = "/stream"
	streamCount = 3
)

// stream is a client that creates znodes on one connection after another, each to a
// random member.
type stream struct {
	number   int
	addrs    []string
	random   *rand.Rand
	shown    int64 // the highest zxid that the client has seen
	segments []*crashRound
	err      error
	stop     chan struct{}
	once     sync.Once
	done     chan struct{}
}

// startStreams starts some streams, which run until endStreams.
func startStreams(t *testing.T, addrs []string, random *rand.Rand) (streams []*stream) {
	t.Helper()
	conn := connect(t, addrs[0], 10*time.Second)
	create(t, conn, streamRoot)
	conn.Close()
	for i := range streamCount {
		s := &stream{number: i, addrs: addrs, random: rand.New(rand.NewPCG(random.Uint64(), 0)), stop: make(chan struct{}), done: make(chan struct{})}
		streams = append(streams, s)
		go s.run()
		t.Cleanup(s.end)
	}
	return streams
}

// endStreams stops the streams and checks every create on the server at addr.
func endStreams(t *testing.T, addr string, streams []*stream) (sent, acked, segments int) {
	t.Helper()
	all := &crash{t: t}
	for _, s := range streams {
		s.end()
		if s.err != nil {
			t.Fatalf("stream %d: %v", s.number, s.err)
		}
		all.rounds = append(all.rounds, s.segments...)
		all.show(s.shown)
	}
	conn := dialRawSoon(t, addr, 40*time.Second, all.shown)
	defer conn.Close()
	all.conn = conn
	for _, r := range all.rounds {
		all.verifyRound(r, true)
		for _, l := range r.lanes {
			sent, acked, segments = sent+l.sent, acked+len(l.acked), segments+1
		}
	}
	if acked == 0 {
		t.Error("no create was acknowledged")
	}
	return sent, acked, segments
}

func (s *stream) end() {
	s.once.Do(func() { close(s.stop) })
	<-s.done
}

func (s *stream) run() {
	defer close(s.done)
	for n := 0; s.err == nil; n++ {
		select {
		case <-s.stop:
			return
		case <-time.After(10 * time.Millisecond):
		}
		conn, err := dialRaw(s.addrs[s.random.IntN(len(s.addrs))], 10*time.Second, s.shown, proto.ConnectReply{})
		if err != nil {
			continue // the server is down, or behind what this client has seen
		}
		s.segment(conn, fmt.Sprintf("%s/%d-%d", streamRoot, s.number, n))
	}
}

// segment runs one connection of the stream.
func (s *stream) segment(conn *rawclient.Client, dir string) {
	watch := make(chan struct{})
	defer close(watch)
	go func() {
		select {
		case <-s.stop:
		case <-time.After(time.Duration(s.random.Int64N(int64(8 * time.Second)))):
		case <-watch:
		}
		conn.Close()
	}()
	reply, err := conn.Call(proto.OpCreate, &proto.CreateRequest{Path: dir, ACL: proto.OpenACL}, nil)
	if connectionEnded(err) {
		return // whether the directory exists is unknown; it is empty
	}
	if err != nil || reply.Zxid <= s.shown {
		s.err = fmt.Errorf("create %s: %v, zxid %#x after %#x", dir, err, reply.Zxid, s.shown)
		return
	}
	s.shown = reply.Zxid
	l := &lane{dir: dir, pause: 4 * time.Millisecond}
	s.segments = append(s.segments, &crashRound{number: len(s.segments), dir: dir, floor: s.shown, lanes: []*lane{l}})
	l.run(conn, 1+s.random.IntN(crashWindow))
	s.err = l.err
	for _, zxid := range l.acked {
		if zxid <= s.shown {
			s.err = fmt.Errorf("%s: zxid %#x after %#x", dir, zxid, s.shown)
		}
		s.shown = zxid
	}
}
