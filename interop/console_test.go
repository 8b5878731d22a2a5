//go:build interop

package interop

import (
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/internal/tools/rawclient"
	"github.com/lockkeeper/lockkeeper/proto"
)

const (
	envPictures = "LOCKKEEPER_INTEROP_PICTURES" // write screenshots of the console here
	chromium    = "/usr/bin/chromium-headless-shell"
)

// browser is a page in a headless Chromium.
type browser struct {
	t        *testing.T
	ctx      context.Context
	pictures string

	mu         sync.Mutex
	complaints []string // what the page wrote to the console, and violations of its policy
}

func openBrowser(t *testing.T, url string) *browser {
	t.Helper()
	b := &browser{t: t, pictures: os.Getenv(envPictures)}
	if b.pictures == "" {
		b.pictures = t.TempDir()
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(chromium), chromedp.NoSandbox, chromedp.UserDataDir(t.TempDir()))
	ctx, stop := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(stop)
	ctx, end := chromedp.NewContext(ctx)
	t.Cleanup(end)
	if err := chromedp.Listen(ctx, b.listen); err != nil { // starts the browser
		t.Fatal(err)
	}
	b.ctx, end = context.WithTimeout(ctx, 5*time.Minute)
	t.Cleanup(end)
	devtools(b, log.Enable, cdp.Empty{})
	b.do(chromedp.EmulateViewport(1280, 860))
	b.scheme("dark")
	b.do(chromedp.Navigate(url))
	b.sees(live)
	return b
}

// listen notes what the page writes to the console, and violations of its policy.
func (b *browser) listen(event any) {
	text := ""
	switch e := event.(type) {
	case *runtime.EventConsoleAPICalled:
		text = string(e.Type)
		for _, a := range e.Args {
			text += " " + string(a.Value)
		}
	case *runtime.EventExceptionThrown:
		text = e.ExceptionDetails.Text
		if x := e.ExceptionDetails.Exception; x != nil {
			text += " " + x.Description
		}
	case *log.EventEntryAdded:
		text = fmt.Sprintf("%s %s: %s", e.Entry.Level, e.Entry.URL, e.Entry.Text)
	default:
		return
	}
	b.mu.Lock()
	b.complaints = append(b.complaints, text)
	b.mu.Unlock()
}

// devtools sends a command of the DevTools protocol.
func devtools[P, R any](b *browser, command cdp.Command[P, R], params P) R {
	b.t.Helper()
	r, err := chromedp.Call(b.ctx, command, params)
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

func (b *browser) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	if err := chromedp.Do(b.ctx, actions...); err != nil {
		b.t.Fatal(err)
	}
}

// eval returns the value of an expression in JavaScript.
func eval[T any](b *browser, expression string) T {
	b.t.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
	return v
}

// sees waits until an expression is true.
func (b *browser) sees(expression string) {
	b.t.Helper()
	poll := chromedp.Poll[chromedp.Void](expression, chromedp.WithPollingInterval(20*time.Millisecond), chromedp.WithPollingTimeout(time.Minute))
	if _, err := chromedp.Run(b.ctx, poll); err != nil {
		b.t.Fatalf("%s: %v; the page says:\n%s\nand its console %q", expression, err, eval[string](b, "document.body.innerText"), b.complaints)
	}
}

// says waits until an element has these texts.
func (b *browser) says(selector string, texts ...string) {
	b.t.Helper()
	for _, text := range texts {
		b.sees(fmt.Sprintf(`document.querySelector(%q).textContent.includes(%q)`, selector, text))
	}
}

// silent checks that the browser has reported no error and no violation of the page's policy, except those with one
// of these texts.
func (b *browser) silent(except ...string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, text := range b.complaints {
		if !slices.ContainsFunc(except, func(part string) bool { return strings.Contains(text, part) }) {
			b.t.Errorf("the browser's console: %s", text)
		}
	}
}

// legible checks the contrast of elements in light and dark.
func (b *browser) legible(selectors ...string) {
	b.t.Helper()
	for _, scheme := range []string{"light", "dark"} {
		b.scheme(scheme)
		for _, selector := range selectors {
			b.contrast(scheme, selector)
		}
	}
}

// pictureBoth takes screenshots in light and dark, of a desktop and of a phone.
func (b *browser) pictureBoth(desktop, phone string) {
	b.t.Helper()
	for _, scheme := range []string{"light", "dark"} {
		b.scheme(scheme)
		b.picture(desktop + "-" + scheme)
		b.phone(phone + "-" + scheme)
	}
}

// consoleConfig returns a zoo.cfg with which sessions that are not to expire outlast a test.
func consoleConfig(t *testing.T) string {
	t.Helper()
	cfg := filepath.Join(t.TempDir(), "zoo.cfg")
	writeFile(t, cfg, []byte("tickTime=500\nmaxSessionTimeout=300000\n"))
	return cfg
}

// consoleCluster returns three servers with consoleConfig, and the addresses of their ports for operators.
func consoleCluster(t *testing.T) (e *ensemble, admin []string) {
	t.Helper()
	e = newEnsemble(t, 3)
	cfg := consoleConfig(t)
	for i := range 3 {
		admin = append(admin, freeAddr(t))
		e.args = []string{"--config", cfg, "--admin", admin[i]}
		e.launch(i)
	}
	e.await()
	return e, admin
}

func (b *browser) scheme(name string) {
	b.t.Helper()
	devtools(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: name}, {Name: "prefers-reduced-motion", Value: "reduce"},
	}})
}

