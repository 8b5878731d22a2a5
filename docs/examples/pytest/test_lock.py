import threading

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss
from kazoo.protocol.states import KazooState


@pytest.fixture
def connect(zookeeper):
    clients = []

    def connect():
        clients.append(KazooClient(hosts=zookeeper.hosts, timeout=10))
        clients[-1].start()
        return clients[-1]

    yield connect
    for client in clients:
        client.stop()
        client.close()


def session(client):
    return hex(client.client_id[0])


def test_expired_session_loses_its_lock(zookeeper, connect):
    holder, waiter = connect(), connect()
    before, lost = session(holder), threading.Event()
    holder.add_listener(lambda state: lost.set() if state == KazooState.LOST else None)
    holder.Lock("/locks/report").acquire()
    waiting = waiter.handler.spawn(waiter.Lock("/locks/report").acquire)
    zookeeper.post("/wait/waiters", path="/locks/report", waiters=1)

    zookeeper.post("/expire", session=before)

    zookeeper.post("/wait/held", path="/locks/report", session=session(waiter))
    waiting.join()
    (lock,) = zookeeper.get("/state")["locks"]
    assert (lock["holder"], lock["queue"]) == (session(waiter), [])
    assert lost.wait(30)


def test_lost_reply_leaves_one_znode(zookeeper, connect):
    client = connect()
    client.ensure_path("/locks/report")
    fault = zookeeper.post("/inject", do="closeAfter", op="create*", path="/locks/report/*")

    client.Lock("/locks/report").acquire()  # it connects again, and finds its znode

    assert zookeeper.post("/remove", id=fault["id"])["fired"]
    assert len(client.get_children("/locks/report")) == 1
    assert len(zookeeper.get("/requests?op=connect")["requests"]) == 2


def test_create_that_is_not_retried(zookeeper, connect):
    client = connect()
    zookeeper.post("/inject", do="closeBefore", op="create*")
    with pytest.raises(ConnectionLoss):
        client.create("/n")
    assert zookeeper.get("/state")["tree"] == ""


@pytest.mark.parametrize("zookeeper", [["--cluster", "3", "--election-timeout", "500ms"]], indirect=True)
def test_lock_survives_the_leader(zookeeper, connect):
    client = connect()
    client.Lock("/locks/report").acquire()
    leader = zookeeper.get("/state")["shown"]

    zookeeper.post("/kill", member=leader)

    assert len(client.retry(client.get_children, "/locks/report")) == 1
    (lock,) = zookeeper.get("/state")["locks"]
    assert lock["holder"] == session(client)
