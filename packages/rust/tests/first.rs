use lockkeeper_test::{Result, Server};

#[test]
fn greets() -> Result<()> {
    let zookeeper = Server::builder().tree("/greeting = \"hello\"\n").start()?;
    // here a client connects to zookeeper.connect_string()
    assert_eq!(zookeeper.znode("/greeting")?.text(), "hello");
    zookeeper.check()
}