// picture takes a screenshot.
func (b *browser) picture(name string) {
	b.t.Helper()
	shot, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	if err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(b.pictures, name+".png"), shot, 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// fits checks that at a desktop's usual width no table has to be scrolled, and nothing is cut.
func (b *browser) fits(name string) {
	b.t.Helper()
	if wide := eval[string](b, `[document.documentElement, ...document.querySelectorAll(".scroll, .time, .bar, figure")].filter(e => e.scrollWidth > e.clientWidth).map(e => e.closest("section")?.id + " " + e.className).join(", ")`); wide != "" {
		b.t.Errorf("%s: these are too wide: %s", name, wide)
	}
}

// phone checks that nothing is wider than the screen of a phone, and takes a screenshot.
func (b *browser) phone(name string) {
	b.t.Helper()
	b.do(chromedp.EmulateViewport(360, 740, chromedp.EmulateMobile, chromedp.EmulateScale(2)))
	if wide := eval[int](b, `document.documentElement.scrollWidth`); wide > 360 {
		b.t.Errorf("%s: the page is %d pixels wide on a phone of 360", name, wide)
	}
	if wide := eval[string](b, `[...document.querySelectorAll(".scroll")].filter(e => e.scrollWidth > e.clientWidth).map(e => e.parentElement.id).join(" ")`); wide != "" {
		b.t.Errorf("%s: these tables are too wide: %s", name, wide)
	}
	b.picture(name)
	b.do(chromedp.EmulateViewport(1280, 860))
}

// contender is a client that queues for locks with go-zookeeper's names for znodes. It sends
// only what the test says, so its session expires when the test forgets it.
type contender struct {
	t testing.TB
	*rawclient.Client
	id string
}

func (l *contender) name() string { return fmt.Sprintf("_c_%032x-lock-", uint64(l.Session.SessionID)) }

func newContender(t testing.TB, addr string, timeout time.Duration) *contender {
	t.Helper()
	nc := must(net.Dial("tcp", addr))(t)
	t.Cleanup(func() { nc.Close() })
	c := must(rawclient.Open(nc, timeout))(t)
	return &contender{t, c, fmt.Sprintf("0x%x", uint64(c.Session.SessionID))}
}

// queue adds the client to the queue of a lock, and watches the one before it as clients do.
func (l *contender) queue(path, before string) (at string) {
	l.t.Helper()
	return l.queueAs(path, before, "")
}

// queueAs is queue with data.
func (l *contender) queueAs(path, before, data string) (at string) {
	l.t.Helper()
	at, err := l.Create(path+"/"+l.name(), []byte(data), proto.FlagEphemeral|proto.FlagSequential)
	if err == nil && before != "" {
		_, err = l.Get(before, true)
	}
	if err != nil {
		l.t.Fatal(err)
	}
	return at
}

// row is an expression for the state of a session in the queue of a lock: "holds", "1st" ….
func row(path, session string) string {
	return fmt.Sprintf(`[...document.querySelectorAll("#locks tbody")].filter(b => b.querySelector("button.at")?.textContent === %q)
		.flatMap(b => [...b.querySelectorAll("tr[data-session]")]).find(r => r.dataset.session === %q)?.querySelector(".state").textContent`, path, session)
}

// clientAt is an expression for the server to which the client of a session is connected, as the list of
// clients has it.
func clientAt(session string) string {
	return fmt.Sprintf(`[...document.querySelectorAll("#clients tr[data-session]")].find(r => r.dataset.session === %q)?.firstChild.textContent`, session)
}

// where is how the console of server at shows where a client of server i is connected.
func where(c *contender, i, at int) string {
	text := c.Conn.LocalAddr().String()
	if i != at {
		text += fmt.Sprintf(", server\u00a0%d", i+1)
	}
	return text
}

// listed is an expression for whether an event with all these texts is listed.
func listed(texts ...string) string {
	e := `[...document.querySelectorAll("#events li")].some(li => true`
	for _, text := range texts {
		e += fmt.Sprintf(` && li.textContent.includes(%q)`, text)
	}
	return e + ")"
}

// TestConsole watches the console of a cluster's leader in Chromium while clients queue for
// locks: a wait, a handover, an expiry and a cycle appear without anybody reloading the page.
func TestConsole(t *testing.T) {
	t.Parallel()
	e, admin := consoleCluster(t)
	leader := e.leader()
	addr := e.listen[leader]

	conn, _, err := zk.Connect([]string{addr}, 10*time.Second, zk.WithLogInfo(false))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	hostile := `<img src=x onerror="document.title='broken'"><script>document.title='broken'</script>`
	create := func(path string, data []byte) {
		t.Helper()
		if _, err := conn.Create(path, data, 0, zk.WorldACL(zk.PermAll)); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
	}
	for _, path := range []string{"/locks", "/locks/report", "/locks/nightly-backup", "/locks/x", "/locks/y", "/app"} {
		create(path, nil)
	}
	create("/<b>bold", []byte(hostile+"\u202ednuora")) // a character that turns round what follows it
	create("/binary", []byte{0xff, 0x00, 0xc0})
	for i := range 250 {
		create(fmt.Sprintf("/app/shard-%03d", i), nil)
	}

	b := openBrowser(t, "http://"+admin[leader])
	b.sees(`document.querySelectorAll("#members tbody tr").length === 3 && [...document.querySelectorAll("#members tbody tr")].filter(r => r.textContent.includes("follower")).length === 2`)

	// The clients of all members: beside the one that has made the znodes, each has one more.
	const long = 5 * time.Minute
	var each []*contender
	for i, addr := range e.listen {
		c := newContender(t, addr, long)
		each = append(each, c)
		b.sees(fmt.Sprintf(`%s === "%d"`, clientAt(c.id), i+1))
		b.sees(fmt.Sprintf(`[...document.querySelectorAll("#sessions tbody tr")].find(r => r.dataset.session === %q).children[1].textContent === %q`, c.id, where(c, i, leader)))
	}
	b.sees(`document.querySelectorAll("#clients tbody").length === 3 && document.querySelector("#clients-found").textContent === "4 clients"`)
	away := (leader + 1) % 3
	eval[chromedp.Void](b, `document.querySelector("#client-filter").focus()`)
	b.do(chromedp.KeyEvent(fmt.Sprintf("Server %d", away+1)))
	b.sees(fmt.Sprintf(`document.querySelectorAll("#clients tbody").length === 1 && document.querySelectorAll("#clients [data-session]").length === 1 && location.hash === "#client=Server+%d"`, away+1))
	b.sees(clientAt(each[away].id) + fmt.Sprintf(` === "%d" && document.querySelector("#clients-found").textContent === "1 of 4 clients"`, away+1))
	b.do(chromedp.KeyEvent(kb.Tab)) // to the head of the server
	b.do(chromedp.KeyEvent(kb.Enter))
	b.sees(`document.activeElement.getAttribute("aria-expanded") === "false" && !document.querySelector("#clients [data-session]")`)
	b.do(chromedp.KeyEvent(kb.Enter))
	b.sees(`document.activeElement.getAttribute("aria-expanded") === "true" && document.querySelector("#clients [data-session]") !== null`)
	eval[chromedp.Void](b, `{ const f = document.querySelector("#client-filter"); f.value = ""; f.dispatchEvent(new Event("input")); }`)
	b.sees(`document.querySelectorAll("#clients [data-session]").length === 4 && location.hash === ""`)
	b.legible("#clients .kind", "#clients .address", "#clients-found", "#clients button.fold")
	b.fits("clients")
	eval[chromedp.Void](b, `document.querySelector("#clients").scrollIntoView()`)
	b.picture("clients-dark")
	b.phone("clients-phone")
	eval[chromedp.Void](b, `document.activeElement.blur(); window.scrollTo(0, 0)`)

	// A wait and a handover.
	first, second, third := newContender(t, addr, long), newContender(t, addr, long), newContender(t, addr, long)
	held := first.queue("/locks/report", "")
	b.sees(row("/locks/report", first.id) + ` === "holds"`)
	next := second.queue("/locks/report", held)
	b.sees(row("/locks/report", second.id) + ` === "1st"`)
	third.queue("/locks/report", next)
	b.sees(row("/locks/report", third.id) + ` === "2nd"`)
	if buttons := eval[int](b, `document.querySelectorAll(".act").length`); buttons != 0 {
		t.Errorf("the read-only page has %d buttons that act", buttons)
	}
	if !eval[bool](b, `document.querySelector("#edits").hidden`) {
		t.Error("the read-only page has buttons to edit znodes")
	}
	stat := must(second.Exists(next, false))(t)
	check(t, first.Delete(held))
	b.sees(row("/locks/report", second.id) + ` === "holds"`)
	b.sees(row("/locks/report", third.id) + ` === "1st"`)
	b.sees(listed("/locks/report", second.id+" holds it, after "+first.id))
	if text := eval[string](b, `document.querySelector("#locks").textContent`); !strings.Contains(text, fmt.Sprint(stat.Czxid)) {
		t.Errorf("the token %d is not shown: %s", stat.Czxid, text)
	}

	// An expiry: this holder sends nothing any more.
	silent, heir := newContender(t, addr, 10*time.Second), newContender(t, addr, long) // it must not expire before the other one waits
	held = silent.queue("/locks/nightly-backup", "")
	heir.queue("/locks/nightly-backup", held)
	b.sees(row("/locks/nightly-backup", heir.id) + ` === "1st"`)
	b.sees(row("/locks/nightly-backup", heir.id) + ` === "holds"`)
	b.sees(listed("Session " + silent.id + " expired"))
	if eval[string](b, row("/locks/nightly-backup", silent.id)+` ?? ""`) != "" {
		t.Error("the expired session is still shown")
	}
	b.fits("queues")
	b.picture("queue-dark")

	// A cycle.
	x, y := newContender(t, addr, long), newContender(t, addr, long)
	heldX, heldY := x.queue("/locks/x", ""), y.queue("/locks/y", "")
	x.queue("/locks/y", heldY)
	again := y.queue("/locks/x", heldX)
	b.sees(`document.querySelectorAll("#locks tr.cycle").length === 4 && document.querySelector("#locks .problems").textContent.includes("Cycle")`)
	b.sees(listed("/locks/x is part of a cycle"))
	b.picture("cycle-dark")
	b.phone("cycle-phone")

	// A lock's own part of the page, reached from the cycle, with its history.
	eval[chromedp.Void](b, `[...document.querySelectorAll("#locks .problems button")].find(b => b.textContent === "/locks/y").click()`)
	b.sees(`document.activeElement.id === "lock" && document.querySelector("#lock-title").textContent === "/locks/y" && document.querySelectorAll("#lock table.locks tr.cycle").length === 2`)
	b.sees(`location.hash === "#lock=%2Flocks%2Fy" && document.querySelector("#lock-cycle span").textContent.trim() === "/locks/x"`)
	b.fits("a lock in a cycle")
	eval[chromedp.Void](b, `[...document.querySelectorAll("#locks button.at")].find(b => b.textContent === "/locks/report").click()`)
	history := `[...document.querySelectorAll("#lock .history tbody tr")].map(r => r.dataset.session).join(" ")`
	b.sees(fmt.Sprintf(`document.querySelector("#lock-title").textContent === "/locks/report" && %s === %q`, history, second.id+" "+first.id))
	b.sees(fmt.Sprintf(`document.querySelector("#lock .history tbody tr").lastChild.textContent === %q`, first.id))
	b.legible("#history-note", "#lock .history td", "#lock-close", "#words summary")
	b.fits("a lock with its history")
	eval[chromedp.Void](b, `document.querySelector("#lock").scrollIntoView()`)
	b.picture("lock-dark")
	b.phone("lock-phone")
	eval[chromedp.Void](b, `history.back()`)
	b.sees(`document.querySelector("#lock-title").textContent === "/locks/y"`)
	eval[chromedp.Void](b, `document.querySelector("#lock-close").focus()`)
	b.do(chromedp.KeyEvent(kb.Enter))
	b.sees(`document.querySelector("#lock").hidden && location.hash === ""`)
	check(t, y.Delete(again))
	b.sees(`!document.querySelector("#locks tr.cycle")`)

	// The tree, by keyboard: the first tab is the link to the locks.
	eval[chromedp.Void](b, `document.body.tabIndex = -1; document.body.focus(); document.body.removeAttribute("tabindex"); window.scrollTo(0, 0)`)
	b.do(chromedp.KeyEvent(kb.Tab))
	if got := eval[string](b, `document.activeElement.textContent`); got != "Skip to the locks" {
		t.Errorf("the first tab goes to %q", got)
	}
	b.do(chromedp.KeyEvent(kb.Enter))
	for i := 0; eval[string](b, `document.activeElement.getAttribute("role") ?? ""`) != "treeitem"; i++ {
		if i == 100 {
			t.Fatal("a hundred tabs do not lead to the tree")
		}
		b.do(chromedp.KeyEvent(kb.Tab))
	}
	at := func(name string) { b.sees(fmt.Sprintf(`document.activeElement.path === %q`, name)) }
	at("/")
	b.do(chromedp.KeyEvent(kb.ArrowDown)) // the children of / in their order
	at("/<b>bold")
	b.do(chromedp.KeyEvent(kb.Enter))
	b.sees(`document.querySelector("#znode pre")?.textContent.startsWith("<img src=x")`)
	b.sees(`document.querySelector("#znode pre").textContent.endsWith("\\u202ednuora")`)
	inserted := eval[int](b, `document.querySelectorAll("#znode img, #znode script, #tree b").length`)
	if title := eval[string](b, "document.title"); inserted != 0 || strings.Contains(title, "broken") {
		t.Errorf("data was interpreted: %d elements, title %s", inserted, title)
	}
	b.do(chromedp.KeyEvent(kb.ArrowDown))
	at("/app")
	b.do(chromedp.KeyEvent(kb.ArrowRight))
	b.sees(`document.activeElement.getAttribute("aria-expanded") === "true" && document.activeElement.querySelectorAll("[role=treeitem]").length === 200`)
	b.do(chromedp.KeyEvent(kb.ArrowRight))
	at("/app/shard-000")
	eval[chromedp.Void](b, `document.querySelector("#znodes").scrollIntoView()`)
	b.picture("znodes-dark")
	b.do(chromedp.KeyEvent(kb.ArrowLeft), chromedp.KeyEvent(kb.ArrowLeft))
	b.sees(`document.activeElement.getAttribute("aria-expanded") === "false"`)
	b.do(chromedp.KeyEvent(kb.ArrowDown))
	at("/binary")
	b.do(chromedp.KeyEvent(kb.Enter))
	b.sees(`document.querySelector("#znode pre")?.textContent === "ff 00 c0"`)
	must(conn.Set("/binary", []byte("now text"), -1))(t)
	b.sees(`document.querySelector("#znode pre")?.textContent === "now text"`)
	b.do(chromedp.KeyEvent(kb.Home))
	at("/")

	// What a screen reader reads.
	roles := map[string]int{}
	for _, n := range devtools(b, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{}).Nodes {
		if n.Ignored || n.Role == nil {
			continue
		}
		role, name := strings.Trim(string(n.Role.Value), `"`), ""
		if n.Name != nil {
			name = strings.Trim(string(n.Name.Value), `"`)
		}
		roles[role]++
		switch role {
		case "button", "link", "image", "table", "region", "tree", "treeitem", "log", "columnheader":
			if name == "" {
				t.Errorf("a %s has no name", role)
			}
		}
	}
	for _, role := range []string{"main", "banner", "navigation", "heading", "tree", "treeitem", "log", "status", "columnheader", "rowheader"} {
		if roles[role] == 0 {
			t.Errorf("the page has no %s: %v", role, roles)
		}
	}

	// Light and dark, and on a phone.
	backgrounds := map[string]bool{}
	for _, scheme := range []string{"light", "dark"} {
		b.scheme(scheme)
		eval[chromedp.Void](b, "window.scrollTo(0, 0)")
		backgrounds[eval[string](b, `getComputedStyle(document.body).backgroundColor`)] = true
		for _, selector := range []string{"#server", "#locks .kind", "#locks .holds .state", "#locks .waits .state", "#locks .token", "nav a"} {
			b.contrast(scheme, selector)
		}
		b.picture("desktop-" + scheme)
		b.phone("phone-" + scheme)
	}
	if len(backgrounds) != 2 {
		t.Errorf("light and dark look alike: %v", backgrounds)
	}

	b.silent()

	// A port with a token: the page asks for it, again if it is wrong.
	file, port := filepath.Join(t.TempDir(), "token"), freeAddr(t)
	writeFile(t, file, []byte("s3cret\n"))
	startLockkeeper(t, "--memory", "--admin", port, "--admin-token-file", file)
	b.do(chromedp.Navigate("http://" + port))
	for _, x := range []struct{ token, says string }{{"wrong", ""}, {"s3cret", "refuses this token"}} {
		b.sees(fmt.Sprintf(`document.querySelector("#login").open && document.querySelector("#login-error").textContent.includes(%q)`, x.says))
		b.do(chromedp.KeyEvent(x.token), chromedp.KeyEvent(kb.Enter))
		b.sees(`!document.querySelector("#login").open`)
	}
	b.sees(live)
	b.do(chromedp.Reload())
	b.sees(live)
	// Chromium wants a name of a user beside the password, for its password manager.
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, text := range b.complaints {
		if strings.Contains(strings.ToLower(text), "password") {
			t.Errorf("the browser's console: %s", text)
		}
	}
}

// TestConsoleThousandLocks has a thousand locks, for each of which ten clients wait. What the page
// has and does must not depend on how many locks there are, so that it stays smooth. The test
// counts, since times depend on the machine; it logs them.
func TestConsoleThousandLocks(t *testing.T) {
	atNight(t)
	cfg, port := consoleConfig(t), freeAddr(t)
	l := startLockkeeper(t, "--memory", "--config", cfg, "--admin", port, "--admin-write")
	const locks, sessions = 1000, 11
	var all []*contender
	for range sessions {
		all = append(all, newContender(t, l.addr, 5*time.Minute))
	}
	for _, at := range []string{"/jobs", "/reports"} {
		must(all[0].Create(at, nil, 0))(t)
	}
	held := map[string]string{}
	for i := range locks {
		at := fmt.Sprintf("%s/%03d", []string{"/jobs", "/reports"}[i%2], i)
		must(all[0].Create(at, nil, 0))(t)
		before := ""
		for _, c := range all {
			before = c.queue(at, before)
			if held[at] == "" {
				held[at] = before
			}
		}
	}
	opened := time.Now()
	b := openBrowser(t, "http://"+port)
	b.sees(`/[1-9]/.test(document.querySelector("#totals dd").textContent)`)
	first := eval[string](b, `document.querySelector("#totals dd").textContent`)
	t.Logf("%v after the browser was started, the page says %q locks", time.Since(opened).Round(time.Millisecond), first)
	b.sees(`document.querySelector("#found").textContent === "1,000 locks" && document.querySelector("#totals").textContent.includes("10,000") && document.querySelector("#locks .note").hidden`)
	b.sees(`document.querySelectorAll("#locks tbody").length === 50 && document.querySelectorAll("#locks tr.waits").length === 245`)
	elements := eval[int](b, `document.querySelectorAll("*").length`)
	heap := eval[float64](b, `performance.memory.usedJSHeapSize / (1 << 20)`)
	t.Logf("%d elements, a heap of %.1f MiB before the garbage is collected", elements, heap)
	if elements > 10_000 {
		t.Errorf("the page has %d elements", elements)
	}
	b.fits("a thousand locks")
	b.picture("thousand-dark")
	t.Logf("it says all after %v", time.Since(opened).Round(time.Millisecond))
	b.phone("thousand-phone-open")

	// On a phone the groups are folded at first. What is opened stays so.
	onPhone := func(what string) {
		t.Helper()
		size := eval[struct{ Height, Controls, Rows int }](b, `({ height: document.documentElement.scrollHeight, controls: document.querySelectorAll("#locks button, #locks input, #locks select").length, rows: document.querySelectorAll("#locks tbody").length })`)
		t.Logf("on a phone, %s: %+v", what, size)
		if what == "folded" && (size.Height > 15_000 || size.Controls > 40) {
			t.Errorf("on a phone the page has %d pixels, and %d controls for locks", size.Height, size.Controls)
		}
	}
	phone := chromedp.EmulateViewport(360, 740, chromedp.EmulateMobile, chromedp.EmulateScale(2))
	b.do(phone, chromedp.Reload())
	b.sees(live)
	b.sees(`document.querySelectorAll("#locks tbody").length === 2 && document.querySelector("#fold").textContent === "Open all groups"`)
	onPhone("folded")
	b.phone("thousand-phone")
	b.do(phone)
	eval[chromedp.Void](b, `document.querySelector("#fold").click()`)
	b.sees(`document.querySelectorAll("#locks tbody").length === 50 && location.hash === "#groups=open"`)
	onPhone("open")
	b.do(chromedp.Reload())
	b.sees(live)
	b.sees(`document.querySelectorAll("#locks tbody").length === 50`)
	b.do(chromedp.EmulateViewport(1280, 860))
	eval[chromedp.Void](b, `location.hash = ""`)
	b.sees(`document.querySelectorAll("#locks tbody").length === 50 && location.hash === ""`)

	// A handover touches its rows. Everything else changes only because time passes: the texts of
	// a row for how long, and how much time is left.
	eval[chromedp.Void](b, `window.renders = []; new MutationObserver((list) => {
		const parents = new Set(), elements = (nodes) => [...nodes].filter(n => n.nodeType === 1).length;
		let made = 0;
		for (const m of list) {
			parents.add(m.target);
			if (m.target.closest?.("#locks")) made += elements(m.addedNodes);
		}
		window.renders.push({ touched: parents.size, made });
	}).observe(document.body, { subtree: true, childList: true, characterData: true, attributes: true })`)
	eval[chromedp.Void](b, `window.frameTimes = []; let last = performance.now(); requestAnimationFrame(function frame(now) { window.frameTimes.push(now - last); last = now; requestAnimationFrame(frame); })`)
	const at = "/jobs/004"
	check(t, all[0].Delete(held[at]))
	b.sees(row(at, all[1].id) + ` === "holds"`)
	b.sees(`window.renders.length >= 4`)
	renders := eval[[]struct{ Touched, Made int }](b, `window.renders`)
	t.Logf("%d renders: %+v", len(renders), renders)
	made := 0
	for _, r := range renders {
		if made += r.Made; r.Touched > 500 {
			t.Errorf("an update touches %d elements", r.Touched)
		}
	}
	if made == 0 || made > 30 {
		t.Errorf("a handover makes %d elements", made)
	}
	t.Logf("the longest frame took %.0f ms", eval[float64](b, `Math.max(...window.frameTimes)`))

	// The filter, the groups and the pages.
	paths := `[...document.querySelectorAll("#locks tbody button.at")].map(b => b.textContent)`
	b.sees(`document.activeElement === document.body`)
	b.do(chromedp.KeyEvent("/"))
	b.sees(`document.activeElement.id === "filter" && document.activeElement.value === ""`)
	b.do(chromedp.KeyEvent("ts/01"))
	b.sees(fmt.Sprintf(`%s.join(" ") === "/reports/011 /reports/013 /reports/015 /reports/017 /reports/019"`, paths))
	b.sees(`document.querySelector("#found").textContent === "5 of 1,000 locks" && document.querySelectorAll("#locks tr.waits").length === 50 && location.hash === "#q=ts%2F01"`)
	b.do(chromedp.Reload())
	b.sees(live)
	b.sees(`document.querySelector("#found").textContent === "5 of 1,000 locks" && document.querySelector("#filter").value === "ts/01"`)
	eval[chromedp.Void](b, `{ const f = document.querySelector("#filter"); f.value = "<b>no such</b>"; f.dispatchEvent(new Event("input")); }`)
	b.sees(`document.querySelector("#locks .empty").textContent === "No lock matches the filter." && !document.querySelector("#locks .empty").hidden`)
	eval[chromedp.Void](b, `{ const f = document.querySelector("#filter"); f.value = ""; f.dispatchEvent(new Event("input")); }`)
	b.sees(`document.querySelector("#page").textContent === "Page 1 of 21"`)
	eval[chromedp.Void](b, `document.querySelector("#page-after").focus()`)
	b.do(chromedp.KeyEvent(kb.Enter))
	b.sees(fmt.Sprintf(`document.querySelector("#page").textContent === "Page 2 of 21" && %s[0] === "/jobs/098"`, paths))
	eval[chromedp.Void](b, `document.querySelector("#locks .group button").focus()`)
	b.do(chromedp.KeyEvent(kb.Enter))
	b.sees(`document.querySelector("#page").textContent === "Page 2 of 11" && location.hash === "#page=2&except=%2Fjobs"`)
	eval[chromedp.Void](b, `document.querySelector("#fold").click()`)
	b.sees(`document.querySelectorAll("#locks tbody").length === 2 && document.querySelector("#locks tbody").textContent.includes("500 locks")`)
	b.fits("folded groups")
	b.silent()
}

// TestConsoleTrouble: the console says when a member does not answer, when the leader is lost,
// that it does not know what it cannot know, and when what it shows is old.
func TestConsoleTrouble(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t, 3)
	admin := map[int]string{}
	launch := func(i int) {
		e.args = []string{"--admin", admin[i]}
		e.launch(i)
	}
	for i := range 3 {
		admin[i] = freeAddr(t)
		launch(i)
	}
	e.await()
	leader := e.leader()
	here, other := (leader+1)%3, (leader+2)%3
	holder := newContender(t, e.listen[here], time.Minute)
	must(holder.Create("/l", nil, 0))(t)
	holder.queue("/l", "")
	b := openBrowser(t, "http://"+admin[here])
	tile := func(name string) string {
		return fmt.Sprintf(`[...document.querySelectorAll("#totals div")].find(d => d.firstChild.textContent === %q).lastChild.textContent`, name)
	}
	link := `document.querySelector("#link-text").textContent`
	b.sees(tile("Locks held") + ` === "1"`)

	newContender(t, e.listen[other], time.Minute)
	group := fmt.Sprintf(`document.querySelectorAll("#clients tbody")[%d]`, other)
	b.sees(tile("Clients") + ` === "2" && ` + group + `.textContent.includes("1 client")`)
	e.procs[other].Kill()
	b.sees(group + `.classList.contains("silent") && ` + group + `.querySelector(".had").textContent === "it had 1 client" && ` + tile("Clients") + ` === "1+"`)
	b.legible("#clients .silent .kind", "#clients .silent .had")
	b.sees(fmt.Sprintf(`%s === "Live; server %d does not answer" && document.querySelector("#link").className === "troubled"`, link, other+1))
	b.sees(listed(fmt.Sprintf("Server %d does not answer", other+1)))
	b.picture("a-dead-member")
	launch(other)
	b.sees(live)
	b.sees(listed(fmt.Sprintf("Server %d answers again", other+1)))

	e.procs[other].Kill()
	e.procs[leader].Kill()
	b.sees(listed(fmt.Sprintf("The leader, server %d, is lost", leader+1)))
	for _, name := range []string{"Locks held", "Waiting", "Cycles", "Sessions", "Znodes", "Data"} {
		b.sees(tile(name) + ` === "unknown"`)
	}
	b.sees(`document.querySelector("#unknown").textContent.includes("knows no leader") && document.title.startsWith("⚠ ")`)
	b.sees(fmt.Sprintf(`%s.includes("serves no clients") && %[1]s.includes("do not answer")`, link))
	b.legible("#unknown", "#totals .unknown dd")
	b.phone("no-majority-phone")
	b.picture("no-majority")
	launch(leader)
	launch(other)
	b.sees(live)
	b.sees(tile("Locks held") + ` === "1" && document.querySelector("#unknown").textContent === ""`)
	b.sees(listed("This server serves clients"))
	if old := eval[bool](b, `document.body.classList.contains("old")`); old {
		t.Error("the page is dimmed while it is live")
	}

	e.procs[here].Kill()
	b.sees(link + `.startsWith("No connection; trying again. What you see is of ") && document.body.classList.contains("old")`)
	b.sees(`getComputedStyle(document.querySelector("#totals")).opacity < 1`)
	b.picture("no-connection")
	launch(here)
	b.sees(live + ` && !document.body.classList.contains("old")`)
}

