import asyncio
import socket
import threading
from datetime import timedelta

import pytest
from kazoo.exceptions import ConnectionLoss, NoNodeError

from pytest_lockkeeper import CheckFailed, Lockkeeper, RequestError, StartError, WaitTimeout, session_id


def test_state(lockkeeper):
    client = lockkeeper.client()
    lock = client.Lock("/locks/a", "me")
    lock.acquire()
    client.get("/locks", watch=lambda event: None)
    state = lockkeeper.state()
    assert state.connect == lockkeeper.hosts
    assert [(m.member, m.address, m.role) for m in state.members] == [(1, lockkeeper.hosts, "standalone")]
    assert state.shown == 1 and lockkeeper.leader() == 1
    assert f'"me" (ephemeral of {session_id(client)})' in state.tree
    (session,) = state.sessions
    assert (session.id, session.timeout, session.connected) == (session_id(client), 10.0, True)
    assert session.ephemerals == ["/locks/a/" + lock.node]
    assert (session_id(client), "/locks") in [(w.session, w.path) for w in state.watches]
    held = state.lock("/locks/a")
    assert (held.holder, held.queue) == (session_id(client), [])
    assert held.token == lockkeeper.znode("/locks/a/" + lock.node).stat.czxid
    assert held.since.tzinfo is not None
    with pytest.raises(LookupError, match="nobody holds a lock /other"):
        state.lock("/other")


def test_znode(lockkeeper):
    client = lockkeeper.client()
    client.create("/a", b"\x00\xff")
    client.create("/e", ephemeral=True)
    znode = lockkeeper.znode("/a")
    assert znode.data == b"\x00\xff"
    assert znode.stat.data_length == 2 and znode.stat.ephemeral_owner is None
    assert lockkeeper.znode("/e").stat.ephemeral_owner == session_id(client)
    with pytest.raises(RequestError) as error:
        lockkeeper.znode("/b")
    assert error.value.status == 404 and str(error.value) == "/znode: there is no znode /b"


def test_requests(lockkeeper):
    client = lockkeeper.client()
    client.create("/a")
    (connect,) = lockkeeper.requests("connect")
    assert connect.session is None or connect.session == session_id(client)
    (create,) = lockkeeper.requests("create*")
    assert (create.session, create.path) == (session_id(client), "/a") and "/a" in create.text


def test_session_ids():
    class Client:
        client_id = (0x1000A01C3E20000, b"")

    assert session_id(0x1000A01C3E20000) == session_id("0x1000a01c3e20000") == session_id(Client()) == "0x1000a01c3e20000"
    assert session_id(-1) == "0xffffffffffffffff"
    Client.client_id = None
    with pytest.raises(ValueError, match="has no session"):
        session_id(Client())
    with pytest.raises(TypeError, match="neither a session's id, as a number or text, nor a client of kazoo"):
        session_id(object())


def test_wait_in_an_event_loop(lockkeeper):
    """A wait there keeps the client that it waits for from going on: the failure says so."""

    async def directly():
        lockkeeper.wait_exists("/a", timeout=0.05)

    async def in_a_thread():
        await asyncio.to_thread(lockkeeper.wait_exists, "/a", timeout=0.05)

    with pytest.raises(RequestError, match="event loop of this thread.*to_thread") as error:
        asyncio.run(directly())
    assert error.value.status == 504
    with pytest.raises(RequestError, match=r"/a is not created \(waited 50ms\)$"):
        asyncio.run(in_a_thread())


def test_expire_and_disconnect(lockkeeper):
    client = lockkeeper.client()
    before = session_id(client)
    lockkeeper.disconnect(client)
    client.retry(client.create, "/e", ephemeral=True)
    assert session_id(client) == before
    lockkeeper.expire(before)
    lockkeeper.wait_gone("/e")
    with pytest.raises(RequestError) as error:
        lockkeeper.expire(before)
    assert error.value.status == 404


def test_faults(lockkeeper):
    client = lockkeeper.client()
    fault = lockkeeper.inject("answer", op="create*", path="/a", session=client, error="NoNode")
    with pytest.raises(NoNodeError):
        client.create("/a")
    fault.wait_fired()
    assert fault.remove()
    with lockkeeper.inject("closeBefore", op="create*"), pytest.raises(ConnectionLoss):
        client.create("/a")
    with lockkeeper.inject("delay", op="exists", seconds=timedelta(milliseconds=1), nth=2, times=-1):
        client.retry(client.exists, "/a")
        client.exists("/a")
    assert not lockkeeper.inject("drop", op="delete").remove()
    with pytest.raises(CheckFailed, match="no request has met this fault"), lockkeeper.inject("hold", op="delete"):
        pass
    with pytest.raises(ZeroDivisionError), lockkeeper.inject("hold", op="delete", optional=True):
        1 / 0
    with pytest.raises(RequestError) as error:
        lockkeeper.inject("delay")
    assert error.value.status == 400


