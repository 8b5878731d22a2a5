package server_test

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/core/server"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient/rawtest"
	"github.com/lockkeeper/lockkeeper/proto"
)

// lines fails the test unless each line of text matches the pattern with the same index.
func lines(t *testing.T, text string, patterns ...string) {
	t.Helper()
	got := strings.SplitAfter(text, "\n")
	for i := range max(len(got), len(patterns)) {
		switch {
		case i >= len(got) || i >= len(patterns):
			t.Errorf("%d lines, not %d:\n%s", len(got), len(patterns), text)
			return
		case !regexp.MustCompile(`^(?:` + patterns[i] + `)$`).MatchString(got[i]):
			t.Errorf("line %d is %q, not %q", i, got[i], patterns[i])
		}
	}
}

const (
	versionLine = `Zookeeper version: 3\.\d+\.\d+\S*, built on \d{4}-\d\d-\d\d \d\d:\d\d UTC\n`
	latencyLine = `Latency min/avg/max: \d+/\d+\.\d{1,4}/\d+\n`
)

// TestFourLetterWords compares the format of the answers with ZooKeeper's, and their
// numbers with what the clients did.
func TestFourLetterWords(t *testing.T) {
	dir := t.TempDir()
	check(t, os.WriteFile(filepath.Join(dir, "log"), []byte("some data"), 0o600))
	overAll(t, server.Config{DataDir: dir, Tick: 500 * time.Millisecond, Limits: server.Limits{MaxConnsPerAddr: 50, MaxSessionTimeout: time.Hour}}, func(t *testing.T, p *port, dial rawtest.Dialer) {
		// settled asks until the connections of earlier words are forgotten.
		settled := func(w, says string) (text string) {
			t.Helper()
			eventually(t, w+" that says "+says, func() bool {
				text = word(t, dial, w)
				return strings.Contains(text, says)
			})
			return text
		}
		base := counts(t, settled("mntr", "num_alive_connections\t1\n"))
		c, other := connectFor(t, dial, time.Hour), connectFor(t, dial, time.Hour)
		root := "/" + strings.ReplaceAll(t.Name(), "/", "-")
		data := strings.Repeat("x", 1000)
		must(c.Create(root, []byte(data), 0))(t)
		for range 3 {
			must(c.Create(root+"/e", nil, proto.FlagEphemeralSeq))(t)
		}
		must(c.Get(root, true))(t)
		if _, err := c.Exists(root+"/none", true); err != proto.NoNode {
			t.Fatal(err)
		}
		must(other.Call(proto.OpGetChildren, &proto.PathWatch{Path: root, Watch: true}, nil))(t)
		must(other.Call(proto.OpAddWatch, &proto.PathType{Path: root, Type: 0}, nil))(t)
		last := must(c.Call(proto.OpPing, nil, nil))(t)

		if got := word(t, dial, "ruok"); got != "imok" {
			t.Errorf("ruok: %q", got)
		}
		if got := word(t, dial, "isro"); got != "rw" {
			t.Errorf("isro: %q", got)
		}
		zxid := fmt.Sprintf(`Zxid: 0x%x\n`, last.Zxid)
		m := counts(t, settled("mntr", "num_alive_connections\t3\n"))
		nodes := fmt.Sprintf(`Node count: %s\n`, m["znode_count"])
		tail := []string{latencyLine, `Received: \d+\n`, `Sent: \d+\n`, `Connections: 3\n`, `Outstanding: 0\n`, zxid, `Mode: standalone\n`, nodes, ``}
		lines(t, settled("srvr", "Connections: 3\n"), append([]string{versionLine}, tail...)...)

		client := func(interest, received, sent string) string {
			address := `127\.0\.0\.1:\d+`
			if p.plain == nil && p.secure == nil {
				address = `pipe`
			}
			return ` /` + address + `\[` + interest + `\]\(queued=0,recved=` + received + `,sent=` + sent + `\)\n`
		}
		// The first connection sent the handshake, a create, three ephemerals, two reads
		// and a ping; the last one sent the word.
		lines(t, settled("stat", "Connections: 3\n"), append([]string{versionLine, `Clients:\n`,
			client("1", "8", "8"), client("1", "3", "3"), client("0", "1", "0"), `\n`}, tail...)...)

		grown := func(key string) int { return number(t, m, key) - number(t, base, key) }
		for key, want := range map[string]int{
			"ephemerals_count": 3, "znode_count": 4, "global_sessions": 2, "num_alive_connections": 2,
			"approximate_data_size": len(root) + 1000 + 3*(len(root)+len("/e0000000000")),
		} {
			if got := grown(key); got != want {
				t.Errorf("%s grew by %d, not %d", key, got, want)
			}
		}
		// c has two data watches; other has a child watch and a persistent watch.
		if got := number(t, m, "watch_count"); got != 4 {
			t.Errorf("watch_count is %d", got)
		}
		for key, pattern := range map[string]string{
			"version": `3\.\d+\.\d+\S*, built on \d{4}-\d\d-\d\d \d\d:\d\d UTC`, "server_state": "standalone",
			"avg_latency": `\d+\.\d{1,4}`, "min_latency": `\d+`, "max_latency": `\d+`, "uptime": `\d+`,
			"outstanding_requests": "0", "local_sessions": "0", "auth_failed_count": "0",
			"last_client_response_size": `\d+`, "min_client_response_size": `\d+`, "max_client_response_size": `\d+`,
		} {
			if !regexp.MustCompile(`^(?:` + pattern + `)$`).MatchString(m[key]) {
				t.Errorf("%s is %q, not %s", key, m[key], pattern)
			}
		}
		if number(t, m, "packets_received") < 11 || number(t, m, "packets_sent") < 11 || number(t, m, "max_client_response_size") < 1000 {
			t.Errorf("packets and sizes: %v", m)
		}
		if _, err := os.Stat("/proc/self/fd"); err == nil {
			if open, limit := number(t, m, "open_file_descriptor_count"), number(t, m, "max_file_descriptor_count"); open < 3 || open > limit {
				t.Errorf("%d of %d files open", open, limit)
			}
		}
		bad := connectFor(t, dial, time.Hour)
		if _, err := bad.Call(proto.OpAuth, &proto.AuthRequest{Scheme: "none"}, nil); err != proto.AuthFailed {
			t.Errorf("auth: %v", err)
		}
		if got := number(t, counts(t, word(t, dial, "mntr")), "auth_failed_count"); got != 1 {
			t.Errorf("auth_failed_count is %d", got)
		}

		at := func(port int) *net.TCPAddr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port} }
		p.Announce(at(2181), nil)
		quoted := regexp.QuoteMeta(dir)
		lines(t, word(t, dial, "conf"), `clientPort=2181\n`, `secureClientPort=-1\n`, `dataDir=`+quoted+`\n`, `dataDirSize=[1-9]\d*\n`, `dataLogDir=`+quoted+`\n`,
			`dataLogSize=[1-9]\d*\n`, `tickTime=500\n`, `maxClientCnxns=50\n`, `minSessionTimeout=1000\n`, `maxSessionTimeout=3600000\n`,
			`clientPortListenBacklog=-1\n`, `serverId=7\n`, ``)
		p.Announce(nil, at(2281))
		lines(t, word(t, dial, "conf")[:len("clientPort=-1\nsecureClientPort=2281\n")], `clientPort=-1\n`, `secureClientPort=2281\n`, ``)

		if got := word(t, dial, "srst"); got != "Server stats reset.\n" {
			t.Errorf("srst: %q", got)
		}
		for line := range strings.Lines(word(t, dial, "srvr")) {
			if n, ok := strings.CutPrefix(line, "Sent: "); ok && n != "0\n" {
				t.Errorf("after srst: %s", line)
			}
		}
		// A session that ends is no longer counted.
		must(c.Call(proto.OpCloseSession, nil, nil))(t)
		closed(t, c)
		eventually(t, "the end in mntr", func() bool {
			now := counts(t, word(t, dial, "mntr"))
			// The sessions of other and bad, and other's watches, remain.
			return number(t, now, "ephemerals_count") == number(t, base, "ephemerals_count") && number(t, now, "watch_count") < 4 &&
				number(t, now, "global_sessions") == number(t, base, "global_sessions")+2
		})
		for _, nc := range []net.Conn{other.Conn, bad.Conn} {
			nc.Close()
		}
		other.Close()
	})
}

