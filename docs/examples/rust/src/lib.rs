//! Writes to a report while it holds a lock. Only one of several workers holds it at a time.

use zookeeper_client::{Acls, Client, Error, LockClient, LockPrefix};

/// The znode whose children are the queue of the lock.
pub const LOCK: &str = "/locks/report";

/// What the lock protects.
pub trait Report {
    /// Adds a line, and returns whether it was added. A report refuses a fencing token that is less than another that it
    /// has seen.
    fn add(&self, token: i64, line: &str) -> bool;
}

/// A worker that holds the lock, or believes so.
pub struct Working<'a> {
    _lock: LockClient<'a>,
    token: i64,
}

impl<'a> Working<'a> {
    /// Takes the lock, and waits for it.
    pub async fn begin(client: &'a Client) -> Result<Working<'a>, Error> {
        let prefix = LockPrefix::new_curator(LOCK, "lock-")?;
        let lock = client.lock(prefix, b"", Acls::anyone_all()).await?;
        let znode = client.check_stat(lock.lock_path()).await?.ok_or(Error::NoNode)?;
        Ok(Working { _lock: lock, token: znode.czxid })
    }

    /// Writes a line. The worker may have lost the lock in the meantime, without knowing it.
    pub fn write(&self, report: &dyn Report, line: &str) -> bool {
        report.add(self.token, line)
    }
}
