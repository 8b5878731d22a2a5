use lockkeeper_test::{Error, Fault, Result, Server};
use std::time::Duration;

#[test]
fn a_reply_is_lost() -> Result<()> {
    let zookeeper = Server::start()?;
    // The znode is created, and its client loses the connection instead of getting the reply.
    zookeeper.inject(Fault::close_after().op("create*").path("/locks/*"))?;

    for session in zookeeper.state()?.sessions {
        zookeeper.expire(session.id)?; // it has ended, with its ephemeral znodes
    }
    // Instead of sleeping, wait.
    let late = zookeeper.wait_until().within(Duration::from_millis(10)).exists("/locks/a");
    assert!(matches!(late, Err(Error::TimedOut(_))));

    assert!(zookeeper.check().is_err()); // since no client was there to meet the fault
    Ok(())
}
