// The console. A stream of events brings the whole state each time; the page changes only
// what differs, so that focus, selection and scroll positions stay. Whatever comes from the
// server becomes text nodes, never markup.

const $ = (selector, within = document) => within.querySelector(selector);

// element makes an element with properties and children; strings become text nodes.
function element(name, properties = {}, ...children) {
  const e = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key === "class") e.className = value;
    else if (key.startsWith("on")) e.addEventListener(key.slice(2), value);
    else setAttribute(e, key, value);
  }
  e.append(...children.map((c) => (typeof c === "string" ? visible(c) : c)));
  return e;
}

// visible writes out the characters that cannot be seen, or turn the text around them round: a path has them if a client
// wants, and is part of sentences here.
function visible(text) {
  return String(text).replace(/[\p{Cf}\p{Zl}\p{Zp}]|(?![\n\t])\p{Cc}/gu, (c) => {
    const hex = c.codePointAt(0).toString(16);
    return hex.length > 4 ? `\\u{${hex}}` : `\\u${hex.padStart(4, "0")}`;
  });
}

function setText(e, text) {
  text = visible(text);
  if (e.textContent !== text) e.textContent = text;
}

function setClass(e, name) {
  if (e.className !== name) e.className = name;
}

function setAttribute(e, name, value) {
  if (name === "aria-label" || name === "title") value = visible(value);
  if (e.getAttribute(name) !== String(value)) e.setAttribute(name, value);
}

// keep makes the children of parent those for items, in their order, and reuses those that
// it has made for the same keys before.
function keep(parent, items, key, create, update) {
  const old = parent.kept ?? new Map();
  const kept = new Map();
  let next = parent.keepAfter ? parent.keepAfter.nextSibling : parent.firstChild;
  for (const item of items) {
    const k = key(item);
    const e = old.get(k) ?? create(item);
    old.delete(k);
    kept.set(k, e);
    if (e === next) next = next.nextSibling;
    else parent.insertBefore(e, next);
    update(e, item);
  }
  for (const e of old.values()) e.remove();
  parent.kept = kept;
}

// Formats.

const count = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

function decimal(x) {
  if (x === 0) return "0";
  return x < 10 ? x.toFixed(x < 1 ? 2 : 1) : count.format(x);
}

function duration(ms) {
  ms = Math.max(0, ms);
  const s = ms / 1000;
  if (s < 60) return `${s.toFixed(1)} s`;
  const m = Math.floor(s / 60);
  if (m < 60) return `${m} m ${Math.floor(s % 60)} s`;
  const h = Math.floor(m / 60);
  if (h < 24) return `${h} h ${m % 60} m`;
  return `${Math.floor(h / 24)} d ${h % 24} h`;
}

function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  for (; n >= 1024 && i < units.length - 1; i++) n /= 1024;
  return `${i ? n.toFixed(1) : n} ${units[i]}`;
}

const nameOf = (path) => path.slice(path.lastIndexOf("/") + 1);
const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB");
const ordinal = (n) => `${n}${n % 100 > 10 && n % 100 < 14 ? "th" : ["th", "st", "nd", "rd"][n % 10] ?? "th"}`;
const plural = (n, one, many = `${one}s`) => `${count.format(n)} ${n === 1 ? one : many}`;

// The session that the user follows is marked wherever it occurs.

let followed = "";

function follow(id) {
  followed = followed === id ? "" : id;
  markFollowed();
}

function markFollowed() {
  for (const row of document.querySelectorAll("[data-session]")) {
    const on = followed !== "" && row.dataset.session === followed;
    row.classList.toggle("followed", on);
    const button = $("button.id", row);
    if (button) setAttribute(button, "aria-pressed", on);
  }
}

document.addEventListener("keydown", (e) => {
  if (e.key === "Escape" && followed && !$("dialog[open]")) follow(followed);
});

const sessionButton = (id) => element("button", { class: "id", type: "button", "aria-pressed": "false", title: "Mark this session everywhere", onclick: () => follow(id) }, id);
const pathButton = (path) => element("button", { class: "at", type: "button", title: "Show this znode", onclick: () => select(path, true) }, path);
const lockButton = (path, text = path) => element("button", { class: "at", type: "button", title: "Show this lock with its queue and history", onclick: () => showLock(path) }, text);

// timeLeft makes and updates a cell with the time that a session has left.
function timeLeft(name = "left") {
  return element("td", { class: name }, element("div", { class: "time" }, element("span"), element("div", { class: "bar" }, element("i"))));
}

function updateTimeLeft(cell, session, now) {
  const bar = $(".bar", cell);
  const known = session && session.expires > 0;
  const left = known ? session.expires - now : 0;
  setText($("span", cell), known ? duration(left) : "–");
  bar.hidden = !known || !session.timeout;
  if (!bar.hidden) {
    const part = Math.min(1, Math.max(0, left / session.timeout));
    setClass(bar, part < 1 / 3 ? "bar low" : "bar");
    bar.firstChild.style.width = `${100 * part}%`;
  }
}

// What only the passing of time changes in a row is updated while the row is on the screen, and
// when it comes there.

const onScreen = new WeakSet();
const watcher = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (isIntersecting) onScreen.add(target);
    else onScreen.delete(target);
    if (isIntersecting && previous) target.tick?.(previous.now);
  }
}, { rootMargin: "100px" });

function watched(row) {
  watcher.observe(row);
  return row;
}

// ticks sets what tick changes in a row.
function ticks(row, now, tick) {
  const first = !row.tick;
  row.tick = tick;
  if (first || onScreen.has(row)) tick(now);
}

function showNote(section, text) {
  const note = $(".note", section);
  note.hidden = !text;
  setText(note, text ?? "");
}

function showMore(section, text) {
  const more = $(".more", section);
  more.hidden = !text;
  setText(more, text);
}

// Parts of the page.

function renderServer(state) {
  const s = state.server;
  const parts = [`server ${s.id}`, s.role, `term ${s.term}`, `zxid ${s.zxid}`, `up ${duration(state.now - s.since)}`, `version ${s.version}`];
  if (s.role !== "standalone" && s.role !== "leader") parts.splice(2, 0, s.leader ? `leader is ${s.leader}` : "no leader known");
  if (s.role !== "standalone" || s.cluster) parts.splice(1, 0, s.cluster ? `cluster ${s.cluster}` : "in no cluster yet");
  setText($("#server"), parts.join(" · "));
  const differ = state.members.filter((m) => m.differs);
  keep($("#alarms"), differ, (m) => m.id, () => element("li", { class: "harm" }, element("b"), element("span")), (e, m) => {
    setText(e.firstChild, `Server ${m.id} differs`);
    setText(e.lastChild, `: its state at log entry ${m.differs} is not the leader's. It stops serving. Keep its files, and see “Two members differ” in docs/operations.md.`);
  });
  document.title = `${differ.length || state.totals.cycles || state.unknown || trouble(state) ? "⚠ " : ""}lockkeeper ${s.id}`;
}

// trouble says what is wrong with the members, "" if nothing is.
function trouble(state) {
  const named = (list) => servers(list.map((m) => m.id));
  const dead = state.members.filter((m) => m.dead), differ = state.members.filter((m) => m.differs);
  const astray = state.members.filter((m) => !m.dead && !m.role && m.note);
  return [
    dead.length ? `${named(dead)} ${dead.length === 1 ? "does" : "do"} not answer` : "",
    differ.length ? `${named(differ)} ${differ.length === 1 ? "differs" : "differ"}` : "",
    astray.length ? `${named(astray)} ${astray.length === 1 ? "is" : "are"} not in this cluster` : "",
  ].filter(Boolean).join("; ");
}

// atLeast says how many there are if only some of the locks have been read, and none that were are no answer.
const atLeast = (n, state) => (state.totals.atLeast ? n && `at least ${count.format(n)}` : n);