// TestConnectionWords: the words show connections and their watches.
func TestConnectionWords(t *testing.T) {
	dir := t.TempDir()
	check(t, os.WriteFile(filepath.Join(dir, "log"), []byte("some data"), 0o600))
	dial := open(t, server.Config{DataDir: dir}).listen(t)
	c, other := connect(t, dial), connect(t, dial)
	must(c.Create("/cons", nil, 0))(t)
	must(c.Get("/cons", true))(t)
	must(c.Call(proto.OpGetChildren, &proto.PathWatch{Path: "/", Watch: true}, nil))(t)
	must(c.Call(proto.OpGetChildren, &proto.PathWatch{Path: "/cons", Watch: true}, nil))(t)
	last := must(other.Call(proto.OpGetData, &proto.PathWatch{Path: "/cons", Watch: true}, nil))(t)

	const address = `127\.0\.0\.1:\d+`
	client := func(c *rawclient.Client, n, lop string, cxid int32) string {
		return fmt.Sprintf(` /%s\[1\]\(queued=0,recved=%s,sent=%s,sid=0x%x,lop=%s,est=\d{13},to=\d+,lcxid=0x%x,lzxid=0x%x,lresp=\d+,llat=\d+,minlat=\d+,avglat=\d+,maxlat=\d+\)\n`,
			address, n, n, uint64(c.Session.SessionID), lop, cxid, last.Zxid)
	}
	lines(t, word(t, dial, "cons"), client(c, "5", "GETC", last.Xid+3), client(other, "2", "GETD", last.Xid),
		` /`+address+`\[0\]\(queued=0,recved=1,sent=0\)\n`, `\n`, ``)

	mine, others := fmt.Sprintf("0x%x\n", uint64(c.Session.SessionID)), fmt.Sprintf("0x%x\n", uint64(other.Session.SessionID))
	lists := []string{mine + "\t/\n\t/cons\n", others + "\t/cons\n"}
	slices.Sort(lists)
	for w, want := range map[string]string{
		"wchs": "2 connections watching 2 paths\nTotal watches:4\n",
		"wchc": strings.Join(lists, "") + "\n",
	} {
		if got := word(t, dial, w); got != want {
			t.Errorf("%s: %q, not %q", w, got, want)
		}
	}
	both := []string{"\t" + mine, "\t" + others}
	slices.Sort(both)
	if got, want := word(t, dial, "wchp"), "/\n\t"+mine+"/cons\n"+strings.Join(both, "")+"\n"; got != want {
		t.Errorf("wchp: %q, not %q", got, want)
	}

	lines(t, word(t, dial, "dirs"), `datadir_size: [1-9]\d*\n`, `logdir_size: [1-9]\d*\n`, ``)
	if got := word(t, dial, "envi"); !regexp.MustCompile(`^Environment:\nzookeeper\.version=3\.\d+\.\d+\S*, built on \d{4}-\d\d-\d\d \d\d:\d\d UTC\n(?:[a-z.]+=.*\n)+$`).MatchString(got) {
		t.Errorf("envi: %q", got)
	}
	if got := word(t, dial, "crst"); got != "Connection stats reset.\n" {
		t.Errorf("crst: %q", got)
	}
	if got := word(t, dial, "cons"); !strings.Contains(got, fmt.Sprintf("recved=0,sent=0,sid=0x%x,lop=NA,", uint64(c.Session.SessionID))) {
		t.Errorf("cons after crst: %q", got)
	}
}

