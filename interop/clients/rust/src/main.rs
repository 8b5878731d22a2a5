//! Runs the Rust crate zookeeper-client and checks what it gets; clients_test.go says how.

use std::future::Future;
use std::io::Write;
use std::pin::Pin;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use zookeeper_client::{
    Acl, Acls, AddWatchMode, AuthId, Client, Connector, CreateMode, CreateOptions, EnsembleUpdate, Error, EventType, LockOptions, LockPrefix,
    MultiReadResult, MultiWriteError, MultiWriteResult, OneshotWatcher, Permission, PersistentWatcher, SessionState,
};

const FAR: Duration = Duration::from_secs(60); // only decides when a case gives up
const LONG: Duration = Duration::from_secs(10); // as long as a restart may take on a busy machine
const SHORT: Duration = Duration::from_secs(3); // of sessions that expire

static OPEN: CreateOptions<'static> = CreateMode::Persistent.with_acls(Acls::anyone_all());
static EPHEMERAL: CreateOptions<'static> = CreateMode::Ephemeral.with_acls(Acls::anyone_all());

type Outcome = Result<(), String>;

macro_rules! fail {
    ($($arg:tt)*) => { return Err(format!("line {}: {}", line!(), format!($($arg)*))) };
}

/// ok! gives the value of an operation, which must not fail.
macro_rules! ok {
    ($what:expr) => {
        match soon($what).await {
            Some(Ok(value)) => value,
            Some(Err(err)) => fail!("{}: {err}", stringify!($what)),
            None => fail!("{} does not end", stringify!($what)),
        }
    };
}

/// bad! checks how an operation fails.
macro_rules! bad {
    ($what:expr, $want:expr) => {
        match soon($what).await {
            Some(Ok(_)) => fail!("{} succeeds, should be {:?}", stringify!($what), $want),
            Some(Err(err)) if err == $want => {},
            Some(Err(err)) => fail!("{}: {err:?}, should be {:?}", stringify!($what), $want),
            None => fail!("{} does not end", stringify!($what)),
        }
    };
}

macro_rules! equal {
    ($got:expr, $want:expr) => {
        match ($got, $want) {
            (got, want) if got == want => {},
            (got, want) => fail!("{} is {got:?}, should be {want:?}", stringify!($got)),
        }
    };
}

macro_rules! check {
    ($what:expr) => {
        if !$what {
            fail!("{}", stringify!($what));
        }
    };
}

/// event! waits for a watcher's next event and compares it.
macro_rules! event {
    ($changed:expr, $want:expr, $path:expr) => {
        match soon($changed).await {
            Some(event) => equal!((event.event_type, event.path.as_str()), ($want, AsRef::<str>::as_ref(&$path))),
            None => fail!("{:?} of {} never came", $want, $path),
        }
    };
}

async fn soon<T>(what: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(FAR, what).await.ok()
}

struct Endpoints {
    wire: String,
    direct: String,
}

static ENDPOINTS: OnceLock<Endpoints> = OnceLock::new();

fn wire() -> &'static str {
    &ENDPOINTS.get().unwrap().wire
}

fn direct() -> &'static str {
    &ENDPOINTS.get().unwrap().direct
}

fn connector(timeout: Duration) -> Connector {
    Client::connector().with_session_timeout(timeout)
}

async fn connect(addr: &str) -> Result<Client, Error> {
    connector(LONG).connect(addr).await
}

fn ask(what: &str) {
    println!("do {what}");
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).unwrap();
    assert_eq!(answer, "done\n");
}

/// state waits until the client is in a state.
async fn state(client: &Client, want: SessionState) -> Result<(), String> {
    let mut watcher = client.state_watcher();
    while watcher.peek_state() != want {
        if soon(watcher.changed()).await.is_none() {
            return Err(format!("the state {want} never came"));
        }
    }
    Ok(())
}