// TestConsoleWrite breaks locks and ends a session from the console, by mouse and keyboard.
func TestConsoleWrite(t *testing.T) {
	t.Parallel()
	cfg, file, port := consoleConfig(t), filepath.Join(t.TempDir(), "token"), freeAddr(t)
	writeFile(t, file, []byte("s3cret\n"))
	l := startLockkeeper(t, "--memory", "--config", cfg, "--admin", port, "--admin-write")
	const long, path, guarded = 5 * time.Minute, "/locks/<b>report", "/locks/guarded"
	first, second, third, keeper := newContender(t, l.addr, long), newContender(t, l.addr, long), newContender(t, l.addr, long), newContender(t, l.addr, long)
	for _, at := range []string{"/locks", path, guarded} {
		perms := proto.PermAll
		if at == guarded {
			perms &^= proto.PermDelete
		}
		must(first.Call(proto.OpCreate, &proto.CreateRequest{Path: at, ACL: []proto.ACL{{Perms: perms, ID: proto.ID{Scheme: "world", ID: "anyone"}}}}, nil))(t)
	}
	held := first.queue(path, "")
	next := second.queue(path, held)
	third.queue(path, next)
	keeper.queue(guarded, "")

	b := openBrowser(t, "http://"+port)
	button := func(section string, c *contender) string {
		return fmt.Sprintf(`%s tr[data-session="%s"] button.act`, section, c.id)
	}
	click := func(selector string) {
		t.Helper()
		b.sees(fmt.Sprintf(`document.querySelector(%q) !== null`, selector))
		b.do(chromedp.Click(chromedp.CSS(selector)))
	}
	focus := func(selector string) {
		t.Helper()
		b.sees(fmt.Sprintf(`document.activeElement === document.querySelector(%q)`, selector))
	}
	const isOpen = `document.querySelector("#confirm").open`
	b.sees(row(path, third.id) + ` === "2nd"`)
	b.sees(`document.querySelectorAll("#locks button.act").length === 4 && document.querySelectorAll("#sessions button.act").length === 4`)

	// Cancel is what Enter does; the focus returns.
	click(button("#locks", first))
	b.sees(isOpen)
	focus("#confirm-cancel")
	b.says("#confirm-text", first.id+" (127.0.0.1:", "holds "+path, second.id, "gets the lock")
	b.says("#confirm-note", "is not stopped")
	if n := eval[int](b, `document.querySelectorAll("#confirm p *").length`); n != 0 {
		t.Errorf("the path of the lock was interpreted: %d elements", n)
	}
	found := false
	for _, n := range devtools(b, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{}).Nodes {
		if n.Ignored || n.Role == nil || n.Name == nil {
			continue
		}
		switch name := string(n.Name.Value); strings.Trim(string(n.Role.Value), `"`) {
		case "alertdialog":
			found = strings.Contains(name, "Break this lock?") && n.Description != nil && strings.Contains(string(n.Description.Value), second.id)
		case "button":
			if strings.Trim(name, `"`) == "" {
				t.Error("a button has no name")
			}
		}
	}
	if !found {
		t.Error("a screen reader does not read the dialog")
	}
	b.legible("#confirm-text", "#confirm-note", "#confirm-cancel", "#confirm-do", button("#locks", second))
	b.pictureBoth("break", "break-phone")
	b.do(chromedp.KeyEvent(kb.Enter))
	b.sees("!" + isOpen)
	focus(button("#locks", first))
	if _, err := first.Exists(held, false); err != nil {
		t.Fatalf("the lock was broken without a confirmation: %v", err)
	}

	// By keyboard: the lock is broken, and the next one gets it.
	b.do(chromedp.KeyEvent(kb.Enter))
	focus("#confirm-cancel")
	b.do(chromedp.KeyEvent(kb.Tab))
	focus("#confirm-do")
	b.do(chromedp.KeyEvent(kb.Enter))
	b.sees("!" + isOpen)
	b.sees(row(path, second.id) + ` === "holds"`)
	focus("#locks")
	if _, err := first.Exists(held, false); err != proto.NoNode {
		t.Errorf("the znode of the holder: %v", err)
	}

	// The dialog follows what happens while it is open.
	click(button("#locks", third))
	b.says("#confirm-text", third.id, "waits for "+path)
	b.do(chromedp.KeyEvent(kb.Tab))
	focus("#confirm-do")
	check(t, second.Delete(next))
	b.says("#confirm-text", third.id, "holds "+path, "nobody waits")
	focus("#confirm-cancel")
	check(t, third.CloseSession())
	b.says("#confirm-error", "It has gone")
	b.sees(`document.querySelector("#confirm-do").disabled`)
	b.do(chromedp.KeyEvent(kb.Escape))
	b.sees("!" + isOpen)
	focus("#locks")

	// An error is shown in place, even in a dialog that opened before the browser sent the
	// close event of the one before.
	click(button("#locks", keeper))
	b.sees(isOpen)
	reopened := eval[bool](b, fmt.Sprintf(`(() => {
		const dialog = document.querySelector("#confirm");
		dialog.addEventListener("close", () => { window.wasClosed = true; }, { once: true });
		document.querySelector("#confirm-cancel").click();
		document.querySelector(%q).click();
		return dialog.open;
	})()`, button("#locks", keeper)))
	if !reopened {
		t.Error("the dialog does not open right after it has closed")
	}
	b.sees("window.wasClosed")
	click("#confirm-do")
	b.says("#confirm-error", "the ACL of "+guarded, "does not let everybody delete")
	b.sees(isOpen)
	b.phone("break-refused-phone")
	b.do(chromedp.KeyEvent(kb.Escape))

	// A session ends.
	click(button("#sessions", keeper))
	b.says("#confirm-text", "session "+keeper.id, "1 ephemeral znode is deleted", "1 lock that it holds", "expired")
	b.picture("end-dark")
	click("#confirm-do")
	b.sees("!" + isOpen)
	b.sees(fmt.Sprintf(`!document.querySelector('tr[data-session="%s"]')`, keeper.id))
	b.sees(listed("Session " + keeper.id + " ended"))
	focus("#sessions")
	if _, err := keeper.Read(); err == nil {
		t.Error("the connection of the session continues")
	}
	if _, err := first.Exists(guarded, false); err != nil {
		t.Errorf("another session: %v", err)
	}
	b.silent("status of 403") // that of the guarded lock

	// With a token, which the page adds to what it posts.
	port = freeAddr(t)
	l = startLockkeeper(t, "--memory", "--config", cfg, "--admin", port, "--admin-write", "--admin-token-file", file)
	last := newContender(t, l.addr, long)
	b.do(chromedp.Navigate("http://" + port))
	b.sees(`document.querySelector("#login").open`)
	b.do(chromedp.KeyEvent("s3cret"), chromedp.KeyEvent(kb.Enter))
	click(button("#sessions", last))
	click("#confirm-do")
	b.sees(listed("Session " + last.id + " ended"))
}

