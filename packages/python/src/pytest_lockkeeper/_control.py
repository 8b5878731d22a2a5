"""The requests of lockkeeper's test control, as methods.

docs/test-control.md of lockkeeper describes them. Here times are in seconds, or timedeltas, and a
session is an id, as a number or text, or a client that has one.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import http.client
import json
import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar, Union
from urllib.parse import urlencode, urlsplit

if TYPE_CHECKING:
    from kazoo.client import KazooClient  # type: ignore[import-untyped, import-not-found, unused-ignore]

Action = Literal["delay", "hold", "answer", "drop", "dropReply", "closeBefore", "closeAfter", "refuse", "trickle"]
Duration = Union[float, timedelta]

# A failure shows the line of the test, and none of this module.
__tracebackhide__ = True

# How long the server may take for a reply. It gives up waiting by itself, earlier than WAIT_LIMIT:
# after the longest timeout of all sessions and a minute.
REPLY_LIMIT = 120.0
WAIT_LIMIT = 600.0

NEEDS_CLUSTER = "this needs a cluster: the fixture lockkeeper_cluster is one, and so is Lockkeeper(cluster=3)"
BLOCKED = "the event loop of this thread, with its tasks, stood still meanwhile: await asyncio.to_thread(server.wait_…, …)"


class LockkeeperError(Exception):
    """Something that the server, or its process, did not do."""


class RequestError(LockkeeperError):
    """A reply with an error. The status says which kind."""

    def __init__(self, endpoint: str, status: int, message: str) -> None:
        super().__init__(f"{endpoint}: {message}")
        self.endpoint, self.status, self.message = endpoint, status, message


class WaitTimeout(RequestError, TimeoutError):
    """What was waited for has not happened in time. The text ends with how long the wait was."""


class CheckFailed(LockkeeperError, AssertionError):
    """A guarded lock did not protect what it should protect, or no request has met a fault, or this cannot be judged."""


class HasSession(Protocol):
    """A client that has a session, such as kazoo's."""

    @property
    def client_id(self) -> Any: ...


Session = Union[int, str, HasSession]


def session_id(session: Session) -> str:
    """Return the id of a session as lockkeeper writes it, such as "0x1000a01c3e20000"."""
    if isinstance(session, str):
        return hex(int(session, 16))
    if not isinstance(session, int):
        try:
            client_id = session.client_id
        except AttributeError:
            raise TypeError(f"{session!r} is neither a session's id, as a number or text, nor a client of kazoo") from None
        if not client_id or not client_id[0]:
            raise ValueError(f"{session!r} has no session")
        session = int(client_id[0])
    return hex(session & 0xFFFF_FFFF_FFFF_FFFF)


@dataclasses.dataclass(frozen=True)
class Member:
    """A server, or one of a cluster."""

    member: int
    address: str
    role: str  #: standalone, leader, follower, observer, looking, stopped or failed


@dataclasses.dataclass(frozen=True)
class SessionState:
    id: str
    timeout: float
    connected: bool
    ephemerals: list[str]


@dataclasses.dataclass(frozen=True)
class Watch:
    session: str
    path: str


@dataclasses.dataclass(frozen=True)
class LockState:
    """A znode with children that are ephemeral and sequential."""

    path: str
    holder: str
    token: int  #: the czxid of the holder's znode
    since: datetime
    queue: list[str]


@dataclasses.dataclass(frozen=True)
class FaultState:
    id: int
    fired: bool
    matched: int  #: how many requests it has matched
    text: str


@dataclasses.dataclass(frozen=True)
class State:
    """What one member has applied."""

    connect: str
    members: list[Member]
    shown: int
    tree: str
    sessions: list[SessionState]
    watches: list[Watch]
    locks: list[LockState]
    faults: list[FaultState]

    def lock(self, path: str) -> LockState:
        """Return the lock with this path, which must have a holder."""
        for lock in self.locks:
            if lock.path == path:
                return lock
        raise LookupError(f"nobody holds a lock {path}; the znodes are:\n{self.tree}")


@dataclasses.dataclass(frozen=True)
class Stat:
    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    aversion: int
    ephemeral_owner: str | None
    data_length: int
    num_children: int
    pzxid: int


@dataclasses.dataclass(frozen=True)
class Znode:
    data: bytes
    stat: Stat


@dataclasses.dataclass(frozen=True)
class Request:
    """A request that a client has sent."""

    time: datetime
    session: str | None
    op: str
    path: str
    text: str