async fn create_modes(p: String) -> Outcome {
    let zk = ok!(connect(wire()));
    let (stat, _) = ok!(zk.create(&p, b"data", &OPEN));
    equal!((stat.version, stat.data_length, stat.czxid), (0, 4, stat.mzxid));
    equal!(ok!(zk.check_stat(&p)), Some(stat));
    bad!(zk.create(&p, b"", &OPEN), Error::NodeExists);
    bad!(zk.create(&format!("{p}/none/child"), b"", &OPEN), Error::NoNode);
    let (stat, _) = ok!(zk.create(&format!("{p}/e"), b"", &EPHEMERAL));
    equal!(stat.ephemeral_owner, zk.session_id().0);
    bad!(zk.create(&format!("{p}/e/child"), b"", &OPEN), Error::NoChildrenForEphemerals);
    for (mode, sequence) in [(CreateMode::PersistentSequential, 1), (CreateMode::EphemeralSequential, 2)] {
        let (_, got) = ok!(zk.create(&format!("{p}/s-"), b"", &mode.with_acls(Acls::anyone_all())));
        equal!(got.into_i64(), sequence);
    }
    let (stat, _) = ok!(zk.create(&format!("{p}/c"), b"", &CreateMode::Container.with_acls(Acls::anyone_all())));
    equal!(stat.ephemeral_owner, 0);
    let hour = OPEN.clone().with_ttl(Duration::from_secs(3600));
    let (stat, _) = ok!(zk.create(&format!("{p}/t"), b"", &hour));
    equal!(stat.ephemeral_owner, 0);
    ok!(zk.mkdir(&format!("{p}/a/b/c"), &OPEN));
    bad!(zk.delete(&p, None), Error::NotEmpty);
    bad!(zk.delete(&format!("{p}/t"), Some(5)), Error::BadVersion);
    ok!(zk.delete(&format!("{p}/t"), Some(0)));
    bad!(zk.delete(&format!("{p}/t"), None), Error::NoNode);
    let mut ephemerals = ok!(zk.list_ephemerals(&p));
    ephemerals.sort();
    equal!(ephemerals, [format!("{p}/e"), format!("{p}/s-0000000002")]);
    equal!(ok!(zk.count_descendants_number(&p)), 7);
    drop(zk); // closes the session
    let zk = ok!(connect(direct()));
    let gone = |name: &str| format!("{p}/{name}");
    loop {
        let (_, _, watcher) = ok!(zk.get_and_watch_children(&p));
        if ok!(zk.check_stat(&gone("e"))).is_none() && ok!(zk.check_stat(&gone("s-0000000002"))).is_none() {
            break;
        }
        check!(soon(watcher.changed()).await.is_some());
    }
    let (mut names, stat) = ok!(zk.get_children(&p));
    names.sort();
    equal!(names, ["a", "c", "s-0000000001"]);
    equal!((stat.num_children, stat.cversion), (3, 9));
    Ok(())
}

async fn data(p: String) -> Outcome {
    let zk = ok!(connect(wire()));
    ok!(zk.create(&p, b"", &OPEN));
    let stat = ok!(zk.set_data(&p, b"one", Some(0)));
    equal!((stat.version, stat.data_length), (1, 3));
    bad!(zk.set_data(&p, b"two", Some(0)), Error::BadVersion);
    equal!(ok!(zk.get_data(&p)), (b"one".to_vec(), stat));
    bad!(zk.get_data(&format!("{p}/none")), Error::NoNode);
    equal!(ok!(zk.check_stat(&format!("{p}/none"))), None);
    ok!(zk.create(&format!("{p}/ключ-鍵"), b"", &OPEN));
    equal!(ok!(zk.list_children(&p)), ["ключ-鍵"]);
    let large: Vec<u8> = (0..(1 << 20) - 200).map(|i| (i >> 3) as u8).collect();
    ok!(zk.set_data(&p, &large, None));
    check!(ok!(zk.get_data(&p)).0 == large);
    ok!(zk.sync(&p));
    let inside = zk.clone().chroot(p.clone()).map_err(|_| "chroot")?;
    ok!(inside.create("/here", b"chroot", &OPEN));
    equal!(ok!(zk.get_data(&format!("{p}/here"))).0, b"chroot");
    let (config, _) = ok!(zk.get_config());
    equal!(config, b""); // standalone: no servers in it
    let update = EnsembleUpdate::New { ensemble: ["server.2=127.0.0.1:1:2;3"].into_iter() };
    bad!(zk.update_ensemble(update, None), Error::ReconfigDisabled);
    Ok(())
}

