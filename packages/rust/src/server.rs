//! Servers, and what tests do to them.

use crate::process::Process;
use crate::{base64, http, Error, FaultState, Json, Request, Result, State, Znode};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How long a cluster may take to have a leader and a majority again.
const RECOVERS: Duration = Duration::from_secs(60);

/// How many requests a report shows, and how many of the test's own.
const SHOWN_REQUESTS: usize = 20;

/// What a test sends that disturbs a member or the network, or ends that.
const DISTURBING: &[&str] = &["/kill", "/restart", "/pause", "/resume", "/disk", "/clock", "/partition", "/heal", "/link", "/step-down"];

fn object<const N: usize>(all: [(&str, Json); N]) -> Json {
    Json::Object(all.into_iter().map(|(name, value)| (name.to_string(), value)).collect())
}

fn millis(time: Duration) -> Json {
    Json::Number(i64::try_from(time.as_millis()).unwrap_or(i64::MAX))
}

fn member_of(id: u32) -> (&'static str, Json) {
    ("member", i64::from(id).into())
}

/// The id of a session, as the test control writes it.
fn session_of(id: i64) -> (&'static str, Json) {
    ("session", format!("{id:#x}").into())
}

/// Sends requests for a server.
#[derive(Clone, Debug)]
struct Control {
    url: Arc<str>,
    connect: Arc<str>,
    process: Arc<Process>,
    sent: Arc<Mutex<Sent>>,
}

/// What a test has sent to a server.
#[derive(Debug, Default)]
struct Sent {
    disturbing: Vec<String>, // since the last reset
    error: Option<Error>,    // the last one
}

impl Control {
    fn get(&self, path: &str) -> Result<Json> {
        self.send(path, None)
    }

    fn post(&self, path: &str, body: Json) -> Result<Json> {
        self.send(path, Some(&body))
    }

    fn send(&self, path: &str, body: Option<&Json>) -> Result<Json> {
        let reply = http::send(&self.url, path, body).map_err(|e| match e {
            Error::Silent(_) => self.process.died().map_or(e, |how| Error::Silent(format!("{path}: {}", self.died(&how)))),
            _ => e,
        });
        let mut sent = self.sent();
        match (&reply, body) {
            (Err(e), _) => sent.error = Some(e.clone()),
            (Ok(_), Some(body)) if DISTURBING.contains(&path) => sent.disturbing.push(format!("{path} {body}")),
            _ => {}
        }
        drop(sent);
        reply
    }

    fn sent(&self) -> MutexGuard<'_, Sent> {
        self.sent.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn died(&self, how: &str) -> String {
        format!("the server {} has ended with {how}, so it is of no use to this test or a later one", self.connect)
    }

    fn member(&self, id: u32) -> Member {
        let address = self.connect.split(',').nth((id as usize).wrapping_sub(1)).unwrap_or("").to_string();
        Member { control: self.clone(), id, address }
    }

    fn done(&self, path: &str, body: Json) -> Result<()> {
        self.post(path, body).map(drop)
    }
}

/// What [`Server::check`] has to look at: the ids of faults and guards that nobody has ended.
#[derive(Debug, Default)]
struct Open {
    faults: Vec<(i64, String)>, // with the code that makes them
    unmet: Vec<String>,         // what was wrong with faults that a restored state has ended
    guards: Vec<(i64, String)>, // with the paths of their locks
}

/// Those of a server, which its faults and guards share.
#[derive(Clone, Debug, Default)]
struct Ends(Arc<Mutex<Open>>);

impl Ends {
    fn with<T>(&self, change: impl FnOnce(&mut Open) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }
}

/// A ZooKeeper for tests: a process of lockkeeper, which keeps its state in memory and starts in milliseconds, as one
/// server or as a cluster. It ends when this value is dropped, and when this process ends, whatever ends it.
///
/// When it is dropped, it does what [`check`](Server::check) does, and panics if that fails, so that the test does. If a
/// test panics, its servers print their [`report`](Server::report) instead.
///
/// The methods are those of lockkeeper's test control. They block; in asynchronous tests, do what waits in
/// `spawn_blocking`.
///
/// ```
/// # fn main() -> lockkeeper_test::Result<()> {
/// let zookeeper = lockkeeper_test::Server::start()?;
/// assert!(zookeeper.connect_string().starts_with("127.0.0.1:"));
/// assert_eq!(zookeeper.state()?.tree, "");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Server {
    control: Control,
    within: bool, // the process of another server
    ends: Ends,
}

