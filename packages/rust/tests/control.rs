//! What needs no client.

use lockkeeper_test::{Error, Fault, Json, Result, Server};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

#[test]
fn puts_state_back() {
    let server = Server::builder().tree("/config\n/config/limit = \"10\"\n").start().unwrap();
    assert_eq!(server.znode("/config/limit").unwrap().text(), "10");
    server.add_tree("/config/limit = \"11\"\n/more\n").unwrap();
    let snapshot = server.snapshot().unwrap();
    server.add_tree("/a = \"\\x00\\xff\"\n").unwrap();
    assert_eq!(server.znode("/a").unwrap().data, [0, 255]);
    server.wait_until().data("/a", &[0, 255]).unwrap();
    server.restore(&snapshot).unwrap();
    server.remove_snapshot(snapshot.clone()).unwrap();
    assert_eq!(server.restore(&snapshot).unwrap_err().status(), 404);
    assert_eq!(server.znode("/a").unwrap_err().status(), 404);
    assert_eq!(server.state().unwrap().tree, "/config\n/config/limit = \"11\"\n/more\n");
    server.wait_until().children("/config", 1).unwrap();
    assert_eq!(server.znode("/config").unwrap().num_children, 1);
}

#[test]
fn refuses() {
    let server = Server::start().unwrap();
    assert_eq!(server.expire(1).unwrap_err().status(), 404);
    assert_eq!(server.disconnect(-1).unwrap_err().status(), 404);
    assert_eq!(server.wait_until().within(Duration::from_millis(10)).gone("/zookeeper").unwrap_err().status(), 504);
    assert_eq!(server.request("/inject", Some(Json::Object(vec![]))).unwrap_err().status(), 400);
    let fault = server.inject(Fault::answer("NoNode").op("create*").path("/a/*").session(7).nth(2).times(3).member(1)).unwrap();
    assert_eq!(server.state().unwrap().faults.len(), 1);
    assert!(!fault.remove().unwrap());
    assert!(server.requests("create*").unwrap().is_empty());
}

#[test]
fn clusters() {
    let cluster = Server::start_cluster(3).unwrap();
    assert_eq!(cluster.members().len(), 3);
    let leader = cluster.leader().unwrap();
    assert_ne!(cluster.step_down().unwrap().id(), leader.id());
    cluster.add_tree("/a\n").unwrap();
    for member in cluster.members() {
        member.wait_until().exists("/a").unwrap();
        assert_eq!(member.state().unwrap().shown, member.id());
        assert!(cluster.connect_string().contains(member.connect_string()));
    }
    cluster.cut_link(1, 2).unwrap();
    cluster.link(2, 3, Duration::from_millis(1), 0.1).unwrap();
    cluster.heal().unwrap();
    let old = cluster.leader().unwrap().id();
    let others = [old % 3 + 1, (old + 1) % 3 + 1];
    cluster.partition(&[&[old], &others]).unwrap();
    assert!(others.contains(&cluster.wait_until().leader(&others).unwrap().id()));
    let member = cluster.member(2);
    member.slow_disk(Duration::from_millis(1)).unwrap();
    member.pause().unwrap();
    member.resume().unwrap();
    member.clock(-3_600_000).unwrap();
    cluster.member(1).kill().unwrap();
    cluster.reset().unwrap();
    assert_eq!(cluster.state().unwrap().tree, "");
}

#[test]
fn starts_again_after_a_full_disk() {
    for (server, members) in [(Server::start().unwrap(), 1), (Server::start_cluster(3).unwrap(), 3)] {
        // All of them: the others could commit the write before member 1 fails.
        for member in 1..=members {
            server.member(member).full_disk().unwrap();
        }
        assert!(server.add_tree("/a\n").unwrap_err().to_string().contains("no space left"));
        server.reset().unwrap();
        assert_eq!(server.state().unwrap().tree, "");
        server.add_tree("/b\n").unwrap();
    }
}

#[test]
fn behaves_as_an_older_release() {
    let first = Server::builder().behave_as("3.4").start().unwrap();
    let second = Server::builder().behave_as("3.5").start_within(&first).unwrap();
    for (server, line) in [(&first, "3.4"), (&second, "3.5")] {
        let mut connection = TcpStream::connect(server.connect_string()).unwrap();
        connection.write_all(b"srvr").unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with(&format!("Zookeeper version: {line}")), "{answer}");
    }
}

#[test]
fn fails_a_test_whose_faults_met_no_request() {
    let server = Server::start().unwrap();
    server.inject(Fault::drop().op("delete").path("/a").optional()).unwrap();
    server.inject(Fault::drop().op("create*").path("/removed")).unwrap().remove().unwrap();
    server.check().unwrap();
    server.inject(Fault::drop().op("create*").path("/never")).unwrap();
    let why = server.check().unwrap_err();
    assert!(matches!(&why, Error::Check(text) if text.contains("/never") && !text.contains("\"/a\"")), "{why}");
    server.check().unwrap(); // it was told once
    server.inject(Fault::drop().op("create*").path("/before")).unwrap();
    server.reset().unwrap();
    assert!(server.check().unwrap_err().to_string().contains("/before"));
}