async fn pipeline(p: String) -> Outcome {
    let zk = ok!(connect(wire()));
    ok!(zk.create(&p, b"", &OPEN));
    let sequential = CreateMode::PersistentSequential.with_acls(Acls::anyone_all());
    let prefix = format!("{p}/n-");
    let made: Vec<_> = (0..1000).map(|i: i32| zk.create(&prefix, &i.to_be_bytes(), &sequential)).collect();
    let read: Vec<_> = (0..1000).map(|i| zk.get_data(&format!("{p}/n-{i:010}"))).collect();
    for (i, made) in made.into_iter().enumerate() {
        equal!(ok!(made).1.into_i64(), i as i64);
    }
    let mut last = 0;
    for (i, read) in read.into_iter().enumerate() {
        let (data, stat) = ok!(read);
        equal!(data, (i as i32).to_be_bytes());
        check!(stat.czxid > last);
        last = stat.czxid;
    }
    Ok(())
}

async fn watches(p: String) -> Outcome {
    let (zk, other) = (ok!(connect(wire())), ok!(connect(direct())));
    let child = format!("{p}/child");
    let (stat, exist) = ok!(zk.check_and_watch_stat(&p));
    equal!(stat, None);
    ok!(other.create(&p, b"", &OPEN));
    event!(exist.changed(), EventType::NodeCreated, p);
    let (_, _, data) = ok!(zk.get_and_watch_data(&p));
    let (_, children) = ok!(zk.list_and_watch_children(&p));
    ok!(other.set_data(&p, b"x", None));
    event!(data.changed(), EventType::NodeDataChanged, p);
    ok!(other.create(&child, b"", &OPEN));
    event!(children.changed(), EventType::NodeChildrenChanged, p);
    let (_, _, data) = ok!(zk.get_and_watch_data(&child));
    let (_, _, children) = ok!(zk.get_and_watch_children(&child));
    ok!(other.delete(&child, None));
    event!(data.changed(), EventType::NodeDeleted, child);
    event!(children.changed(), EventType::NodeDeleted, child);
    // A dropped watcher is removed from the server, where another one stays.
    let (_, _, dropped) = ok!(zk.get_and_watch_data(&p));
    let (_, _, kept) = ok!(zk.get_and_watch_children(&p));
    drop(dropped);
    ok!(zk.check_stat(&p));
    ok!(other.create(&child, b"", &OPEN));
    event!(kept.changed(), EventType::NodeChildrenChanged, p);
    Ok(())
}

async fn persistent_watches(p: String) -> Outcome {
    let (zk, other) = (ok!(connect(wire())), ok!(connect(direct())));
    let child = format!("{p}/child");
    let deep = format!("{child}/deep");
    let mut flat: PersistentWatcher = ok!(zk.watch(&p, AddWatchMode::Persistent));
    // One mode for each connection and path: 3.8 keeps no more.
    let watcher = ok!(connect(wire()));
    let mut tree: PersistentWatcher = ok!(watcher.watch(&p, AddWatchMode::PersistentRecursive));
    for _ in 0..2 {
        ok!(other.create(&p, b"", &OPEN));
        event!(flat.changed(), EventType::NodeCreated, p);
        event!(tree.changed(), EventType::NodeCreated, p);
        for data in [b"1", b"2"] {
            ok!(other.set_data(&p, data, None));
            event!(flat.changed(), EventType::NodeDataChanged, p);
            event!(tree.changed(), EventType::NodeDataChanged, p);
        }
        ok!(other.create(&child, b"", &OPEN));
        event!(flat.changed(), EventType::NodeChildrenChanged, p);
        event!(tree.changed(), EventType::NodeCreated, child);
        ok!(other.create(&deep, b"", &OPEN));
        event!(tree.changed(), EventType::NodeCreated, deep);
        ok!(other.delete(&deep, None));
        event!(tree.changed(), EventType::NodeDeleted, deep);
        ok!(other.delete(&child, None));
        event!(flat.changed(), EventType::NodeChildrenChanged, p);
        event!(tree.changed(), EventType::NodeDeleted, child);
        ok!(other.delete(&p, None));
        event!(flat.changed(), EventType::NodeDeleted, p);
        event!(tree.changed(), EventType::NodeDeleted, p);
    }
    Ok(())
}