/// Settings of a server.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    cluster: usize,
    tree: Option<String>,
    election: Option<Duration>,
    line: Option<String>,
    port: u16,
    binary: Option<PathBuf>,
    flags: Vec<String>,
}

impl Builder {
    /// Start a cluster of this many members.
    pub fn cluster(mut self, members: usize) -> Self {
        self.cluster = members;
        self
    }

    /// Begin with these znodes: a line for each, as [`State::tree`] has them, such as `/config/limit = "10"`.
    pub fn tree(mut self, text: impl Into<String>) -> Self {
        self.tree = Some(text.into());
        self
    }

    /// How long the leader of a cluster may be silent before the others elect a new one: 500 ms by default.
    pub fn election_timeout(mut self, time: Duration) -> Self {
        self.election = Some(time);
        self
    }

    /// Answer as an older release line of ZooKeeper: 3.4, 3.5, 3.6, 3.7, 3.8 or 3.9, which is the default.
    pub fn behave_as(mut self, line: impl Into<String>) -> Self {
        self.line = Some(line.into());
        self
    }

    /// Serve clients on this port. The members of a cluster take this port and those after it.
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// Use this program.
    pub fn binary(mut self, program: impl Into<PathBuf>) -> Self {
        self.binary = Some(program.into());
        self
    }

    /// Pass flags to `lockkeeper serve`, such as `--tick-time=500ms`.
    pub fn flags<I: IntoIterator<Item = S>, S: Into<String>>(mut self, flags: I) -> Self {
        self.flags.extend(flags.into_iter().map(Into::into));
        self
    }

    fn election_ms(&self) -> i64 {
        self.election.map_or(500, |time| time.as_millis() as i64)
    }

    /// Starts the server, and waits until clients can connect.
    pub fn start(self) -> Result<Server> {
        let mut flags = vec!["--listen".to_string(), format!("127.0.0.1:{}", self.port)];
        if self.cluster > 0 {
            flags.extend([format!("--cluster={}", self.cluster), format!("--election-timeout={}ms", self.election_ms())]);
        }
        flags.extend(self.line.iter().map(|line| format!("--behave-as={line}")));
        flags.extend(self.flags.iter().cloned());
        let file = self.tree.as_ref().map(|text| TreeFile::new(text)).transpose()?;
        if let Some(file) = &file {
            flags.push(format!("--tree={}", file.0.display()));
        }
        let process = Process::start(self.binary.as_deref(), &flags)?;
        let control = Control { url: process.url.as_str().into(), connect: process.connect.as_str().into(), process: Arc::new(process), sent: Arc::default() };
        Ok(Server { control, within: false, ends: Ends::default() })
    }

    /// Starts the server in the process of another one, which is quicker. It has no port, binary or flags of its own.
    pub fn start_within(self, server: &Server) -> Result<Server> {
        let mut body = Vec::new();
        if self.cluster > 0 {
            body.push(("cluster".to_string(), Json::Number(self.cluster as i64)));
            body.push(("electionTimeoutMs".to_string(), self.election_ms().into()));
        }
        if let Some(tree) = self.tree {
            body.push(("tree".to_string(), tree.into()));
        }
        if let Some(line) = self.line {
            body.push(("behaveAs".to_string(), line.into()));
        }
        let reply = server.control.post("/servers", Json::Object(body))?;
        let (url, connect) = (reply.get("url").text().into(), reply.get("connect").text().into());
        let control = Control { url, connect, process: server.control.process.clone(), sent: Arc::default() };
        Ok(Server { control, within: true, ends: Ends::default() })
    }
}

/// A file with a tree, which the server has read when it serves clients.
struct TreeFile(PathBuf);

impl TreeFile {
    fn new(text: &str) -> Result<TreeFile> {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("lockkeeper-{}-{}.tree", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        let write = |path: &Path| {
            let mut file = std::fs::OpenOptions::new().write(true).create_new(true).open(path)?;
            std::io::Write::write_all(&mut file, text.as_bytes())
        };
        write(&path).map_err(|e| Error::Start(format!("{}: {e}", path.display())))?;
        Ok(TreeFile(path))
    }
}

impl Drop for TreeFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.report());
            let _ = self.stop();
            return;
        }
        let last = self.control.sent().error.take();
        let mut wrong: Vec<_> = [self.check(), self.stop()].into_iter().filter_map(Result::err).map(|e| e.to_string()).collect();
        if wrong.is_empty() {
            return;
        }
        wrong.push("If the test had already failed with an error, this hides it: unwrap() it instead of returning it with ?".to_string());
        wrong.extend(last.map(|e| format!("The last error that the server's methods returned: {e}")));
        panic!("{}", wrong.join("\n"));
    }
}