// TestDump: dump shows when sessions and connections expire, and the ephemerals of each
// session.
func TestDump(t *testing.T) {
	dial := open(t, server.Config{Tick: 2 * time.Second, Limits: server.Limits{MaxSessionTimeout: time.Hour}}).listen(t)
	start := time.Now()
	empty := "SessionTracker dump:\nSession Sets (0)/(0):\nephemeral nodes dump:\nSessions with Ephemerals (0):\nConnections dump:\nConnections Sets (1)/(1):\n1 expire at "
	if got := word(t, dial, "dump"); !strings.HasPrefix(got, empty) || !strings.HasSuffix(got, " sessionId: 0x0\n") || strings.Count(got, "\n") != 8 {
		t.Errorf("of an empty server: %q", got)
	}
	long, short, gone := connectFor(t, dial, 20*time.Minute), connectFor(t, dial, 10*time.Minute), connectFor(t, dial, 10*time.Minute)
	must(long.Create("/b", nil, proto.FlagEphemeral))(t)
	must(long.Create("/a", nil, proto.FlagEphemeral))(t)
	must(gone.Create("/c", nil, proto.FlagEphemeral))(t)
	gone.Close()
	id := func(c *rawclient.Client) string { return fmt.Sprintf("0x%x", uint64(c.Session.SessionID)) }
	var text string
	eventually(t, "the end of a connection", func() bool {
		text = word(t, dial, "dump")
		_, conns, _ := strings.Cut(text, "Connections Sets ") // the connection of an earlier word may still be open
		return strings.Contains(conns, ")/(3):\n") && !strings.Contains(conns, "sessionId: "+id(gone))
	})

	sessions, rest, ok1 := strings.Cut(text, "ephemeral nodes dump:\n")
	ephemerals, conns, ok2 := strings.Cut(rest, "Connections dump:\n")
	if !ok1 || !ok2 {
		t.Fatal(text)
	}
	lists := map[string]string{id(long): "\t/b\n\t/a\n", id(gone): "\t/c\n"} // in the order of their creation
	want := "Sessions with Ephemerals (2):\n"
	for _, c := range slices.SortedFunc(slices.Values([]*rawclient.Client{long, gone}), func(a, b *rawclient.Client) int { return cmp.Compare(a.Session.SessionID, b.Session.SessionID) }) {
		want += id(c) + ":\n" + lists[id(c)]
	}
	if ephemerals != want {
		t.Errorf("ephemerals %q, should be %q", ephemerals, want)
	}

	// ends parses sets of sessions or connections and returns when each of them expires.
	ends := func(set, head string) map[string]time.Time {
		t.Helper()
		at, left, last := map[string]time.Time{}, 0, time.Time{}
		lines := strings.Split(strings.TrimSuffix(set, "\n"), "\n")
		if want := fmt.Sprintf(head, strings.Count(set, " expire at ")); lines[0] != want {
			t.Errorf("%q is not %q", lines[0], want)
		}
		for _, line := range lines[1:] {
			if item, ok := strings.CutPrefix(line, "\t"); ok && left > 0 {
				at[item[strings.LastIndex(item, " ")+1:]] = last
				left--
				continue
			}
			before := last
			n, date, ok := strings.Cut(line, " expire at ")
			var err error
			if left, err = strconv.Atoi(n); !ok || err != nil || left < 1 {
				t.Fatalf("%q in\n%s", line, set)
			}
			if last, err = time.ParseInLocation("Mon Jan 02 15:04:05 MST 2006:", date, time.Local); err != nil { // a zone without a name
				last, err = time.ParseInLocation("Mon Jan 02 15:04:05 -0700 2006:", date, time.Local)
			}
			if err != nil || !last.After(before) {
				t.Fatalf("%q: %v", line, err)
			}
		}
		return at
	}
	ofSessions := ends(strings.TrimPrefix(sessions, "SessionTracker dump:\n"), "Session Sets (%d)/(3):")
	ofConns := ends(conns, "Connections Sets (%d)/(3):")
	for _, x := range []struct {
		what  string
		end   time.Time
		lasts time.Duration
	}{
		{"long", ofSessions[id(long)], 20 * time.Minute},
		{"its connection", ofConns[id(long)], 20 * time.Minute},
		{"short", ofSessions[id(short)], 10 * time.Minute},
		{"its connection", ofConns[id(short)], 10 * time.Minute},
		{"a session without a connection", ofSessions[id(gone)], 10 * time.Minute},
		{"the connection that asks", ofConns["0x0"], 10 * time.Second},
	} {
		// The last request came between start and now; deadlines are rounded up to a
		// tick, and shown in seconds.
		if least, most := start.Add(x.lasts-time.Second), time.Now().Add(x.lasts+2*time.Second); x.end.Before(least) || x.end.After(most) {
			t.Errorf("%s ends at %v, not between %v and %v", x.what, x.end, least, most)
		}
	}
}

