//! What tests see of a server.

use crate::{base64, Json};
use std::time::Duration;

/// What a member of a server has applied.
#[derive(Clone, Debug)]
pub struct State {
    /// The addresses of all members, for a client.
    pub connect: String,
    /// The members, the one with the id 1 first.
    pub members: Vec<MemberState>,
    /// The id of the member whose state this is.
    pub shown: u32,
    /// The znodes as text, a line for each, sorted by path.
    pub tree: String,
    /// The sessions that have not ended.
    pub sessions: Vec<Session>,
    /// The watches of the clients of all members.
    pub watches: Vec<Watch>,
    /// The locks that somebody holds: znodes with children that are ephemeral and sequential.
    pub locks: Vec<Lock>,
    /// The faults that were injected, the oldest first.
    pub faults: Vec<FaultState>,
}

/// A member, or the only server.
#[derive(Clone, Debug)]
pub struct MemberState {
    /// Its id.
    pub member: u32,
    /// Where clients connect to it.
    pub address: String,
    /// leader, follower, standalone, or another role of a four-letter word, or stopped.
    pub role: String,
}

/// A session.
#[derive(Clone, Debug)]
pub struct Session {
    /// Its id, as the client has it.
    pub id: i64,
    /// How long its client may be silent.
    pub timeout: Duration,
    /// Whether its client is connected to any member.
    pub connected: bool,
    /// The paths of its ephemeral znodes.
    pub ephemerals: Vec<String>,
}

/// A watch of a client.
#[derive(Clone, Debug)]
pub struct Watch {
    /// The id of the client's session.
    pub session: i64,
    /// What it watches.
    pub path: String,
}

/// A lock that somebody holds.
#[derive(Clone, Debug)]
pub struct Lock {
    /// The znode whose children are the queue.
    pub path: String,
    /// The id of the session that holds it.
    pub holder: i64,
    /// The holder's fencing token: the czxid of its znode.
    pub token: i64,
    /// Since when it has been held, as in RFC 3339.
    pub since: String,
    /// The ids of the sessions behind the holder.
    pub queue: Vec<i64>,
}

/// A fault that was injected.
#[derive(Clone, Debug)]
pub struct FaultState {
    /// Its number.
    pub id: i64,
    /// Whether it has taken effect.
    pub fired: bool,
    /// How many requests it has matched; it takes effect at the nth.
    pub matched: u64,
    /// What it is.
    pub text: String,
}

/// A znode: its data and its Stat.
#[derive(Clone, Debug)]
pub struct Znode {
    /// Its data.
    pub data: Vec<u8>,
    /// The zxid of its creation, which for the znode of a lock's holder is the fencing token.
    pub czxid: i64,
    /// The zxid of the last change of its data.
    pub mzxid: i64,
    /// The zxid of the last change of its children.
    pub pzxid: i64,
    /// When it was created, in milliseconds since 1970.
    pub ctime: i64,
    /// When its data was changed last, in milliseconds since 1970.
    pub mtime: i64,
    /// How often its data was changed.
    pub version: i64,
    /// How often its children were changed.
    pub cversion: i64,
    /// How often its ACL was changed.
    pub aversion: i64,
    /// The id of the session whose ephemeral it is, or 0.
    pub ephemeral_owner: i64,
    /// How many children it has.
    pub num_children: i64,
}

/// A request that a client has sent.
#[derive(Clone, Debug)]
pub struct Request {
    /// When it came, as in RFC 3339.
    pub time: String,
    /// The id of the client's session, or 0 for the handshake of a new one.
    pub session: i64,
    /// ZooKeeper's name of the operation.
    pub op: String,
    /// Its first path, or "".
    pub path: String,
    /// All of its fields, as `lockkeeper wire` prints them.
    pub text: String,
}

fn each<T>(json: &Json, name: &str, make: fn(&Json) -> T) -> Vec<T> {
    json.get(name).list().iter().map(make).collect()
}

fn text(json: &Json, name: &str) -> String {
    json.get(name).text().to_string()
}

impl State {
    pub(crate) fn new(json: &Json) -> State {
        State {
            connect: text(json, "connect"),
            members: each(json, "members", |m| MemberState { member: m.get("member").number() as u32, address: text(m, "address"), role: text(m, "role") }),
            shown: json.get("shown").number() as u32,
            tree: text(json, "tree"),
            sessions: each(json, "sessions", |s| Session {
                id: s.get("id").session(),
                timeout: Duration::from_millis(s.get("timeoutMs").number() as u64),
                connected: s.get("connected").flag(),
                ephemerals: s.get("ephemerals").texts(),
            }),
            watches: each(json, "watches", |w| Watch { session: w.get("session").session(), path: text(w, "path") }),
            locks: each(json, "locks", |l| Lock {
                path: text(l, "path"),
                holder: l.get("holder").session(),
                token: l.get("token").number(),
                since: text(l, "since"),
                queue: l.get("queue").sessions(),
            }),
            faults: FaultState::all(json),
        }
    }

    /// A lock that somebody holds.
    pub fn lock(&self, path: &str) -> Option<&Lock> {
        self.locks.iter().find(|lock| lock.path == path)
    }

    /// The id of the member that leads: 1 if there is only one.
    pub fn leader(&self) -> Option<u32> {
        self.members.iter().find(|m| m.role == "leader" || m.role == "standalone").map(|m| m.member)
    }
}

impl FaultState {
    pub(crate) fn all(json: &Json) -> Vec<FaultState> {
        each(json, "faults", |f| FaultState {
            id: f.get("id").number(),
            fired: f.get("fired").flag(),
            matched: f.get("matched").number() as u64,
            text: text(f, "text"),
        })
    }
}

impl Znode {
    pub(crate) fn new(json: &Json) -> Znode {
        let number = |name| json.get("stat").get(name).number();
        Znode {
            data: base64::decode(json.get("data").text()),
            czxid: number("czxid"),
            mzxid: number("mzxid"),
            pzxid: number("pzxid"),
            ctime: number("ctime"),
            mtime: number("mtime"),
            version: number("version"),
            cversion: number("cversion"),
            aversion: number("aversion"),
            ephemeral_owner: json.get("stat").get("ephemeralOwner").session(),
            num_children: number("numChildren"),
        }
    }

    /// Its data as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.data).into_owned()
    }
}

impl Request {
    pub(crate) fn all(json: &Json) -> Vec<Request> {
        each(json, "requests", |r| Request {
            time: text(r, "time"),
            session: r.get("session").session(),
            op: text(r, "op"),
            path: text(r, "path"),
            text: text(r, "text"),
        })
    }
}