impl Server {
    /// Starts a server, and waits until clients can connect.
    pub fn start() -> Result<Server> {
        Server::builder().start()
    }

    /// Starts a cluster, and waits until clients can connect.
    pub fn start_cluster(members: usize) -> Result<Server> {
        Server::builder().cluster(members).start()
    }

    /// For a server with settings.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// What a client connects to: the addresses of all members, separated by commas.
    pub fn connect_string(&self) -> &str {
        &self.control.connect
    }

    /// The URL of the test control, without a slash at its end.
    pub fn url(&self) -> &str {
        &self.control.url
    }

    /// The id of the process.
    pub fn pid(&self) -> u32 {
        self.control.process.id
    }

    /// A member of a cluster, or the only server: a number from 1.
    pub fn member(&self, id: u32) -> Member {
        self.control.member(id)
    }

    /// All members, the one with the id 1 first.
    pub fn members(&self) -> Vec<Member> {
        (1..=self.control.connect.split(',').count() as u32).map(|id| self.member(id)).collect()
    }

    /// The leader of a cluster, or the only server. If there is none, waits until there is.
    pub fn leader(&self) -> Result<Member> {
        self.wait_until().leader(&[])
    }

    /// What the leader has applied or, if there is none, another member.
    pub fn state(&self) -> Result<State> {
        self.control.get("/state").map(|json| State::new(&json))
    }

    /// A znode.
    pub fn znode(&self, path: &str) -> Result<Znode> {
        self.control.get(&format!("/znode?path={}", http::escape(path))).map(|json| Znode::new(&json))
    }

    /// The requests that clients have sent, the oldest first, without pings. `op` is ZooKeeper's name of an operation, or
    /// a pattern such as `create*`; "" for all.
    pub fn requests(&self, op: &str) -> Result<Vec<Request>> {
        let query = if op.is_empty() { String::new() } else { format!("?op={}", http::escape(op)) };
        self.control.get(&format!("/requests{query}")).map(|json| Request::all(&json))
    }

    /// Ends a session as if its client had been silent for its timeout. Returns when it has ended.
    pub fn expire(&self, session: i64) -> Result<()> {
        self.control.done("/expire", object([session_of(session)]))
    }

    /// Closes the connection of a session.
    pub fn disconnect(&self, session: i64) -> Result<()> {
        self.control.done("/disconnect", object([session_of(session)]))
    }

    /// Injects a fault. [`Server::check`] fails if it meets no request.
    pub fn inject(&self, fault: Fault) -> Result<Injection> {
        let id = self.control.post("/inject", Json::Object(fault.fields))?.get("id").number();
        if !fault.optional {
            self.ends.with(|open| open.faults.push((id, fault.code)));
        }
        Ok(Injection { control: self.control.clone(), id, ends: self.ends.clone() })
    }

    /// Waits until the server has a state.
    pub fn wait_until(&self) -> Wait {
        Wait { control: self.control.clone(), common: Vec::new() }
    }

    /// Stops the only server as abruptly as if its process had been killed. It keeps its state.
    pub fn kill(&self) -> Result<()> {
        self.control.done("/kill", object([]))
    }

    /// Starts the only server after [`kill`](Server::kill), with the state that it had.
    pub fn restart(&self) -> Result<()> {
        self.control.done("/restart", object([]))
    }

    /// Keeps the only server from sending and receiving.
    pub fn pause(&self) -> Result<()> {
        self.control.done("/pause", object([]))
    }

    /// Continues the only server after [`pause`](Server::pause).
    pub fn resume(&self) -> Result<()> {
        self.control.done("/resume", object([]))
    }

    /// Cuts the network of a cluster so that only members of the same group can reach each other. A member in no group
    /// can reach nobody. Clients can reach all members.
    pub fn partition(&self, groups: &[&[u32]]) -> Result<()> {
        let groups = groups.iter().map(|group| Json::List(group.iter().map(|id| i64::from(*id).into()).collect())).collect();
        self.control.done("/partition", object([("groups", Json::List(groups))]))
    }

    /// Ends all partitions, and faults of links.
    pub fn heal(&self) -> Result<()> {
        self.control.done("/heal", object([]))
    }

    /// Cuts the network from one member to another, in this direction only.
    pub fn cut_link(&self, from: u32, to: u32) -> Result<()> {
        self.control.done("/link", object([("from", i64::from(from).into()), ("to", i64::from(to).into()), ("cut", true.into())]))
    }