// renderTotals shows the numbers. One that this server does not know is not 0.
function renderTotals(state) {
  const { server: s, totals: t } = state;
  const noLocks = state.unknown || (t.atLeast ? "" : state.notes.locks);
  const ofLocks = (name, n, alarm) => [name, atLeast(n, state), noLocks || (t.atLeast && !n ? state.notes.locks : ""), alarm, t.atLeast ? state.notes.locks : ""];
  const rows = [
    ofLocks("Locks held", t.locks), ofLocks("Waiting", t.waiting), ofLocks("Cycles", t.cycles, t.cycles > 0),
    ["Sessions", s.sessions, state.unknown], ["Clients", count.format(state.clients.total) + (state.clients.unknown.length ? "+" : ""), "", false, clientsHelp(state)], ["Znodes", s.znodes, state.unknown],
    ["Watches here", s.watches, "", false, "Watches of the clients that are connected to this server."], ["Data", bytes(s.dataBytes), state.unknown],
  ];
  keep($("#totals"), rows, (r) => r[0], (r) => element("div", {}, element("dt", {}, r[0]), element("dd")), (e, [, value, why, alarm, help]) => {
    setText(e.lastChild, why ? "unknown" : typeof value === "number" ? count.format(value) : value);
    setClass(e, why ? "unknown" : alarm ? "alarm" : "");
    setAttribute(e, "title", why || (help ?? ""));
  });
  setText($("#unknown"), noLocks ?? "");
}

const charts = [
  { value: "writes", title: "Writes", unit: "/s", help: "Transactions of the whole cluster" },
  { value: "sync", title: "Latency", unit: " ms", help: "How long a sync takes: this server, and a majority confirms its leader" },
  { value: "grants", title: "Handovers", unit: "/s", help: "Locks that got a new holder" },
];
const chartSpan = 120_000;

function svg(name, attributes) {
  const e = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) e.setAttribute(key, value);
  return e;
}

function renderCharts(state) {
  keep($("#charts"), charts, (c) => c.value, (c) => {
    const picture = svg("svg", { viewBox: "0 0 120 40", preserveAspectRatio: "none", role: "img" });
    picture.append(svg("path", { class: "area" }), svg("line", { class: "base", x1: 0, x2: 120, y1: 40, y2: 40 }), svg("path", { class: "curve" }));
    return element("figure", {}, element("figcaption", { title: c.help }, element("span", {}, c.title), element("span", { class: "top muted" }), element("b")), picture);
  }, (e, c) => {
    const points = state.samples.filter((s) => state.now - s.at < chartSpan);
    const values = points.map((s) => s[c.value]).filter((v) => v !== null);
    const highest = Math.max(0, ...values);
    const last = points.at(-1)?.[c.value] ?? null;
    const now = last === null ? "–" : decimal(last) + c.unit;
    setText($("b", e), now);
    setText($(".top", e), `at most ${decimal(highest)}${c.unit}`);
    // A sample that is missing, or a second without one, interrupts the curve.
    let curve = "", area = "", from = null, before = 0;
    const close = (x) => { if (from !== null) area += `L${x} 40L${from} 40Z`; from = null; };
    let x = 0;
    for (const p of points) {
      const v = p[c.value];
      if (v === null || p.at - before > 5000) close(x);
      before = p.at;
      if (v === null) continue;
      x = (120 * (1 - (state.now - p.at) / chartSpan)).toFixed(2);
      const y = (40 - (highest ? 38 * v / highest : 0)).toFixed(2);
      curve += `${from === null ? "M" : "L"}${x} ${y}`;
      area += `${from === null ? "M" : "L"}${x} ${y}`;
      from ??= x;
    }
    close(x);
    const picture = $("svg", e);
    picture.children[0].setAttribute("d", area);
    picture.children[2].setAttribute("d", curve);
    setAttribute(picture, "aria-label", `${c.title}: now ${now}, at most ${decimal(highest)}${c.unit} in the last two minutes`);
  });
}

const faults = { cycle: "Cycle", orphan: "Orphan", duplicate: "Duplicate", "watches-nobody": "Watches nobody", "waits-for-itself": "Waits for itself" };

function renderLocks(state) {
  const section = $("#locks");
  renderProblems(section, state);
  const reading = view.q && state.readingData ? "The data of some holders is still being read, so the filter may find more." : "";
  showNote(section, [state.notes.locks, reading].filter(Boolean).join(" "));
  const table = $("table", section);
  table.keepAfter = $("thead", table);
  const items = [];
  for (const l of state.locks) if (!l.group) items.push({ lock: l });
  for (const g of state.groups) {
    items.push({ group: g });
    for (const l of state.locks) if (l.group === g.path) items.push({ lock: l });
  }
  keep(table, items, (x) => (x.group ? `group ${x.group.path}` : `lock ${x.lock.path}`), (x) => (x.group ? groupHead(x.group) : lockBody(x.lock)),
    (body, x) => (x.group ? renderGroup(body, x.group) : renderQueue(body, x.lock, state)));
  table.hidden = items.length === 0;
  const empty = $(".empty", section);
  empty.hidden = items.length > 0 || Boolean(state.notes.locks);
  setText(empty, state.totals.locks ? "No lock matches the filter." : "No lock is held.");
  const known = (state.totals.atLeast ? "at least " : "") + plural(state.totals.locks, "lock");
  setText($("#found"), view.q ? `${count.format(state.matching)} of ${known}` : known);
  $("#fold").hidden = state.groups.length === 0;
  const pages = $("#pages");
  pages.hidden = state.pages < 2;
  setText($("#page"), `Page ${state.page} of ${state.pages}`);
  $("#page-before").disabled = state.page <= 1;
  $("#page-after").disabled = state.page >= state.pages;
  showMore(section, [...state.locks, state.lock].some((l) => l && [...l.holders, ...l.queue].some((c) => c.session && !c.addr && !c.gone && c.server)) ? elsewhere : "");
}

// renderProblems shows the problems of each lock.
function renderProblems(section, state) {
  const list = $(".problems", section);
  keep(list, [...state.problems, ...(state.problemsMore ? [{ path: "" }] : [])], (l) => l.path,
    (l) => (l.path ? element("li", {}, lockButton(l.path), element("ul")) : element("li")), (e, l) => {
      if (!l.path) {
        setText(e, `${plural(state.problemsMore, "more lock")} with problems; the filter finds ${state.problemsMore === 1 ? "it" : "them"}.`);
        return;
      }
      setClass(e, l.problems.some((p) => p.harm) ? "harm" : "");
      const rows = [...l.problems, ...(l.more ? [{ fault: "", text: `and ${count.format(l.more)} more`, others: [] }] : [])];
      keep(e.lastChild, rows, (p) => p.fault + p.text, (p) => {
        const links = element("span", { class: "links" });
        for (const path of p.others) links.append(" ", lockButton(path));
        return p.fault ? element("li", { class: p.harm ? "harm" : "" }, element("b", {}, faults[p.fault] ?? p.fault), `: ${p.text}.`, links) : element("li", {}, p.text);
      }, () => {});
    });
}

const elsewhere = "“Server” and a number stand for an address that is not known: the client is connected to that server, or was last.";

// where says where the client of a session is connected. Its server is named if it is another one.
function where(x, state) {
  const server = x.server && x.server !== state.server.id ? `server\u00a0${x.server}` : ""; // in one line
  if (x.addr) return [x.addr, server].filter(Boolean).join(", ");
  if (x.gone) return ["not connected", server && `last to ${server}`].filter(Boolean).join(", ");
  return server || (x.server ? "this server" : "not known");
}

// groupHead makes the head of a group of locks, and lockBody the rows of a lock.
function groupHead(g) {
  return element("tbody", { class: "group" }, element("tr", {}, element("th", { colspan: 6, scope: "rowgroup" },
    element("button", { class: "fold", type: "button", onclick: () => foldGroup(g.path) }, g.path), element("span", { class: "kind" }))));
}

function renderGroup(body, g) {
  setAttribute($("button", body), "aria-expanded", !g.folded);
  setText($(".kind", body), [plural(g.locks, "lock"), g.waiting ? `${count.format(g.waiting)} waiting` : "", g.cycle ? "cycle" : ""].filter(Boolean).join(" · "));
  body.classList.toggle("harm", g.cycle);
}

function lockBody(l) {
  const body = element("tbody", {}, element("tr", {}, element("th", { colspan: 6, scope: "rowgroup" }, lockButton(l.path), element("span", { class: "kind" }))));
  body.keepAfter = body.firstChild;
  return body;
}

function describeLock(l) {
  const slots = l.kind === "semaphore" ? ` · ${l.holding} of ${l.slots || "?"} slots` : "";
  return [l.kind + slots, l.client, l.waiting ? `${count.format(l.waiting)} waiting` : "", l.more ? `${plural(l.more, "more entry", "more entries")} not shown` : ""].filter(Boolean).join(" · ");
}

