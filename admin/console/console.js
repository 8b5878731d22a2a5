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
    else e.setAttribute(key, value);
  }
  e.append(...children);
  return e;
}

function setText(e, text) {
  text = String(text);
  if (e.textContent !== text) e.textContent = text;
}

function setClass(e, name) {
  if (e.className !== name) e.className = name;
}

function setAttribute(e, name, value) {
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
  const named = (list) => `${list.length === 1 ? "server" : "servers"} ${listOf(list.map((m) => m.id))}`;
  const dead = state.members.filter((m) => m.dead), differ = state.members.filter((m) => m.differs);
  const astray = state.members.filter((m) => !m.dead && !m.role && m.note);
  return [
    dead.length ? `${named(dead)} ${dead.length === 1 ? "does" : "do"} not answer` : "",
    differ.length ? `${named(differ)} ${differ.length === 1 ? "differs" : "differ"}` : "",
    astray.length ? `${named(astray)} ${astray.length === 1 ? "is" : "are"} not in this cluster` : "",
  ].filter(Boolean).join("; ");
}

// renderTotals shows the numbers. One that this server does not know is not 0.
function renderTotals(state) {
  const { server: s, totals: t } = state;
  const noLocks = state.unknown || state.notes.locks;
  const rows = [
    ["Locks held", t.locks, noLocks], ["Waiting", t.waiting, noLocks], ["Cycles", t.cycles, noLocks, t.cycles > 0],
    ["Sessions", s.sessions, state.unknown], ["Clients here", s.connections], ["Znodes", s.znodes, state.unknown],
    ["Watches", s.watches], ["Data", bytes(s.dataBytes), state.unknown],
  ];
  keep($("#totals"), rows, (r) => r[0], (r) => element("div", {}, element("dt", {}, r[0]), element("dd")), (e, [, value, why, alarm]) => {
    setText(e.lastChild, why ? "unknown" : typeof value === "number" ? count.format(value) : value);
    setClass(e, why ? "unknown" : alarm ? "alarm" : "");
    setAttribute(e, "title", why ?? "");
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

function renderLocks(state, sessions) {
  const section = $("#locks");
  keep($(".problems", section), state.problems, (p) => p.fault + p.path + p.text, (p) =>
    element("li", { class: p.harm ? "harm" : "" }, element("b", {}, { cycle: "Cycle", orphan: "Orphan", duplicate: "Duplicate", "watches-nobody": "Watches nobody", "waits-for-itself": "Waits for itself" }[p.fault] ?? p.fault),
      ` ${p.path}: ${p.text}`), () => {});
  showNote(section, state.notes.locks);
  const table = $("table", section);
  table.keepAfter = $("thead", table);
  keep(table, state.locks, (l) => l.path, (l) => {
    const body = element("tbody", {}, element("tr", {}, element("th", { colspan: 6, scope: "rowgroup" }, pathButton(l.path), element("span", { class: "kind" }))));
    body.keepAfter = body.firstChild;
    return body;
  }, (body, l) => {
    const waiting = l.queue.length;
    const slots = l.kind === "semaphore" ? ` of ${l.slots || "?"}` : "";
    setText($(".kind", body), [l.kind + (slots && ` · ${l.holders.length}${slots} slots`), l.client, l.more ? `${plural(l.more, "more entry", "more entries")} not shown` : "", waiting ? `${count.format(waiting)} waiting` : ""].filter(Boolean).join(" · "));
    const first = body.kept === undefined;
    const rows = [...l.holders.map((c) => ({ ...c, place: 0 })), ...l.queue.map((c, i) => ({ ...c, place: i + 1 }))];
    keep(body, rows, (c) => c.path + c.token, (c) => element("tr", c.session ? { "data-session": c.session } : {},
      element("td", { class: "state" }),
      element("td", {}, c.session ? sessionButton(c.session) : element("span", { class: "bad" }, "not ephemeral"), element("span", { class: "data muted" }), element("small")),
      element("td", { class: "wide muted" }), element("td", { class: "number token wide" }), element("td", { class: "number" }, element("span"), element("small")), timeLeft("left wide")), (row, c) => {
      const holds = c.place === 0;
      const [place, who, address, token, since, left] = row.children;
      setText(place, (holds ? "holds" : ordinal(c.place)) + (c.shared ? " shared" : "") + (c.cycle ? ", cycle" : ""));
      const session = sessions.get(c.session);
      setText(address, session?.addr || (session ? "not connected here" : "–"));
      setText($("small", who), `token ${c.token}${session?.addr ? `, ${session.addr}` : ""}`);
      setText($(".data", who), c.data);
      setText(token, c.token);
      setText(since.firstChild, duration(state.now - c.since));
      setText(since.lastChild, session?.expires ? `${duration(session.expires - state.now)} left` : "");
      updateTimeLeft(left, session, state.now);
      showAction(who, state.breakLocks, state, "Break…", `Break ${l.path}, ${holds ? "held" : "awaited"} by ${c.session || nameOf(c.path)}`, () => questionOfBreak(l.path, c));
      row.classList.toggle("cycle", c.cycle);
      if (holds && row.classList.contains("waits") || !first && !row.classList.contains("holds") && !row.classList.contains("waits")) row.classList.add("fresh");
      row.classList.toggle("holds", holds);
      row.classList.toggle("waits", !holds);
    });
  });
  table.hidden = state.locks.length === 0;
  $(".empty", section).hidden = state.locks.length > 0 || Boolean(state.notes.locks);
  showMore(section, state.locksMore ? `${plural(state.locksMore, "more lock")} not shown: those with the shortest queues.` : "");
}

function renderSessions(state) {
  const section = $("#sessions");
  showNote(section, state.notes.sessions);
  keep($("tbody", section), state.sessions, (s) => s.id, (s) => element("tr", { "data-session": s.id },
    element("td", {}, sessionButton(s.id), element("small")), element("td", { class: "wide muted" }), timeLeft(),
    element("td", { class: "number" }), element("td", { class: "number" }), element("td", { class: "number wide" }), element("td", { class: "number wide" })), (row, s) => {
    const [id, address, left, ...numbers] = row.children;
    const where = s.addr || "not connected here";
    setText($("small", id), where);
    setText(address, where);
    updateTimeLeft(left, s, state.now);
    [s.holds, s.waits, s.ephemerals, s.watches].forEach((n, i) => setText(numbers[i], n ? count.format(n) : "·"));
    showAction(id, state.endSessions, state, "End session…", `End session ${s.id}`, () => questionOfEnd(s.id));
  });
  $("table", section).hidden = state.sessions.length === 0;
  $(".empty", section).hidden = state.sessions.length > 0 || Boolean(state.notes.sessions);
  showMore(section, state.sessionsMore ? `${plural(state.sessionsMore, "more session")} not shown.` :
    state.sessions.length && !state.sessions.some((s) => s.expires) && !state.notes.sessions ? "Only the leader knows how much time sessions have left." : "");
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

const whose = (session) => (session?.addr ? ` (${session.addr})` : "");
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
      const l = state.locks.find((l) => l.path === lock);
      const is = (c) => c.path === path && c.token === token;
      const holds = l?.holders.some(is);
      if (!holds && !l?.queue.some(is)) return state.locksMore || l?.more || state.notes.locks ? undefined : null;
      const who = (id) => (id ? `session ${id}${whose(state.sessions.find((s) => s.id === id))}` : "nobody’s session");
      if (!holds) {
        return { kind: "waits", text: `This deletes the znode by which ${who(session)} waits for ${lock}, which loses its place in the queue.`, note: "Its client may wait forever." };
      }
      const next = l.queue[0];
      const then = l.kind !== "semaphore" && l.holders.length > 1 ? "others go on holding it" : next ? `${who(next.session)} gets the lock` : "nobody waits for the lock";
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

// post asks the server for an action, and returns why it was not done; "" if it was.
async function post(url, body) {
  let reply, text;
  try {
    reply = await request(url, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
    text = await reply.text();
  } catch {
    return "The connection was lost, so it may have been done or not.";
  }
  if (reply.ok) return "";
  try {
    text = JSON.parse(text).error;
  } catch {
    // What refuses a request before it is read answers with text.
  }
  text = text.trim() || `status ${reply.status}`;
  return `${text[0].toUpperCase()}${text.slice(1)}.`;
}

$("#confirm-do").addEventListener("click", async () => {
  const q = question;
  q.busy = true;
  setText($("#confirm-error"), "");
  $("#confirm-cancel").focus();
  $("#confirm-do").disabled = true;
  const failed = await post(q.url, q.body);
  q.busy = false;
  q.done = !failed;
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
    for (const c of l.holders) {
      if (held.has(c.token)) continue;
      const from = old?.holders[0]?.session;
      found.push(["holds", `${path}: ${c.session || nameOf(c.path)} holds it${waited.has(c.token) && from ? `, after ${from}` : ""}`]);
    }
    for (const c of l.queue) if (!waited.has(c.token)) found.push(["waits", `${path}: ${c.session || nameOf(c.path)} waits`]);
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
  if (!reply.ok) return { path, error: answer.error ?? `status ${reply.status}`, children: [], more: 0 };
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
      renderTree(read);
      renderZnode(detail);
    } while (again);
  } catch {
    // The connection is lost; the stream says so.
  } finally {
    reading = false;
  }
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
function select(path, reveal = false) {
  selected = path;
  if (reveal) {
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

function renderZnode(z) {
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

// The stream.

let previous = null;

function render(state) {
  const sessions = new Map(state.sessions.map((s) => [s.id, s]));
  renderServer(state);
  renderTotals(state);
  renderCharts(state);
  renderLocks(state, sessions);
  renderSessions(state);
  renderMembers(state);
  renderWatches(state);
  renderEvents(previous, state);
  renderQuestion(state);
  markFollowed();
  if (previous?.server.zxid !== state.server.zxid) treeChanged();
  previous = state;
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

// receive renders the events of one connection until it ends. A page that nobody can see
// has none.
async function receive(signal) {
  const reply = await request("console/events", { signal });
  if (reply.status === 401) {
    await login(token !== "");
    return;
  }
  if (!reply.ok) throw new Error((await reply.text()).trim());
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    if (!events.length) continue;
    const state = JSON.parse(events.at(-1).replace(/^data: /, ""));
    const { serving, readOnly, role } = state.server;
    const wrong = trouble(state);
    const parts = ["Live", serving ? "" : readOnly ? "this server only serves reads" : `this server serves no clients (${role})`, wrong];
    showLink(!serving ? "down" : wrong ? "troubled" : "live", parts.filter(Boolean).join("; "));
    document.body.classList.toggle("unsure", state.unknown !== "");
    render(state);
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
