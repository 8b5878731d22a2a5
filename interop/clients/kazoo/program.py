"""Runs kazoo, recipes and all, and checks what it gets; clients_test.go says how."""

import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import (
    BadVersionError,
    LockTimeout,
    NoAuthError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    InvalidACLError,
    ReconfigDisabledError,
    RolledBackError,
    RuntimeInconsistency,
    ZookeeperError,
)
from kazoo.protocol.states import EventType, WatchedEvent
from kazoo.recipe.cache import TreeCache, TreeEvent
from kazoo.retry import KazooRetry
from kazoo.security import (
    CREATOR_ALL_ACL,
    OPEN_ACL_UNSAFE,
    make_acl,
    make_digest_acl,
    make_digest_acl_credential,
)

FAR = 60  # seconds; only decides when a case gives up
SHORT = 3.0  # seconds; the timeout of sessions that expire

clients = []


def connect(addr=None, timeout=10.0, **options):
    """A started client, which finish() ends."""
    client = KazooClient(
        addr or WIRE,
        timeout=timeout,
        connection_retry=KazooRetry(max_tries=-1, delay=0.02, backoff=1, max_jitter=0),
        command_retry=KazooRetry(max_tries=-1, delay=0.02, backoff=1, max_jitter=0),
        **options,
    )
    clients.append(client)
    client.start(FAR)
    return client


def finish():
    while clients:
        client = clients.pop()
        client.stop()
        client.close()


def do(what):
    print("do " + what, flush=True)
    answer = sys.stdin.readline()
    assert answer == "done\n", answer


def until(condition, what="condition"):
    deadline = time.monotonic() + FAR
    while not condition():
        assert time.monotonic() < deadline, "never came: " + what
        time.sleep(0.005)


def raises(error, func, *args, **kwargs):
    try:
        got = func(*args, **kwargs)
    except error as e:
        assert type(e) is error, "%s instead of %s" % (type(e), error)
        return e
    raise AssertionError("%s(%s) gives %r, should raise %s" % (func.__name__, args, got, error.__name__))


def equal(got, want):
    assert got == want, "got %r, want %r" % (got, want)