function renderQueue(body, l, state) {
  setText($(".kind", body), describeLock(l));
  const first = body.kept === undefined;
  const rows = [...l.holders.map((c) => ({ ...c, place: 0 })), ...l.queue.map((c, i) => ({ ...c, place: i + 1 }))];
  keep(body, rows, (c) => c.path + c.token, (c) => watched(element("tr", c.session ? { "data-session": c.session } : {},
    element("td", { class: "state" }),
    element("td", {}, c.session ? sessionButton(c.session) : element("span", { class: "bad" }, "not ephemeral"), element("span", { class: "data muted" }), element("small")),
    element("td", { class: "wide muted address" }), element("td", { class: "number token wide" }), element("td", { class: "number" }, element("span"), element("small")), timeLeft("left wide"))), (row, c) => {
    const holds = c.place === 0;
    const [place, who, address, token, since, left] = row.children;
    setText(place, (holds ? "holds" : ordinal(c.place)) + (c.shared ? " shared" : "") + (c.cycle ? ", cycle" : ""));
    setText(address, c.session ? where(c, state) : "–");
    setText($("small", who), `token ${c.token}${c.session ? `, ${where(c, state)}` : ""}`);
    setText($(".data", who), c.data);
    setText(token, c.token);
    ticks(row, state.now, (now) => {
      setText(since.firstChild, duration(now - c.since));
      setText(since.lastChild, c.expires ? `${duration(c.expires - now)} left` : "");
      updateTimeLeft(left, c, now);
    });
    showAction(who, state.breakLocks, state, "Break…", `Break ${l.path}, ${holds ? "held" : "awaited"} by ${c.session || nameOf(c.path)}`, () => questionOfBreak(l.path, c));
    row.classList.toggle("cycle", c.cycle);
    if (holds && row.classList.contains("waits") || !first && !row.classList.contains("holds") && !row.classList.contains("waits")) row.classList.add("fresh");
    row.classList.toggle("holds", holds);
    row.classList.toggle("waits", !holds);
  });
}

// renderLock shows the lock that the user has opened, with its history.
function renderLock(state) {
  const section = $("#lock"), l = state.lock;
  section.hidden = !view.lock;
  if (l?.path !== view.lock) return; // a state of the view before
  setText($("#lock-title"), l.path);
  $("#lock-cycle").hidden = l.cycleWith.length === 0;
  keep($("#lock-cycle span"), l.cycleWith, (path) => path, (path) => element("span", {}, lockButton(path), " "), () => {});
  const table = $("table.locks", section);
  if (table.path !== l.path) {
    table.path = l.path;
    $("tbody", table)?.remove();
    const body = lockBody(l);
    $("button", body).replaceWith(pathButton(l.path));
    table.append(body);
  }
  renderQueue($("tbody", table), l, state);
  const held = l.holding + l.waiting > 0;
  table.hidden = !held;
  showNote(section, held ? "" : state.notes.locks || "Nobody holds this lock or waits for it now.");
  const rows = l.history.toReversed();
  const history = $("table.history", section);
  keep($("tbody", history), rows, (t) => t.token, (t) => element("tr", t.session ? { "data-session": t.session } : {},
    element("td", {}, t.session ? sessionButton(t.session) : element("span", { class: "bad" }, "not ephemeral"), element("span", { class: "data muted" })),
    element("td"), element("td", { class: "number" }), element("td", { class: "number" }), element("td", { class: "mono wide" })), (row, t) => {
    const [who, from, waited, held, after] = row.children;
    setText($(".data", who), t.data);
    setText(from, t.from ? clock(t.from) : "before that");
    setText(waited, t.from ? duration(t.from - t.since) : "–");
    const end = t.until || state.now;
    setText(held, `${t.from ? "" : "over "}${duration(end - (t.from || state.historySince))}${t.until ? "" : ", holds"}`);
    setText(after, t.after || "–");
  });
  history.hidden = rows.length === 0;
  setText($("#history-note"), state.historySince
    ? `The server has kept this since ${clock(state.historySince)}, when somebody opened its console, and keeps it while at least one browser has the console open: the last 20 holders. Times are those of the server’s looks, a quarter of a second to some seconds apart; a holder that came and went between two is missing.`
    : "The server has not read all locks yet; the history begins when it has.");
}

function renderSessions(state) {
  const section = $("#sessions");
  showNote(section, state.notes.sessions);
  keep($("tbody", section), state.sessions, (s) => s.id, (s) => watched(element("tr", { "data-session": s.id },
    element("td", {}, sessionButton(s.id), element("small")), element("td", { class: "wide muted" }), timeLeft(),
    element("td", { class: "number" }), element("td", { class: "number" }), element("td", { class: "number wide" }), element("td", { class: "number wide" }))), (row, s) => {
    const [id, address, left, ...numbers] = row.children;
    setText($("small", id), where(s, state));
    setText(address, where(s, state));
    ticks(row, state.now, (now) => updateTimeLeft(left, s, now));
    [s.holds, s.waits, s.ephemerals, s.watches].forEach((n, i) => setText(numbers[i], n ? count.format(n) : "·"));
    showAction(id, state.endSessions, state, "End session…", `End session ${s.id}`, () => questionOfEnd(s.id));
  });
  $("table", section).hidden = state.sessions.length === 0;
  $(".empty", section).hidden = state.sessions.length > 0 || Boolean(state.notes.sessions);
  showMore(section, state.sessionsMore ? `${plural(state.sessionsMore, "more session")} not shown${view.q ? "" : "; the filter finds them"}.` :
    state.sessions.length && !state.sessions.some((s) => s.expires) && !state.notes.sessions ? "Only the leader knows how much time sessions have left." : "");
}

const clientsHelp = (state) => `Connections of clients${state.clients.unknown.length ? `, without those of ${servers(state.clients.unknown)}` : ""}; ${count.format(state.server.connections)} to this server`;
const servers = (ids) => `${ids.length === 1 ? "server" : "servers"} ${listOf(ids)}`;

// renderClients shows who is connected to which member.
function renderClients(state) {
  const section = $("#clients"), { servers: all, list, total, unknown, matching, page, pages } = state.clients;
  const table = $("table", section);
  table.keepAfter = $("thead", table);
  keep(table, all, (s) => s.id, clientsBody, (body, s) => renderClientsOf(body, s, list.filter((c) => c.server === s.id), state));
  table.hidden = all.length === 0;
  $(".empty", section).hidden = all.length > 0;
  const known = plural(total, "client") + (unknown.length ? `, without those of ${servers(unknown)}` : "");
  setText($("#clients-found"), view.client ? `${count.format(matching)} of ${known}` : known);
  $("#client-pages").hidden = pages < 2;
  setText($("#client-page"), `Page ${page} of ${pages}`);
  $("#client-page-before").disabled = page <= 1;
  $("#client-page-after").disabled = page >= pages;
  showMore(section, all.some((s) => !s.note && s.told < s.total) ? `A server tells its oldest 1,000 clients${view.client ? ", and first those that the filter finds" : "; the filter finds others"}.` : "");
}

// clientsBody makes the rows of a member's clients.
function clientsBody(s) {
  const body = element("tbody", { class: "group" }, element("tr", {}, element("th", { colspan: 6, scope: "rowgroup" },
    element("button", { class: "fold", type: "button", onclick: () => foldServer(s.id) }), element("span", { class: "kind" }), element("span", { class: "had" }))));
  body.keepAfter = body.firstChild;
  return body;
}

function describeClients(s) {
  if (s.note) return `unknown: ${s.note}`;
  if (s.total < 0) return "is being asked";
  return (view.client ? `${count.format(s.matching)} of ` : "") + (s.told < s.total ? `${count.format(s.told)} of ` : "") + plural(s.total, "client");
}

function renderClientsOf(body, s, list, state) {
  const fold = $("button", body);
  setText(fold, `Server ${s.id}${s.self && state.server.role !== "standalone" ? " (this)" : ""}`);
  setAttribute(fold, "aria-expanded", !s.folded);
  setText($(".kind", body), describeClients(s));
  setText($(".had", body), s.note && s.total >= 0 ? `it had ${plural(s.total, "client")}` : "");
  body.classList.toggle("silent", s.note !== "");
  keep(body, list, (c) => `${c.number} ${c.session}`, (c) => watched(element("tr", c.session ? { "data-session": c.session } : {},
    element("td", { class: "wide" }, c.server), element("td", {}, c.session ? sessionButton(c.session) : element("span", { class: "muted" }, "none yet"), element("small")),
    element("td", { class: "wide muted address" }), element("td", { class: "number" }), element("td", { class: "number wide" }), element("td", { class: "number wide" }))), (row, c) => {
    const [, who, address, since, requests, last] = row.children;
    setText(address, c.addr);
    setText($("small", who), c.addr);
    setText(requests, count.format(c.requests));
    ticks(row, state.now, (now) => {
      setText(since, duration(now - c.since));
      setText(last, c.op ? `${c.op} ${duration(now - c.opAt)} ago` : "–");
    });
  });
}