async fn multi(p: String) -> Outcome {
    let zk = ok!(connect(wire()));
    ok!(zk.create(&p, b"", &OPEN));
    let child = format!("{p}/child");
    let mut writer = zk.new_multi_writer();
    ok!(async { writer.add_create(&child, b"1", &OPEN) });
    ok!(async { writer.add_set_data(&p, b"set", Some(0)) });
    ok!(async { writer.add_check_version(&p, 1) }); // sees the change before it
    ok!(async { writer.add_create(&format!("{p}/other"), b"2", &EPHEMERAL) });
    ok!(async { writer.add_delete(&child, Some(0)) });
    let results = ok!(writer.commit());
    match &results[..] {
        [MultiWriteResult::Create { path, .. }, MultiWriteResult::SetData { stat }, MultiWriteResult::Check, MultiWriteResult::Create { .. }, MultiWriteResult::Delete] =>
        {
            equal!((path, stat.version), (&child, 1));
        },
        other => fail!("results {other:?}"),
    }
    let mut writer = zk.new_multi_writer();
    ok!(async { writer.add_create(&child, b"", &OPEN) });
    ok!(async { writer.add_check_version(&p, 9) });
    ok!(async { writer.add_delete(&p, None) });
    match soon(writer.commit()).await {
        Some(Err(MultiWriteError::OperationFailed { index: 1, source: Error::BadVersion })) => {},
        other => fail!("a failing multi gives {other:?}"),
    }
    equal!(ok!(zk.check_stat(&child)), None);

    let mut reader = zk.new_multi_reader();
    ok!(async { reader.add_get_data(&p) });
    ok!(async { reader.add_get_data(&child) });
    ok!(async { reader.add_get_children(&p) });
    match &ok!(reader.commit())[..] {
        [MultiReadResult::Data { data, stat }, MultiReadResult::Error { err: Error::NoNode }, MultiReadResult::Children { children }] =>
        {
            equal!((&data[..], stat.version, &children[..]), (&b"set"[..], 1, &["other".to_string()][..]));
        },
        other => fail!("results {other:?}"),
    }
    Ok(())
}

async fn acl_and_auth(p: String) -> Outcome {
    let (alice, bob) = (ok!(connect(wire())), ok!(connect(wire())));
    let hers = CreateMode::Persistent.with_acls(Acls::creator_all());
    bad!(alice.create(&p, b"hers", &hers), Error::InvalidAcl);
    ok!(alice.auth("digest", b"alice:secret"));
    ok!(alice.create(&p, b"hers", &hers));
    let mut users: Vec<_> = ok!(alice.list_auth_users()).iter().map(|u| format!("{}:{}", u.scheme(), u.user())).collect();
    users.sort();
    equal!(users, ["digest:alice", "ip:127.0.0.1"]);
    let (acl, stat) = ok!(alice.get_acl(&p));
    equal!((acl.len(), acl[0].permission(), acl[0].scheme(), stat.aversion), (1, Permission::ALL, "digest", 0));
    bad!(bob.get_data(&p), Error::NoAuth);
    bad!(bob.set_data(&p, b"his", None), Error::NoAuth);
    bad!(bob.list_children(&p), Error::NoAuth);
    bad!(bob.create(&format!("{p}/child"), b"", &OPEN), Error::NoAuth);
    let both = [acl[0].clone(), Acl::new(Permission::READ, AuthId::anyone())];
    equal!(ok!(alice.set_acl(&p, &both, Some(0))).aversion, 1);
    bad!(alice.set_acl(&p, &both, Some(0)), Error::BadVersion);
    equal!(ok!(bob.get_data(&p)).0, b"hers");
    let masked: Vec<_> = ok!(bob.get_acl(&p)).0.iter().map(|acl| acl.id().to_string()).collect();
    equal!(masked, ["alice:x", "anyone"]);
    bad!(bob.set_data(&p, b"his", None), Error::NoAuth);
    let carol = ok!(connector(LONG).with_auth("digest", b"alice:secret").connect(wire()));
    ok!(carol.set_data(&p, b"ours", None));
    bad!(bob.auth("none such", b"x"), Error::AuthFailed);
    state(&bob, SessionState::AuthFailed).await
}