def background(func, *args):
    """Runs func in a thread; result() waits for it."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(func, *args)
    pool.shutdown(wait=False)
    return future


class Tape:
    """Remembers what a callback was called with."""

    def __init__(self):
        self.got = []

    def __call__(self, value):
        self.got.append(value)

    def ends(self, *want):
        until(lambda: self.got[-len(want):] == list(want), "%r, at the end of %r" % (want, self.got))


# The cases. Each gets a path of its own, which does not exist.


def case_create_modes(path):
    zk = connect()
    zk.create(path)
    equal(zk.create(path + "/p", b"data"), path + "/p")
    equal(zk.get(path + "/p")[0], b"data")
    raises(NodeExistsError, zk.create, path + "/p")
    raises(NoNodeError, zk.create, path + "/none/child")
    equal(zk.create(path + "/made/up/here", b"x", makepath=True), path + "/made/up/here")
    equal(zk.create(path + "/e", ephemeral=True), path + "/e")
    equal(zk.exists(path + "/e").ephemeralOwner, zk.client_id[0])
    raises(NoChildrenForEphemeralsError, zk.create, path + "/e/child")
    # p, made and e were created before.
    equal(zk.create(path + "/s-", sequence=True), path + "/s-0000000003")
    equal(zk.create(path + "/es-", sequence=True, ephemeral=True), path + "/es-0000000004")
    created, stat = zk.create(path + "/stat", b"12345", include_data=True)
    equal((created, stat.version, stat.dataLength, stat.czxid), (path + "/stat", 0, 5, stat.mzxid))
    equal(zk.exists(path + "/stat"), stat)
    raises(NotEmptyError, zk.delete, path)
    raises(BadVersionError, zk.delete, path + "/p", version=7)
    zk.delete(path + "/p", version=0)
    raises(NoNodeError, zk.delete, path + "/p")
    zk.stop()
    names = connect().get_children(path)
    equal(sorted(names), ["made", "s-0000000003", "stat"])
    connect().delete(path, recursive=True)
    equal(connect().exists(path), None)


def case_data(path):
    zk = connect()
    zk.create(path, b"")
    equal(zk.get(path)[0], b"")
    stat = zk.set(path, b"one", version=0)
    equal((stat.version, stat.dataLength), (1, 3))
    raises(BadVersionError, zk.set, path, b"two", version=0)
    raises(NoNodeError, zk.set, path + "/none", b"")
    raises(NoNodeError, zk.get, path + "/none")
    raises(NoNodeError, zk.get_children, path + "/none")
    equal(zk.exists(path + "/none"), None)
    equal(zk.create(path + "/ключ-鍵", "wert ü".encode()), path + "/ключ-鍵")
    names, stat = zk.get_children(path, include_data=True)
    equal((names, stat.numChildren, stat.cversion), (["ключ-鍵"], 1, 1))
    large = os.urandom(1 << 19) * 2
    zk.set(path, large[: (1 << 20) - 200])
    equal(zk.get(path)[0], large[: (1 << 20) - 200])
    equal(zk.sync(path), path)
    equal(zk.get("/zookeeper/config")[1].ephemeralOwner, 0)


def case_pipeline(path):
    zk = connect()
    zk.create(path)
    made = [zk.create_async(path + "/n-", b"%d" % i, sequence=True) for i in range(1000)]
    listed = zk.get_children_async(path)
    equal([m.get(timeout=FAR) for m in made], [path + "/n-%010d" % i for i in range(1000)])
    equal(len(listed.get(timeout=FAR)), 1000)
    read = [zk.get_async(m.get()) for m in made]
    equal([r.get(timeout=FAR)[0] for r in read], [b"%d" % i for i in range(1000)])
    zxids = [r.get()[1].czxid for r in read]
    equal(zxids, sorted(set(zxids)))


def case_ensure_path(path):
    zk, other = connect(), connect()
    deep = path + "/a/b/c/d"
    results = [background(c.ensure_path, deep) for c in (zk, other) for _ in range(4)]
    assert all(r.result(FAR) for r in results)
    equal(zk.ensure_path(deep), True)
    equal(zk.get_children(path + "/a/b/c"), ["d"])
    inside = connect(DIRECT + path + "/a")
    equal(inside.get_children("/b"), ["c"])
    inside.create("/here", b"chroot")
    equal(zk.get(path + "/a/here")[0], b"chroot")


def add_under_lock(path, file, threads, turns):
    """Adds to the number in a file: only the lock keeps the others out."""
    zk = connect(DIRECT)

    def add():
        for _ in range(turns):
            with zk.Lock(path):
                with open(file) as f:
                    n = int(f.read())
                with open(file, "w") as f:
                    f.write(str(n + 1))

    for work in [background(add) for _ in range(threads)]:
        work.result(FAR)


def case_lock_processes(path):
    with tempfile.TemporaryDirectory() as dir:
        file = os.path.join(dir, "counter")
        with open(file, "w") as f:
            f.write("0")
        command = [sys.executable, __file__, WIRE, DIRECT, "add", path, file, "3", "20"]
        programs = [subprocess.Popen(command, stdin=subprocess.DEVNULL) for _ in range(3)]
        add_under_lock(path, file, 3, 20)
        equal([p.wait(FAR) for p in programs], [0, 0, 0])
        with open(file) as f:
            equal(f.read(), str(4 * 3 * 20))
    equal(connect().get_children(path), [])


def case_lock(path):
    zk, other = connect(), connect()
    held, wanted = zk.Lock(path, "first"), other.Lock(path, "second")
    assert held.acquire()
    assert not wanted.acquire(blocking=False)
    raises(LockTimeout, wanted.acquire, timeout=0.05)
    equal(held.contenders(), ["first"])
    got = background(wanted.acquire)
    until(lambda: held.contenders() == ["first", "second"], "the second in line")
    cancelled = other.Lock(path, "third")
    third = background(cancelled.acquire)
    until(lambda: len(held.contenders()) == 3, "the third in line")
    cancelled.cancel()
    try:
        assert not third.result(FAR)
    except Exception as e:
        equal(type(e).__name__, "CancelledError")
    assert not got.done()
    held.release()
    assert got.result(FAR)
    equal(wanted.contenders(), ["second"])
    wanted.release()
    equal(zk.get_children(path), [])


def case_lock_of_closed_session(path):
    zk, other = connect(), connect()
    zk.Lock(path).acquire()
    got = background(other.Lock(path).acquire)
    until(lambda: len(other.Lock(path).contenders()) == 2, "the second in line")
    zk.stop()
    assert got.result(FAR)


def case_read_write_lock(path):
    zk, other = connect(), connect()
    read1, read2 = zk.ReadLock(path), other.ReadLock(path)
    write = other.WriteLock(path)
    assert read1.acquire() and read2.acquire(timeout=FAR)
    assert not write.acquire(blocking=False)
    writing = background(write.acquire)
    until(lambda: len(zk.get_children(path)) == 3, "the writer in line")
    read3 = zk.ReadLock(path)
    reading = background(read3.acquire)  # must wait behind the writer
    until(lambda: len(zk.get_children(path)) == 4, "the reader in line")
    read1.release()
    assert not writing.done()
    read2.release()
    assert writing.result(FAR)
    assert not reading.done()
    write.release()
    assert reading.result(FAR)
    read3.release()
    equal(zk.get_children(path), [])


def case_semaphore(path):
    zk, other = connect(), connect()
    one, two, three = (c.Semaphore(path, str(i), max_leases=2) for i, c in enumerate((zk, other, zk)))
    assert one.acquire() and two.acquire()
    assert not three.acquire(blocking=False)
    equal(sorted(three.lease_holders()), ["0", "1"])
    raises(ValueError, other.Semaphore(path, max_leases=3).acquire)
    got = background(three.acquire)
    two.release()
    assert got.result(FAR)
    equal(sorted(one.lease_holders()), ["0", "2"])
    one.release(), three.release()

    # Many at it: never more than two inside.
    inside, most, guard = [0], [0], threading.Lock()

    def enter(client):
        for _ in range(5):
            with client.Semaphore(path, max_leases=2):
                with guard:
                    inside[0] += 1
                    most[0] = max(most[0], inside[0])
                with guard:
                    inside[0] -= 1

    for work in [background(enter, c) for c in (zk, zk, other, other)]:
        work.result(FAR)
    assert 1 <= most[0] <= 2, most
    equal(one.lease_holders(), [])


def case_election(path):
    leaders, step_down = Tape(), {}
    elections = {}

    def lead(name):
        leaders(name)
        step_down[name].wait(FAR)

    runs = {}
    for name in ("a", "b", "c"):
        step_down[name] = threading.Event()
        elections[name] = connect().Election(path, name)
        runs[name] = background(elections[name].run, lead, name)
        until(lambda: len(elections["a"].contenders()) == len(elections), name + " a contender")
    leaders.ends("a")
    equal(elections["c"].contenders(), ["a", "b", "c"])
    elections["b"].cancel()
    runs["b"].result(FAR)
    step_down["a"].set()
    leaders.ends("a", "c")
    step_down["c"].set()
    for run in runs.values():
        run.result(FAR)
    equal(leaders.got, ["a", "c"])


def case_barrier(path):
    zk, other = connect(), connect()
    barrier = zk.Barrier(path)
    barrier.create()
    assert not other.Barrier(path).wait(0.05)
    through = background(other.Barrier(path).wait, FAR)
    assert barrier.remove()
    assert through.result(FAR)
    assert not barrier.remove()
    assert other.Barrier(path).wait(0)


def case_double_barrier(path):
    inside, left = [], []

    def pass_through(zk, name):
        barrier = zk.DoubleBarrier(path, 3, name)
        barrier.enter()
        inside.append(name)
        equal(barrier.participating, True)
        until(lambda: len(inside) == 3, "everybody inside")
        barrier.leave()
        left.append(len(inside))

    members = [background(pass_through, connect(), name) for name in "ab"]
    zk = connect()
    until(lambda: zk.exists(path) and len(zk.get_children(path)) == 2, "two at the barrier")
    equal(inside, [])
    members.append(background(pass_through, zk, "c"))
    for member in members:
        member.result(FAR)
    equal(left, [3, 3, 3])


def case_queue(path):
    zk, other = connect(), connect()
    queue = zk.Queue(path)
    equal(queue.get(), None)
    for value in (b"one", b"two", b"three"):
        queue.put(value)
    queue.put(b"urgent", priority=10)
    equal(len(queue), 4)
    equal([other.Queue(path).get() for _ in range(2)], [b"urgent", b"one"])
    takers = [background(c.Queue(path).get) for c in (zk, other)]
    equal(sorted(t.result(FAR) for t in takers), [b"three", b"two"])


def case_locking_queue(path):
    zk, other = connect(), connect()
    mine, theirs = zk.LockingQueue(path), other.LockingQueue(path)
    waiting = background(theirs.get, FAR)
    mine.put_all([b"one", b"two"])
    mine.put(b"urgent", priority=1)
    first = waiting.result(FAR)
    assert first in (b"one", b"urgent"), first
    assert theirs.holds_lock()
    second = mine.get(timeout=FAR)
    assert second != first
    assert theirs.consume() and not theirs.consume()
    assert mine.release()  # back into the queue
    equal(sorted([theirs.get(FAR), mine.get(FAR)]), sorted({b"one", b"two", b"urgent"} - {first}))
    assert mine.consume() and theirs.consume()
    equal(mine.get(timeout=0.05), None)


def case_party(path):
    zk, other = connect(), connect()
    one, two = zk.Party(path, "one"), other.Party(path, "two")
    one.join(), two.join(), one.join()
    equal((sorted(one), len(two)), (["one", "two"], 2))
    two.leave()
    equal(list(one), ["one"])
    two.join()
    other.stop()
    equal(list(one), ["one"])


def case_shallow_party(path):
    zk, other = connect(), connect()
    one, two = zk.ShallowParty(path, "one"), other.ShallowParty(path, "two")
    one.join(), two.join()
    equal((sorted(one), len(two)), (["one", "two"], 2))
    one.leave()
    equal(list(two), ["two"])


def case_counter(path):
    def count(zk):
        counter = zk.Counter(path)
        for _ in range(50):
            counter += 2
            counter -= 1

    for work in [background(count, connect()) for _ in range(3)]:
        work.result(FAR)
    equal(connect().Counter(path).value, 150)
    half = connect().Counter(path + "-float", default=0.5)
    half += 2.25
    equal(half.value, 2.75)
    curator = connect().Counter(path + "-curator", support_curator=True)
    curator += 7
    equal(connect().get(path + "-curator")[0], b"\0\0\0\7")


def case_lease(path):
    zk, other = connect(), connect()
    hour = timedelta(hours=1)
    assert zk.NonBlockingLease(path, hour, "me")
    assert not other.NonBlockingLease(path, hour, "you")
    assert other.NonBlockingLease(path, hour, "me")
    seats = [bool(zk.MultiNonBlockingLease(2, path + "-seats", hour, name)) for name in "abc"]
    equal(seats, [True, True, False])


def case_partitioner(path):
    def acquire(parts):
        deadline = time.monotonic() + FAR
        while not all(p.acquired for p in parts):
            assert time.monotonic() < deadline, [p.state for p in parts]
            for p in parts:
                if p.release:
                    p.release_set()
                elif p.allocating:
                    p.wait_for_acquire(0.05)
        return sorted(part for p in parts for part in p)

    pieces = tuple(range(6))
    one = connect().SetPartitioner(path, pieces, identifier="a", time_boundary=0.1)
    equal(acquire([one]), list(pieces))
    two = connect().SetPartitioner(path, pieces, identifier="b", time_boundary=0.1)
    until(lambda: not one.acquired, "a second member makes the first give way")
    equal(acquire([one, two]), list(pieces))
    equal((len(list(one)), len(list(two))), (3, 3))
    two.finish()
    until(lambda: not one.acquired, "the second member's end is seen")
    equal(acquire([one]), list(pieces))


def case_one_shot_watches(path):
    zk, other = connect(), connect()
    tape = Tape()
    equal(zk.exists(path, watch=tape), None)
    other.create(path)
    tape.ends(WatchedEvent(EventType.CREATED, "CONNECTED", path))
    zk.get(path, watch=tape)
    zk.get_children(path, watch=tape)
    other.set(path, b"x")
    tape.ends(WatchedEvent(EventType.CHANGED, "CONNECTED", path))
    other.create(path + "/child")
    tape.ends(WatchedEvent(EventType.CHILD, "CONNECTED", path))
    zk.get(path + "/child", watch=tape)
    zk.get_children(path + "/child", watch=tape)
    other.set_acls(path + "/child", OPEN_ACL_UNSAFE)  # tells nobody
    other.delete(path + "/child")
    tape.ends(*2 * [WatchedEvent(EventType.DELETED, "CONNECTED", path + "/child")])
    other.set(path, b"y")  # told once already
    zk.sync(path)
    equal(len(tape.got), 5)


def watch_through(path, trouble, times):
    """DataWatch and ChildrenWatch see each change, before and after trouble."""
    zk, other = connect(), connect(DIRECT)
    data, children, states = Tape(), Tape(), Tape()
    zk.add_listener(states)
    zk.DataWatch(path, lambda d, stat: data(d))
    data.ends(None)
    zk.create(path, b"0")
    data.ends(None, b"0")
    zk.ChildrenWatch(path, lambda names: children(sorted(names)))
    children.ends([])
    session = zk.client_id[0]
    for i in range(1, times + 1):
        trouble()
        states.ends(KazooState.SUSPENDED, KazooState.CONNECTED)
        # This one may come while the watch is being set again.
        other.set(path, b"%d" % i)
        other.create(path + "/%d" % i)
        data.ends(b"%d" % i)
        children.ends(["%d" % n for n in range(1, i + 1)])
    equal(zk.client_id[0], session)
    equal(states.got, times * [KazooState.SUSPENDED, KazooState.CONNECTED])
    other.delete(path, recursive=True)
    data.ends(None)


def case_watches_over_cut(path):
    watch_through(path, lambda: do("cut"), 3)


def case_watches_over_restart(path):
    watch_through(path, lambda: do("restart"), 2)


def case_missed_changes(path):
    """What changed while a client was away is told when it is back."""
    zk, other = connect(), connect(DIRECT)
    data, children = Tape(), Tape()
    zk.create(path, b"old")
    zk.DataWatch(path, lambda d, stat: data(d))
    zk.ChildrenWatch(path, children)
    do("block")
    other.set(path, b"new")
    other.create(path + "/child")
    equal((data.got, children.got), ([b"old"], [[]]))
    do("open")
    data.ends(b"old", b"new")
    children.ends([], ["child"])


def case_transaction(path):
    zk = connect()
    zk.create(path, b"")
    tx = zk.transaction()
    tx.create(path + "/a", b"1")
    tx.create(path + "/s-", sequence=True)
    tx.set_data(path, b"set")
    tx.check(path, 1)  # sees the change before it
    tx.delete(path + "/a", 0)
    results = tx.commit()
    equal(results[:2] + [results[2].version] + results[3:], [path + "/a", path + "/s-0000000001", 1, True, True])
    raises(ValueError, tx.commit)
    equal(zk.get_children(path), ["s-0000000001"])
    with zk.transaction() as tx:
        tx.delete(path + "/s-0000000001")
    equal(zk.get_children(path), [])
    equal(zk.transaction().commit(), [])


def case_failed_transaction(path):
    zk = connect()
    zk.create(path, b"kept")
    tx = zk.transaction()
    tx.create(path + "/a")
    tx.check(path, 9)
    tx.set_data(path, b"lost")
    tx.delete(path + "/none")
    equal([type(r) for r in tx.commit()], [RolledBackError, BadVersionError] + 2 * [RuntimeInconsistency])
    equal(zk.get_children(path), [])
    equal(zk.get(path)[0], b"kept")
    tx = zk.transaction()
    tx.delete(path + "/none")
    equal([type(r) for r in tx.commit()], [NoNodeError])


def case_acl_and_auth(path):
    alice, bob = connect(), connect()
    raises(InvalidACLError, alice.create, path, acl=CREATOR_ALL_ACL)
    alice.add_auth("digest", "alice:secret")
    alice.create(path, b"hers", acl=CREATOR_ALL_ACL)
    digest = make_digest_acl_credential("alice", "secret")
    acls, stat = alice.get_acls(path)
    equal(([(a.perms, a.id.scheme, a.id.id) for a in acls], stat.aversion), ([(31, "digest", digest)], 0))
    for refused in (
        lambda: bob.get(path),
        lambda: bob.set(path, b"his"),
        lambda: bob.get_children(path),
        lambda: bob.create(path + "/child"),
        lambda: bob.get_acls(path),
        lambda: bob.set_acls(path, OPEN_ACL_UNSAFE),
    ):
        raises(NoAuthError, refused)
    stat = alice.set_acls(path, [make_digest_acl("alice", "secret", all=True), make_acl("world", "anyone", read=True)])
    equal(stat.aversion, 1)
    raises(BadVersionError, alice.set_acls, path, OPEN_ACL_UNSAFE, version=0)
    equal(bob.get(path)[0], b"hers")
    equal(sorted(a.id.id for a in bob.get_acls(path)[0]), ["alice:x", "anyone"])
    raises(NoAuthError, bob.set, path, b"his")
    bob.add_auth("digest", "alice:wrong")
    raises(NoAuthError, bob.set, path, b"his")
    bob.add_auth("digest", "alice:secret")
    bob.set(path, b"his")
    carol = connect(auth_data=[("digest", "alice:secret")])
    carol.create(path + "/child", acl=[make_acl("auth", "", all=True)])
    carol.delete(path + "/child")
    root = connect(auth_data=[("digest", "super:secret")])
    root.set_acls(path, [make_digest_acl("nobody", "x", all=True)])
    raises(NoAuthError, alice.get, path)
    equal(root.get(path)[0], b"his")
    raises(InvalidACLError, root.set_acls, path, [make_acl("none", "such", all=True)])
    local = connect()
    local.create(path + "-ip", acl=[make_acl("ip", "127.0.0.0/8", all=True)])
    local.set(path + "-ip", b"local")


def case_auth_over_cut(path):
    """The client proves itself again on the new connection."""
    zk = connect()
    zk.add_auth("digest", "alice:secret")
    zk.create(path, b"hers", acl=CREATOR_ALL_ACL)
    states = Tape()
    zk.add_listener(states)
    for trouble in ("cut", "restart"):
        do(trouble)
        states.ends(KazooState.SUSPENDED, KazooState.CONNECTED)
        equal(zk.retry(zk.get, path)[0], b"hers")
        raises(NoAuthError, connect().get, path)


def case_tree_cache(path):
    zk, other = connect(), connect(DIRECT)
    zk.create(path, b"root")
    events = Tape()
    cache = TreeCache(zk, path)
    cache.listen(lambda e: events((e.event_type, e.event_data and e.event_data.path)))
    cache.start()
    until(lambda: (TreeEvent.INITIALIZED, None) in events.got, "INITIALIZED")
    other.create(path + "/a", b"1")
    other.create(path + "/a/b", b"2")
    until(lambda: cache.get_data(path + "/a/b"), "/a/b in the cache")
    equal(cache.get_data(path + "/a/b").data, b"2")
    equal(cache.get_children(path + "/a"), {"b"})
    do("block")
    until(lambda: (TreeEvent.CONNECTION_SUSPENDED, None) in events.got, "CONNECTION_SUSPENDED")
    other.set(path + "/a/b", b"3")
    other.create(path + "/a/c", b"4")
    do("open")
    until(lambda: (TreeEvent.CONNECTION_RECONNECTED, None) in events.got, "CONNECTION_RECONNECTED")
    until(lambda: cache.get_data(path + "/a/b").data == b"3", "the missed change")
    until(lambda: cache.get_data(path + "/a/c"), "the missed znode")
    other.delete(path + "/a", recursive=True)
    until(lambda: cache.get_children(path) == set(), "the deletion")
    until(lambda: (TreeEvent.NODE_REMOVED, path + "/a") in events.got, "NODE_REMOVED")
    cache.close()


def case_server_version(path):
    version = connect().server_version()
    assert version[:2] in ((3, 8), (3, 9)), version


def case_words(path):
    zk = connect()
    equal(zk.command(b"ruok"), "imok")
    equal(zk.command(b"isro"), "rw")
    assert "Mode: standalone" in zk.command(b"srvr")
    assert "Mode: standalone" in zk.command(b"stat")
    assert "zk_server_state\tstandalone" in zk.command(b"mntr")
    assert "tickTime=500" in zk.command(b"conf")
    assert "zookeeper.version=" in zk.command(b"envi")
    assert "sid=0x%x" % zk.client_id[0] in zk.command(b"cons")
    zk.get("/", watch=lambda event: None)
    assert "0x%x" % zk.client_id[0] in zk.command(b"wchc")


def case_read_only_client(path):
    """A client that would do with a read-only server finds a whole one."""
    zk = connect(read_only=True)
    equal(zk.client_state, "CONNECTED")
    zk.create(path)
    do("cut")
    zk.retry(zk.set, path, b"after")
    equal(zk.client_state, "CONNECTED")


def case_reconfig(path):
    raises(ReconfigDisabledError, connect().reconfig, "server.2=127.0.0.1:1:2;3", None, None)


def case_session_resumed(path):
    zk, other = connect(), connect(DIRECT)
    session, states = zk.client_id, Tape()
    zk.add_listener(states)
    zk.create(path, ephemeral=True)
    for trouble in ("cut", "restart"):
        do(trouble)
        states.ends(KazooState.SUSPENDED, KazooState.CONNECTED)
        equal(zk.client_id, session)
        equal(other.retry(other.exists, path).ephemeralOwner, session[0])
    # Another program takes the session over, with its id and password.
    heir = connect(client_id=session)
    equal(heir.client_id, session)
    heir.stop()
    equal(other.exists(path), None)


def case_session_expired(path):
    zk, other = connect(timeout=SHORT), connect(DIRECT)
    session, states = zk.client_id[0], Tape()
    zk.add_listener(states)
    zk.create(path, ephemeral=True)
    gone = threading.Event()
    other.exists(path, watch=lambda event: gone.set())
    do("block")
    assert gone.wait(FAR)
    equal(states.got, [KazooState.SUSPENDED])
    do("open")
    states.ends(KazooState.SUSPENDED, KazooState.LOST, KazooState.CONNECTED)
    assert zk.client_id[0] != session
    equal(zk.exists(path), None)
    zk.create(path, ephemeral=True)
    equal(other.exists(path).ephemeralOwner, zk.client_id[0])


def case_lock_of_expired_session(path):
    zk, other = connect(timeout=SHORT), connect(DIRECT)
    assert zk.Lock(path).acquire()
    got = background(other.Lock(path).acquire)
    until(lambda: len(other.Lock(path).contenders()) == 2, "the second in line")
    assert not got.done()
    do("block")
    assert got.result(FAR)
    do("open")


def case_bad_resume(path):
    """An unknown session and a wrong password give a new session."""
    zk = connect()
    zk.create(path, ephemeral=True)
    for session in ((0x123456789, b"p" * 16), (zk.client_id[0], b"p" * 16)):
        states = Tape()
        thief = KazooClient(DIRECT, timeout=10.0, client_id=session)
        clients.append(thief)
        thief.add_listener(states)
        thief.start(FAR)
        assert thief.client_id[0] != session[0]
    equal(zk.retry(zk.exists, path).ephemeralOwner, zk.client_id[0])


def case_retry_over_restart(path):
    zk = connect()
    zk.create(path)
    states = Tape()
    zk.add_listener(states)
    do("stop")
    states.ends(KazooState.SUSPENDED)
    made = background(zk.retry, zk.create, path + "/child")
    do("start")
    equal(made.result(FAR), path + "/child")
    states.ends(KazooState.SUSPENDED, KazooState.CONNECTED)


def case_lock_over_restart(path):
    """Who holds a lock holds it still after the server's restart."""
    zk, other = connect(), connect()
    held, wanted = zk.Lock(path, "held"), other.Lock(path, "wanted")
    assert held.acquire()
    got = background(wanted.acquire)
    until(lambda: len(held.contenders()) == 2, "the second in line")
    do("restart")
    equal(zk.retry(held.contenders), ["held", "wanted"])
    assert not got.done()
    zk.retry(held.release)
    assert got.result(FAR)
    equal(other.retry(wanted.contenders), ["wanted"])


def main():
    if sys.argv[3:4] == ["add"]:
        path, file, threads, turns = sys.argv[4:]
        add_under_lock(path, file, int(threads), int(turns))
        finish()
        return
    for name, case in list(globals().items()):
        if not name.startswith("case_"):
            continue
        name = name.removeprefix("case_")
        began = time.monotonic()
        try:
            case("/kazoo-" + name)
            finish()
            print("ok " + name, flush=True)
        except Exception as e:
            traceback.print_exc()
            print("FAIL %s: %s" % (name, " ".join(repr(e).split())), flush=True)
            do("open")
            clients.clear()
        print("%s took %.2f s" % (name, time.monotonic() - began), file=sys.stderr)


WIRE, DIRECT = sys.argv[1:3]
logging.disable()  # it would tell of each attempt to connect
main()