// TestConsoleZnodes searches for znodes and edits them, by mouse and keyboard, while somebody else changes them, too.
func TestConsoleZnodes(t *testing.T) {
	t.Parallel()
	cfg, port := consoleConfig(t), freeAddr(t)
	l := startLockkeeper(t, "--memory", "--config", cfg, "--admin", port, "--admin-write=znodes")
	c := newContender(t, l.addr, 5*time.Minute)
	conn, _, err := zk.Connect([]string{l.addr}, 10*time.Second, zk.WithLogInfo(false))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	hostile := `<img src=x onerror="document.title='broken'">` + "\n<b>bold</b>"
	create := func(path, data string, acl []zk.ACL) {
		t.Helper()
		if _, err := conn.Create(path, []byte(data), 0, acl); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
	}
	world, nobody := zk.WorldACL(zk.PermAll), []zk.ACL{{Perms: zk.PermAll, Scheme: "ip", ID: "192.0.2.1"}}
	for _, path := range []string{"/app", "/app/<b>bold", "/many", "/locks", "/locks/l"} {
		create(path, "", world)
	}
	create("/app/config", "size=7", world)
	create("/app/long", strings.Repeat("x", 5000)+"\r\n", world)
	for i := range 250 {
		create(fmt.Sprintf("/many/shard-%03d", i), "", world)
	}
	create("/secret", "", world)
	create("/secret/config", "hush", world)
	must(conn.SetACL("/secret", nobody, -1))(t)

	b := openBrowser(t, "http://"+port)
	find := func(text string) {
		t.Helper()
		eval[chromedp.Void](b, fmt.Sprintf(`{ const f = document.querySelector("#find"); f.focus(); f.value = %q; f.dispatchEvent(new Event("input")); }`, text))
	}
	results := func(want ...string) {
		t.Helper()
		b.sees(fmt.Sprintf(`[...document.querySelectorAll("#found-znodes button")].map(b => b.textContent).join(" ") === %q`, strings.Join(want, " ")))
	}
	// open follows the first result, by keyboard.
	open := func(path string) {
		t.Helper()
		b.sees(fmt.Sprintf(`document.querySelector("#found-znodes button")?.textContent === %q`, path))
		b.do(chromedp.KeyEvent(kb.Tab))
		b.sees(`document.activeElement === document.querySelector("#found-znodes button")`)
		b.do(chromedp.KeyEvent(kb.Enter))
		b.sees(fmt.Sprintf(`document.querySelector("#znode h3")?.textContent === %q && document.querySelector("#tree [aria-selected=true]")?.path === %[1]q`, path))
	}

	// What an ACL hides is not found.
	find("CONFIG")
	results("/app/config", "/zookeeper/config")
	b.says("#hits", "2 znodes found")
	b.sees(`location.hash === "#find=CONFIG"`)
	open("/app/config")
	b.sees(`document.querySelector("#tree [aria-selected=true]").closest("[role=group]").closest("[role=treeitem]").path === "/app"`)
	b.do(chromedp.Reload())
	b.sees(live)
	results("/app/config", "/zookeeper/config")
	b.sees(`document.querySelector("#find").value === "CONFIG"`)
	find("shard-249") // beyond the children that the tree shows at first
	open("/many/shard-249")
	b.sees(`document.querySelectorAll("#tree [role=treeitem]").length > 200 && document.querySelector("#tree li.more button").textContent.includes("49 more")`)
	find("/many/")
	b.says("#hits", "the first 100 of 250 znodes found")
	b.fits("a search")
	b.picture("search-dark")
	b.phone("search-phone")
	b.legible("#hits", "#found-znodes button", "#edit-set")
	find("<b>")
	results("/app/<b>bold")
	if n := eval[int](b, `document.querySelectorAll("#found-znodes b").length`); n != 0 {
		t.Errorf("a path was interpreted: %d elements", n)
	}

	// Data is replaced, unless somebody else was faster.
	const isOpen = `document.querySelector("#edit").open`
	click := func(selector string) {
		t.Helper()
		b.sees(fmt.Sprintf(`document.querySelector(%q).getAttribute("aria-disabled") !== "true"`, selector))
		b.do(chromedp.Click(chromedp.CSS(selector)))
	}
	write := func(text string) {
		t.Helper()
		b.sees(isOpen)
		eval[chromedp.Void](b, fmt.Sprintf(`document.querySelector("#edit-data").value = %q`, text))
	}
	find("app/config")
	open("/app/config")
	click("#edit-set")
	b.sees(isOpen + ` && document.activeElement.id === "edit-data" && document.activeElement.value === "size=7"`)
	b.legible("#edit-text", "#edit-data", "#edit-form", "#edit-cancel", "#edit-do")
	b.pictureBoth("edit", "edit-phone")
	write("size=8\nüber")
	click("#edit-do")
	b.sees("!" + isOpen)
	b.sees(`document.querySelector("#znode pre")?.textContent === "size=8\nüber" && document.activeElement.id === "edit-set"`)
	b.do(chromedp.KeyEvent(kb.Enter))
	write("mine")
	must(conn.Set("/app/config", []byte("theirs"), 1))(t)
	b.says("#edit-note", "Meanwhile its data was changed: it has version 2")
	click("#edit-do")
	b.says("#edit-error", "Nothing was changed: the data of the znode was changed in the meantime: it has version 2, not 1.")
	b.sees(isOpen + ` && document.querySelector("#edit-data").value === "mine"`)
	b.phone("edit-conflict-phone")
	b.do(chromedp.KeyEvent(kb.Escape))
	b.sees("!" + isOpen + ` && document.querySelector("#znode pre")?.textContent === "theirs"`)

	// Data of which the page shows the beginning is edited whole, in hexadecimal if a field for text would change it.
	find("app/long")
	open("/app/long")
	b.says("#znode", "Only the beginning is shown")
	click("#edit-set")
	b.sees(isOpen + ` && document.querySelector("#edit-form").value === "hex" && document.querySelector("#edit-data").value.replace(/\s/g, "") === "78".repeat(5000) + "0d0a"`)
	click("#edit-do")
	b.sees("!" + isOpen)
	if data, st, err := conn.Get("/app/long"); err != nil || string(data) != strings.Repeat("x", 5000)+"\r\n" || st.Version != 1 {
		t.Errorf("%d bytes, %+v, %v", len(data), st, err)
	}

	// A child is created, shown and deleted.
	click("#edit-create")
	b.sees(isOpen + ` && document.activeElement.id === "edit-name"`)
	b.do(chromedp.KeyEvent("a/b"))
	write(hostile)
	click("#edit-do")
	b.says("#edit-error", "A name has no slash.")
	eval[chromedp.Void](b, `document.querySelector("#edit-name").value = "new"`)
	click("#edit-do")
	b.sees(fmt.Sprintf(`document.querySelector("#znode h3")?.textContent === "/app/long/new" && document.querySelector("#znode pre")?.textContent === %q`, hostile))
	if n := eval[int](b, `document.querySelectorAll("#znode img, #znode b").length`); n != 0 || strings.Contains(eval[string](b, "document.title"), "broken") {
		t.Errorf("data was interpreted: %d elements", n)
	}
	const asked = `document.querySelector("#confirm").open`
	click("#edit-delete")
	b.says("#confirm-text", "This deletes /app/long/new with its data")
	b.do(chromedp.KeyEvent(kb.Tab), chromedp.KeyEvent(kb.Enter))
	b.sees("!" + asked + ` && document.querySelector("#znode h3")?.textContent === "/app/long" && document.activeElement.id === "znodes"`)
	find("/app")
	open("/app")
	click("#edit-delete")
	b.says("#confirm-note", "It has 3 children")
	click("#confirm-do")
	b.says("#confirm-error", "Nothing was deleted: the znode has children.")
	b.do(chromedp.KeyEvent(kb.Escape))
	b.sees("!" + asked + ` && document.activeElement.id === "edit-delete"`)

	// Whose an ephemeral znode is.
	held := c.queue("/locks/l", "")
	find(held)
	open(held)
	b.sees(row("/locks/l", c.id) + ` === "holds"`)
	click("#edit-delete")
	b.says("#confirm-text", held, "the ephemeral znode of session "+c.id+" (127.0.0.1:")
	b.says("#confirm-note", "the session holds /locks/l", "is not told")
	b.picture("delete-dark")
	b.do(chromedp.KeyEvent(kb.Escape))
	b.sees("!" + asked + ` && document.activeElement.id === "edit-delete"`)
	find("zookeeper/config")
	open("/zookeeper/config")
	b.says("#edits-note", "What is in /zookeeper is not changed here.")
	b.sees(`[...document.querySelectorAll("#edits button")].every(b => b.getAttribute("aria-disabled") === "true")`)
	b.silent("status of 409", "status of 404") // of what was refused, and of the znode that was deleted
}