// TestTraceMask: stmk reads eight more bytes, and gtmk shows their value.
func TestTraceMask(t *testing.T) {
	overAll(t, server.Config{}, func(t *testing.T, _ *port, dial rawtest.Dialer) {
		if got := word(t, dial, "gtmk"); got != "306" {
			t.Errorf("gtmk: %q", got)
		}
		for _, mask := range []int64{500, -3, 0, math.MinInt64} {
			set := "stmk" + string(binary.BigEndian.AppendUint64(nil, uint64(mask)))
			want := fmt.Sprint(mask)
			if got := word(t, dial, set); got != want {
				t.Errorf("stmk of %d: %q", mask, got)
			}
			if got := word(t, dial, "gtmk"); got != want {
				t.Errorf("gtmk after %d: %q", mask, got)
			}
		}
	})
}

// TestCounters: mntr counts connections, sessions, requests and bytes.
func TestCounters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dial := open(t, server.Config{Tick: time.Second, Limits: server.Limits{MaxConns: 3}}).dial
		ask := func(w string) string {
			text := word(t, dial, w)
			synctest.Wait()
			return text
		}
		c := connectFor(t, dial, 4*time.Second)
		// With its length prefix each request has a header of 12 bytes, and each
		// reply, without, of 16; a Stat has 68.
		must(c.Create("/a", nil, 0))(t)   // 12 + 41, answered with 16 + 6
		must(c.Get("/a", true))(t)        // 12 + 7, 16 + 4 + 68
		must(c.Set("/a", []byte("x")))(t) // 12 + 15, 16 + 68; and an event of 16 + 14
		again := must(rawclient.Resume(must(dial())(t), c.Session))(t)
		silent := must(dial())(t)
		synctest.Wait()
		other := connect(t, dial) // c's connection is gone
		refused := must(dial())(t)
		if _, err := refused.Read(make([]byte, 1)); err == nil {
			t.Error("a connection too many is served")
		}
		synctest.Wait()
		again.Close()
		other.Close()
		time.Sleep(time.Minute) // the sessions and the silent connection expire
		synctest.Wait()
		m := counts(t, ask("mntr"))
		for key, want := range map[string]int{
			"connection_request_count": 3, "connection_revalidate_count": 1, "connection_rejected": 1, "connection_drop_count": 4,
			"sessionless_connections_expired": 1, "stale_sessions_expired": 2, "cnxn_closed_without_zk_server_running": 0,
			"watch_bytes": 30, "response_bytes": 22 + 88 + 84, "bytes_received_count": 3*49 + 53 + 19 + 27 + 4,
			"non_mtls_local_conn_count": 6, "non_mtls_remote_conn_count": 0,
		} {
			if got := number(t, m, key); got != want {
				t.Errorf("%s is %d, not %d", key, got, want)
			}
		}
		silent.Close()
		ask("srst")
		m = counts(t, ask("mntr"))
		for _, key := range []string{"connection_request_count", "stale_sessions_expired", "watch_bytes", "connection_rejected"} {
			if got := number(t, m, key); got != 0 {
				t.Errorf("%s is %d after srst", key, got)
			}
		}
	})
}

