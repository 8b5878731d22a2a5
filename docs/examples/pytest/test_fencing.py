"""A holder that is paused for longer than its session goes on although another one has the lock.

No lock can prevent that. What it protects can, if it refuses tokens that are older than one it has seen.
"""

import threading

LOCK = "/locks/report"


class Worker(threading.Thread):
    """Takes the lock, and writes with its token."""

    def __init__(self, client, write, paused=False):
        super().__init__(daemon=True)
        self.client, self.write = client, write
        self.holds, self.may_go_on = threading.Event(), threading.Event()
        if not paused:
            self.may_go_on.set()
        self.written = None
        self.start()

    def run(self):
        lock = self.client.Lock(LOCK)
        with lock:
            token = self.client.get(f"{LOCK}/{lock.node}")[1].czxid
            self.holds.set()
            self.may_go_on.wait(60)
            self.written = bool(self.write(token))


def pause_a_holder(zk, write):
    """Pause worker a until its session has expired and b has written. Return whether they could write."""
    a = Worker(zk.client(), write, paused=True)
    assert a.holds.wait(30)
    asleep = zk.inject("hold", op="connect", session=a.client)  # so it does not learn of its end
    zk.expire(a.client)
    b = Worker(zk.client(), write)
    b.join(30)
    asleep.remove()
    a.may_go_on.set()
    a.join(30)
    return a.written, b.written


def test_stale_token_is_refused(lockkeeper):
    guard = lockkeeper.guard(LOCK)
    wrote = pause_a_holder(lockkeeper, lambda token: guard.write(token, resource="report"))
    assert wrote == (False, True)
    guard.check()


def test_stale_token_is_not_looked_at(lockkeeper):
    guard = lockkeeper.guard(LOCK)
    wrote = pause_a_holder(lockkeeper, lambda token: guard.write(token, resource="report", unchecked=True))
    assert wrote == (True, True)
    verdict = guard.verdict()
    assert not verdict.ok and any("stale" in violation for violation in verdict.violations), verdict