    /// Makes the network from one member to another slow and lossy, from 0 to 1, in this direction only.
    pub fn link(&self, from: u32, to: u32, delay: Duration, loss: f64) -> Result<()> {
        let body = object([("from", i64::from(from).into()), ("to", i64::from(to).into()), ("delayMs", millis(delay)), ("loss", Json::Float(loss))]);
        self.control.done("/link", body)
    }

    /// Makes the leader of a cluster hand over, and returns the new one.
    pub fn step_down(&self) -> Result<Member> {
        let reply = self.control.post("/step-down", object([]))?;
        Ok(self.member(reply.get("leader").number() as u32))
    }

    /// Notes the present state.
    pub fn snapshot(&self) -> Result<Snapshot> {
        Ok(Snapshot(self.control.post("/snapshot", object([]))?.get("snapshot").number()))
    }

    /// Puts a state of this server back: the znodes and sessions. Sessions that were opened since then end, and faults
    /// that were injected since then are removed.
    pub fn restore(&self, snapshot: &Snapshot) -> Result<()> {
        self.put_back(object([("snapshot", snapshot.0.into())]))
    }

    fn put_back(&self, body: Json) -> Result<()> {
        let reply = self.control.post("/restore", body)?;
        let ended = FaultState::all(&reply);
        self.ends.with(|open| {
            for (id, code) in std::mem::take(&mut open.faults) {
                match ended.iter().find(|fault| fault.id == id) {
                    None => open.faults.push((id, code)),
                    Some(fault) if !fault.fired => open.unmet.push(unmet(&code, fault)),
                    Some(_) => {}
                }
            }
        });
        Ok(())
    }

    /// Forgets a state, and frees its memory.
    pub fn remove_snapshot(&self, snapshot: Snapshot) -> Result<()> {
        self.control.done("/snapshot/remove", object([("snapshot", snapshot.0.into())]))
    }

    /// Adds znodes: a line for each, as [`State::tree`] has them. Those that exist get this data.
    pub fn add_tree(&self, text: &str) -> Result<()> {
        self.control.done("/tree", object([("tree", text.into())]))
    }

    /// Creates a znode with a name of its own, in which a client can work as if it were the root. It is deleted with the
    /// value.
    pub fn namespace(&self) -> Result<Namespace> {
        let reply = self.control.post("/namespace", object([]))?;
        Ok(Namespace { control: self.control.clone(), path: reply.get("path").text().to_string(), connect: reply.get("connect").text().to_string() })
    }

    /// Watches a lock from now on, for a verdict: the znode whose children are the queue. [`Server::check`] fails if
    /// nobody asks for the verdict and it is bad.
    pub fn guard(&self, path: &str) -> Result<Guard> {
        let id = self.control.post("/guard", object([("path", path.into())]))?.get("guard").number();
        self.ends.with(|open| open.guards.push((id, path.to_string())));
        Ok(Guard { control: self.control.clone(), id, ends: self.ends.clone() })
    }

    /// Moves the server's clock for sessions, TTLs and containers forward. A session with a connection is treated as if
    /// its client had gone on pinging, unless `connected`.
    pub fn advance(&self, time: Duration, connected: bool) -> Result<Advanced> {
        let reply = self.control.post("/advance", object([("ms", millis(time)), ("connected", connected.into())]))?;
        Ok(Advanced { expired: reply.get("expired").sessions(), deleted: reply.get("deleted").texts() })
    }

    /// Deletes TTL znodes without children, and empty containers, whatever their time, and returns their paths.
    pub fn end_ttls(&self) -> Result<Vec<String>> {
        Ok(self.control.post("/end-ttls", object([]))?.get("deleted").texts())
    }

    /// Undoes what a test has done to the server: members that were killed run again, and all faults end. Then it puts
    /// back the state with which the server began. Call [`check`](Server::check) before it, or what the test has left to
    /// judge is judged later.
    pub fn reset(&self) -> Result<()> {
        let members = self.state()?.members;
        if members.len() > 1 {
            self.heal()?;
        }
        for state in &members {
            let member = self.member(state.member);
            member.heal_disk()?;
            if state.role == "failed" {
                member.kill()?;
            }
            if state.role == "failed" || state.role == "stopped" {
                member.restart()?;
            }
            member.resume()?;
            member.clock(0)?;
        }
        let began = Instant::now();
        loop {
            match self.put_back(object([])) {
                // A cluster may not have a leader yet.
                Err(e) if e.status() == 503 && began.elapsed() < RECOVERS => std::thread::sleep(Duration::from_millis(20)),
                Ok(()) => break,
                Err(e) => return Err(e),
            }
        }
        self.control.sent().disturbing.clear();
        Ok(())
    }

