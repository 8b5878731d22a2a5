package conform

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/proto"
)

// Regular expressions for lines of the answers.
const (
	versionText = `\d+\.\d+\.\d+\S*, built on \d{4}-\d\d-\d\d \d\d:\d\d UTC`
	clientText  = `/\S+\[[0-9a-f]+\]\(queued=\d+,recved=\d+,sent=\d+`
	sessionText = `,sid=0x[0-9a-f]+,lop=[A-Z0-9]+,est=\d+,to=\d+,(lcxid=0x[0-9a-f]+,)?lzxid=0x[0-9a-f]+,lresp=\d+,llat=\d+,minlat=\d+,avglat=\d+,maxlat=\d+`
)

var srvrLines = []string{
	`Zookeeper version: ` + versionText,
	`Latency min/avg/max: \d+/\d+\.\d+/\d+`,
	`Received: \d+`,
	`Sent: \d+`,
	`Connections: \d+`,
	`Outstanding: \d+`,
	`Zxid: 0x[0-9a-f]+`,
	`Mode: (standalone|leader|follower|observer)`,
	`Node count: \d+`,
	`(Proposal sizes last/min/max: -?\d+/-?\d+/-?\d+)?`, // only a leader shows it
}

func matches(expr, line string) bool {
	return regexp.MustCompile(`^(?:` + expr + `)$`).MatchString(line)
}

// lines sends a word and returns the lines of its answer, which must end with a line
// feed.
func (t *trial) lines(word string) []string {
	answer := t.word(word)
	rest, ok := strings.CutSuffix(answer, "\n")
	t.ensure(ok, "the answer to %s ends without a line feed: %q", word, answer)
	return strings.Split(rest, "\n")
}

// form checks that the lines match the expressions, one by one. The line of an
// expression that matches the empty string may be missing.
func (t *trial) form(lines []string, exprs ...string) {
	for _, e := range exprs {
		switch {
		case len(lines) > 0 && matches(e, lines[0]):
			lines = lines[1:]
		case !matches(e, ""):
			t.failf("the line is %q, expected %q", slices.Concat(lines, []string{""})[0], e)
		}
	}
	t.equal("the lines left over", len(lines), 0)
}

func (t *trial) every(lines []string, exprs ...string) {
	for _, line := range lines {
		t.ensure(slices.ContainsFunc(exprs, func(e string) bool { return matches(e, line) }), "the line %q is unexpected", line)
	}
}

// number returns the number after a prefix, in the first line that has the prefix.
func (t *trial) number(lines []string, prefix string) int64 {
	for _, line := range lines {
		if s, ok := strings.CutPrefix(line, prefix); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(s), 0, 64)
			t.ensure(err == nil, "the line %q has no number", line)
			return n
		}
	}
	t.failf("no line begins with %q", prefix)
	return 0
}

// becomes waits until a number in a word's answer is want. Some numbers are a moment
// late: a connection that has ended may still be counted.
func (t *trial) becomes(word, prefix string, want int64) {
	var got int64
	t.eventually(0, fmt.Sprintf("%q in %s becomes %d", prefix, word, want), func() bool {
		got = t.number(t.lines(word), prefix)
		return got == want
	})
}

// settled waits until a number no longer changes, because the connections of earlier
// checks have ended, and returns it.
func (t *trial) settled(word, prefix string) (n int64) {
	same := 0
	t.eventually(0, fmt.Sprintf("%q in %s no longer changes", prefix, word), func() bool {
		was := n
		if n = t.number(t.lines(word), prefix); n != was {
			same = 0
		}
		same++
		return same > 3
	})
	return n
}

func (t *trial) cons(k *conn) string {
	for _, line := range t.lines("cons") {
		if strings.Contains(line, fmt.Sprintf(",sid=%#x,", uint64(k.Session.SessionID))) {
			return line
		}
	}
	t.failf("cons does not have the session %#x", uint64(k.Session.SessionID))
	return ""
}

func (k *conn) hex() string { return fmt.Sprintf("%#x", uint64(k.Session.SessionID)) }

// section returns the lines between two lines. If to is empty, it returns all lines after from.
func (t *trial) section(lines []string, from, to string) []string {
	fits := func(expr string) int { return slices.IndexFunc(lines, func(s string) bool { return matches(expr, s) }) }
	i := fits(from)
	t.ensure(i >= 0, "no line is %q", from)
	lines = lines[i+1:]
	if to != "" {
		i = fits(to)
		t.ensure(i >= 0, "no line is %q", to)
		lines = lines[:i]
	}
	return lines
}