#[test]
fn says_what_is_wrong() {
    let server = Server::start().unwrap();
    let alone = server.partition(&[&[1]]).unwrap_err();
    assert!(alone.status() == 400 && alone.to_string().ends_with("Server::start_cluster(3)"), "{alone}");
    let late = server.wait_until().within(Duration::from_millis(20)).exists("/a").unwrap_err();
    assert!(matches!(&late, Error::TimedOut(why) if why.contains("20ms")), "{late}");
    assert_eq!(std::io::Error::from(late).kind(), std::io::ErrorKind::TimedOut);
    assert_eq!(server.leader().unwrap().id(), 1);
    server.inject(Fault::answer("NoNode").op("get*").path("/a").session(16).nth(2).always()).unwrap();
    let why = server.check().unwrap_err().to_string();
    assert_eq!(
        why.lines().next().unwrap(),
        "the test fails, since its fault Fault::answer(\"NoNode\").op(\"get*\").path(\"/a\").session(0x10).nth(2).always() has had \
         no effect (requests that it matched: 0). If it need not meet a request, add .optional()"
    );
    assert!(why.ends_with(&server.report()), "{why}");
}

#[test]
fn fails_a_test_whose_lock_was_not_kept() {
    let server = Server::builder().tree("/lock\n").start().unwrap();
    let asked = server.guard("/lock").unwrap();
    asked.write_unchecked(5, "file").unwrap(); // nobody holds the lock
    assert!(!asked.verdict().unwrap().ok);
    server.check().unwrap(); // the test has seen the verdict
    let guard = server.guard("/lock").unwrap();
    guard.write_unchecked(5, "file").unwrap();
    let why = server.check().unwrap_err();
    assert!(why.to_string().starts_with("the lock /lock: "), "{why}");
    assert_eq!(guard.verdict().unwrap_err().status(), 404); // check has ended it
}

#[test]
fn reports_what_there_is() {
    let server = Server::builder().tree("/config = \"ten\"\n").start().unwrap();
    server.inject(Fault::drop().op("create*").path("/never").optional()).unwrap();
    let report = server.report();
    for part in ["/config = \"ten\"", "/never", "the last 0 of 0 requests", server.connect_string()] {
        assert!(report.contains(part), "{part}: {report}");
    }
    let gone = Server::start().unwrap();
    gone.kill().unwrap();
    assert!(gone.report().contains("members: 1 stopped\nthe test has sent /kill {}\n"), "{}", gone.report());
    gone.reset().unwrap();
    assert!(gone.report().contains("members: 1 standalone\nznodes:"), "{}", gone.report());
    let cluster = Server::start_cluster(3).unwrap();
    cluster.partition(&[&[1], &[2, 3]]).unwrap();
    cluster.member(3).kill().unwrap();
    let report = cluster.report();
    for part in [", 3 stopped\n", "the test has sent /partition {\"groups\":[[1],[2,3]]}\nthe test has sent /kill {\"member\":3}\nznodes:"] {
        assert!(report.contains(part), "{part}: {report}");
    }
}

fn panics(test: impl FnOnce() -> Result<()>) -> String {
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(test)).unwrap_err();
    panic.downcast_ref::<String>().unwrap().clone()
}

#[test]
fn a_drop_shows_the_error_that_it_hides() {
    let why = panics(|| {
        let server = Server::start()?;
        server.inject(Fault::drop().op("create*").path("/never"))?;
        server.wait_until().within(Duration::from_millis(10)).exists("/hidden")
    });
    for part in ["/never", "unwrap() it", "returned: /wait/exists: ", "/hidden", "the last 0 of 0 requests"] {
        assert!(why.contains(part), "{part}: {why}");
    }
    let why = panics(|| Server::start()?.inject(Fault::drop().op("create*").path("/never")).map(drop));
    assert!(why.contains("/never") && !why.contains("The last error"), "{why}");
}

#[test]
fn waits_for_clients() {
    let server = Server::start().unwrap();
    let late = server.wait_until().within(Duration::from_millis(10));
    for waited in [late.requests("create*", "/a/*", 1), late.watch("/a"), late.watch_by("/a", 7)] {
        assert_eq!(waited.unwrap_err().status(), 504);
    }
    assert_eq!(late.requests("", "[", 1).unwrap_err().status(), 400); // the path gets there
    late.requests("", "", 0).unwrap();
}

#[test]
fn several_in_one_process() {
    let first = Server::start().unwrap();
    let second = Server::builder().cluster(3).tree("/b\n").start_within(&first).unwrap();
    assert_eq!(first.pid(), second.pid());
    second.znode("/b").unwrap();
    assert_eq!(first.znode("/b").unwrap_err().status(), 404);
    let url = second.url().to_string();
    drop(second);
    assert!(first.request(&url[first.url().len()..], None).is_err());
    first.state().unwrap();
}

#[test]
fn says_why_it_does_not_start() {
    let Err(Error::Start(why)) = Server::builder().flags(["--tick-time=never"]).start() else { panic!("it starts") };
    assert!(why.contains("tick-time"), "{why}");
    let Err(Error::Start(why)) = Server::builder().binary("/missing").start() else { panic!("it starts") };
    assert!(why.starts_with("cannot start /missing; ") && why.contains("LOCKKEEPER_BINARY"), "{why}");
    let here = std::env::current_dir().unwrap();
    for (program, place) in [("bin/missing", format!("in {}", here.display())), ("lockkeeper-missing", "on the PATH".to_string())] {
        let Err(Error::Start(why)) = Server::builder().binary(program).start() else { panic!("it starts") };
        assert!(why.starts_with(&format!("cannot start {program} {place}; ")), "{why}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn ends_its_process() {
    let server = Server::start().unwrap();
    let process = format!("/proc/{}", server.pid());
    assert!(std::path::Path::new(&process).exists());
    drop(server);
    assert!(!std::path::Path::new(&process).exists());
}