// TestConsoleHostile opens the console on znodes whose names, data and ACLs are made to mislead: none is markup, and what
// cannot be seen, or turns other text round, is written out. What an operator saves without a change stays as it was.
func TestConsoleHostile(t *testing.T) {
	t.Parallel()
	cfg, port := consoleConfig(t), freeAddr(t)
	l := startLockkeeper(t, "--memory", "--config", cfg, "--admin", port, "--admin-write=znodes")
	c := newContender(t, l.addr, 5*time.Minute)
	markup := `"><img src=x onerror="document.title='broken'">`
	strange := "a\u200bb\u00ad\u2066c\ufeff\u2028" // no width, soft hyphen, isolate, line separator
	written := `a\u200bb\u00ad\u2066c\ufeff\u2028`
	must(c.Call(proto.OpAuth, &proto.AuthRequest{Scheme: "digest", Auth: []byte(markup + "\x1b\u202e:x")}, nil))(t)
	hostile := []proto.ACL{{Perms: proto.PermAll, ID: proto.ID{Scheme: "world", ID: "anyone"}}, {Perms: proto.PermAdmin, ID: proto.ID{Scheme: "auth"}}}
	for _, path := range []string{"/" + strange, "/" + markup} {
		must(c.Call(proto.OpCreate, &proto.CreateRequest{Path: path, Data: []byte(strange + "\U000e0041"), ACL: hostile}, nil))(t)
	}
	data := []string{
		"", "\n", "\nfirst\n\n", "end\n", "\ttab ", "\ufeffmark", "\r\n", "lone\r", "nul\x00", "\x7f", "\u0085", "\u2028\u2029", "\ufffd", "\uffff", "😀\U0010ffff",
		"e\u0301\u00e9", "\xff\xfe", "\xed\xa0\x80", "\xc0\x80", "\u202e" + markup, "</textarea>" + markup, "ff 00", strings.Repeat("ü\n", 21_845), strings.Repeat("\xff", 64<<10),
	}
	for i, text := range data {
		must(c.Create(fmt.Sprintf("/data-%02d", i), []byte(text), 0))(t)
	}

	b := openBrowser(t, "http://"+port)
	sees := func(path string) {
		t.Helper()
		b.sees(fmt.Sprintf(`document.querySelector("#znode h3")?.textContent === %q && document.querySelector("#edit-set").getAttribute("aria-disabled") === "false"`, path))
	}
	choose := func(path string) {
		t.Helper()
		item := fmt.Sprintf(`[...document.querySelectorAll("#tree [role=treeitem]")].find(i => i.path === %q)`, path)
		b.sees(item + " !== undefined")
		eval[chromedp.Void](b, item+".firstChild.click()")
	}
	choose("/" + strange)
	sees("/" + written)
	b.sees(fmt.Sprintf(`document.querySelector("#znode pre").textContent === %q`, written+`\u{e0041}`))
	b.sees(fmt.Sprintf(`document.querySelector("#tree [aria-selected=true]").getAttribute("aria-label") === %q`, written))
	b.sees(fmt.Sprintf(`document.querySelector("#znode p.path").textContent.includes(%q)`, markup+`\u001b\u202e`))
	b.do(chromedp.Click(chromedp.CSS("#edit-set")))
	b.sees(`document.querySelector("#edit").open && document.querySelector("#edit-form").value === "hex"`)
	b.sees(fmt.Sprintf(`document.querySelector("#edit-text").textContent.includes(%q)`, written))
	b.do(chromedp.KeyEvent(kb.Escape))
	b.sees(`!document.querySelector("#edit").open`)
	b.do(chromedp.Click(chromedp.CSS("#edit-delete")))
	b.sees(fmt.Sprintf(`document.querySelector("#confirm-text").textContent.includes(%q)`, written))
	b.do(chromedp.KeyEvent(kb.Escape))
	b.sees(`!document.querySelector("#confirm").open`)
	choose("/" + markup)
	sees("/" + markup)
	b.do(chromedp.Click(chromedp.CSS("#edit-create")))
	b.sees(fmt.Sprintf(`document.querySelector("#edit-text").textContent.includes(%q)`, markup))
	b.phone("hostile-phone")
	b.do(chromedp.KeyEvent(kb.Escape))
	b.sees(`!document.querySelector("#edit").open`)

	// The names of a deep tree stay legible.
	deep := ""
	for i := range 40 {
		deep += fmt.Sprintf("/deep%d", i)
		must(c.Create(deep, nil, 0))(t)
	}
	eval[chromedp.Void](b, `document.querySelector("#find").focus()`)
	b.do(chromedp.KeyEvent("deep39"))
	b.sees(`document.querySelectorAll("#found-znodes li").length === 1`)
	eval[chromedp.Void](b, `document.querySelector("#found-znodes button").click()`)
	b.sees(fmt.Sprintf(`document.querySelector("#tree [aria-selected=true]")?.path === %q`, deep))
	b.sees(`(() => {
		const name = document.querySelector("#tree [aria-selected=true] .name").getBoundingClientRect(), tree = document.querySelector("#tree").getBoundingClientRect();
		return name.height < 30 && name.left >= tree.left && name.right <= tree.right && name.bottom < tree.bottom + 1;
	})()`)
	b.fits("a deep tree")
	b.picture("deep-dark")
	b.phone("deep-phone")
	if n := eval[int](b, `document.querySelectorAll("main img").length`); n != 0 || strings.Contains(eval[string](b, "document.title"), "broken") {
		t.Errorf("a name was interpreted: %d pictures", n)
	}

	// In each form that the dialog has for it, data is saved as it was.
	for i, text := range data {
		path := fmt.Sprintf("/data-%02d", i)
		choose(path)
		sees(path)
		for version := int32(0); version < 2; version++ {
			b.sees(fmt.Sprintf(`[...document.querySelectorAll("#znode dt")].find(e => e.textContent === "version")?.nextSibling.textContent === "%d"`, version))
			b.do(chromedp.Click(chromedp.CSS("#edit-set")))
			b.sees(`document.querySelector("#edit").open`)
			if version == 1 { // the other form, if it can be had
				eval[chromedp.Void](b, `(() => { const f = document.querySelector("#edit-form"); f.value = f.value === "hex" ? "text" : "hex"; f.dispatchEvent(new Event("change", { bubbles: true })); })()`)
			}
			eval[chromedp.Void](b, `document.querySelector("#edit-do").click()`) // which may just be moving, since the form has changed
			b.sees(`!document.querySelector("#edit").open`)
			if r, err := c.Get(path, false); err != nil || string(r.Data) != text || r.Stat.Version != version+1 {
				t.Errorf("%q was saved as %.100q, version %d, %v", text, r.Data, r.Stat.Version, err)
			}
		}
	}
	b.silent()
}