function renderMembers(state) {
  const section = $("#members");
  keep($("tbody", section), state.members, (m) => m.id, () => element("tr", {},
    element("td"), element("td"), element("td", { class: "path" }, element("code"), element("small")), element("td", { class: "number" }), element("td", { class: "number" })), (row, m) => {
    const [id, role, where, term, behind] = row.children;
    setText(id, m.id);
    setText(role, (m.role || "?") + (m.self ? " (this)" : ""));
    setClass(role, m.role === "leader" ? "leader" : m.role ? "" : "bad");
    setText(where.firstChild, m.addr);
    const note = [m.differs ? `its state differs at entry ${m.differs}` : "", m.note].filter(Boolean).join("; ");
    setText(where.lastChild, note);
    setClass(where.lastChild, m.differs ? "bad" : "");
    where.lastChild.hidden = !note;
    setText(term, m.role ? m.term : "–");
    setText(behind, m.behind === null ? "–" : m.behind ? count.format(m.behind) : "0");
    setClass(behind, m.behind > 0 ? "number behind" : "number");
  });
  $("table", section).hidden = state.members.length === 0;
  $(".empty", section).hidden = state.members.length > 0;
  setText($(".empty", section), state.server.role === "standalone" ? "This server is standalone." : "This server is in no cluster yet.");
  showMore(section, state.members.length ? "“Behind” counts log entries that a member has not applied yet." : "");
}

function renderWatches(state) {
  const section = $("#watches");
  showNote(section, state.notes.watches);
  keep($("tbody", section), state.watches, (w) => w.path, (w) => element("tr", {}, element("td", { class: "path" }, pathButton(w.path)), element("td", { class: "mono" })), (row, w) => {
    setText(row.lastChild, w.sessions.slice(0, 3).join(" ") + (w.sessions.length + w.more > 3 ? ` and ${w.sessions.length + w.more - 3} more` : ""));
  });
  $("table", section).hidden = state.watches.length === 0;
  $(".empty", section).hidden = state.watches.length > 0 || Boolean(state.notes.watches);
  showMore(section, state.watchesMore ? `${plural(state.watchesMore, "more path")} not shown.` : "");
}

// Actions, if the server permits them. Each is confirmed in a dialog by a question, which has
//
//	title, confirm   the words of the dialog and of its button
//	url, body        what is posted
//	section          where the focus goes if the button that opened the dialog is gone
//	after()          what else happens when it was done, if anything
//	describe(state)  what will happen: { text, note, kind }; null if that has become
//	                 impossible, undefined if the state does not show it

let question = null; // of the open dialog

function showAction(cell, permitted, state, text, label, ask) {
  let button = $("button.act", cell);
  if (!permitted) {
    button?.remove();
    return;
  }
  if (!button) {
    button = element("button", { class: "act", type: "button", "aria-haspopup": "dialog", onclick: () => openQuestion(button.ask(), button) }, text);
    cell.append(button);
  }
  button.ask = ask;
  setAttribute(button, "aria-label", label);
}

const whose = (session) => (session?.addr ? ` (${session.addr}${session.server && session.server !== previous?.server.id ? `, server ${session.server}` : ""})` : "");
const listOf = (parts) => (parts.length < 2 ? parts.join("") : `${parts.slice(0, -1).join(", ")} and ${parts.at(-1)}`);

function questionOfEnd(id) {
  return {
    title: "End this session?", confirm: "End session", url: `console/sessions/${id}/end`, body: {}, section: "#sessions",
    describe(state) {
      const s = state.sessions.find((s) => s.id === id);
      if (!s) return state.sessionsMore || state.notes.sessions ? undefined : null;
      const then = [];
      if (s.ephemerals) then.push(plural(s.ephemerals, "ephemeral znode is deleted", "ephemeral znodes are deleted"));
      if (s.holds) then.push(plural(s.holds, "lock that it holds goes to whoever is next", "locks that it holds go to whoever is next"));
      then.push("its client learns that the session has expired");
      return { text: `This ends session ${id}${whose(s)}: ${listOf(then)}.`, note: "" };
    },
  };
}

function questionOfBreak(lock, { path, token, session }) {
  return {
    title: "Break this lock?", confirm: "Break", url: "console/locks/break", body: { path, token }, section: "#locks",
    describe(state) {
      const l = state.lock?.path === lock ? state.lock : state.locks.find((l) => l.path === lock);
      const is = (c) => c.path === path && c.token === token;
      const holds = l?.holders.some(is);
      if (!holds && !l?.queue.some(is)) return state.locksMore || l?.more || state.notes.locks ? undefined : null;
      const who = (id) => (id ? `session ${id}${whose([...l.holders, ...l.queue].find((c) => c.session === id))}` : "nobody’s session");
      if (!holds) {
        return { kind: "waits", text: `This deletes the znode by which ${who(session)} waits for ${lock}, which loses its place in the queue.`, note: "Its client may wait forever." };
      }
      const next = l.queue[0];
      const then = l.kind !== "semaphore" && l.holding > 1 ? "others go on holding it" : next ? `${who(next.session)} gets the lock` : "nobody waits for the lock";
      return {
        kind: "holds",
        text: `This deletes the znode by which ${who(session)} holds ${lock}, and ${then}.`,
        note: `The holder is not stopped: it goes on believing that it holds the lock. What the lock protects is safe only if it refuses the token ${token} from now on.`,
      };
    },
  };
}

function openQuestion(q, opener) {
  question = { ...q, opener };
  setText($("#confirm-title"), q.title);
  setText($("#confirm-do"), q.confirm);
  setText($("#confirm-error"), "");
  $("#confirm-do").disabled = false;
  renderQuestion(previous);
  $("#confirm").showModal(); // which gives Cancel the focus
}

// renderQuestion keeps the open dialog true. If something else would happen than before, the
// focus returns to Cancel.
function renderQuestion(state) {
  if (!question || question.busy) return;
  const now = question.describe(state);
  if (now === undefined) return;
  if (now === null) {
    $("#confirm-do").disabled = true;
    setText($("#confirm-error"), "It has gone in the meantime, so there is nothing to do.");
  } else {
    setText($("#confirm-text"), now.text);
    setText($("#confirm-note"), now.note);
  }
  if (now?.kind !== question.kind) $("#confirm-cancel").focus();
  question.kind = now?.kind;
}