var wordChecks = []Check{
	requires(Words, check("four-letter words/ruok", ">=3.0",
		"ruok is answered imok, without a line feed.",
		func(t *trial) { t.equal("the answer", t.word("ruok"), "imok") })),
	requires(Words, check("four-letter words/isro", ">=3.4",
		"isro is answered rw, without a line feed, by a server that accepts writes.",
		func(t *trial) { t.equal("the answer", t.word("isro"), "rw") })),
	requires(Words, check("four-letter words/srvr", ">=3.7",
		"srvr shows version, latency, packets, connections, outstanding requests, zxid, mode and number of znodes, one per line.",
		func(t *trial) { t.form(t.lines("srvr"), srvrLines...) })),
	alone(requires(Words, check("four-letter words/srvr's zxid", ">=3.4",
		"The zxid in srvr is the last one, in hexadecimal; words consume no zxid.",
		undisturbed(func(t *trial, k *conn, root string) {
			k.make(root)
			zxid := k.ping().Zxid
			for _, w := range []string{"ruok", "mntr", "srvr", "cons"} {
				t.word(w)
			}
			t.ensure(slices.Contains(t.lines("srvr"), fmt.Sprintf("Zxid: %#x", zxid)), "the zxid is not %#x", zxid)
			t.equal("the zxid afterwards", k.ping().Zxid, zxid)
		})))),
	alone(requires(Words, check("four-letter words/node count", ">=3.4",
		"The number of znodes in srvr, stat and mntr increases by one with each create and decreases by one with each delete.",
		undisturbed(func(t *trial, k *conn, root string) {
			n := t.number(t.lines("srvr"), "Node count: ")
			count := func(want int64) {
				for word, prefix := range map[string]string{"srvr": "Node count: ", "stat": "Node count: ", "mntr": "zk_znode_count\t"} {
					t.equal("the number in "+word, t.number(t.lines(word), prefix), want)
				}
			}
			k.make(root)
			count(n + 1)
			k.multi(opCreate(root+"/b", nil, 0), opCreate(root+"/c", nil, proto.FlagEphemeral))
			count(n + 3)
			k.delete(root+"/b", -1)
			k.closeSession()
			count(n + 1)
		})))),
	alone(requires(Words, check("four-letter words/connections", ">=3.5",
		"The number of connections in srvr and mntr includes the one that sent the word.",
		func(t *trial, k *conn) {
			before := t.settled("srvr", "Connections: ")
			other := t.connect()
			t.becomes("srvr", "Connections: ", before+1)
			t.becomes("mntr", "zk_num_alive_connections\t", before+1)
			other.closeSession()
			t.becomes("srvr", "Connections: ", before)
			k.ping()
		}))),
	alone(requires(Words, check("four-letter words/packets", ">=3.5",
		"Received and Sent in srvr count requests and replies; srst resets them.",
		func(t *trial, k *conn) {
			before := t.lines("srvr")
			for range 100 {
				k.ping()
			}
			for _, prefix := range []string{"Received: ", "Sent: "} {
				more := t.number(t.lines("srvr"), prefix) - t.number(before, prefix)
				t.ensure(more > 95 && more < 120, "%q grew by %d with 100 requests", prefix, more)
			}
			t.equal("the answer to srst", t.word("srst"), "Server stats reset.\n")
			for _, prefix := range []string{"Received: ", "Sent: "} {
				n := t.number(t.lines("srvr"), prefix)
				t.ensure(n < 100, "%q is %d after srst", prefix, n)
			}
		}))),
	requires(Words, check("four-letter words/latency", ">=3.7",
		"The minimum, average and maximum latency in srvr are in ascending order.",
		func(t *trial) {
			m := regexp.MustCompile(`Latency min/avg/max: (\d+)/(\d+\.\d+)/(\d+)`).FindStringSubmatch(t.word("srvr"))
			t.ensure(m != nil, "there are no latencies")
			least, _ := strconv.Atoi(m[1])
			mean, _ := strconv.ParseFloat(m[2], 64)
			most, _ := strconv.Atoi(m[3])
			t.ensure(float64(least) <= mean && mean <= float64(most), "the latencies are out of order")
		})),
	alone(requires(Words, check("four-letter words/stat", ">=3.7",
		"stat is like srvr, with a line for each connection after the version.",
		func(t *trial) {
			t.connect()
			t.connect()
			t.settled("srvr", "Connections: ")
			lines := t.lines("stat")
			clients := t.section(lines, "Clients:", "")
			n := slices.Index(clients, "")
			t.ensure(n >= 3, "%d clients, expected three at least", n)
			t.every(clients[:n], ` `+clientText+`\)`)
			t.equal("the number of connections", t.number(lines, "Connections: "), int64(n))
			t.equal("the second line", lines[1], "Clients:")
			t.form(append(lines[:1:1], clients[n+1:]...), srvrLines...)
		}))),
	alone(requires(Words, check("four-letter words/cons", ">=3.4", // in cons, a session that is being opened has no operation yet
		"cons shows for each connection its address and packets, and for its session the id, the last operation, the start, the timeout, the last zxid and latencies.",
		func(t *trial, k *conn) {
			k.make(t.path("n"))
			var lines []string
			for _, line := range t.lines("cons") {
				if line != "" {
					lines = append(lines, line)
				}
			}
			t.every(lines, ` `+clientText+`\)`, ` `+clientText+sessionText+`\)`)
			t.ensure(slices.ContainsFunc(lines, func(s string) bool { return matches(` `+clientText+`\)`, s) }), "the connection that sent the word is missing")
			t.ensure(matches(` `+clientText+sessionText+`\)`, t.cons(k)), "the session's line is wrong")
		}))),
	requires(Words, check("four-letter words/cons of a session", ">=3.5",
		"The line of a session has its timeout, and the last operation with its xid and zxid.",
		func(t *trial, k *conn) {
			has := func(field string) {
				line := t.cons(k)
				t.ensure(strings.Contains(line, ","+field+","), "%s is not in %s", field, line)
			}
			has("lop=SESS")
			has(fmt.Sprintf("to=%d", k.Session.Timeout))
			for _, x := range []struct {
				q    request
				name string
			}{
				{opCreate(t.path("n"), nil, 0), "CREA"},
				{opGet(t.path("n")), "GETD"},
				{opSet(t.path("n"), nil, -1), "SETD"},
				{opExists(t.path("n")), "EXIS"},
				{opChildren(t.path("n")), "GETC"},
				{opGetACL(t.path("n")), "GETA"},
				{opSync(t.path("n")), "SYNC"},
				{opDelete(t.path("n"), -1), "DELE"},
				{opMulti(opCreate(t.path("m"), nil, 0)), "MULT"},
			} {
				f := k.do(x.q)
				has("lop=" + x.name)
				has(fmt.Sprintf("lcxid=%#x", f.Xid))
				has(fmt.Sprintf("lzxid=%#x", f.Zxid))
			}
		})),
	alone(requires(Words, check("four-letter words/crst", ">=3.4",
		"crst resets the numbers of each connection.",
		func(t *trial, k *conn) {
			for range 20 {
				k.ping()
			}
			counted := func() (n [2]int) {
				m := regexp.MustCompile(`recved=(\d+),sent=(\d+),`).FindStringSubmatch(t.cons(k))
				n[0], _ = strconv.Atoi(m[1])
				n[1], _ = strconv.Atoi(m[2])
				return n
			}
			n := counted()
			t.ensure(n[0] > 15 && n[1] > 15, "cons has counted %v of 20", n)
			t.equal("the answer", t.word("crst"), "Connection stats reset.\n")
			n = counted() // a packet may be counted a moment late
			t.ensure(n[0] <= 1 && n[1] <= 1, "cons counts %v after crst", n)
		}))),
	requires(Words, check("four-letter words/mntr", ">=3.7",
		"mntr has a line zk_KEY, tab, value for each of its numbers, with version and state first.",
		func(t *trial) {
			t.connect()
			lines := t.lines("mntr")
			t.form(lines[:2], `zk_version\t`+versionText, `zk_server_state\t(standalone|leader|follower|observer)`)
			t.every(lines, `zk_[A-Za-z0-9_:.-]+\t.+`)
			for _, key := range []string{
				"avg_latency", "min_latency", "max_latency", "packets_received", "packets_sent", "num_alive_connections", "outstanding_requests",
				"znode_count", "watch_count", "ephemerals_count", "approximate_data_size", "global_sessions", "local_sessions",
				"open_file_descriptor_count", "max_file_descriptor_count", "uptime", "last_client_response_size", "min_client_response_size",
				"max_client_response_size", "connection_drop_probability", "auth_failed_count",
			} {
				t.ensure(slices.ContainsFunc(lines, func(s string) bool { return matches(`zk_`+key+`\t-?\d+(\.\d+)?`, s) }), "zk_%s is missing or not a number", key)
			}
			t.ensure(t.number(lines, "zk_global_sessions\t") > 0, "there is no session")
			seen := map[string]bool{}
			for _, line := range lines {
				key, _, _ := strings.Cut(line, "\t")
				t.ensure(!seen[key], "%s appears more than once", key)
				seen[key] = true
			}
		})),
	alone(requires(Words, check("four-letter words/mntr's numbers", ">=3.7",
		"The numbers of sessions, ephemeral znodes and watches and the size of data and paths in mntr are correct.",
		undisturbed(func(t *trial, k *conn, root string) {
			t.settled("mntr", "zk_watch_count\t")
			before := t.lines("mntr")
			more := func(key string, n int64) { t.becomes("mntr", "zk_"+key+"\t", t.number(before, "zk_"+key+"\t")+n) }
			other := t.connect()
			more("global_sessions", 1)
			n := other.create(root, repeat(100), proto.FlagEphemeral)
			more("ephemerals_count", 1)
			more("approximate_data_size", int64(len(n)+100))
			k.watch(opGet(n), opExists(n))
			more("watch_count", 1)
			k.watch(opChildren(t.path("")))
			more("watch_count", 2)
			other.closeSession()
			for _, key := range []string{"global_sessions", "ephemerals_count", "approximate_data_size", "watch_count"} {
				more(key, 0)
			}
		})))),
	requires(Words, check("four-letter words/conf", ">=3.6",
		"conf shows the configuration as KEY=VALUE, including the bounds of session timeouts that the server applies.",
		func(t *trial) {
			lines := strings.Split(strings.TrimSuffix(t.word("conf"), "\n"), "\n") // that of a cluster member ends without a line feed
			t.ensure(len(lines) >= 12, "conf has %d lines, expected 12 or more", len(lines))
			t.form(lines[:12], `clientPort=-?\d+`, `secureClientPort=-?\d+`, `dataDir=.*`, `dataDirSize=\d+`, `dataLogDir=.*`, `dataLogSize=\d+`,
				`tickTime=\d+`, `maxClientCnxns=\d+`, `minSessionTimeout=\d+`, `maxSessionTimeout=\d+`, `clientPortListenBacklog=-?\d+`, `serverId=\d+`)
			t.equal("the shortest timeout", int64(t.connectFor(time.Millisecond).Session.Timeout), t.number(lines, "minSessionTimeout="))
			t.equal("the longest timeout", int64(t.connectFor(1000*time.Hour/2).Session.Timeout), t.number(lines, "maxSessionTimeout="))
		})),
	requires(Words, check("four-letter words/envi", ">=3.7",
		"envi shows the environment as KEY=VALUE, where zookeeper.version is the version that srvr shows.",
		func(t *trial) {
			lines := t.lines("envi")
			t.equal("the first line", lines[0], "Environment:")
			t.every(lines[1:], `[a-z.]+=.*`)
			version := strings.TrimPrefix(t.lines("srvr")[0], "Zookeeper version: ")
			t.equal("the second line", lines[1], "zookeeper.version="+version)
			for _, key := range []string{"host.name", "os.name", "os.arch", "user.name", "user.dir"} {
				t.ensure(slices.ContainsFunc(lines, func(s string) bool { return strings.HasPrefix(s, key+"=") }), "%s is missing", key)
			}
		})),
	requires(Words, check("four-letter words/dirs", ">=3.6",
		"dirs shows the sizes of the data directory and the log directory.",
		func(t *trial) { t.form(t.lines("dirs"), `datadir_size: \d+`, `logdir_size: \d+`) })),
	alone(requires(Words, check("four-letter words/wchs", ">=3.5",
		"wchs counts the connections that watch, the watched paths and the watches.",
		func(t *trial, a, b *conn) {
			t.settled("mntr", "zk_watch_count\t")
			counts := func() (n [3]int) {
				t.form(t.lines("wchs"), `\d+ connections watching \d+ paths`, `Total watches:\d+`)
				_, err := fmt.Sscanf(t.word("wchs"), "%d connections watching %d paths\nTotal watches:%d", &n[0], &n[1], &n[2])
				t.ensure(err == nil, "%v", err)
				return n
			}
			before := counts()
			a.watch(opGet(t.path("")), opExists(t.path("missing")))
			b.watch(opExists(t.path("")))
			t.equal("connections, paths and watches", counts(), [3]int{before[0] + 2, before[1] + 2, before[2] + 3})
			a.removeWatches(t.path("missing"), watcherData)
			b.closeSession()
			t.eventually(0, "the watches of a connection that ended go", func() bool {
				return counts() == [3]int{before[0] + 1, before[1] + 1, before[2] + 1}
			})
		}))),
	requires(Words, check("four-letter words/wchc", ">=3.5",
		"wchc lists the sessions that watch, each followed by its paths, each on a line that starts with a tab.",
		func(t *trial, k *conn) {
			k.watch(opGet(t.path("")), opExists(t.path("missing")))
			lines := t.lines("wchc")
			t.every(lines, `0x[0-9a-f]+`, "\t/.*", ``)
			i := slices.Index(lines, k.hex())
			t.ensure(i >= 0 && len(lines) >= i+3, "the session is not there")
			got := slices.Sorted(slices.Values(lines[i+1 : i+3]))
			t.equal("its paths", got, []string{"\t" + t.path(""), "\t" + t.path("missing")})
		})),
	requires(Words, check("four-letter words/wchp", ">=3.5",
		"wchp lists the watched paths, each followed by its sessions, each on a line that starts with a tab.",
		func(t *trial, a, b *conn) {
			a.watch(opGet(t.path("")))
			b.watch(opExists(t.path("")))
			lines := t.lines("wchp")
			t.every(lines, `/.*`, "\t0x[0-9a-f]+", ``)
			i := slices.Index(lines, t.path(""))
			t.ensure(i >= 0 && len(lines) >= i+3, "the path is not there")
			got := slices.Sorted(slices.Values(lines[i+1 : i+3]))
			t.equal("its sessions", got, slices.Sorted(slices.Values([]string{"\t" + a.hex(), "\t" + b.hex()})))
		})),
	requires(Words, check("four-letter words/dump", ">=3.6",
		"dump lists sessions by expiry time, ephemeral znodes by session, and connections.",
		func(t *trial, k *conn) {
			k.create(t.path("n"), nil, proto.FlagEphemeral)
			lines := t.lines("dump")
			const date = `[A-Z][a-z]{2} [A-Z][a-z]{2} \d\d \d\d:\d\d:\d\d \S+ \d{4}`
			t.equal("the first line", lines[0], "SessionTracker dump:")
			if !learner(lines) {
				sessions := t.section(lines, `Session Sets \(\d+\)/\(\d+\):`, `ephemeral nodes dump:`)
				t.every(sessions, `\d+ expire at `+date+`:`, "\t0x[0-9a-f]+")
				t.ensure(slices.Contains(sessions, "\t"+k.hex()), "the session is not there")
			} else {
				sessions := t.section(lines, `Global Sessions\(\d+\):`, `ephemeral nodes dump:`)
				t.every(sessions, "0x[0-9a-f]+\t\\d+ms")
				t.ensure(slices.ContainsFunc(sessions, func(s string) bool { return strings.HasPrefix(s, k.hex()+"\t") }), "the session is not there")
			}
			owners := t.section(lines, `Sessions with Ephemerals \(\d+\):`, `Connections dump:`)
			t.every(owners, `0x[0-9a-f]+:`, "\t/.*")
			i := slices.Index(owners, k.hex()+":")
			t.ensure(i >= 0 && len(owners) > i+1, "the session has no ephemeral znodes")
			t.equal("its ephemeral znode", owners[i+1], "\t"+t.path("n"))
			conns := t.section(lines, `Connections Sets \(\d+\)/\(\d+\):`, "")
			t.every(conns, `\d+ expire at `+date+`:`, "\tip: /\\S+ sessionId: 0x[0-9a-f]+")
			t.ensure(slices.ContainsFunc(conns, func(s string) bool { return strings.HasSuffix(s, " sessionId: "+k.hex()) }), "the connection is not there")
		})),
	alone(requires(Words, check("four-letter words/dump's numbers", ">=3.6",
		"The numbers in dump are those of the sessions, owners and connections that it lists.",
		func(t *trial, k *conn) {
			t.connect().create(t.path("a"), nil, proto.FlagEphemeral)
			k.create(t.path("b"), nil, proto.FlagEphemeral)
			t.settled("srvr", "Connections: ")
			lines := t.lines("dump")
			type part struct{ head, to, set, member string }
			sessions := part{`Session Sets \((\d+)\)/\((\d+)\):`, `ephemeral nodes dump:`, `\d+ expire at .*`, "\t0x.*"}
			if learner(lines) {
				sessions = part{`Global Sessions\((\d+)\):`, `ephemeral nodes dump:`, `0x.*`, ""}
			}
			for _, x := range []part{
				sessions,
				{`Sessions with Ephemerals \((\d+)\):`, `Connections dump:`, `0x[0-9a-f]+:`, ""},
				{`Connections Sets \((\d+)\)/\((\d+)\):`, ``, `\d+ expire at .*`, "\tip: .*"},
			} {
				var sets, members int
				for _, line := range t.section(lines, x.head, x.to) {
					if matches(x.set, line) {
						sets++
					} else if x.member != "" && matches(x.member, line) {
						members++
					}
				}
				for _, line := range lines {
					m := regexp.MustCompile(`^` + x.head + `$`).FindStringSubmatch(line)
					if m == nil {
						continue
					}
					t.equal("the first number in "+line, m[1], strconv.Itoa(sets))
					if len(m) > 2 { // ZooKeeper 3.9 keeps counting some connections that have ended
						n, _ := strconv.Atoi(m[2])
						t.ensure(n == members || n > members && strings.HasPrefix(line, "Connections"), "%d are listed below %q", members, line)
					}
				}
			}
		}))),
	alone(requires(Words, check("four-letter words/gtmk and stmk", ">=3.4",
		"gtmk is answered with the trace mask, a decimal number without a line feed; stmk, followed by eight bytes, sets it.",
		func(t *trial) {
			mask := t.word("gtmk")
			n, err := strconv.ParseInt(mask, 10, 64)
			t.ensure(err == nil, "the mask is %q", mask)
			t.equal("the answer to stmk", t.word("stmk"+string(body(n^2))), strconv.FormatInt(n^2, 10))
			t.equal("the mask", t.word("gtmk"), strconv.FormatInt(n^2, 10))
			t.equal("the answer to stmk", t.word("stmk"+string(body(n))), mask)
			t.equal("the mask", t.word("gtmk"), mask)
		}))),
	requires(Words, check("four-letter words/hash", ">=3.6",
		"hash lists digests of the tree, each preceded by its zxid in hexadecimal.",
		func(t *trial) {
			if answer := t.word("hash"); answer != "" { // empty after few transactions
				rest, ok := strings.CutSuffix(answer, "\n")
				t.ensure(ok, "the answer ends without a line feed")
				t.every(strings.Split(rest, "\n"), `[0-9a-f]+: -?\d+`)
			}
		})),
	requires(Words, check("four-letter words/trailing bytes", ">=3.4",
		"Bytes after a word are ignored, and a word may arrive in pieces.",
		func(t *trial) {
			t.equal("the answer", t.word("ruok\r\n"), "imok")
			k := t.dial()
			k.write([]byte("is"), "is")
			t.wait(10 * time.Millisecond) // so that it is most likely a packet of its own
			k.write([]byte("ro"), "ro")
			t.equal("the answer", k.bytes(2), "rw")
			k.closed()
		})),
	requires(Words, check("four-letter words/unknown", ">=3.4",
		"Four letters that are not a word are read as the length of a frame, which is too long: the connection is closed without an answer.",
		func(t *trial) {
			for _, w := range []string{"what", "RUOK", "mntR"} {
				k := t.dial()
				k.write([]byte(w), w)
				k.closed()
			}
		})),
	requires(Words, check("four-letter words/not in a session", ">=3.4",
		"A word is recognized only at the start of a connection; after the handshake it is read as the length of a frame, which is too long.",
		func(t *trial, k *conn) {
			k.write([]byte("ruok"), "ruok")
			k.closed()
			t.resume(k.Session).ping()
		})),
}

// learner reports whether a dump comes from a follower or observer, which does not
// know when sessions expire.
func learner(dump []string) bool {
	return slices.ContainsFunc(dump, func(s string) bool { return strings.HasPrefix(s, "Global Sessions(") })
}