// TestConsoleOtherSite has a page of another site in the same browser do what it can: nothing is changed, and nothing
// that it could read is answered.
func TestConsoleOtherSite(t *testing.T) {
	t.Parallel()
	port := freeAddr(t)
	l := startLockkeeper(t, "--memory", "--admin", port, "--admin-write")
	c := newContender(t, l.addr, 40*time.Second)
	must(c.Create("/z", []byte("old"), 0))(t)
	stat := must(c.Exists("/z", false))(t)
	seen := fmt.Sprintf(`"path":"/z","czxid":"0x%x","version":0`, stat.Czxid)
	bodies := map[string]string{"set": `{` + seen + `,"text":"new"}`, "delete": `{` + seen + `}`, "create": `{"path":"/new","text":""}`}
	page := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		io.WriteString(w, "<!doctype html><title>another site</title>")
	})
	other := httptest.NewServer(page)
	defer other.Close()
	b := openBrowser(t, "http://"+port)
	_, number, _ := net.SplitHostPort(port)
	// fetched returns the status that the page gets, 0 if it may not know it, -1 if there is no answer for it.
	fetched := func(call string) int {
		t.Helper()
		n, err := chromedp.Run(b.ctx, chromedp.Evaluate[int](call+`.then(r => r.status, () => -1)`, chromedp.EvalAwaitPromise))
		if err != nil {
			t.Fatalf("%s: %v", call, err)
		}
		return n
	}
	for _, site := range []string{other.URL, strings.Replace(other.URL, "127.0.0.1", "localhost", 1)} {
		b.do(chromedp.Navigate(site))
		for _, target := range []string{"http://" + port, "http://localhost:" + number} {
			for action, body := range bodies {
				url := target + "/console/znodes/" + action
				for _, kind := range []string{"text/plain", "application/json", "text/plain; application/json", "application/x-www-form-urlencoded"} {
					for _, mode := range []string{"cors", "no-cors"} {
						if status := fetched(fmt.Sprintf(`fetch(%q, { method: "POST", mode: %q, headers: { "Content-Type": %q }, body: %q })`, url, mode, kind, body)); status > 0 {
							t.Errorf("%s of %s from %s: status %d", kind, url, site, status)
						}
					}
				}
				eval[chromedp.Void](b, fmt.Sprintf(`navigator.sendBeacon(%q, new Blob([%q], { type: "application/json" }))`, url, body))
				eval[chromedp.Void](b, fmt.Sprintf(`(() => {
					const frame = document.createElement("iframe"), form = document.createElement("form"), field = document.createElement("input");
					frame.name = "frame";
					Object.assign(form, { method: "POST", enctype: "text/plain", action: %q, target: "frame" });
					Object.assign(field, { name: %q, value: "" });
					form.append(field);
					document.body.append(frame, form);
					form.submit();
				})()`, url, body))
			}
			for _, path := range []string{"/console/znode?path=/z", "/console/search?q=z", "/console/events", "/commands/srst", "/metrics"} {
				if status := fetched(fmt.Sprintf(`fetch(%q)`, target+path)); status != -1 {
					t.Errorf("%s from %s: status %d", path, site, status)
				}
			}
		}
	}
	time.Sleep(time.Second) // what a browser still sends; nothing fails by it
	if r, err := c.Get("/z", false); err != nil || string(r.Data) != "old" || r.Stat != stat {
		t.Errorf("%q, %+v, %v", r.Data, r.Stat, err)
	}
	if _, err := c.Exists("/new", false); err != proto.NoNode {
		t.Errorf("/new: %v", err)
	}
}