// post asks the server for an action. It returns why it was not done, "" if it was, and the answer.
async function post(url, body) {
  let reply, text;
  try {
    reply = await request(url, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
    text = await reply.text();
  } catch {
    return { failed: "The connection was lost, so it may have been done or not." };
  }
  let answer = null;
  try {
    answer = JSON.parse(text);
  } catch {
    // What refuses a request before it is read answers with text.
  }
  if (reply.ok) return { failed: "", answer };
  return { failed: asSentence(String(answer?.error ?? text).trim() || `status ${reply.status}`) };
}

const asSentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}.`;

$("#confirm-do").addEventListener("click", async () => {
  const q = question;
  q.busy = true;
  setText($("#confirm-error"), "");
  $("#confirm-cancel").focus();
  $("#confirm-do").disabled = true;
  const { failed } = await post(q.url, q.body);
  q.busy = false;
  q.done = !failed;
  if (q.done) q.after?.();
  if (question !== q) return; // the dialog was closed
  if (q.done) $("#confirm").close();
  $("#confirm-do").disabled = false;
  setText($("#confirm-error"), failed);
});

// The browser sends close a moment after the dialog has closed. By then the dialog may be open
// with the next question, which must stay.
$("#confirm").addEventListener("close", () => {
  if (!question || $("#confirm").open) return;
  const { done, opener, section } = question;
  question = null;
  (done || !opener.isConnected ? $(section) : opener).focus({ preventScroll: true });
});

// Events: what has changed between two states.

const maxEvents = 100, maxEventsAtOnce = 8;

function changes(before, after) {
  const found = memberChanges(before, after);
  if (before.unknown || before.notes.locks || after.unknown || after.notes.locks) return found; // what is unknown has not changed
  const was = new Map(before.locks.map((l) => [l.path, l]));
  const now = new Map(after.locks.map((l) => [l.path, l]));
  if (before.query !== after.query) return found; // the browser shows other locks now
  const sessions = new Set(after.sessions.map((s) => s.id));
  if (!before.sessionsMore && !after.sessionsMore) {
    const known = new Set(before.sessions.map((s) => s.id));
    for (const s of before.sessions) {
      if (!sessions.has(s.id)) {
        const silent = s.expires && s.timeout && s.expires - after.now < s.timeout / 3;
        found.push(silent ? ["expired", `Session ${s.id} expired`] : ["ended", `Session ${s.id} ended`]);
      }
    }
    for (const s of after.sessions) if (!known.has(s.id)) found.push(["began", `Session ${s.id} began`]);
  }
  for (const [path, l] of now) {
    const old = was.get(path);
    if (!old && before.locksMore) continue;
    const held = new Set(old?.holders.map((c) => c.token)), waited = new Set(old?.queue.map((c) => c.token));
    const cut = l.more > 0 || old?.more > 0; // somebody who appears at the end of the queue may have waited before
    for (const c of l.holders) {
      if (held.has(c.token)) continue;
      const from = old?.holders[0]?.session;
      found.push(["holds", `${path}: ${c.session || nameOf(c.path)} holds it${waited.has(c.token) && from ? `, after ${from}` : ""}`]);
    }
    for (const c of cut ? [] : l.queue) if (!waited.has(c.token)) found.push(["waits", `${path}: ${c.session || nameOf(c.path)} waits`]);
    if (l.cycle && !old?.cycle) found.push(["cycle", `${path} is part of a cycle`]);
  }
  if (!after.locksMore) for (const path of was.keys()) if (!now.has(path)) found.push(["free", `${path} is free`]);
  return found;
}

// memberChanges returns what has changed about the members and the leader.
function memberChanges(before, after) {
  const found = [];
  const was = new Map(before.members.map((m) => [m.id, m]));
  const now = new Set(after.members.map((m) => m.id));
  for (const m of after.members) {
    const old = was.get(m.id);
    if (!old) {
      if (before.members.length) found.push(["role", `Server ${m.id} is a member`]);
      continue;
    }
    if (m.dead && !old.dead) found.push(["lost", `Server ${m.id} does not answer`]);
    if (!m.dead && old.dead && m.role) found.push(["role", `Server ${m.id} answers again`]);
    if (m.differs && !old.differs) found.push(["lost", `Server ${m.id} differs`]);
  }
  if (after.members.length) for (const id of was.keys()) if (!now.has(id)) found.push(["role", `Server ${id} was removed`]);
  const { server: a } = before, { server: b } = after;
  if (a.leader !== b.leader && a.leader && !b.leader) found.push(["lost", `The leader, server ${a.leader}, is lost`]);
  else if (a.leader !== b.leader && b.leader && b.role !== "leader") found.push(["role", `Server ${b.leader} leads`]);
  if (a.role !== b.role && b.role !== "looking") found.push(["role", `This server is ${b.role}`]);
  if (a.serving && !b.serving) found.push(["lost", "This server serves no clients any more"]);
  if (!a.serving && b.serving) found.push(["role", "This server serves clients"]);
  return found;
}

function renderEvents(before, state) {
  if (!before) return;
  const found = changes(before, state);
  if (!found.length) return;
  const log = $("#events ol");
  const time = clock(state.now);
  const add = (kind, text) => log.prepend(element("li", { class: kind }, element("time", { class: "muted" }, time), element("span", {}, text)));
  for (const [kind, text] of found.slice(0, maxEventsAtOnce)) add(kind, text);
  if (found.length > maxEventsAtOnce) add("muted", `and ${plural(found.length - maxEventsAtOnce, "more change")}`);
  while (log.children.length > maxEvents) log.lastChild.remove();
  $("#events .empty").hidden = true;
}

// The tree. Only what is open is read, and read again when the server's state has changed.

const open = new Map([["/", 200]]); // path of an open znode: how many of its children to show
let selected = "/";
const page = 200;

const parentOf = (path) => path.slice(0, path.lastIndexOf("/")) || "/";
const childOf = (path, name) => (path === "/" ? "/" : path + "/") + name;

async function readZnode(path, after = "") {
  const q = new URLSearchParams({ path, after });
  const reply = await request(`console/znode?${q}`);
  const answer = await reply.json();
  if (!reply.ok) return { path, error: answer.error ?? `status ${reply.status}`, hidden: reply.status === 403, children: [], more: 0 };
  return answer;
}

// readOpen reads an open znode with as many of its children as are to be shown.
async function readOpen(path, wanted) {
  const z = await readZnode(path);
  while (z.more > 0 && z.children.length < wanted) {
    const next = await readZnode(path, z.children.at(-1).name);
    if (next.error || !next.children.length) break;
    z.children.push(...next.children);
    z.more = next.more;
  }
  return z;
}

let reading = false, again = false;

async function refreshTree() {
  if (reading) {
    again = true;
    return;
  }
  reading = true;
  try {
    do {
      again = false;
      const read = new Map();
      for (const [path, wanted] of [...open]) read.set(path, await readOpen(path, wanted));
      const detail = read.get(selected) ?? await readZnode(selected);
      for (const [path, z] of read) if (z.error && path !== "/") open.delete(path);
      addWay(read, detail);
      renderTree(read);
      renderZnode(detail);
      reveal();
    } while (again);
  } catch {
    // The connection is lost; the stream says so.
  } finally {
    reading = false;
  }
}

// addWay adds the znodes on the way to the selected one to the children of their parents, if so many
// children are not shown.
function addWay(read, detail) {
  for (let path = selected, z = detail; path !== "/"; path = parentOf(path), z = read.get(path)) {
    const parent = read.get(parentOf(path)), name = nameOf(path);
    if (!parent || parent.error || !z || z.error && !z.hidden || parent.children.some((c) => c.name === name)) continue;
    parent.children.push({ name, children: z.stat?.numChildren ?? 0, bytes: z.stat?.dataLength ?? 0, ephemeral: isEphemeral(z), hidden: Boolean(z.error) });
    if (parent.more) parent.more--;
  }
}

const isEphemeral = (z) => Boolean(z.stat) && z.stat.ephemeralOwner !== "0x0";

// reveal brings the znode to where its user sees it, once it is in the tree.
let revealing = ""; // path of the znode that is to be revealed

function reveal() {
  const item = revealing ? visibleItems().find((i) => i.path === revealing) : null;
  item?.firstChild.scrollIntoView({ block: "nearest" });
  if (item || !again) revealing = "";
}

function treeItem(path, name) {
  const item = element("li", { role: "treeitem", tabindex: "-1", "aria-label": name, "aria-selected": "false" },
    element("div", { class: "row" }, element("span", { class: "name" }, name), element("span", { class: "count" })));
  item.path = path;
  item.firstChild.addEventListener("click", () => {
    if (selected === path && item.hasAttribute("aria-expanded")) toggle(item);
    else select(path);
    item.focus();
  });
  return item;
}

function renderTree(read) {
  const fill = (item, info) => {
    const expanded = open.has(item.path) && info.children > 0;
    if (info.children > 0) setAttribute(item, "aria-expanded", expanded);
    else item.removeAttribute("aria-expanded");
    setAttribute(item, "aria-selected", item.path === selected);
    item.classList.toggle("ephemeral", info.ephemeral);
    setAttribute(item, "aria-label", item.firstChild.firstChild.textContent + (info.ephemeral ? ", ephemeral" : "") + (info.hidden ? ", not readable" : "") + (info.children ? `, ${plural(info.children, "child", "children")}` : ""));
    setText(item.firstChild.lastChild, info.hidden ? "not readable" : info.children ? count.format(info.children) : info.bytes ? bytes(info.bytes) : "");
    const z = read.get(item.path);
    let list = $(":scope > ul", item);
    if (!expanded || !z) {
      list?.remove();
      return;
    }
    if (!list) {
      list = element("ul", { role: "group" });
      item.append(list);
    }
    const rows = z.children.map((c) => ({ ...c, path: childOf(item.path, c.name) }));
    keep(list, rows, (c) => c.name, (c) => treeItem(c.path, c.name), fill);
    const note = z.noList ?? (z.more ? `${plural(z.more, "more child", "more children")}` : "");
    if (!note) {
      list.more?.remove();
      list.more = undefined;
      return;
    }
    list.more ??= element("li", { role: "none", class: "more" }, element("button", { type: "button", class: "id", onclick: () => {
      open.set(item.path, open.get(item.path) + page);
      refreshTree();
    } }), element("span"));
    const [button, text] = list.more.children;
    button.hidden = !z.more;
    setText(button, `Show more: ${note}`);
    setText(text, z.more ? "" : note);
    list.append(list.more);
  };
  const root = read.get("/");
  if (!root) return;
  const tree = $("#tree");
  keep(tree, [root], () => "/", () => treeItem("/", "/"), (item, z) => fill(item, { children: z.stat?.numChildren ?? 0, bytes: 0, ephemeral: false }));
  const items = visibleItems();
  const current = items.find((i) => i === document.activeElement) ?? items.find((i) => i.path === selected) ?? items[0];
  for (const i of items) setAttribute(i, "tabindex", i === current ? 0 : -1);
}

const visibleItems = () => [...document.querySelectorAll("#tree [role=treeitem]")];

function toggle(item, expand = item.getAttribute("aria-expanded") !== "true") {
  if (expand) open.set(item.path, page);
  else for (const path of [...open.keys()]) if (path === item.path || path.startsWith(item.path === "/" ? "/" : item.path + "/")) open.delete(path);
  if (!expand && item.path === "/") open.delete("/");
  refreshTree();
}

// select shows a znode; from elsewhere on the page it also opens the way to it.
function select(path, fromElsewhere = false) {
  selected = path;
  revealing = fromElsewhere ? path : "";
  if (fromElsewhere) {
    for (let p = parentOf(path); ; p = parentOf(p)) {
      if (!open.has(p)) open.set(p, page);
      if (p === "/") break;
    }
    $("#znodes").scrollIntoView({ block: "start" });
    $("#znodes").focus({ preventScroll: true });
  }
  refreshTree();
}

$("#tree").addEventListener("keydown", (e) => {
  const item = e.target.closest("[role=treeitem]");
  if (!item || e.ctrlKey || e.altKey || e.metaKey || e.target !== item) return;
  const items = visibleItems(), at = items.indexOf(item);
  const expanded = item.getAttribute("aria-expanded");
  let to;
  switch (e.key) {
    case "ArrowDown": to = items[at + 1]; break;
    case "ArrowUp": to = items[at - 1]; break;
    case "Home": to = items[0]; break;
    case "End": to = items.at(-1); break;
    case "ArrowRight":
      if (expanded === "false") toggle(item, true);
      else if (expanded === "true") to = items[at + 1];
      break;
    case "ArrowLeft":
      if (expanded === "true") toggle(item, false);
      else to = item.parentElement.closest("[role=treeitem]");
      break;
    case "Enter": case " ": select(item.path); break;
    default: return;
  }
  e.preventDefault();
  if (to) {
    for (const i of items) setAttribute(i, "tabindex", i === to ? 0 : -1);
    to.focus();
  }
});

const bytesAsHex = (hex) => hex.replace(/.{2}/g, "$& ").replace(/(.{47}) /g, "$1\n").trim();

let shownZnode = "";
let detail = null; // the selected znode as it was read last

function renderZnode(z) {
  detail = z;
  renderEdits();
  const text = JSON.stringify(z);
  if (text === shownZnode) return;
  shownZnode = text;
  const pane = $("#znode");
  const parts = [element("h3", {}, z.path)];
  if (z.error) {
    pane.replaceChildren(...parts, element("p", { class: "note" }, `Not shown: ${z.error}.`));
    return;
  }
  const s = z.stat;
  parts.push(element("h4", {}, `Data, ${plural(s.dataLength, "byte")}${z.hex ? ", in hexadecimal" : ""}`));
  if (z.noData) parts.push(element("p", { class: "note" }, `Not shown: ${z.noData}.`));
  else if (!s.dataLength) parts.push(element("p", { class: "muted" }, "none"));
  else parts.push(element("pre", { tabindex: "0", "aria-label": "Data" }, z.text ?? bytesAsHex(z.hex ?? "")));
  if (z.cut) parts.push(element("p", { class: "muted" }, "Only the beginning is shown."));
  const time = (ms) => new Date(ms).toISOString().replace("T", " ").replace("Z", "");
  const rows = [
    ["czxid", s.czxid], ["ctime (UTC)", time(s.ctime)], ["mzxid", s.mzxid], ["mtime (UTC)", time(s.mtime)], ["pzxid", s.pzxid],
    ["ephemeralOwner", s.ephemeralOwner], ["version", s.version], ["cversion", s.cversion], ["aclVersion", s.aversion], ["numChildren", s.numChildren],
  ];
  parts.push(element("h4", {}, "Stat"), element("dl", {}, ...rows.map(([k, v]) => element("div", {}, element("dt", {}, k), element("dd", { class: "mono" }, String(v))))));
  if (z.acl.length) parts.push(element("h4", {}, "ACL"), element("p", { class: "mono path" }, z.acl.map((a) => `${a.scheme}:${a.id}:${a.perms}`).join(" ")));
  pane.replaceChildren(...parts);
}

// The search for znodes. Its text is in the hash of the address, too.

let searching = null; // ends the request that is on its way
let searched = ""; // the text of the last one

async function search() {
  const text = view.find;
  if (text === searched) return;
  searched = text;
  searching?.abort();
  const list = $("#found-znodes");
  const present = (found, words, note) => {
    keep(list, found, (z) => z.path, (z) => element("li", {}, pathButton(z.path), element("span", { class: "muted" })), (e, z) => {
      setText(e.lastChild, z.hidden ? "not readable" : [z.ephemeral ? "ephemeral" : "", z.children ? plural(z.children, "child", "children") : "", z.bytes ? bytes(z.bytes) : ""].filter(Boolean).join(", "));
    });
    list.hidden = found.length === 0;
    setText($("#hits"), words);
    showNote($("#znodes"), note);
  };
  if (!text) {
    present([], "", "");
    return;
  }
  setText($("#hits"), "Searching…");
  const mine = searching = new AbortController();
  try {
    const reply = await request(`console/search?${new URLSearchParams({ q: text })}`, { signal: mine.signal });
    const answer = await reply.json();
    if (mine !== searching) return;
    if (!reply.ok) throw new Error(answer.error);
    const n = answer.found.length;
    present(answer.found, answer.more ? `the first ${n} of ${plural(n + answer.more, "znode")} found` : `${plural(n, "znode")} found`,
      answer.incomplete ? `There may be more: ${answer.incomplete}.` : "");
  } catch (e) {
    if (mine !== searching || mine.signal.aborted) return;
    if (e instanceof TypeError) searched = ""; // the connection was lost: with the next one it is asked again
    present([], "", e instanceof TypeError || e instanceof SyntaxError ? "The search was not answered." : `Not searched: ${e.message}.`);
  }
}

let findTimer = 0;

function find() {
  clearTimeout(findTimer);
  view.find = $("#find").value.trim();
  putAddress(false);
  search();
}

$("#find").addEventListener("input", () => {
  clearTimeout(findTimer);
  findTimer = setTimeout(find, 250);
});
$("#find").addEventListener("keydown", (e) => {
  if (e.key !== "Enter") return;
  searched = ""; // Enter searches again
  find();
});

// Edits of the selected znode, if the server permits them. Each is made with the version that the page has
// shown, so that the server refuses it if somebody else has changed the znode.

const maxEdit = 64 << 10; // bytes of data that the server takes

const ofSystem = (path) => `${path}/`.startsWith("/zookeeper/");
const versionOf = (z) => ({ path: z.path, czxid: z.stat.czxid, version: z.stat.version });

function renderEdits() {
  const z = detail, permitted = Boolean(previous?.editZnodes && z);
  $("#edits").hidden = !permitted;
  if (!permitted) return;
  const why = z.error ? "" : ofSystem(z.path) ? "What is in /zookeeper is not changed here." :
    z.noData ? "Its ACL does not let the console read its data." : z.stat.dataLength > maxEdit ? `Only data of at most ${bytes(maxEdit)} can be edited here.` : "";
  const may = !z.error && !ofSystem(z.path);
  // A button that has the focus keeps it when it can do nothing for a moment.
  for (const [id, able] of [["#edit-set", may && !why], ["#edit-create", may && !isEphemeral(z)], ["#edit-delete", may && z.path !== "/"]]) {
    setAttribute($(id), "aria-disabled", !able);
  }
  $("#edits-note").hidden = !why;
  setText($("#edits-note"), why);
  renderEdit();
  if (question) renderQuestion(previous);
}

// edit is what the dialog with data is about.
let edit = null;

const asBytes = (text) => [...new TextEncoder().encode(text)].map((b) => b.toString(16).padStart(2, "0")).join("");

// asText returns the text that bytes stand for, null if a field for text cannot keep it as it is.
function asText(hex) {
  try {
    const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(Uint8Array.from(hex.match(/../g) ?? [], (d) => Number.parseInt(d, 16)));
    return /[\p{Cc}]/u.test(text.replace(/[\n\t]/g, "")) ? null : text;
  } catch {
    return null;
  }
}

// digits returns the hexadecimal digits in the dialog without spaces, null if they are no bytes.
function digits() {
  const all = $("#edit-data").value.replace(/\s+/g, "");
  return /^([0-9a-f]{2})*$/i.test(all) ? all.toLowerCase() : null;
}

// openEdit opens the dialog for the data of a znode, or of a new one.
function openEdit(e) {
  edit = { ...e, opener: document.activeElement };
  setText($("#edit-title"), e.title);
  setText($("#edit-text"), e.text);
  setText($("#edit-do"), e.confirm);
  for (const id of ["#edit-note", "#edit-error"]) setText($(id), "");
  $("#edit-do").disabled = false;
  $("#edit-new").hidden = !e.parent;
  $("#edit-name").value = "";
  $("#edit-sequential").checked = false;
  const text = asText(e.hex);
  edit.form = text === null || visible(text) !== text ? "hex" : "text"; // a field for text does not show all characters
  $("#edit-form").value = edit.form;
  $("#edit-data").value = edit.form === "text" ? text : bytesAsHex(e.hex);
  $("#edit").showModal();
  $("#edit-data").setSelectionRange(0, 0); // shows the beginning
  (e.parent ? $("#edit-name") : $("#edit-data")).focus();
  renderEdit();
}

// renderEdit tells in the open dialog what has happened to the znode meanwhile.
function renderEdit() {
  if (!edit?.seen || edit.busy || detail?.path !== edit.seen.path) return;
  const z = detail, { czxid, version } = edit.seen;
  setText($("#edit-note"), z.error ? `Meanwhile: ${z.error}.` : z.stat.czxid !== czxid ? "Meanwhile the znode was deleted, and created again." :
    z.stat.version !== version ? `Meanwhile its data was changed: it has version ${z.stat.version}, and this is version ${version}.` : "");
}

async function editData() {
  const shown = detail;
  let z;
  try { // the page may have shown only the beginning
    z = await (await request(`console/znode?${new URLSearchParams({ path: shown.path, whole: "true" })}`)).json();
  } catch {
    z = { error: "the connection was lost" };
  }
  const why = z.error ?? z.noData ?? (z.cut ? `only data of at most ${bytes(maxEdit)} can be edited here` : "");
  if (detail?.path !== shown.path || $("dialog[open]")) return;
  $("#edits-note").hidden = !why;
  setText($("#edits-note"), why ? asSentence(why) : "");
  if (why) return;
  openEdit({
    title: "Edit the data", confirm: "Save", text: `This replaces the data of ${z.path}, which has version ${z.stat.version}, unless somebody else changes it before.`,
    hex: z.hex || asBytes(z.text ?? ""), seen: versionOf(z), url: "console/znodes/set",
  });
}

function createChild() {
  const parent = detail.path;
  openEdit({
    title: "Create a child", confirm: "Create", hex: "", parent, url: "console/znodes/create",
    text: `This creates a persistent znode below ${parent}. Everybody may read, change and delete it: its ACL is world:anyone:cdrwa.`,
  });
}

function questionOfDelete() {
  const seen = versionOf(detail), { path } = seen;
  return {
    title: "Delete this znode?", confirm: "Delete", url: "console/znodes/delete", body: seen, section: "#znodes",
    after: () => select(parentOf(path)),
    describe(state) {
      const z = detail;
      if (z?.path !== path) return undefined;
      if (z.error || z.stat.czxid !== seen.czxid) return null;
      const owner = isEphemeral(z) ? z.stat.ephemeralOwner : "";
      const has = z.stat.numChildren ? `It has ${plural(z.stat.numChildren, "child", "children")}; only a znode without children can be deleted.` : "";
      const now = z.stat.version !== seen.version ? `Meanwhile its data was changed: it has version ${z.stat.version}, not ${seen.version}, so the server will refuse.` : "";
      const is = (c) => c.path === path;
      const lock = [...state.locks, state.lock].find((l) => l && [...l.holders, ...l.queue].some(is));
      const by = lock && (lock.holders.some(is) ? "holds" : "waits for");
      const then = !owner ? "" : `${lock ? `By it the session ${by} ${lock.path}${state.breakLocks ? "; “Break…” among the locks says what follows" : ""}. ` : ""}Its client is not told, unless it watches the znode, and goes on as if the znode were there.`;
      return {
        kind: `${seen.version === z.stat.version} ${owner} ${by} ${has}`,
        text: owner ? `This deletes ${path}, the ephemeral znode of session ${owner}${whose(state.sessions.find((s) => s.id === owner))}.` : `This deletes ${path} with its data, ${plural(z.stat.dataLength, "byte")}.`,
        note: [now, has, then].filter(Boolean).join(" "),
      };
    },
  };
}

for (const [id, act] of [["#edit-set", editData], ["#edit-create", createChild], ["#edit-delete", () => openQuestion(questionOfDelete(), $("#edit-delete"))]]) {
  $(id).addEventListener("click", () => $(id).getAttribute("aria-disabled") !== "true" && act());
}

// Another form shows the same bytes, if it can.
$("#edit-form").addEventListener("change", () => {
  const input = $("#edit-data"), form = $("#edit-form").value;
  const hex = edit.form === "text" ? asBytes(input.value) : digits();
  const next = hex === null ? null : form === "hex" ? bytesAsHex(hex) : asText(hex);
  setText($("#edit-error"), next !== null ? "" : hex === null ? "These are not hexadecimal digits of bytes." : "These bytes are not text that can be edited as such.");
  if (next === null) {
    $("#edit-form").value = edit.form;
    return;
  }
  edit.form = form;
  input.value = next;
});

$("#edit form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const e = edit;
  if (!e || e.busy) return;
  const hex = e.form === "hex" ? digits() : "", name = $("#edit-name").value, sequential = $("#edit-sequential").checked;
  const wrong = hex === null ? "These are not hexadecimal digits of bytes." : !e.parent ? "" :
    !name && !sequential ? "The znode needs a name." : name.includes("/") ? "A name has no slash." : "";
  setText($("#edit-error"), wrong);
  if (wrong) return;
  e.busy = true;
  $("#edit-do").disabled = true;
  const data = e.form === "hex" ? { hex } : { text: $("#edit-data").value };
  const { failed, answer } = await post(e.url, { ...(e.parent ? { path: childOf(e.parent, name), sequential } : e.seen), ...data });
  e.busy = false;
  if (edit !== e) return; // the dialog was closed
  $("#edit-do").disabled = false;
  setText($("#edit-error"), failed);
  if (failed) return;
  $("#edit").close();
  if (answer?.path) select(answer.path, true);
  else refreshTree();
});

$("#edit-cancel").addEventListener("click", () => $("#edit").close());
$("#edit").addEventListener("close", () => {
  if (!edit || $("#edit").open) return;
  const { opener } = edit;
  edit = null;
  if (document.activeElement === document.body) opener.focus({ preventScroll: true });
});

// What the user wants to see. It is in the hash of the address, and the server sends only that.

const view = {};

// On a narrow screen the groups are folded at first: otherwise a page of locks is dozens of screens long.
const narrow = matchMedia("(max-width: 700px)");

function readHash() {
  const p = new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
  view.find = p.get("find") ?? "";
  if ($("#find").value.trim() !== view.find) $("#find").value = view.find;
  view.q = p.get("q") ?? "";
  view.sort = p.get("sort") === "waiting" ? "waiting" : "path";
  view.page = Math.max(1, Number.parseInt(p.get("page") ?? "1", 10) || 1);
  view.lock = p.get("lock") ?? "";
  view.groups = (p.get("groups") ?? (narrow.matches && !p.has("except") ? "folded" : "open")) === "folded" ? "folded" : "open";
  view.except = new Set(p.getAll("except"));
  view.client = p.get("client") ?? "";
  view.clientPage = Math.max(1, Number.parseInt(p.get("clientPage") ?? "1", 10) || 1);
  view.foldServer = new Set(p.getAll("foldServer"));
  for (const [input, value] of [[$("#filter"), view.q], [$("#sort"), view.sort], [$("#client-filter"), view.client]]) if (input.value.trim() !== value) input.value = value;
  setText($("#fold"), view.groups === "folded" ? "Open all groups" : "Fold all groups");
}

// putAddress puts what the stream is asked for, and what znodes are searched for, into the hash.
function putAddress(step) {
  const find = view.find ? new URLSearchParams({ find: view.find }).toString() : "";
  const url = `${location.pathname}${location.search}#${[query(), find].filter(Boolean).join("&")}`;
  if (step) history.pushState(null, "", url);
  else history.replaceState(null, "", url);
}

