package lockscan

import (
	"context"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/tools/connect"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
)

// Client is what a server reports about a session's connection.
type Client struct {
	Addr    string        // of the client
	Server  string        // that it is connected to
	Timeout time.Duration // of the session
}

// Words is what servers report in answer to the four-letter words that they allow.
type Words struct {
	Clients map[int64]Client         // by session, from cons
	Expiry  map[int64]time.Time      // when the session expires if it stays silent, from the leader's dump; in whole seconds
	Watches map[int64][]string       // paths by session, from wchp
	Total   int                      // number of watches, from wchs
	Refused map[string][]ServerError // by word, which servers did not answer it

	asked int  // how many servers were asked
	all   bool // they are all servers
}

// ServerError is why a server did not answer a word.
type ServerError struct {
	Server string
	Err    error
}

const wordPatience = 5 * time.Second

// Ask sends these words, of cons, dump, wchp and wchs, to the servers, once to each that may have
// several names in the list.
func Ask(ctx context.Context, dialer *connect.Dialer, servers []string, words ...string) *Words {
	w := &Words{Clients: map[int64]Client{}, Expiry: map[int64]time.Time{}, Watches: map[int64][]string{}, Refused: map[string][]ServerError{}}
	servers = distinct(ctx, servers)
	w.asked = len(servers)
	for _, word := range words {
		for _, server := range servers {
			text, err := fourLetters(ctx, dialer, server, word)
			if err != nil {
				w.Refused[word] = append(w.Refused[word], ServerError{server, err})
				continue
			}
			switch word {
			case "cons":
				w.cons(server, text)
			case "dump":
				w.dump(text)
			case "wchp":
				w.wchp(text)
			case "wchs":
				_, total, _ := strings.Cut(text, "Total watches:")
				n, _ := strconv.Atoi(strings.TrimSpace(total))
				w.Total += n
			}
		}
	}
	return w
}

// distinct returns the servers without those that have an address of an earlier one.
func distinct(ctx context.Context, servers []string) (some []string) {
	ctx, cancel := context.WithTimeout(ctx, wordPatience)
	defer cancel()
	seen := map[string]bool{}
	for _, server := range servers {
		addresses := []string{server}
		if host, port, err := net.SplitHostPort(server); err == nil {
			if found, err := net.DefaultResolver.LookupHost(ctx, host); err == nil {
				addresses = addresses[:0]
				for _, ip := range found {
					addresses = append(addresses, net.JoinHostPort(ip, port))
				}
			}
		}
		if !slices.ContainsFunc(addresses, func(a string) bool { return seen[a] }) {
			some = append(some, server)
		}
		for _, a := range addresses {
			seen[a] = true
		}
	}
	return some
}

// KnowMembers finds out whether all members were asked, from the content of the znode
// /zookeeper/config.
func (w *Words) KnowMembers(config string) {
	members := 0
	for line := range strings.Lines(config) {
		if strings.HasPrefix(line, "server.") {
			members++
		}
	}
	w.all = members <= w.asked
}

// Complete reports whether all servers have answered a word.
func (w *Words) Complete(word string) bool { return w.all && len(w.Refused[word]) == 0 }

func fourLetters(ctx context.Context, dialer *connect.Dialer, server, word string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, wordPatience)
	defer cancel()
	nc, err := dialer.DialContext(ctx, "tcp", server)
	if err != nil {
		return "", err
	}
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	defer stop()
	text, err := rawclient.Word(nc, word, wordPatience)
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case err != nil:
		return "", err
	case strings.HasPrefix(text, word+" is not executed"):
		return "", fmt.Errorf("the server does not allow %s (4lw.commands.whitelist)", word)
	case text == "" || strings.HasPrefix(text, "This ZooKeeper instance is not currently serving"):
		return "", fmt.Errorf("the server does not answer %s", word)
	}
	return text, nil
}

// consLine is a connection with a session in the answer to cons (ServerCnxn.dumpConnectionInfo).
var consLine = regexp.MustCompile(`^ /(\S+)\[\d+\]\(.*?\bsid=(0x[0-9a-f]+),.*?\bto=(\d+)`)

func (w *Words) cons(server, text string) {
	for line := range strings.Lines(text) {
		if m := consLine.FindStringSubmatch(line); m != nil {
			if id, ok := parseID(m[2]); ok {
				ms, _ := strconv.ParseInt(m[3], 10, 64)
				w.Clients[id] = Client{m[1], server, time.Duration(ms) * time.Millisecond}
			}
		}
	}
}

// dump reads when sessions expire. Only the leader, or a standalone server, knows
// (SessionTrackerImpl.dumpSessions). ZooKeeper writes the date without the fraction of a
// second, and the time zone as an abbreviation, so zones other than UTC and the local one
// are unknown.
func (w *Words) dump(text string) {
	var at time.Time
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(line, "ephemeral nodes dump"):
			return
		case strings.Contains(line, " expire at "):
			_, date, _ := strings.Cut(line, " expire at ")
			at = time.Time{}
			t, err := time.Parse("Mon Jan 02 15:04:05 MST 2006", strings.TrimSuffix(date, ":"))
			if zone, offset := t.Zone(); err == nil && (offset != 0 || zone == "UTC" || zone == "GMT" || t.Location() == time.Local) {
				at = t
			}
		case strings.HasPrefix(line, "\t") && !at.IsZero():
			if id, ok := parseID(strings.TrimSpace(line)); ok {
				w.Expiry[id] = at
			}
		}
	}
}

// wchp reads which sessions watch which paths. ZooKeeper leaves out those that watch the
// children of a znode.
func (w *Words) wchp(text string) {
	path := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if item, ok := strings.CutPrefix(line, "\t"); !ok {
			path = line
		} else if id, ok := parseID(item); ok {
			w.Watches[id] = append(w.Watches[id], path)
		}
	}
}

// Watched returns the paths that a session watches. known is false if the session's server
// did not answer, or if it is not known which server that is.
func (w *Words) Watched(session int64) (paths []string, known bool) {
	if w.Complete("wchp") {
		return w.Watches[session], true
	}
	c, connected := w.Clients[session]
	if !connected {
		return nil, false
	}
	for _, e := range w.Refused["wchp"] {
		if e.Server == c.Server {
			return nil, false
		}
	}
	return w.Watches[session], true
}

func parseID(text string) (int64, bool) {
	digits, ok := strings.CutPrefix(text, "0x")
	id, err := strconv.ParseUint(digits, 16, 64)
	return int64(id), ok && err == nil
}