@dataclasses.dataclass(frozen=True)
class Write:
    """What became of a write to what a guarded lock protects."""

    accepted: bool
    reason: str

    def __bool__(self) -> bool:
        return self.accepted


@dataclasses.dataclass(frozen=True)
class Verdict:
    ok: bool
    violations: list[str]
    timeline: str

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        return "\n".join([*(self.violations or ["the lock did what it should"]), "", self.timeline])


class Advanced(NamedTuple):
    """What has ended when the server's clock was set forward."""

    expired: list[str]  #: sessions
    deleted: list[str]  #: the paths of TTL znodes and containers


class Guard:
    """A lock that is watched until a verdict is asked for. See :meth:`Server.guard`."""

    def __init__(self, server: Server, path: str, number: int) -> None:
        self._server, self.path, self.number = server, path, number

    def write(self, token: int, *, resource: str = "", unchecked: bool = False) -> Write:
        """Report that a holder writes to what the lock protects.

        token is the czxid of its znode. The resource refuses a token that is less than one it has
        seen, unless unchecked.
        """
        reply = self._server.post("/guard/write", guard=self.number, token=token, resource=resource, unchecked=unchecked)
        return Write(reply["accepted"], reply.get("reason", ""))

    def verdict(self) -> Verdict:
        """End the guard, and return what was wrong with the lock."""
        reply = self._server.post("/guard/verdict", guard=self.number)
        self._forget()
        return Verdict(reply["ok"], reply.get("violations") or [], reply.get("timeline", ""))

    def check(self) -> None:
        """End the guard, and raise CheckFailed if something was wrong with the lock."""
        _raise(self._wrong(self.verdict()))

    def _wrong(self, verdict: Verdict) -> list[str]:
        return [] if verdict else [f"the lock {self.path}: {verdict}"]

    def _forget(self) -> None:
        with contextlib.suppress(ValueError):
            self._server._guards.remove(self)

    def _judge(self) -> list[str]:
        """End the guard, and return what fails the test."""
        try:
            return self._wrong(self.verdict())
        except LockkeeperError as error:
            self._forget()
            return [f"the lock {self.path} cannot be judged: {error}"]

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self not in self._server._guards:  # the test has asked for the verdict
            return
        if kind is None:
            self.check()
        else:
            self._server._found += self._judge()


class Fault:
    """An injected fault. As a context manager, it is removed at the end, and must have had an effect."""

    def __init__(self, server: Server, number: int, text: str, optional: bool = False) -> None:
        self._server, self.number, self.text, self.optional = server, number, text, optional

    def remove(self) -> bool:
        """End the fault, release what waits because of it, and return whether it had an effect."""
        return self._remove().fired

    def _remove(self) -> FaultState:
        state = _make(FaultState, self._server.post("/remove", id=self.number))
        self._forget()
        return state

    def wait_fired(self, *, timeout: Duration | None = None) -> None:
        """Wait until the fault takes effect for the first time."""
        self._server._wait("/wait/fired", timeout, id=self.number)

    def _wrong(self, state: FaultState) -> list[str]:
        if self.optional or state.fired:
            return []
        met = f"{state.matched} requests have matched it, but not taken effect" if state.matched else "no request has met this fault"
        return [f"{self.text}: {met}, so the test has failed; with optional=True it would not"]

    def _forget(self) -> None:
        with contextlib.suppress(ValueError):
            self._server._injected.remove(self)

    def _judge(self) -> list[str]:
        """End the fault, and return what fails the test."""
        try:
            return self._wrong(self._remove())
        except LockkeeperError as error:
            self._forget()
            return self._unknown(str(error))

    def _unknown(self, why: str) -> list[str]:
        if self.optional:
            return []
        return [f"{self.text} cannot be judged, so the test has failed; with optional=True it would not: {why}"]

    def __enter__(self) -> Fault:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self not in self._server._injected:  # the test has removed it
            return
        if kind is None:
            _raise(self._wrong(self._remove()))
        else:
            self._server._found += self._judge()


class Namespace:
    """A znode that clients have as their root, with hosts."""

    def __init__(self, server: Server, path: str, hosts: str) -> None:
        self._server, self.path, self.hosts = server, path, hosts

    def remove(self) -> None:
        """Delete the znode with all that is in it."""
        self._server.post("/namespace/remove", path=self.path)

    def __enter__(self) -> Namespace:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.remove()


