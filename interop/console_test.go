//go:build interop

package interop

import (
	"context"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
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
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	c, err := rawclient.Open(nc, timeout)
	if err != nil {
		t.Fatal(err)
	}
	return &contender{t, c, fmt.Sprintf("0x%x", uint64(c.Session.SessionID))}
}

// queue adds the client to the queue of a lock, and watches the one before it as clients do.
func (l *contender) queue(path, before string) (at string) {
	l.t.Helper()
	at, err := l.Create(path+"/"+l.name(), nil, proto.FlagEphemeral|proto.FlagSequential)
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
	return fmt.Sprintf(`[...document.querySelectorAll("#locks tbody")].filter(b => b.querySelector("button.at").textContent === %q)
		.flatMap(b => [...b.querySelectorAll("tr[data-session]")]).find(r => r.dataset.session === %q)?.querySelector(".state").textContent`, path, session)
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
	cfg := filepath.Join(t.TempDir(), "zoo.cfg") // sessions that are not to expire outlast the test
	if err := os.WriteFile(cfg, []byte("tickTime=500\nmaxSessionTimeout=300000\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	e := newEnsemble(t, 3)
	admin := map[int]string{}
	for i := range 3 {
		admin[i] = freeAddr(t)
		e.args = []string{"--config", cfg, "--admin", admin[i]}
		e.launch(i)
	}
	e.await()
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
	create("/<b>bold", []byte(hostile))
	create("/binary", []byte{0xff, 0x00, 0xc0})
	for i := range 250 {
		create(fmt.Sprintf("/app/shard-%03d", i), nil)
	}

	b := openBrowser(t, "http://"+admin[leader])
	b.sees(`document.querySelectorAll("#members tbody tr").length === 3 && [...document.querySelectorAll("#members tbody tr")].filter(r => r.textContent.includes("follower")).length === 2`)

	// A wait and a handover.
	const long = 5 * time.Minute
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
	stat, err := second.Exists(next, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Delete(held); err != nil {
		t.Fatal(err)
	}
	b.sees(row("/locks/report", second.id) + ` === "holds"`)
	b.sees(row("/locks/report", third.id) + ` === "1st"`)
	b.sees(listed("/locks/report", second.id+" holds it, after "+first.id))
	if text := eval[string](b, `document.querySelector("#locks").textContent`); !strings.Contains(text, fmt.Sprint(stat.Czxid)) {
		t.Errorf("the token %d is not shown: %s", stat.Czxid, text)
	}

	// An expiry: this holder sends nothing any more.
	silent, heir := newContender(t, addr, time.Second), newContender(t, addr, long)
	held = silent.queue("/locks/nightly-backup", "")
	heir.queue("/locks/nightly-backup", held)
	b.sees(row("/locks/nightly-backup", heir.id) + ` === "1st"`)
	b.sees(row("/locks/nightly-backup", heir.id) + ` === "holds"`)
	b.sees(listed("Session " + silent.id + " expired"))
	if eval[string](b, row("/locks/nightly-backup", silent.id)+` ?? ""`) != "" {
		t.Error("the expired session is still shown")
	}
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
	if err := y.Delete(again); err != nil {
		t.Fatal(err)
	}
	b.sees(`!document.querySelector("#locks tr.cycle")`)

	// The tree, by keyboard: the first tab is the link to the locks.
	eval[chromedp.Void](b, `document.activeElement.blur(); window.scrollTo(0, 0)`)
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
	if _, err := conn.Set("/binary", []byte("now text"), -1); err != nil {
		t.Fatal(err)
	}
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

	b.mu.Lock()
	for _, text := range b.complaints {
		t.Errorf("the browser's console: %s", text)
	}
	b.mu.Unlock()

	// A port with a token: the page asks for it, again if it is wrong.
	file, port := filepath.Join(t.TempDir(), "token"), freeAddr(t)
	if err := os.WriteFile(file, []byte("s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
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

// TestConsoleTrouble: the console says when a member does not answer, when the leader is lost,
// that it does not know what it cannot know, and when what it shows is old.
func TestConsoleTrouble(t *testing.T) {
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
	if _, err := holder.Create("/l", nil, 0); err != nil {
		t.Fatal(err)
	}
	holder.queue("/l", "")
	b := openBrowser(t, "http://"+admin[here])
	tile := func(name string) string {
		return fmt.Sprintf(`[...document.querySelectorAll("#totals div")].find(d => d.firstChild.textContent === %q).lastChild.textContent`, name)
	}
	link := `document.querySelector("#link-text").textContent`
	b.sees(tile("Locks held") + ` === "1"`)

	e.procs[other].Kill()
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
	for _, scheme := range []string{"light", "dark"} {
		b.scheme(scheme)
		b.contrast(scheme, "#unknown")
		b.contrast(scheme, "#totals .unknown dd")
	}
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
	cfg, file, port := filepath.Join(t.TempDir(), "zoo.cfg"), filepath.Join(t.TempDir(), "token"), freeAddr(t)
	for name, text := range map[string]string{cfg: "tickTime=500\nmaxSessionTimeout=300000\n", file: "s3cret\n"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l := startLockkeeper(t, "--memory", "--config", cfg, "--admin", port, "--admin-write")
	const long, path, guarded = 5 * time.Minute, "/locks/<b>report", "/locks/guarded"
	first, second, third, keeper := newContender(t, l.addr, long), newContender(t, l.addr, long), newContender(t, l.addr, long), newContender(t, l.addr, long)
	for _, at := range []string{"/locks", path, guarded} {
		perms := proto.PermAll
		if at == guarded {
			perms &^= proto.PermDelete
		}
		if _, err := first.Call(proto.OpCreate, &proto.CreateRequest{Path: at, ACL: []proto.ACL{{Perms: perms, ID: proto.ID{Scheme: "world", ID: "anyone"}}}}, nil); err != nil {
			t.Fatal(err)
		}
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
	says := func(selector string, texts ...string) {
		t.Helper()
		for _, text := range texts {
			b.sees(fmt.Sprintf(`document.querySelector(%q).textContent.includes(%q)`, selector, text))
		}
	}
	const isOpen = `document.querySelector("#confirm").open`
	b.sees(row(path, third.id) + ` === "2nd"`)
	b.sees(`document.querySelectorAll("#locks button.act").length === 4 && document.querySelectorAll("#sessions button.act").length === 4`)

	// Cancel is what Enter does; the focus returns.
	click(button("#locks", first))
	b.sees(isOpen)
	focus("#confirm-cancel")
	says("#confirm-text", first.id+" (127.0.0.1:", "holds "+path, second.id, "gets the lock")
	says("#confirm-note", "is not stopped")
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
	for _, scheme := range []string{"light", "dark"} {
		b.scheme(scheme)
		for _, selector := range []string{"#confirm-text", "#confirm-note", "#confirm-cancel", "#confirm-do", button("#locks", second)} {
			b.contrast(scheme, selector)
		}
		b.picture("break-" + scheme)
		b.phone("break-phone-" + scheme)
	}
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
	says("#confirm-text", third.id, "waits for "+path)
	b.do(chromedp.KeyEvent(kb.Tab))
	focus("#confirm-do")
	if err := second.Delete(next); err != nil {
		t.Fatal(err)
	}
	says("#confirm-text", third.id, "holds "+path, "nobody waits")
	focus("#confirm-cancel")
	if err := third.CloseSession(); err != nil {
		t.Fatal(err)
	}
	says("#confirm-error", "It has gone")
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
	says("#confirm-error", "the ACL of "+guarded, "does not let everybody delete")
	b.sees(isOpen)
	b.phone("break-refused-phone")
	b.do(chromedp.KeyEvent(kb.Escape))

	// A session ends.
	click(button("#sessions", keeper))
	says("#confirm-text", "session "+keeper.id, "1 ephemeral znode is deleted", "1 lock that it holds", "expired")
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
	b.mu.Lock()
	for _, text := range b.complaints {
		if !strings.Contains(text, "status of 403") { // that of the guarded lock
			t.Errorf("the browser's console: %s", text)
		}
	}
	b.mu.Unlock()

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