def test_waits(lockkeeper):
    client = lockkeeper.client()

    def work():
        client.create("/a", b"1")
        client.create("/a/b")
        client.create("/a/c")
        client.set("/a", b"2")
        client.get_children("/a", watch=lambda event: None)

    worker = threading.Thread(target=work)
    worker.start()
    lockkeeper.wait_exists("/a")
    lockkeeper.wait_children("/a", 2)
    lockkeeper.wait_data("/a", "2")
    lockkeeper.wait_data("/a", b"2")
    lockkeeper.wait_requests(2, op="create*", path="/a/*")
    lockkeeper.wait_watch("/a")
    lockkeeper.wait_watch("/a", client)
    worker.join()


def test_wait_that_ends_in_vain(lockkeeper, lockkeeper_cluster):
    for wait in (
        lambda: lockkeeper.wait_exists("/a", timeout=0.05),
        lambda: lockkeeper.wait_data("/a", "x", timeout=timedelta(milliseconds=50)),
        lambda: lockkeeper.wait_children("/a", 1, timeout=0.05),
        lambda: lockkeeper.wait_requests(1000, timeout=0.05),
        lambda: lockkeeper.wait_watch("/a", timeout=0.05),
        lambda: lockkeeper.wait_waiters("/a", 1, timeout=0.05),
        lambda: lockkeeper.wait_held("/a", 1, timeout=0.05),
        lambda: lockkeeper_cluster.leader([lockkeeper_cluster.leader() % 3 + 1], timeout=0.05),
        lambda: lockkeeper.inject("hold", op="delete", optional=True).wait_fired(timeout=0.05),
    ):
        with pytest.raises(TimeoutError, match=r"\(waited 50ms\)") as error:
            wait()
        assert isinstance(error.value, WaitTimeout) and error.value.status == 504


def test_snapshots(lockkeeper):
    lockkeeper.add_tree('/a = "1"\n/a/b\n')
    snapshot = lockkeeper.snapshot()
    lockkeeper.add_tree('/a = "2"\n/c\n')
    assert lockkeeper.tree() == '/a = "2"\n/a/b\n/c\n'
    lockkeeper.restore(snapshot)
    assert lockkeeper.tree() == '/a = "1"\n/a/b\n'
    lockkeeper.restore()
    assert lockkeeper.tree() == ""
    lockkeeper.remove_snapshot(snapshot)
    with pytest.raises(RequestError, match=f"no snapshot {snapshot}"):
        lockkeeper.restore(snapshot)
    with pytest.raises(RequestError) as error:
        lockkeeper.restore(12345)
    assert error.value.status == 404


def test_namespaces(lockkeeper):
    with lockkeeper.namespace() as a, lockkeeper.namespace("b") as b:
        assert a.path != b.path == "/b"
        clients = [lockkeeper.client(hosts=x.hosts) for x in (a, b)]
        for client in clients:
            client.create("/same")
        assert lockkeeper.znode(a.path + "/same").data == b""
    assert lockkeeper.tree() == ""


def test_guard(lockkeeper):
    client = lockkeeper.client()
    guard = lockkeeper.guard("/locks/a")
    with client.Lock("/locks/a"):
        token = lockkeeper.state().lock("/locks/a").token
        assert guard.write(token)
    verdict = guard.verdict()
    assert verdict and verdict.ok and verdict.violations == [] and verdict.timeline


def test_guard_finds_a_write_without_the_lock(lockkeeper):
    with pytest.raises(CheckFailed, match="/locks/a"), lockkeeper.guard("/locks/a") as guard:
        guard.write(12345)


def test_time(lockkeeper):
    client = lockkeeper.client()
    client.create("/e", ephemeral=True)
    assert lockkeeper.advance(timedelta(hours=1)).expired == []
    before = session_id(client)
    ended = lockkeeper.advance(3600, connected=True)
    assert (ended.expired, ended.deleted) == ([before], [])
    lockkeeper.wait_gone("/e")
    assert lockkeeper.end_ttls() == []


def test_time_of_a_client_that_is_away(lockkeeper):
    """One without a connection has that much less time."""
    client = lockkeeper.client()
    before = session_id(client)
    lockkeeper.inject("refuse", op="connect", times=-1, optional=True)
    lockkeeper.disconnect(client)
    assert lockkeeper.advance(1)[0] == []
    assert lockkeeper.advance(20)[0] == [before]


def test_standalone_kill_pause_clock(lockkeeper):
    client = lockkeeper.client()
    client.create("/a")
    lockkeeper.kill()
    assert lockkeeper.state().members[0].role == "stopped"
    lockkeeper.restart()
    assert client.retry(client.exists, "/a")
    lockkeeper.pause()
    lockkeeper.resume()
    lockkeeper.clock(-3600)