function query() {
  const p = new URLSearchParams();
  if (view.q) p.set("q", view.q);
  if (view.sort !== "path") p.set("sort", view.sort);
  if (view.page > 1) p.set("page", view.page);
  if (view.lock) p.set("lock", view.lock);
  if (view.groups !== "open" || narrow.matches) p.set("groups", view.groups);
  for (const path of view.except) p.append("except", path);
  if (view.client) p.set("client", view.client);
  if (view.clientPage > 1) p.set("clientPage", view.clientPage);
  for (const id of view.foldServer) p.append("foldServer", id);
  return p.toString();
}

// show changes the view. What the user may want to go back from is in the browser's history.
function show(change, step = true) {
  Object.assign(view, change);
  putAddress(step);
  readHash();
  viewChanged();
}

let lockOpener = null;

function showLock(path) {
  lockOpener = document.activeElement;
  show({ lock: path });
  const section = $("#lock");
  if ($("#lock-title").textContent !== visible(path)) {
    setText($("#lock-title"), path);
    for (const table of section.querySelectorAll("table")) table.hidden = true; // until the server has sent this lock
  }
  section.hidden = false;
  section.focus({ preventScroll: true });
  section.scrollIntoView({ block: "start" });
}

function foldGroup(path) {
  const except = new Set(view.except);
  if (!except.delete(path)) except.add(path);
  show({ except }, false);
}

