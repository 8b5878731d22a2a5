package lockkeeper_test

import (
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/rawclient"
	"github.com/lockkeeper/lockkeeper/proto"
)

// lines fails the test unless every line of text matches the pattern of its number.
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

// TestFourLetterWords compares the words' formats with what ZooKeeper answers,
// and their numbers with what was done.
func TestFourLetterWords(t *testing.T) {
	dir := t.TempDir()
	overBoth(t, lockkeeper.Config{DataDir: dir, MaxConnectionsPerAddress: 50, TickTime: 500 * time.Millisecond}, func(t *testing.T, s *lockkeeper.Server, dial dialer) {
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
		c, other := connect(t, dial), connect(t, dial)
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
			if s.Addr() == nil {
				address = `pipe`
			}
			return ` /` + address + `\[` + interest + `\]\(queued=0,recved=` + received + `,sent=` + sent + `\)\n`
		}
		// Create, three ephemerals, two reads, a ping and the handshake; the last one asks.
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
		// Two data watches of c's, a child watch of other's that its persistent
		// watch stands beside, in both tables.
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
		bad := connect(t, dial)
		if _, err := bad.Call(proto.OpAuth, &proto.AuthRequest{Scheme: "none"}, nil); err != proto.AuthFailed {
			t.Errorf("auth: %v", err)
		}
		if got := number(t, counts(t, word(t, dial, "mntr")), "auth_failed_count"); got != 1 {
			t.Errorf("auth_failed_count is %d", got)
		}

		port := "-1"
		if s.Addr() != nil {
			port = fmt.Sprint(s.Addr().(*net.TCPAddr).Port)
		}
		quoted := regexp.QuoteMeta(dir)
		lines(t, word(t, dial, "conf"), `clientPort=`+port+`\n`, `secureClientPort=-1\n`, `dataDir=`+quoted+`\n`, `dataDirSize=[1-9]\d*\n`, `dataLogDir=`+quoted+`\n`,
			`dataLogSize=[1-9]\d*\n`, `tickTime=500\n`, `maxClientCnxns=50\n`, `minSessionTimeout=1000\n`, `maxSessionTimeout=10000\n`,
			`clientPortListenBacklog=-1\n`, `serverId=1\n`, ``)

		if got := word(t, dial, "srst"); got != "Server stats reset.\n" {
			t.Errorf("srst: %q", got)
		}
		for line := range strings.Lines(word(t, dial, "srvr")) {
			if n, ok := strings.CutPrefix(line, "Sent: "); ok && n != "0\n" {
				t.Errorf("after srst: %s", line)
			}
		}
		// The end of a session shows.
		must(c.Call(proto.OpCloseSession, nil, nil))(t)
		closed(t, c)
		eventually(t, "the end in mntr", func() bool {
			now := counts(t, word(t, dial, "mntr"))
			// other's watches and handle remain; bad's session does too.
			return number(t, now, "ephemerals_count") == number(t, base, "ephemerals_count") && number(t, now, "watch_count") < 4 &&
				number(t, now, "global_sessions") == number(t, base, "global_sessions")+2
		})
		for _, nc := range []net.Conn{other.Conn, bad.Conn} {
			nc.Close()
		}
		other.Close()
	})
}

// TestConnectionWords: what the words tell of connections and of their watches.
func TestConnectionWords(t *testing.T) {
	dial := overTCP(open(t, lockkeeper.Config{DataDir: t.TempDir(), ClientAddr: "127.0.0.1:0"}))
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

// counts reads the answer to mntr.
func counts(t *testing.T, text string) map[string]string {
	t.Helper()
	m := map[string]string{}
	for i, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		key, value, ok := strings.Cut(line, "\t")
		key, prefixed := strings.CutPrefix(key, "zk_")
		if _, twice := m[key]; !ok || !prefixed || twice || i == 0 && key != "version" || i == 1 && key != "server_state" {
			t.Fatalf("mntr line %d is %q", i, line)
		}
		m[key] = value
	}
	return m
}

func number(t *testing.T, m map[string]string, key string) int {
	t.Helper()
	n, err := strconv.Atoi(m[key])
	if err != nil {
		t.Fatalf("%s is %q", key, m[key])
	}
	return n
}

// TestFourLetterWhitelist: what is not in the list is said so, and what is no
// word gets nothing. Nothing but the first four bytes matters.
func TestFourLetterWhitelist(t *testing.T) {
	all := []string{"ruok", "isro", "srvr", "stat", "mntr", "conf", "cons", "dirs", "envi", "wchs", "wchc", "wchp", "crst", "srst"}
	for _, allowed := range [][]string{nil, {"*"}, {"srvr"}, {"ruok", "mntr"}, {""}} {
		s := open(t, lockkeeper.Config{FourLetterWords: allowed, ClientAddr: "127.0.0.1:0"})
		for _, w := range all {
			refusal := w + " is not executed because it is not in the whitelist.\n"
			for _, behind := range []string{"", "\n", "\r\n and more"} {
				got := word(t, overTCP(s), w+behind)
				want := allowed == nil || slices.Contains(allowed, "*") || slices.Contains(allowed, w)
				if (got != refusal) != want {
					t.Errorf("%q with %q allowed: %q", w+behind, allowed, got)
				}
			}
		}
		for _, w := range []string{"zzzz", "RUOK", "quit"} {
			nc := must(overTCP(s)())(t)
			must(nc.Write([]byte(w)))(t)
			nc.SetReadDeadline(time.Now().Add(10 * time.Second))
			if n, err := nc.Read(make([]byte, 1)); n > 0 || os.IsTimeout(err) {
				t.Errorf("%q: %d bytes, %v", w, n, err)
			}
			nc.Close()
		}
	}
}