class Server:
    """A server, or a cluster, that is controlled at url. Clients connect to hosts."""

    def __init__(self, url: str, hosts: str | None = None) -> None:
        self._url, self._hosts = url.rstrip("/"), hosts
        self._clients: list[KazooClient] = []
        self._guards: list[Guard] = []
        self._injected: list[Fault] = []
        self._found: list[str] = []  # what has to fail the test at its end
        self._changed: set[str] = set()  # the endpoints that change what a snapshot does not contain

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {self._url}>"

    @property
    def url(self) -> str:
        """Where the test control is."""
        return self._url

    @property
    def hosts(self) -> str:
        """The addresses of all members, separated by commas, as clients want them."""
        if self._hosts is None:
            self._hosts = self.state().connect
        return self._hosts

    # Requests

    def get(self, endpoint: str, **query: Any) -> Any:
        """Send any GET of the test control, and return the reply."""
        query = _given(query)
        return self._request("GET", endpoint + ("?" + urlencode(query) if query else ""), None, REPLY_LIMIT)

    def post(self, endpoint: str, **body: Any) -> Any:
        """Send any POST of the test control, and return the reply. What is None is left out."""
        changed = True
        try:
            return self._request("POST", endpoint, json.dumps(_given(body)), REPLY_LIMIT)
        except RequestError as error:
            changed = error.status >= http.client.INTERNAL_SERVER_ERROR  # what is refused changes nothing
            raise
        finally:
            if changed:
                self._changed.add(endpoint)

    def _wait(self, endpoint: str, timeout: Duration | None, **body: Any) -> Any:
        body["timeoutMs"] = _ms(timeout)
        limit = WAIT_LIMIT if timeout is None else body["timeoutMs"] / 1000 + REPLY_LIMIT
        try:
            return self._request("POST", endpoint, json.dumps(_given(body)), limit)
        except RequestError as error:
            if error.status != http.client.GATEWAY_TIMEOUT:
                raise
            raise WaitTimeout(error.endpoint, error.status, error.message + (f"; {BLOCKED}" if _in_event_loop() else "")) from None

    def _request(self, method: str, endpoint: str, body: str | None, limit: float) -> Any:
        # Not urllib.request, which would send this to a proxy that the environment names.
        at = urlsplit(self.url)
        connection = http.client.HTTPConnection(at.hostname or "", at.port, timeout=limit)
        try:
            connection.request(method, at.path + endpoint, body)
            response = connection.getresponse()
            text = response.read()
        except (OSError, http.client.HTTPException) as error:
            why = self._ended() or str(error) or type(error).__name__
            raise LockkeeperError(f"{self.url}{endpoint}: {why}") from None
        finally:
            connection.close()
        try:
            reply = json.loads(text)
        except ValueError:
            reply = {"error": text.decode(errors="replace").strip()}
        if response.status != http.client.OK:
            name = endpoint.partition("?")[0]
            message = str(reply.get("error", reply))
            raise RequestError(name, response.status, NEEDS_CLUSTER if "needs a cluster" in message else message)
        return reply

    def _ended(self) -> str:
        """Say how the process of this server has ended, or return "" if that is not known."""
        return ""

    # A look inside

    def state(self, member: int | None = None) -> State:
        """Return what a member has applied, by default the leader."""
        s = self.get("/state", member=member)
        return State(
            connect=s["connect"],
            members=[_make(Member, m) for m in s["members"]],
            shown=s["shown"],
            tree=s["tree"],
            sessions=[SessionState(x["id"], x["timeoutMs"] / 1000, x["connected"], x["ephemerals"]) for x in s["sessions"]],
            watches=[_make(Watch, w) for w in s["watches"]],
            locks=[LockState(x["path"], x["holder"], x["token"], _time(x["since"]), x["queue"]) for x in s["locks"]],
            faults=[_make(FaultState, f) for f in s["faults"]],
        )

    def tree(self, member: int | None = None) -> str:
        """Return all znodes as text, which :meth:`add_tree` understands."""
        return self.state(member).tree

    def znode(self, path: str, *, member: int | None = None) -> Znode:
        """Return the data and the Stat of a znode."""
        reply = self.get("/znode", path=path, member=member)
        names = {re.sub("[A-Z]", lambda m: "_" + m.group().lower(), name): value for name, value in reply["stat"].items()}
        return Znode(base64.b64decode(reply["data"]), _make(Stat, names))

    def requests(self, op: str | None = None, *, member: int | None = None) -> list[Request]:
        """Return the requests that clients have sent, the oldest first, without pings."""
        reply = self.get("/requests", op=op, member=member)
        return [Request(_time(r["time"]), r["session"], r["op"], r["path"], r["text"]) for r in reply["requests"]]

    # Sessions and faults

    def expire(self, session: Session) -> None:
        """End a session as if its client had been silent for its timeout."""
        self.post("/expire", session=session_id(session))

    def disconnect(self, session: Session) -> None:
        """Close the connection of a session."""
        self.post("/disconnect", session=session_id(session))

    def inject(
        self,
        do: Action,
        *,
        op: str | None = None,
        path: str | None = None,
        session: Session | None = None,
        nth: int | None = None,
        times: int | None = None,
        member: int | None = None,
        seconds: Duration | None = None,
        error: str | int | None = None,
        optional: bool = False,
    ) -> Fault:
        """Inject a fault into requests of clients. do is what happens to those that the others name.

        seconds goes with delay and trickle, error with answer. A test with the fixtures fails if no
        request has met the fault, unless it is optional, or the test has called its remove().
        """
        session = None if session is None else session_id(session)
        given = _given({"op": op, "path": path, "session": session, "nth": nth, "times": times, "member": member, "error": error})
        text = ", ".join([f'"{do}"', *(f"{name}={json.dumps(value)}" for name, value in given.items())])
        fault = Fault(self, self.post("/inject", do=do, ms=_ms(seconds), **given)["id"], f"inject({text})", optional)
        self._injected.append(fault)
        return fault

    # Waiting without polling. WaitTimeout, a TimeoutError, is raised if it does not happen within timeout.

    def wait_held(self, path: str, session: Session, *, member: int | None = None, timeout: Duration | None = None) -> None:
        """Wait until a session holds a lock."""
        self._wait("/wait/held", timeout, path=path, session=session_id(session), member=member)

    def wait_waiters(self, path: str, waiters: int, *, member: int | None = None, timeout: Duration | None = None) -> None:
        """Wait until this many sessions wait behind the holder of a lock."""
        self._wait("/wait/waiters", timeout, path=path, waiters=waiters, member=member)

    def wait_gone(self, path: str, *, member: int | None = None, timeout: Duration | None = None) -> None:
        """Wait until a znode does not exist."""
        self._wait("/wait/gone", timeout, path=path, member=member)

    def wait_exists(self, path: str, *, member: int | None = None, timeout: Duration | None = None) -> None:
        """Wait until a znode exists."""
        self._wait("/wait/exists", timeout, path=path, member=member)

    def wait_data(self, path: str, data: bytes | str, *, member: int | None = None, timeout: Duration | None = None) -> None:
        """Wait until a znode has this data."""
        if isinstance(data, str):
            data = data.encode()
        self._wait("/wait/data", timeout, path=path, data=base64.b64encode(data).decode(), member=member)

    def wait_children(self, path: str, children: int, *, member: int | None = None, timeout: Duration | None = None) -> None:
        """Wait until a znode has this many children."""
        self._wait("/wait/children", timeout, path=path, children=children, member=member)

    def wait_requests(self, count: int, *, op: str | None = None, path: str | None = None, timeout: Duration | None = None) -> None:
        """Wait until at least this many requests have been sent."""
        self._wait("/wait/requests", timeout, op=op, path=path, count=count)

    def wait_watch(self, path: str, session: Session | None = None, *, timeout: Duration | None = None) -> None:
        """Wait until somebody, or a session, watches a path."""
        self._wait("/wait/watch", timeout, path=path, session=None if session is None else session_id(session))

    # State

    def snapshot(self) -> int:
        """Return the number of a snapshot of the present state."""
        return int(self.post("/snapshot")["snapshot"])

    def restore(self, snapshot: int = 0) -> None:
        """Put back a snapshot; 0 is the state with which the server began. Sessions that are newer end."""
        removed = [_make(FaultState, f) for f in self.post("/restore", snapshot=snapshot)["faults"]]
        by_number = {fault.number: fault for fault in self._injected}
        for fault, state in [(by_number[state.id], state) for state in removed if state.id in by_number]:
            fault._forget()
            self._found += fault._wrong(state)

    def remove_snapshot(self, snapshot: int) -> None:
        """Forget a snapshot, which takes memory."""
        self.post("/snapshot/remove", snapshot=snapshot)

    def add_tree(self, tree: str) -> None:
        """Add the znodes of a text such as '/a = "x"\\n/a/b\\n'."""
        self.post("/tree", tree=tree)

    def namespace(self, name: str | None = None) -> Namespace:
        """Create a znode for clients to have as their root, by default with a name of its own."""
        reply = self.post("/namespace", name=name)
        return Namespace(self, reply["path"], reply["connect"])

    def guard(self, path: str) -> Guard:
        """Watch a lock from now on: path is the znode whose children are its queue.

        The verdict is bad if two holders overlapped in what they wrote, if a stale token was
        accepted, if somebody wrote who did not hold the lock, or if a client left its znode behind.
        As a context manager, a guard checks this at the end.
        """
        guard = Guard(self, path, self.post("/guard", path=path)["guard"])
        self._guards.append(guard)
        return guard

    # Time

    def advance(self, by: Duration, *, connected: bool = False) -> Advanced:
        """Move the server's clock forward. Return what has ended: the sessions expired and the znodes deleted.

        A session with a connection lives on, unless connected. The clients' own timers do not move.
        """
        reply = self.post("/advance", ms=_ms(by), connected=connected)
        return Advanced(reply["expired"], reply["deleted"])

    def end_ttls(self) -> list[str]:
        """Delete TTL znodes without children, and empty containers, whatever their time. Return their paths."""
        return self.post("/end-ttls").get("deleted") or []

    def clock(self, skew: Duration, *, member: int | None = None) -> None:
        """Make a member's clock wrong."""
        self.post("/clock", skewMs=_ms(skew), member=member)

    # Members

    def kill(self, member: int | None = None) -> None:
        """Stop a member as abruptly as if its process had been killed. It keeps its state."""
        self.post("/kill", member=member)

    def restart(self, member: int | None = None) -> None:
        """Start a member that was killed."""
        self.post("/restart", member=member)

    def pause(self, member: int | None = None) -> None:
        """Keep a member from sending, receiving and writing to its disk."""
        self.post("/pause", member=member)

    def resume(self, member: int | None = None) -> None:
        """Continue a paused member."""
        self.post("/resume", member=member)

    def partition(self, *groups: Sequence[int]) -> None:
        """Cut the network so that only members of the same group can reach each other."""
        self.post("/partition", groups=[list(group) for group in groups])

    def heal(self) -> None:
        """End all partitions and faults of links."""
        self.post("/heal")

    def link(self, sender: int, receiver: int, *, cut: bool = False, delay: Duration | None = None, loss: float | None = None) -> None:
        """Set the faults of the network from one member to another. Those that are omitted end."""
        self.post("/link", **{"from": sender}, to=receiver, cut=cut, delayMs=_ms(delay), loss=loss)

    def disk(self, *, member: int | None = None, delay: Duration | None = None, full: bool = False) -> None:
        """Make each write to a member's disk slow, or fail. What is omitted ends."""
        self.post("/disk", member=member, delayMs=_ms(delay), full=full)

    def step_down(self) -> int:
        """Make the leader hand over, and return the new one."""
        return int(self.post("/step-down")["leader"])

    def leader(self, among: Sequence[int] | None = None, *, timeout: Duration | None = None) -> int:
        """Wait until a member leads, or one of these, and return it. A server alone leads itself.

        Right after a partition, the old leader does not know yet that it has lost the majority: name the others.
        """
        return int(self._wait("/wait/leader", timeout, among=None if among is None else list(among))["leader"])

    # More servers in the same process

    def new_server(
        self,
        *,
        cluster: int | None = None,
        tree: str | None = None,
        election_timeout: Duration | None = None,
        behave_as: str | None = None,
    ) -> FreshServer:
        """Start another server, or a cluster, in the same process."""
        reply = self.post("/servers", cluster=cluster, tree=tree, electionTimeoutMs=_ms(election_timeout), behaveAs=behave_as)
        return FreshServer(reply["url"], reply["connect"], beside=self)

    def servers(self) -> list[Server]:
        """Return all servers of the process."""
        return [Server(s["url"], s["connect"]) for s in self.get("/servers")["servers"]]

    # kazoo

    def client(self, *, timeout: float = 10.0, **options: Any) -> KazooClient:
        """Return a KazooClient that has a session. options are its own; :meth:`close_clients` ends it."""
        try:
            from kazoo.client import KazooClient
        except ImportError as error:
            raise LockkeeperError("client() needs kazoo: pip install kazoo") from error
        options.setdefault("hosts", self.hosts)
        client = KazooClient(timeout=timeout, **options)
        self._clients.append(client)
        client.start(timeout=60)
        return client

    def close_clients(self) -> None:
        """Close all clients that came from :meth:`client`."""
        while self._clients:
            client = self._clients.pop()
            client.stop()
            client.close()

    # What a test has changed

    def undo(self, snapshot: int = 0) -> None:
        """Make the server what it was at a snapshot, or at the beginning, after a test.

        What check() does comes first, then clients are closed, what was done to members and links
        ends, and the snapshot is put back. CheckFailed is raised at the end.
        """
        wrong = self._judge()
        try:
            self._put_back(snapshot)
        except LockkeeperError as error:
            if not wrong:
                raise
            wrong.append(f"the state cannot be put back: {error}")
        _raise(wrong)

    def _put_back(self, snapshot: int) -> None:
        self.close_clients()
        changed, self._changed = self._changed, set()
        if {"/partition", "/link"} & changed:
            self.heal()
        if {"/kill", "/pause", "/disk", "/clock"} & changed:
            self._mend_members(changed)
        self.restore(snapshot)
        self._changed.clear()

    def check(self) -> None:
        """Raise CheckFailed if a lock that is still guarded did not do what it should, or no request has met a fault.

        It is also raised if this cannot be judged, since the server has died.
        """
        _raise(self._judge())

    def _judge(self) -> list[str]:
        """End all guards, and return what fails the test."""
        wrong, self._found = self._found, []
        for guard in self._guards[:]:
            wrong += guard._judge()
        faults, self._injected = [fault for fault in self._injected if not fault.optional], []
        if not faults:
            return wrong
        try:
            states = {state.id: state for state in self.state().faults}
        except LockkeeperError as error:
            states, why = {}, str(error)
        else:
            why = "the server does not have it any more"
        for fault in faults:
            wrong += fault._wrong(states[fault.number]) if fault.number in states else fault._unknown(why)
        return wrong

    def _mend_members(self, changed: set[str]) -> None:
        for member in self.state().members:
            if "/disk" in changed:
                self.disk(member=member.member)
            if "/clock" in changed:
                self.clock(0, member=member.member)
            if member.role == "failed":
                self.kill(member.member)
            if member.role in ("stopped", "failed"):
                self.restart(member.member)
            elif "/pause" in changed:
                self.resume(member.member)