/// Watches see what changes after the connection was cut, and what changed while
/// it was; the client proves itself again. Persistent ones it does not set again:
/// it always sends the operation that cannot carry them.
async fn watches_over_cut(p: String) -> Outcome {
    let (zk, other) = (ok!(connect(wire())), ok!(connect(direct())));
    let (own, later) = (format!("{p}/own"), format!("{p}/later"));
    ok!(zk.auth("digest", b"alice:secret"));
    ok!(zk.create(&p, b"", &OPEN));
    ok!(zk.create(&own, b"hers", &CreateMode::Ephemeral.with_acls(Acls::creator_all())));
    for missed in [false, true] {
        let (_, _, data): (_, _, OneshotWatcher) = ok!(zk.get_and_watch_data(&p));
        let (_, _, children) = ok!(zk.get_and_watch_children(&p));
        let (none, exist) = ok!(zk.check_and_watch_stat(&later));
        equal!(none, None);
        ask("block");
        state(&zk, SessionState::Disconnected).await?;
        if !missed {
            ask("open");
            state(&zk, SessionState::SyncConnected).await?;
            equal!(ok!(zk.get_data(&own)).0, b"hers"); // and so the watches are set
        }
        ok!(other.set_data(&p, b"new", None));
        ok!(other.create(&later, b"", &OPEN));
        if missed {
            ask("open");
        }
        event!(data.changed(), EventType::NodeDataChanged, p);
        event!(children.changed(), EventType::NodeChildrenChanged, p);
        event!(exist.changed(), EventType::NodeCreated, later);
        equal!(ok!(zk.get_data(&own)).0, b"hers");
        equal!(ok!(zk.check_stat(&own)).map(|stat| stat.ephemeral_owner), Some(zk.session_id().0));
        ok!(other.delete(&later, None));
    }
    Ok(())
}

async fn watches_over_restart(p: String) -> Outcome {
    let (zk, other) = (ok!(connect(wire())), ok!(connect(wire())));
    ok!(zk.create(&p, b"", &EPHEMERAL));
    for round in 0..2 {
        let (_, _, data) = ok!(zk.get_and_watch_data(&p));
        ask("stop");
        state(&zk, SessionState::Disconnected).await?;
        state(&other, SessionState::Disconnected).await?;
        ask("start");
        state(&zk, SessionState::SyncConnected).await?;
        state(&other, SessionState::SyncConnected).await?;
        ok!(other.set_data(&p, b"x", Some(round)));
        event!(data.changed(), EventType::NodeDataChanged, p);
        equal!(ok!(other.check_stat(&p)).map(|stat| stat.ephemeral_owner), Some(zk.session_id().0));
    }
    Ok(())
}

async fn session_resumed(p: String) -> Outcome {
    let other = ok!(connect(direct()));
    let first = ok!(connector(LONG).with_detached().connect(wire()));
    let id = first.session_id();
    ok!(first.create(&p, b"", &EPHEMERAL));
    let session = first.into_session(); // it goes without closing its session
    let heir = ok!(connector(LONG).with_session(session.clone()).connect(direct()));
    equal!(heir.session_id(), id);
    let (stat, gone) = ok!(other.check_and_watch_stat(&p));
    equal!(stat.map(|stat| stat.ephemeral_owner), Some(id.0));
    drop(heir);
    event!(gone.changed(), EventType::NodeDeleted, p);
    bad!(connector(LONG).with_session(session).with_fail_eagerly().connect(direct()), Error::SessionExpired);
    Ok(())
}

async fn session_expired(p: String) -> Outcome {
    let (zk, other) = (ok!(connector(SHORT).connect(wire())), ok!(connect(direct())));
    equal!(zk.session_timeout(), SHORT);
    ok!(zk.create(&p, b"", &EPHEMERAL));
    let (_, gone) = ok!(other.check_and_watch_stat(&p));
    let (_, watcher) = ok!(zk.check_and_watch_stat(&p));
    ask("block");
    event!(gone.changed(), EventType::NodeDeleted, p);
    ask("open");
    state(&zk, SessionState::Expired).await?;
    event!(watcher.changed(), EventType::Session, "");
    bad!(zk.get_data(&p), Error::SessionExpired);
    Ok(())
}

/// The crate's lock, from two processes and several sessions of each: only it
/// guards the number in a file.
async fn lock_processes(p: String) -> Outcome {
    let file = std::env::temp_dir().join(format!("lockkeeper-interop-{}", std::process::id()));
    std::fs::write(&file, "0").map_err(|err| err.to_string())?;
    let mut child = std::process::Command::new(std::env::current_exe().map_err(|err| err.to_string())?)
        .args([wire(), direct(), &p])
        .arg(&file)
        .stdin(std::process::Stdio::null())
        .spawn()
        .map_err(|err| err.to_string())?;
    let outcome = adders(p.clone(), file.clone()).await;
    check!(child.wait().is_ok_and(|status| status.success()));
    let text = std::fs::read_to_string(&file);
    let _ = std::fs::remove_file(&file);
    outcome?;
    equal!(text.unwrap_or_default(), (2 * 3 * 20).to_string());
    let zk = ok!(connect(direct()));
    // The last one is deleted in the background.
    loop {
        let (names, _, watcher) = ok!(zk.get_and_watch_children(&p));
        if names.is_empty() {
            return Ok(());
        }
        check!(soon(watcher.changed()).await.is_some());
    }
}