def test_cluster(lockkeeper_cluster):
    zk = lockkeeper_cluster
    client = zk.client()
    client.create("/a")
    leader = zk.leader()
    follower = leader % 3 + 1
    zk.partition([leader, follower])
    zk.heal()
    zk.link(leader, follower, delay=0.001, loss=0.1)
    zk.heal()
    zk.disk(member=follower, delay=timedelta(milliseconds=1))
    zk.disk(member=follower)
    zk.pause(follower)
    zk.resume(follower)
    zk.clock(-3600, member=follower)
    zk.kill(follower)
    zk.restart(follower)
    assert client.retry(client.exists, "/a")
    assert zk.step_down() != leader
    zk.expire(client)


def test_cluster_without_members(lockkeeper):
    for members in 0, -1:
        with pytest.raises(RequestError, match=f'"cluster" is {members}, and not in 1 to 9'):
            lockkeeper.new_server(cluster=members)
        with pytest.raises(StartError, match=f"--cluster: {members} is not in 1 to 9"):
            Lockkeeper(cluster=members).start()


def test_leader_during_a_partition(lockkeeper_cluster):
    old = lockkeeper_cluster.leader()
    others = [member for member in (1, 2, 3) if member != old]
    lockkeeper_cluster.partition([old], others)
    assert lockkeeper_cluster.leader(others) in others


def test_leader_after_all_were_killed(lockkeeper_cluster):
    """There is none at first: the call waits."""
    for member in 1, 2, 3:
        lockkeeper_cluster.kill(member)
    for member in 1, 2, 3:
        lockkeeper_cluster.restart(member)
    assert lockkeeper_cluster.leader() in (1, 2, 3)


def test_what_needs_a_cluster(lockkeeper):
    for request in (
        lambda: lockkeeper.partition([1], [2]),
        lambda: lockkeeper.heal(),
        lambda: lockkeeper.link(1, 2),
        lambda: lockkeeper.step_down(),
    ):
        with pytest.raises(RequestError, match="needs a cluster: the fixture lockkeeper_cluster") as error:
            request()
        assert error.value.status == 400


def test_faults_and_guards_of_a_server_that_stops():
    for wrong in (lambda zk: zk.inject("drop", op="delete", nth=2), lambda zk: zk.guard("/locks/a").write(12345)):
        with pytest.raises(CheckFailed, match='^inject."drop", op="delete", nth=2.|/locks/a'), Lockkeeper() as server:
            with pytest.raises(CheckFailed), server.new_server() as other:
                wrong(other)
            wrong(server)
        assert not server.running


def test_block_of_a_server_that_is_interrupted():
    with pytest.raises(KeyboardInterrupt), Lockkeeper() as server, server.new_server() as other:
        for zk in server, other:
            zk.inject("drop", op="delete")
        raise KeyboardInterrupt


def test_removed_fault_of_a_block(lockkeeper):
    with lockkeeper.inject("drop", op="delete") as fault:
        assert not fault.remove()


def test_servers(lockkeeper):
    with lockkeeper.new_server(tree='/a = "x"', behave_as="3.9") as other:
        assert other.hosts != lockkeeper.hosts
        assert other.client().get("/a")[0] == b"x"
        assert other.hosts in [s.hosts for s in lockkeeper.servers()]
        assert lockkeeper.tree() == ""
    assert other.hosts not in [s.hosts for s in lockkeeper.servers()]


def test_behave_as(lockkeeper):
    with lockkeeper.new_server(behave_as="3.4") as old:
        host, port = old.hosts.split(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(b"srvr")
            assert connection.makefile("rb").readline().startswith(b"Zookeeper version: 3.4")


def test_undo(lockkeeper_proc):
    zk = lockkeeper_proc
    snapshot = zk.snapshot()
    client = zk.client()
    client.create("/a")
    zk.inject("refuse", op="connect", times=-1, optional=True)
    zk.clock(-1000)
    zk.pause()
    zk.resume()
    zk.kill()
    zk.undo(snapshot)
    assert zk.tree() == "" and zk.state().sessions == [] and zk.requests() == []
    zk.client().create("/b")
    zk.undo()
    assert zk.tree() == ""


def test_undo_a_full_disk(lockkeeper_proc):
    with lockkeeper_proc.new_server(cluster=3, election_timeout=0.5) as cluster:
        for zk, members in (lockkeeper_proc, 1), (cluster, 3):
            for member in range(1, members + 1):  # all: the others could commit the write before member 1 fails
                zk.disk(member=member, full=True)
            with pytest.raises(RequestError, match="no space left"):
                zk.add_tree("/a")
            zk.undo()
            assert zk.tree() == ""
            zk.add_tree("/b")
            zk.undo()