class FreshServer(Server):
    """A server, or a cluster, beside others in the same process."""

    def __init__(self, url: str, hosts: str, *, beside: Server) -> None:
        super().__init__(url, hosts)
        self._beside = beside
        self._stopped = False

    def _ended(self) -> str:
        return self._beside._ended()

    def stop(self) -> None:
        """End it, and free its ports. CheckFailed is raised as by :meth:`check`."""
        if self._stopped:
            return
        self._stopped = True
        wrong = self._judge()
        self.close_clients()
        try:
            self.post("/stop")
        except LockkeeperError as error:
            if not wrong:
                raise
            wrong.append(str(error))
        _raise(wrong)

    def __enter__(self) -> FreshServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with _unless_abandoned(error):
            self.stop()


@contextlib.contextmanager
def _unless_abandoned(error: BaseException | None) -> Iterator[None]:
    """Raise no CheckFailed over what skips or interrupts a test, which is then not judged."""
    try:
        yield
    except CheckFailed:
        if error is None or isinstance(error, Exception):
            raise


def _raise(wrong: list[str]) -> None:
    if wrong:
        raise CheckFailed("\n".join(wrong))


_T = TypeVar("_T")


def _make(kind: type[_T], values: dict[str, Any]) -> _T:
    """Make a dataclass of a reply, which may have more than it."""
    return kind(**{field.name: values[field.name] for field in dataclasses.fields(kind)})  # type: ignore[arg-type]


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _ms(duration: Duration | None) -> Any:
    if duration is None:
        return None
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if not isinstance(seconds, (int, float)):
        raise TypeError(f"a timeout is seconds or a timedelta, as all durations are, and not {duration!r}")
    return round(seconds * 1000, 3)


def _time(text: str) -> datetime:
    """Parse RFC 3339. The digits after those that datetime has are lost."""
    match = re.fullmatch(r"(.{19})(?:\.(\d+))?(Z|[+-]\d\d:\d\d)", text)
    if match is None:
        raise ValueError(f"{text!r} is not a time")
    whole, fraction, zone = match.groups()
    at = datetime.fromisoformat(whole + ("+00:00" if zone == "Z" else zone))
    return at.replace(microsecond=int((fraction or "").ljust(6, "0")[:6])).astimezone(timezone.utc)