function foldServer(id) {
  const fold = new Set(view.foldServer);
  if (!fold.delete(String(id))) fold.add(String(id));
  show({ foldServer: fold }, false);
}

// onFilter changes the view when the user has stopped typing for a moment.
function onFilter(input, change) {
  let timer = 0;
  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => show(change(input.value.trim()), false), 150);
  });
}

onFilter($("#filter"), (q) => ({ q, page: 1 }));
onFilter($("#client-filter"), (client) => ({ client, clientPage: 1 }));
$("#sort").addEventListener("change", () => show({ sort: $("#sort").value, page: 1 }));
$("#fold").addEventListener("click", () => show({ groups: view.groups === "folded" ? "open" : "folded", except: new Set(), page: 1 }));
for (const [id, by] of [["#page-before", -1], ["#page-after", 1]]) $(id).addEventListener("click", () => show({ page: previous.page + by }));
for (const [id, by] of [["#client-page-before", -1], ["#client-page-after", 1]]) $(id).addEventListener("click", () => show({ clientPage: previous.clients.page + by }));
$("#lock-close").addEventListener("click", () => {
  show({ lock: "" });
  (lockOpener?.isConnected ? lockOpener : $("#locks")).focus({ preventScroll: true });
});
// The key / leads to the filter: when it is released, so that it is not typed there.
for (const type of ["keydown", "keyup"]) {
  document.addEventListener(type, (e) => {
    if (e.key !== "/" || e.ctrlKey || e.altKey || e.metaKey || e.target.closest("input, select") || $("dialog[open]")) return;
    e.preventDefault();
    if (type === "keyup") $("#filter").focus();
  });
}
window.addEventListener("popstate", () => {
  readHash();
  viewChanged();
  if (previous) search();
});
// Links within the page do not replace the view in the hash.
for (const a of document.querySelectorAll('a[href^="#"]')) {
  a.addEventListener("click", (e) => {
    e.preventDefault();
    const section = $(a.getAttribute("href"));
    section.scrollIntoView({ block: "start" });
    section.focus({ preventScroll: true });
  });
}
readHash();