    /// Ends a test: fails if no request has met a fault that was injected and not removed, so that the test does not test
    /// what it seems to, if a lock whose guard has given no verdict did not do what it should, or if that cannot be told,
    /// since the server has ended. The error has the [`report`](Server::report), too. It ends these guards. Call it before clients close; a server that is dropped calls it.
    pub fn check(&self) -> Result<()> {
        let open = self.ends.with(std::mem::take);
        let mut wrong = open.unmet;
        for (id, path) in open.guards {
            match self.control.post("/guard/verdict", object([("guard", id.into())])).map(|reply| Verdict::new(&reply)) {
                Ok(verdict) if verdict.ok => {}
                Ok(verdict) => wrong.push(format!("the lock {path}: {verdict}")),
                Err(why) => wrong.push(format!("the test fails, since its lock {path} cannot be judged: {why}")),
            }
        }
        if !open.faults.is_empty() {
            let seen = self.state().map(|state| state.faults);
            for (id, code) in open.faults {
                let why = match &seen {
                    Ok(faults) => match faults.iter().find(|fault| fault.id == id) {
                        Some(fault) if fault.fired => continue,
                        Some(fault) => {
                            wrong.push(unmet(&code, fault));
                            continue;
                        }
                        None => "the server no longer knows it".to_string(),
                    },
                    Err(why) => why.to_string(),
                };
                wrong.push(format!("the test fails, since its fault {code} cannot be judged: {why}. {OPTIONAL}"));
            }
        }
        if wrong.is_empty() {
            return Ok(());
        }
        wrong.push(self.report());
        Err(Error::Check(wrong.join("\n")))
    }

    /// What helps to understand why a test fails: the members, and what the test has done to them and their network, the
    /// znodes, who holds and waits for which lock, the faults, and the last requests of the clients.
    pub fn report(&self) -> String {
        let seen = self.state().and_then(|state| Ok((state, self.requests("")?)));
        let (state, requests) = match seen {
            Ok(seen) => seen,
            Err(why) => return format!("lockkeeper at {}: {why}", self.connect_string()),
        };
        let members: Vec<_> = state.members.iter().map(|m| format!("{} {}", m.member, m.role)).collect();
        let mut lines = vec![format!("lockkeeper at {}, members: {}", self.connect_string(), members.join(", "))];
        let sent = self.control.sent();
        let latest = &sent.disturbing[sent.disturbing.len().saturating_sub(SHOWN_REQUESTS)..];
        lines.extend(latest.iter().map(|request| format!("the test has sent {request}")));
        lines.push("znodes:".to_string());
        lines.extend(state.tree.lines().map(str::to_string));
        for lock in &state.locks {
            let queue: Vec<_> = lock.queue.iter().map(|id| format!("{id:#x}")).collect();
            lines.push(format!("lock {}: held by {:#x} with token {}, queue [{}]", lock.path, lock.holder, lock.token, queue.join(" ")));
        }
        lines.extend(state.faults.into_iter().map(|fault| fault.text));
        let last = &requests[requests.len().saturating_sub(SHOWN_REQUESTS)..];
        lines.push(format!("the last {} of {} requests:", last.len(), requests.len()));
        lines.extend(last.iter().map(|r| format!("{} {:#x} {}", r.time, r.session, r.text)));
        lines.join("\n")
    }

    /// Sends a request to the test control, for what has no method here: a POST, or a GET without a body.
    pub fn request(&self, path: &str, body: Option<Json>) -> Result<Json> {
        self.control.send(path, body.as_ref())
    }

    /// Ends the server. It fails if its process had already ended, by whatever.
    fn stop(&self) -> Result<()> {
        if self.within {
            let stopped = self.control.done("/stop", object([]));
            return stopped.or_else(|e| self.control.process.died().map_or(Ok(()), |_| Err(e))); // the other server may have been dropped
        }
        match self.control.process.end() {
            Some(how) => Err(Error::Silent(self.control.died(&how))),
            None => Ok(()),
        }
    }
}

/// What to do about a fault that fails a test.
const OPTIONAL: &str = "If it need not meet a request, add .optional()";

fn unmet(code: &str, fault: &FaultState) -> String {
    format!("the test fails, since its fault {code} has had no effect (requests that it matched: {}). {OPTIONAL}", fault.matched)
}

/// A state of a server, for [`Server::restore`].
#[derive(Clone, Debug)]
pub struct Snapshot(i64);