// TestFourLetterWhitelist: a word that is not in the list is answered with a message
// that says so, and something that is not a word is not answered. Only the first four
// bytes matter, and for stmk also the next eight. srvr is always allowed, as in
// ZooKeeper.
func TestFourLetterWhitelist(t *testing.T) {
	for _, allowed := range [][]string{{"*"}, {"srvr"}, {"ruok", "mntr"}, {""}} {
		dial := open(t, server.Config{FourLetterWords: allowed}).listen(t)
		for _, w := range rawtest.Words {
			refusal := w + " is not executed because it is not in the whitelist.\n"
			for _, behind := range []string{"", "\n", "\r\n and more"} {
				if w == "stmk" {
					behind = "\x00\x00\x00\x00\x00\x00\x012" + behind
				}
				got := word(t, dial, w+behind)
				want := w == "srvr" || slices.Contains(allowed, "*") || slices.Contains(allowed, w)
				if (got != refusal) != want {
					t.Errorf("%q with %q allowed: %q", w+behind, allowed, got)
				}
			}
		}
		for _, w := range []string{"zzzz", "RUOK", "quit"} {
			nc := must(dial())(t)
			must(nc.Write([]byte(w)))(t)
			nc.SetReadDeadline(time.Now().Add(time.Minute))
			if n, err := nc.Read(make([]byte, 1)); n > 0 || os.IsTimeout(err) {
				t.Errorf("%q: %d bytes, %v", w, n, err)
			}
			nc.Close()
		}
	}
}

