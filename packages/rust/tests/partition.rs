use lockkeeper_test::{Result, Server};

#[test]
fn a_majority_goes_on() -> Result<()> {
    let zookeeper = Server::start_cluster(3)?;
    let old = zookeeper.leader()?; // waits until there is one
    let others = [old.id() % 3 + 1, (old.id() + 1) % 3 + 1];

    zookeeper.partition(&[&[old.id()], &others])?; // clients still reach all three

    let next = zookeeper.wait_until().leader(&others)?;
    assert_ne!(next.id(), old.id()); // here a client writes to next.connect_string()

    zookeeper.heal()?;
    zookeeper.add_tree("/after\n")?;
    old.wait_until().exists("/after")?; // it follows
    zookeeper.check()
}