/// What has ended because a server's clock went forward.
#[derive(Clone, Debug)]
pub struct Advanced {
    /// The ids of the sessions that have ended.
    pub expired: Vec<i64>,
    /// The paths of the TTL znodes and containers that were deleted.
    pub deleted: Vec<String>,
}

/// A member of a cluster, or the only server.
#[derive(Clone, Debug)]
pub struct Member {
    control: Control,
    id: u32,
    address: String,
}

impl Member {
    fn on(&self, path: &str) -> Result<()> {
        self.control.done(path, object([member_of(self.id)]))
    }

    /// Its id: a number from 1.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Where clients connect to this member only.
    pub fn connect_string(&self) -> &str {
        &self.address
    }

    /// Stops it as abruptly as if its process had been killed. It keeps its state.
    pub fn kill(&self) -> Result<()> {
        self.on("/kill")
    }

    /// Starts it after [`kill`](Member::kill), with the state that it had. It does not wait for a leader.
    pub fn restart(&self) -> Result<()> {
        self.on("/restart")
    }

    /// Keeps it from sending, receiving and writing to its disk.
    pub fn pause(&self) -> Result<()> {
        self.on("/pause")
    }

    /// Continues it after [`pause`](Member::pause).
    pub fn resume(&self) -> Result<()> {
        self.on("/resume")
    }

    /// Makes each write to its disk slow.
    pub fn slow_disk(&self, delay: Duration) -> Result<()> {
        self.control.done("/disk", object([member_of(self.id), ("delayMs", millis(delay))]))
    }

    /// Makes each write to its disk fail. It then stops serving, until it is healed, killed and restarted.
    pub fn full_disk(&self) -> Result<()> {
        self.control.done("/disk", object([member_of(self.id), ("full", true.into())]))
    }

    /// Ends what the two methods above have begun.
    pub fn heal_disk(&self) -> Result<()> {
        self.on("/disk")
    }

    /// Makes its clock wrong, by this many milliseconds; 0 makes it right.
    pub fn clock(&self, skew_ms: i64) -> Result<()> {
        self.control.done("/clock", object([member_of(self.id), ("skewMs", skew_ms.into())]))
    }

    /// What it has applied.
    pub fn state(&self) -> Result<State> {
        self.control.get(&format!("/state?member={}", self.id)).map(|json| State::new(&json))
    }

    /// A znode, as this member has it.
    pub fn znode(&self, path: &str) -> Result<Znode> {
        self.control.get(&format!("/znode?member={}&path={}", self.id, http::escape(path))).map(|json| Znode::new(&json))
    }

    /// Waits until this member has applied something.
    pub fn wait_until(&self) -> Wait {
        let (name, id) = member_of(self.id);
        Wait { control: self.control.clone(), common: vec![(name.to_string(), id)] }
    }
}

/// Waits until a server has a state. The methods return when it is reached; they see every state, also one that lasts
/// only for a moment. If it is not reached in time, they fail with [`Error::TimedOut`], which says how long they have waited.
#[derive(Clone, Debug)]
pub struct Wait {
    control: Control,
    common: Vec<(String, Json)>,
}

impl Wait {
    fn on<const N: usize>(&self, path: &str, with: [(&str, Json); N]) -> Result<()> {
        self.ask(path, with).map(drop)
    }

    fn ask<const N: usize>(&self, path: &str, with: [(&str, Json); N]) -> Result<Json> {
        let mut body = self.common.clone();
        body.extend(with.into_iter().map(|(name, value)| (name.to_string(), value)));
        self.control.post(path, Json::Object(body))
    }

    /// For this long at most.
    pub fn within(mut self, timeout: Duration) -> Wait {
        self.common.push(("timeoutMs".to_string(), millis(timeout)));
        self
    }

    /// A session holds a lock: it has the first of the ephemeral and sequential children of the path, or the path itself
    /// is an ephemeral of the session.
    pub fn held(&self, path: &str, session: i64) -> Result<()> {
        self.on("/wait/held", [("path", path.into()), session_of(session)])
    }

    /// This many sessions wait behind the holder of a lock.
    pub fn waiters(&self, path: &str, sessions: u32) -> Result<()> {
        self.on("/wait/waiters", [("path", path.into()), ("waiters", i64::from(sessions).into())])
    }

    /// A znode does not exist.
    pub fn gone(&self, path: &str) -> Result<()> {
        self.on("/wait/gone", [("path", path.into())])
    }

    /// A znode exists.
    pub fn exists(&self, path: &str) -> Result<()> {
        self.on("/wait/exists", [("path", path.into())])
    }