// live is true while the page shows the present.
const live = `document.querySelector("#link-text").textContent === "Live"`

// contrast checks that text is legible as WCAG's level AA requires.
func (b *browser) contrast(scheme, selector string) {
	b.t.Helper()
	colors := eval[[2][3]float64](b, fmt.Sprintf(`(() => {
		let e = document.querySelector(%q);
		const rgb = c => c.match(/[\d.]+/g).map(Number);
		const text = rgb(getComputedStyle(e).color).slice(0, 3);
		for (; e; e = e.parentElement) {
			const c = rgb(getComputedStyle(e).backgroundColor);
			if (c.length === 3 || c[3] > 0) return [text, c.slice(0, 3)];
		}
	})()`, selector))
	light := func(c [3]float64) float64 {
		var l [3]float64
		for i, v := range c {
			if v /= 255; v <= 0.04045 {
				l[i] = v / 12.92
			} else {
				l[i] = math.Pow((v+0.055)/1.055, 2.4)
			}
		}
		return 0.2126*l[0] + 0.7152*l[1] + 0.0722*l[2]
	}
	l, m := light(colors[0]), light(colors[1])
	if ratio := (max(l, m) + 0.05) / (min(l, m) + 0.05); ratio < 4.5 {
		b.t.Errorf("%s, %s: the contrast is only %.1f", scheme, selector, ratio)
	}
}