// TestWordAndNewline: a four-letter word may have a newline behind it, as from echo and nc.
// The answer must arrive whole: if the server left the newline unread, TCP would reset the
// connection.
func TestWordAndNewline(t *testing.T) {
	overAll(t, server.Config{}, func(t *testing.T, _ *port, dial rawtest.Dialer) {
		for range 20 {
			c := must(dial())(t)
			c.SetDeadline(time.Now().Add(10 * time.Second))
			must(io.WriteString(c, "ruok\n"))(t)
			time.Sleep(time.Millisecond) // so that a reset would overtake the answer
			if got, err := io.ReadAll(c); string(got) != "imok" || err != nil {
				t.Fatalf("%q, %v", got, err)
			}
			c.Close()
		}
	})
}

// TestLastAnswerWithMore: a client whose handshake or authentication is refused gets that answer
// although it has sent more. A server that is closed does not wait for such a client.
func TestLastAnswerWithMore(t *testing.T) {
	var took time.Duration
	for range 5 { // a server that waits does so every time
		p := open(t, server.Config{})
		dial := p.listen(t)
		var nc net.Conn
		for range 20 {
			nc = must(dial())(t)
			q := rawclient.NewSession(4 * time.Second)
			q.SessionID = 77
			must(nc.Write(append(rawclient.Framed(q), make([]byte, 5000)...)))(t)
			time.Sleep(2 * time.Millisecond)
			reply, err := io.ReadAll(nc)
			if err != nil || len(reply) < 40 {
				t.Fatalf("%d bytes, %v", len(reply), err)
			}
		}
		defer nc.Close()
		began := time.Now()
		p.plain.Close()
		p.Close()
		p.Wait()
		if took = time.Since(began); took < time.Second {
			return
		}
	}
	t.Errorf("closing took %v", took)
}

// TestAddresses: clients see their addresses as ZooKeeper shows them.
func TestAddresses(t *testing.T) {
	p := open(t, server.Config{})
	var err error
	if p.plain, err = net.Listen("tcp", "[::1]:0"); err != nil {
		t.Skip("this machine has no IPv6 loopback: ", err)
	}
	go p.Serve(p.plain, nil)
	dial := func() (net.Conn, error) { return net.Dial("tcp", p.plain.Addr().String()) }
	c := rawtest.Connect(t, dial)
	var who proto.WhoAmIReply
	_, err = c.Call(proto.OpWhoAmI, nil, &who)
	check(t, err)
	if len(who.IDs) != 1 || who.IDs[0].ID != "0:0:0:0:0:0:0:1" {
		t.Errorf("whoAmI: %v", who)
	}
	for _, w := range []string{"cons", "stat"} {
		if text := word(t, dial, w); !strings.Contains(text, " /[0:0:0:0:0:0:0:1]:") {
			t.Errorf("%s: %s", w, text)
		}
	}
	// The ACL's own form of the address does not matter.
	_, err = c.Create("/mine", nil, 0)
	check(t, err)
	_, err = c.Call(proto.OpSetACL, &proto.SetACLRequest{Path: "/mine", ACL: []proto.ACL{{Perms: proto.PermRead, ID: proto.ID{Scheme: "ip", ID: "::1"}}}, Version: -1}, nil)
	check(t, err)
	_, err = c.Get("/mine", false)
	check(t, err)
}
