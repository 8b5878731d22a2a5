"""A ZooKeeper for tests: lockkeeper, with its test control.

    with Lockkeeper() as zk:
        client = zk.client()              # a started KazooClient, if kazoo is installed
        lock = client.Lock("/locks/a")
        lock.acquire()
        zk.expire(client)                 # its session ends as if it had been silent
        zk.wait_gone("/locks/a")

With pytest, the fixture ``lockkeeper`` is such a server, whose state is put back after each test.
"""

from ._control import (
    Action,
    Advanced,
    CheckFailed,
    Duration,
    Fault,
    FaultState,
    FreshServer,
    Guard,
    HasSession,
    LockkeeperError,
    LockState,
    Member,
    Namespace,
    Request,
    RequestError,
    Server,
    Session,
    SessionState,
    Stat,
    State,
    Verdict,
    WaitTimeout,
    Watch,
    Write,
    Znode,
    session_id,
)
from ._process import Lockkeeper, StartError, binary, cluster

for _error in LockkeeperError, RequestError, WaitTimeout, CheckFailed, StartError:
    _error.__module__ = __name__  # where tests import it from, and what pytest's summary shows

__all__ = [
    "Action",
    "Advanced",
    "CheckFailed",
    "Duration",
    "Fault",
    "FaultState",
    "FreshServer",
    "Guard",
    "HasSession",
    "LockState",
    "Lockkeeper",
    "LockkeeperError",
    "Member",
    "Namespace",
    "Request",
    "RequestError",
    "Server",
    "Session",
    "SessionState",
    "StartError",
    "Stat",
    "State",
    "Verdict",
    "WaitTimeout",
    "Watch",
    "Write",
    "Znode",
    "binary",
    "cluster",
    "session_id",
]