// envDocs is the directory for the pictures in the documentation.
const envDocs = "LOCKKEEPER_INTEROP_CONSOLE"

// TestConsolePictures makes the pictures of the console in the documentation: three servers, whose clients hold
// locks, wait for them and for each other. make pictures runs it.
func TestConsolePictures(t *testing.T) {
	docs := os.Getenv(envDocs)
	if docs == "" {
		t.Skip(envDocs + " is not set")
	}
	e, admin := consoleCluster(t)
	leader := e.leader()
	// The clients are spread over the servers.
	next := leader
	client := func() *contender {
		c := newContender(t, e.listen[next], 5*time.Minute)
		next = (next + 1) % 3
		return c
	}
	keeper := client()
	for _, path := range []string{"/locks", "/locks/billing", "/locks/invoices", "/locks/nightly-backup", "/locks/report", "/config"} {
		must(keeper.Create(path, []byte("x"), 0))(t)
	}
	b := openBrowser(t, "http://"+admin[leader])

	// Workers take the lock /locks/report in turns, and write, until the pictures are made.
	stop := make(chan struct{})
	var workers sync.WaitGroup
	defer workers.Wait()
	defer close(stop)
	turn := make(chan *contender, 5)
	for range cap(turn) {
		turn <- client()
	}
	pause := func(d time.Duration) bool {
		select {
		case <-time.After(d):
			return true
		case <-stop:
			return false
		}
	}
	workers.Go(func() {
		var queue []string // znodes
		var waiting []*contender
		for n := 0; pause(time.Duration(150+100*(n%7)) * time.Millisecond); n++ {
			if len(queue) == cap(turn) {
				if err := waiting[0].Delete(queue[0]); err != nil {
					t.Error(err)
					return
				}
				turn <- waiting[0]
				queue, waiting = queue[1:], waiting[1:]
				continue
			}
			c := <-turn
			before := ""
			if len(queue) > 0 {
				before = queue[len(queue)-1]
			}
			queue, waiting = append(queue, c.queueAs("/locks/report", before, fmt.Sprintf("worker-%d", n%5+1))), append(waiting, c)
		}
	})
	writer := client()
	workers.Go(func() {
		for n := 0; pause(time.Duration(10+n*n%23) * time.Millisecond); n++ {
			if _, err := writer.Set("/config", []byte("x")); err != nil {
				t.Error(err)
				return
			}
		}
	})
	backup, standby, x, y := client(), client(), client(), client()
	held := backup.queueAs("/locks/nightly-backup", "", "backup-2")
	standby.queueAs("/locks/nightly-backup", held, "backup-1")
	b.sees(row("/locks/nightly-backup", standby.id) + ` === "1st"`)
	time.Sleep(100 * time.Second) // for the charts; nothing is checked by it
	heldX, heldY := x.queueAs("/locks/billing", "", "host-17"), y.queueAs("/locks/invoices", "", "host-23")
	x.queueAs("/locks/invoices", heldY, "")
	y.queueAs("/locks/billing", heldX, "")
	b.sees(`document.querySelectorAll("#locks tr.cycle").length === 4 && [...document.querySelectorAll("#locks .address")].every(a => a.textContent.includes(":"))`)
	time.Sleep(10 * time.Second)
	b.pictures = docs
	b.fits("the documentation's picture")
	eval[chromedp.Void](b, "window.scrollTo(0, 0)")
	b.picture("console")
	b.scheme("light")
	b.do(chromedp.EmulateViewport(360, 780, chromedp.EmulateMobile, chromedp.EmulateScale(1.5)))
	eval[chromedp.Void](b, "window.scrollTo(0, 0)")
	b.picture("console-phone")
}