    /// A znode has this data.
    pub fn data(&self, path: &str, data: &[u8]) -> Result<()> {
        self.on("/wait/data", [("path", path.into()), ("data", base64::encode(data).into())])
    }

    /// A znode has this many children.
    pub fn children(&self, path: &str, number: u32) -> Result<()> {
        self.on("/wait/children", [("path", path.into()), ("children", i64::from(number).into())])
    }

    /// Clients have sent at least this many requests since the server's start. `op` and `path` are names or patterns as
    /// in [`Fault::op`] and [`Fault::path`]; "" for all.
    pub fn requests(&self, op: &str, path: &str, count: u32) -> Result<()> {
        self.on("/wait/requests", [("op", op.into()), ("path", path.into()), ("count", i64::from(count).into())])
    }

    /// A member leads, or one of those with these ids, such as the others when a partition has cut the leader off.
    pub fn leader(&self, among: &[u32]) -> Result<Member> {
        let among = among.iter().map(|id| i64::from(*id).into()).collect();
        let reply = self.ask("/wait/leader", [("among", Json::List(among))])?;
        Ok(self.control.member(reply.get("leader").number() as u32))
    }

    /// Somebody watches a path.
    pub fn watch(&self, path: &str) -> Result<()> {
        self.on("/wait/watch", [("path", path.into())])
    }

    /// A session watches a path.
    pub fn watch_by(&self, path: &str, session: i64) -> Result<()> {
        self.on("/wait/watch", [("path", path.into()), session_of(session)])
    }
}

/// What happens to a client's request, for [`Server::inject`]. By default it hits the next request of any client.
#[derive(Clone, Debug)]
pub struct Fault {
    fields: Vec<(String, Json)>,
    optional: bool,
    code: String, // that makes it
}

impl Fault {
    fn of(action: &str, call: impl std::fmt::Display) -> Fault {
        Fault { fields: vec![("do".to_string(), action.into())], optional: false, code: format!("Fault::{call}") }
    }

    /// Adds what a call has set.
    fn with(mut self, name: &str, value: impl Into<Json>, call: impl std::fmt::Display) -> Fault {
        self.fields.push((name.to_string(), value.into()));
        self.code = format!("{}{call}", self.code);
        self
    }

    /// The server receives the request, and all later ones of its connection, only after this time. A watch event, and
    /// what follows it, is sent later by this time.
    pub fn delay(time: Duration) -> Fault {
        Fault::of("delay", "").with("ms", millis(time), format_args!("delay(Duration::from_millis({}))", time.as_millis()))
    }

    /// The server receives the request, and all later ones of its connection, when the fault is removed.
    pub fn hold() -> Fault {
        Fault::of("hold", "hold()")
    }

    /// The request is answered with an error instead of being executed: ZooKeeper's name of it, such as NodeExists.
    pub fn answer(error: &str) -> Fault {
        Fault::of("answer", "").with("error", error, format_args!("answer({error:?})"))
    }

    /// The server never receives the request. A watch event is lost.
    pub fn drop() -> Fault {
        Fault::of("drop", "drop()")
    }

    /// The request is executed, and the reply is discarded.
    pub fn drop_reply() -> Fault {
        Fault::of("dropReply", "drop_reply()")
    }

    /// The connection is closed instead of executing the request, or of sending the watch event.
    pub fn close_before() -> Fault {
        Fault::of("closeBefore", "close_before()")
    }

    /// The request is executed, and the connection is closed instead of sending the reply. A watch event is sent first.
    pub fn close_after() -> Fault {
        Fault::of("closeAfter", "close_after()")
    }

    /// A new connection is refused.
    pub fn refuse() -> Fault {
        Fault::of("refuse", "").with("op", "connect", "refuse()")
    }

    /// The reply, or the watch event, is sent byte by byte, with a pause after each.
    pub fn trickle(pause: Duration) -> Fault {
        Fault::of("trickle", "").with("ms", millis(pause), format_args!("trickle(Duration::from_millis({}))", pause.as_millis()))
    }

    /// Only requests with this operation, or one that a pattern such as `create*` matches. `connect` is the handshake,
    /// and `event` is a watch event.
    pub fn op(self, name: &str) -> Fault {
        self.with("op", name, format_args!(".op({name:?})"))
    }

    /// Only requests with this path, or one that a pattern matches, in which `*` does not match a slash.
    pub fn path(self, pattern: &str) -> Fault {
        self.with("path", pattern, format_args!(".path({pattern:?})"))
    }