// The stream.

let previous = null;

function render(state) {
  renderServer(state);
  renderTotals(state);
  renderCharts(state);
  renderLock(state);
  renderLocks(state);
  renderSessions(state);
  renderClients(state);
  renderMembers(state);
  renderWatches(state);
  renderEvents(previous, state);
  renderQuestion(state);
  markFollowed();
  if (previous?.server.zxid !== state.server.zxid) treeChanged();
  previous = state;
  renderEdits();
  search(); // once there is a connection
}

// treeChanged reads the tree again, at most every second.
let treeTimer = 0;

function treeChanged() {
  treeTimer ||= setTimeout(() => {
    treeTimer = 0;
    refreshTree();
  }, shownZnode ? 1000 : 0);
}

function showLink(kind, text) {
  setClass($("#link"), kind);
  setText($("#link-text"), text);
  setClass(document.body, "");
}

// showLost says that there is no connection. What is shown is old from now on.
function showLost(text) {
  showLink("down", previous ? `${text}. What you see is of ${clock(previous.now)}` : text);
  setClass(document.body, "old");
}

let token = sessionStorage.getItem("token") ?? "";

const request = (url, options = {}) => fetch(url, { cache: "no-store", ...options, headers: { ...options.headers, ...(token && { Authorization: `Bearer ${token}` }) } });

// login asks for the token of the port.
function login(wrong) {
  const dialog = $("#login"), input = $("#token");
  setText($("#login-error"), wrong ? "The port refuses this token." : "");
  input.value = "";
  dialog.showModal();
  return new Promise((done) => {
    dialog.onclose = () => {
      const given = input.value.trim();
      token = /^[\x21-\x7e]*$/.test(given) ? given : ""; // a header cannot carry anything else
      sessionStorage.setItem("token", token);
      done();
    };
  });
}

let reader = null; // of the events of the present view
let newest = 0; // counts the views that were asked for

// ask asks for the events of the present view. It returns the reader, or null if there are none.
async function ask(signal) {
  const asked = query(), mine = ++newest;
  const reply = await request(`console/events?${asked}`, { signal });
  if (reply.status === 401) {
    await login(token !== "");
    return null;
  }
  if (!reply.ok) throw new Error((await reply.text()).trim());
  const r = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  r.query = asked;
  if (mine !== newest) drop(r);
  return mine === newest ? r : null;
}

const drop = (r) => r?.cancel().catch(() => {}); // it has an error if the connection was lost

// viewChanged asks for the events of another view. Those of the one before end only then, so that
// the server does not forget what it keeps while somebody looks.
let connected = null; // the signal of the connection

async function viewChanged() {
  const signal = connected;
  if (!signal) return; // receive looks at the view when it has connected
  const mine = newest + 1;
  try {
    const next = await ask(signal);
    if (!next) return;
    const before = connected === signal ? reader : next; // next is of no use after the connection's end
    if (before !== next) reader = next;
    drop(before);
  } catch {
    if (mine === newest && connected === signal) drop(reader); // which connects again
  }
}

// receive renders the events of one connection until it ends. A page that nobody can see
// has none.
async function receive(signal) {
  reader = await ask(signal);
  connected = signal;
  if (reader && reader.query !== query()) viewChanged();
  let rest = "";
  try {
    for (let r = reader; r; ) {
      const { value, done } = await r.read();
      if (r !== reader) { // the view has changed
        r = reader;
        rest = "";
        continue;
      }
      if (done) return;
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      if (!events.length) continue;
      const state = JSON.parse(events.at(-1).replace(/^data: /, ""));
      state.query = r.query;
      const { serving, readOnly, role } = state.server;
      const wrong = trouble(state);
      const parts = ["Live", serving ? "" : readOnly ? "this server only serves reads" : `this server serves no clients (${role})`, wrong];
      showLink(!serving ? "down" : wrong ? "troubled" : "live", parts.filter(Boolean).join("; "));
      document.body.classList.toggle("unsure", state.unknown !== "");
      render(state);
    }
  } finally {
    connected = null;
    drop(reader);
    reader = null;
  }
}

const seen = () => new Promise((done) => {
  if (!document.hidden) done();
  else document.addEventListener("visibilitychange", done, { once: true });
});

for (;;) {
  await seen();
  const hidden = new AbortController();
  const stop = () => document.hidden && hidden.abort();
  document.addEventListener("visibilitychange", stop);
  try {
    await receive(hidden.signal);
    showLost("Connecting again");
  } catch (e) {
    if (!hidden.signal.aborted) showLost(e instanceof TypeError ? "No connection; trying again" : `Trying again: ${e.message}`);
  }
  document.removeEventListener("visibilitychange", stop);
  if (!document.hidden) await new Promise((done) => setTimeout(done, 1000));
}
