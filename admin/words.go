package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper"
)

// errNotServing is the error that ZooKeeper's commands report while the server does not
// serve clients.
var errNotServing = errors.New("This ZooKeeper instance is not currently serving requests") //lint:ignore ST1005 ZooKeeper's words

// errEmpty means that the server closed the connection without an answer.
var errEmpty = errors.New("it closed the connection")

// wordTimeout limits how long a word may take, so that a request does not wait forever for a
// server that is stuck.
const wordTimeout = 10 * time.Second

// words sends four-letter words to a server through memory, one at a time. While one is
// being answered, the server has exactly one connection more than it has clients.
type words struct {
	server *lockkeeper.Server
	turn   chan struct{} // holds an element while nothing is being asked
}

func newWords(s *lockkeeper.Server) *words {
	w := &words{s, make(chan struct{}, 1)}
	w.turn <- struct{}{}
	return w
}

// ask sends a word, followed by more, and returns the answer.
func (w *words) ask(ctx context.Context, word string, more ...byte) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, wordTimeout)
	defer cancel()
	select {
	case <-w.turn:
	case <-ctx.Done():
		return "", fmt.Errorf("the server does not answer: %w", ctx.Err())
	}
	defer func() { w.turn <- struct{}{} }()

	ours, theirs := net.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.server.ServeConn(forOperators{theirs})
	}()
	// When ServeConn has returned, the server has forgotten the connection.
	defer func() {
		ours.Close()
		<-ended
	}()
	stop := context.AfterFunc(ctx, func() { ours.Close() })
	defer stop()
	if _, err := ours.Write(append([]byte(word), more...)); err != nil {
		return "", w.unanswered(ctx, word, err)
	}
	text, err := io.ReadAll(ours)
	switch answer := string(text); {
	case err != nil:
		return "", w.unanswered(ctx, word, err)
	case answer == errNotServing.Error()+"\n":
		return "", errNotServing
	case answer == "":
		return "", w.unanswered(ctx, word, errEmpty)
	default:
		return answer, nil
	}
}

// forOperators is a connection over which the server answers every four-letter word, whatever
// its configuration allows to clients.
type forOperators struct{ net.Conn }

// ForOperators makes the server recognize the connection.
func (forOperators) ForOperators() {}

// unanswered returns the error for a word without an answer, which can mean that the server
// was closed or has as many connections as it may have.
func (w *words) unanswered(ctx context.Context, word string, err error) error {
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	now, cancel := context.WithCancel(context.Background())
	cancel()
	if fault := w.server.Wait(now); errors.Is(fault, lockkeeper.ErrClosed) {
		return errNotServing
	}
	return fmt.Errorf("the server does not answer the four-letter word %s: %w", word, err)
}

// The following functions take answers apart.

// lines returns the lines of text without their ends.
func lines(text string) []string {
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}

// pair is a key with its value, as text.
type pair struct{ key, value string }

// pairs splits every line of text that contains sep there.
func pairs(text, sep string) (all []pair) {
	for _, line := range lines(text) {
		if key, value, ok := strings.Cut(line, sep); ok {
			all = append(all, pair{key, value})
		}
	}
	return all
}

// byKey returns pairs as a map.
func byKey(all []pair) map[string]string {
	m := make(map[string]string, len(all))
	for _, p := range all {
		m[p.key] = p.value
	}
	return m
}

// monitor returns what the word mntr shows, without the prefixes and without the connection
// that asked.
func (w *words) monitor(ctx context.Context) ([]pair, error) {
	text, err := w.ask(ctx, "mntr")
	if err != nil {
		return nil, err
	}
	all := pairs(text, "\t")
	for i := range all {
		all[i].key = strings.TrimPrefix(all[i].key, "zk_")
		if n := 0; all[i].key == "num_alive_connections" {
			if _, err := fmt.Sscan(all[i].value, &n); err == nil {
				all[i].value = fmt.Sprint(n - 1)
			}
		}
	}
	return all, nil
}
