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

use std::fmt;

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
        /// the state that the request needs, 503 for a cluster without a leader, and 504 if what a test waited for did
        /// not happen.
        status: u16,
        /// One line.
        message: String,
    },
    /// A fault met no request, or a guarded lock did not do what it should: see [`Server::check`].
    Check(String),
}

impl Error {
    /// The HTTP status of a refusal, or 0.
    pub fn status(&self) -> u16 {
        match self {
            Error::Refused { status, .. } => *status,
            _ => 0,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Start(message) | Error::Silent(message) | Error::Check(message) | Error::Refused { message, .. } => f.write_str(message),
        }
    }
}

impl std::error::Error for Error {}

/// What a request to the server results in.
pub type Result<T> = std::result::Result<T, Error>;
