//! A worker is paused, for instance with its virtual machine, while it holds the lock, and its session ends.

use lockkeeper_test::{Guard, Server};
use workers::{Report, Working, LOCK};
use zookeeper_client::Client;

struct Checked<'a>(&'a Guard);

impl Report for Checked<'_> {
    fn add(&self, token: i64, _line: &str) -> bool {
        self.0.write(token, "report").unwrap().accepted
    }
}

struct Unchecked<'a>(&'a Guard);

impl Report for Unchecked<'_> {
    fn add(&self, token: i64, _line: &str) -> bool {
        self.0.write_unchecked(token, "report").unwrap();
        true
    }
}

fn server() -> Server {
    Server::builder().tree("/locks\n/locks/report\n").start().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_that_checks_tokens_refuses_the_late_write() {
    let zookeeper = server();
    let guard = zookeeper.guard(LOCK).unwrap();
    let first = Client::connect(zookeeper.connect_string()).await.unwrap();
    let second = Client::connect(zookeeper.connect_string()).await.unwrap();

    let a = Working::begin(&first).await.unwrap(); // and now it is paused
    zookeeper.expire(first.session_id().0).unwrap();

    let b = Working::begin(&second).await.unwrap();
    assert!(b.write(&Checked(&guard), "b"));

    assert!(!a.write(&Checked(&guard), "a")); // a wakes up, and still believes in its lock
    assert!(b.write(&Checked(&guard), "b again"));
    guard.verdict().unwrap().assert_ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_that_ignores_tokens_is_not_protected() {
    let zookeeper = server();
    let guard = zookeeper.guard(LOCK).unwrap();
    let first = Client::connect(zookeeper.connect_string()).await.unwrap();
    let second = Client::connect(zookeeper.connect_string()).await.unwrap();

    let a = Working::begin(&first).await.unwrap();
    assert!(a.write(&Unchecked(&guard), "a"));
    zookeeper.expire(first.session_id().0).unwrap();

    let b = Working::begin(&second).await.unwrap();
    assert!(b.write(&Unchecked(&guard), "b"));

    assert!(a.write(&Unchecked(&guard), "a again")); // the lock did not protect the report
    let verdict = guard.verdict().unwrap();
    assert!(!verdict.ok, "{}", verdict.timeline);
}
