import threading

import pytest
from kazoo.exceptions import ConnectionLoss
from kazoo.protocol.states import KazooState


def test_expired_session_loses_its_lock(lockkeeper):
    holder, waiter = lockkeeper.client(), lockkeeper.client()
    lost = threading.Event()
    holder.add_listener(lambda state: lost.set() if state == KazooState.LOST else None)
    holder.Lock("/locks/report").acquire()
    waiting = waiter.handler.spawn(waiter.Lock("/locks/report").acquire)
    lockkeeper.wait_waiters("/locks/report", 1)

    lockkeeper.expire(holder)

    lockkeeper.wait_held("/locks/report", waiter)
    waiting.join()
    assert lockkeeper.state().lock("/locks/report").queue == []
    assert lost.wait(30)


def test_lost_reply_leaves_one_znode(lockkeeper):
    client = lockkeeper.client()
    client.ensure_path("/locks/report")
    with lockkeeper.inject("closeAfter", op="create*", path="/locks/report/*"):
        client.Lock("/locks/report").acquire()  # it connects again, and finds its znode
    assert len(client.get_children("/locks/report")) == 1
    assert len(lockkeeper.requests("connect")) == 2


def test_create_that_is_not_retried(lockkeeper):
    client = lockkeeper.client()
    with lockkeeper.inject("closeBefore", op="create*"), pytest.raises(ConnectionLoss):
        client.create("/n")
    assert lockkeeper.tree() == ""


def test_lock_survives_the_leader(lockkeeper_cluster):
    client = lockkeeper_cluster.client()
    client.Lock("/locks/report").acquire()

    lockkeeper_cluster.kill(lockkeeper_cluster.leader())

    assert len(client.retry(client.get_children, "/locks/report")) == 1
    lockkeeper_cluster.wait_held("/locks/report", client)