    /// Only requests of this session.
    pub fn session(self, id: i64) -> Fault {
        let (name, text) = session_of(id);
        self.with(name, text, format_args!(".session({id:#x})"))
    }

    /// The first matching request that is hit, counted from 1.
    pub fn nth(self, number: u32) -> Fault {
        self.with("nth", i64::from(number), format_args!(".nth({number})"))
    }

    /// How many requests are hit.
    pub fn times(self, number: u32) -> Fault {
        self.with("times", i64::from(number), format_args!(".times({number})"))
    }

    /// All matching requests are hit.
    pub fn always(self) -> Fault {
        self.with("times", -1, ".always()")
    }

    /// Only requests to this member.
    pub fn member(self, id: u32) -> Fault {
        self.with("member", i64::from(id), format_args!(".member({id})"))
    }

    /// It need not meet a request: [`Server::check`] does not look at it.
    pub fn optional(mut self) -> Fault {
        self.optional = true;
        self
    }
}

/// A fault in a server. It lasts until it is removed, or the state is put back.
#[derive(Clone, Debug)]
pub struct Injection {
    control: Control,
    id: i64,
    ends: Ends,
}

impl Injection {
    /// Waits until the fault takes effect for the first time.
    pub fn wait_fired(&self) -> Result<()> {
        self.control.done("/wait/fired", object([("id", self.id.into())]))
    }

    /// Ends the fault, and releases what waits because of it. Returns whether it has taken effect.
    pub fn remove(&self) -> Result<bool> {
        self.ends.with(|open| open.faults.retain(|(id, _)| *id != self.id));
        Ok(self.control.post("/remove", object([("id", self.id.into())]))?.get("fired").flag())
    }
}

/// A znode of a test's own, which is deleted with all that is in it when this value is dropped.
#[derive(Debug)]
pub struct Namespace {
    control: Control,
    path: String,
    connect: String,
}

impl Namespace {
    /// Its path, with which paths given to a [`Server`] begin.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// What a client connects to: the servers' addresses, and the path.
    pub fn connect_string(&self) -> &str {
        &self.connect
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.control.post("/namespace/remove", object([("path", self.path.as_str().into())])); // fails if the server has ended
    }
}

/// Watches a lock for a verdict: did it protect what it should protect? A test tells it what the holders write, and with
/// which token, the czxid of the writer's znode in the queue of the lock.
#[derive(Debug)]
pub struct Guard {
    control: Control,
    id: i64,
    ends: Ends,
}

/// Whether what a lock protects has accepted a write.
#[derive(Clone, Debug)]
pub struct Write {
    /// Whether it has.
    pub accepted: bool,
    /// Why not, or "".
    pub reason: String,
}

/// The verdict of a [`Guard`].
#[derive(Clone, Debug)]
pub struct Verdict {
    /// Whether there is no violation.
    pub ok: bool,
    /// What went wrong.
    pub violations: Vec<String>,
    /// What happened to the lock.
    pub timeline: String,
}

impl Guard {
    /// Writes to what the lock protects, which refuses stale tokens. `resource` is its name if there are several.
    pub fn write(&self, token: i64, resource: &str) -> Result<Write> {
        let body = object([("guard", self.id.into()), ("token", token.into()), ("resource", resource.into())]);
        let reply = self.control.post("/guard/write", body)?;
        Ok(Write { accepted: reply.get("accepted").flag(), reason: reply.get("reason").text().to_string() })
    }

    /// Writes to something that ignores tokens, and accepts every write.
    pub fn write_unchecked(&self, token: i64, resource: &str) -> Result<()> {
        let body = object([("guard", self.id.into()), ("token", token.into()), ("resource", resource.into()), ("unchecked", true.into())]);
        self.control.done("/guard/write", body)
    }

    /// Ends the guard. Ask before you close the clients: their znodes go with their sessions, and a znode of the lock that
    /// is left counts only if it is there now, and its client is gone or does not know of it.
    pub fn verdict(self) -> Result<Verdict> {
        self.ends.with(|open| open.guards.retain(|(id, _)| *id != self.id));
        Ok(Verdict::new(&self.control.post("/guard/verdict", object([("guard", self.id.into())]))?))
    }
}

impl Verdict {
    fn new(reply: &Json) -> Verdict {
        Verdict { ok: reply.get("ok").flag(), violations: reply.get("violations").texts(), timeline: reply.get("timeline").text().to_string() }
    }

    /// Fails the test if the verdict is not ok.
    #[track_caller]
    pub fn assert_ok(&self) {
        assert!(self.ok, "{self}");
    }
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}\n{}", self.violations.join("\n"), self.timeline)
    }
}
