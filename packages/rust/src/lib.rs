#![doc = include_str!("../README.md")]
#![warn(missing_docs)]

mod base64;
mod http;
mod json;
mod process;
mod server;
mod state;

pub use json::Json;
pub use server::{Advanced, Builder, Fault, Guard, Injection, Member, Namespace, Server, Snapshot, Verdict, Wait, Write};
pub use state::{FaultState, Lock, MemberState, Request, Session, State, Watch, Znode};

use std::{fmt, io};

/// Why the server did not do something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// The program could not be started.
    Start(String),
    /// The server does not answer.
    Silent(String),
    /// The server refused a request.
    Refused {
        /// 400 for a wrong request, 404 for a session, znode or fault that does not exist, 409 for a member that is not in
        /// the state that the request needs, and 503 for a cluster without a leader.
        status: u16,
        /// One line.
        message: String,
    },
    /// What a test waited for did not happen in time.
    TimedOut(String),
    /// A fault met no request, a guarded lock did not do what it should, or neither can be told: see [`Server::check`].
    Check(String),
}

impl Error {
    /// The HTTP status of a refusal, 504 if what a test waited for did not happen in time, or 0.
    pub fn status(&self) -> u16 {
        match self {
            Error::Refused { status, .. } => *status,
            Error::TimedOut(_) => 504,
            _ => 0,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Start(message) | Error::Silent(message) | Error::TimedOut(message) | Error::Check(message) | Error::Refused { message, .. } => f.write_str(message),
        }
    }
}

impl std::error::Error for Error {}

/// For tests whose functions return an [`io::Error`]: a wait that has timed out has the kind `TimedOut`.
impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        let kind = if matches!(error, Error::TimedOut(_)) { io::ErrorKind::TimedOut } else { io::ErrorKind::Other };
        io::Error::new(kind, error)
    }
}

/// What a request to the server results in.
pub type Result<T> = std::result::Result<T, Error>;