async fn adders(p: String, file: std::path::PathBuf) -> Outcome {
    let tasks: Vec<_> = (0..3).map(|i| tokio::spawn(add(i, p.clone(), file.clone()))).collect();
    for task in tasks {
        task.await.map_err(|err| err.to_string())??;
    }
    Ok(())
}

async fn add(number: usize, p: String, file: std::path::PathBuf) -> Outcome {
    let zk = ok!(connect([wire(), direct()][number % 2]));
    let options = ok!(async { LockOptions::new(Acls::anyone_all()).with_ancestor_options(OPEN.clone()) });
    for _ in 0..20 {
        let prefix = ok!(async { LockPrefix::new_curator(&p, "lock-") });
        let held = ok!(zk.lock(prefix, b"", options.clone()));
        let n: i32 = std::fs::read_to_string(&file).ok().and_then(|text| text.parse().ok()).unwrap_or(-1000);
        tokio::task::yield_now().await;
        std::fs::write(&file, (n + 1).to_string()).map_err(|err| err.to_string())?;
        // A write on behalf of the lock checks that it is held.
        ok!(held.set_data(held.lock_path(), b"done", None));
        drop(held);
    }
    Ok(())
}

/// The holder's session expires, and the next in line gets the lock.
async fn lock_of_expired_session(p: String) -> Outcome {
    let (zk, other) = (ok!(connector(SHORT).connect(wire())), ok!(connect(direct())));
    ok!(other.create(&p, b"", &OPEN));
    let prefix = format!("{p}/n-");
    let held = ok!(zk.lock(LockPrefix::new_shared(&prefix).unwrap(), b"", Acls::anyone_all()));
    let (_, line) = ok!(other.list_and_watch_children(&p));
    let next = {
        let (other, prefix) = (other.clone(), prefix.clone());
        tokio::spawn(async move {
            let held = other.lock(LockPrefix::new_shared(&prefix).unwrap(), b"", Acls::anyone_all()).await;
            held.map(|held| held.lock_path().to_string())
        })
    };
    event!(line.changed(), EventType::NodeChildrenChanged, p);
    check!(!next.is_finished());
    ask("block");
    let got = ok!(next);
    ask("open");
    check!(got.is_ok_and(|path| path.as_str() > held.lock_path()));
    state(&zk, SessionState::Expired).await
}

type Case = Pin<Box<dyn Future<Output = Outcome> + Send>>;

macro_rules! cases {
    ($($name:ident),* $(,)?) => { [$((stringify!($name), (|p| Box::pin($name(p))) as fn(String) -> Case)),*] };
}

async fn run() -> i32 {
    for (name, case) in cases![
        create_modes,
        data,
        pipeline,
        watches,
        persistent_watches,
        multi,
        acl_and_auth,
        watches_over_cut,
        watches_over_restart,
        session_resumed,
        session_expired,
        lock_processes,
        lock_of_expired_session,
    ] {
        let began = Instant::now();
        match tokio::spawn(case(format!("/rust-{name}"))).await.unwrap_or_else(|err| Err(err.to_string())) {
            Ok(()) => println!("ok {name}"),
            Err(why) => {
                println!("FAIL {name}: {}", why.replace('\n', " "));
                ask("open");
            },
        }
        std::io::stdout().flush().unwrap();
        eprintln!("{name} took {:?}", began.elapsed());
    }
    0
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let endpoints = Endpoints { wire: args[0].clone(), direct: args[1].clone() };
    ENDPOINTS.set(endpoints).ok().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let code = runtime.block_on(async {
        if args.len() == 2 {
            return run().await;
        }
        // The other process of lock_processes.
        match adders(args[2].clone(), args[3].clone().into()).await {
            Ok(()) => 0,
            Err(why) => {
                eprintln!("{why}");
                1
            },
        }
    });
    std::process::exit(code);
}
