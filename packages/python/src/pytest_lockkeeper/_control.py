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
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, Union
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

BLOCKED = "the event loop of this thread, with its tasks, stood still meanwhile: await asyncio.to_thread(server.wait_…, …)"


class LockkeeperError(Exception):
    """Something that the server, or its process, did not do."""


class RequestError(LockkeeperError):
    """A reply with an error. The status says which kind: 504 if what was waited for does not happen."""

    def __init__(self, endpoint: str, status: int, message: str) -> None:
        super().__init__(f"{endpoint}: {message}")
        self.endpoint, self.status, self.message = endpoint, status, message


class CheckFailed(LockkeeperError, AssertionError):
    """A guarded lock did not protect what it should protect, or a fault was never met."""


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
    role: str  #: standalone, leader, follower or stopped


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
        with contextlib.suppress(ValueError):
            self._server._guards.remove(self)
        reply = self._server.post("/guard/verdict", guard=self.number)
        return Verdict(reply["ok"], reply.get("violations") or [], reply.get("timeline", ""))

    def check(self) -> None:
        """End the guard, and raise CheckFailed if something was wrong with the lock."""
        verdict = self.verdict()
        if not verdict:
            raise CheckFailed(f"the lock {self.path}: {verdict}")

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            if self in self._server._guards:  # no verdict yet
                self.check()
        else:
            with contextlib.suppress(LockkeeperError):
                self.verdict()


class Fault:
    """An injected fault. As a context manager, it is removed at the end, and must have had an effect."""

    def __init__(self, server: Server, number: int, optional: bool = False) -> None:
        self._server, self.number, self.optional = server, number, optional

    def remove(self) -> bool:
        """End the fault, release what waits because of it, and return whether it had an effect."""
        return self._remove().fired

    def _remove(self) -> FaultState:
        with contextlib.suppress(ValueError):
            self._server._injected.remove(self)
        return _make(FaultState, self._server.post("/remove", id=self.number))

    def wait_fired(self, *, timeout: Duration | None = None) -> None:
        """Wait until the fault takes effect for the first time."""
        self._server._wait("/wait/fired", timeout, id=self.number)

    def __enter__(self) -> Fault:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is not None:
            with contextlib.suppress(LockkeeperError):
                self._remove()
            return
        state = self._remove()
        if not state.fired and not self.optional:
            raise CheckFailed(state.text)


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
        self._changed.add(endpoint)
        return self._request("POST", endpoint, json.dumps(_given(body)), REPLY_LIMIT)

    def _wait(self, endpoint: str, timeout: Duration | None, **body: Any) -> None:
        body["timeoutMs"] = _ms(timeout)
        limit = WAIT_LIMIT if timeout is None else body["timeoutMs"] / 1000 + REPLY_LIMIT
        try:
            self._request("POST", endpoint, json.dumps(_given(body)), limit)
        except RequestError as error:
            if error.status == http.client.GATEWAY_TIMEOUT and _in_event_loop():
                raise RequestError(error.endpoint, error.status, f"{error.message}; {BLOCKED}") from None
            raise

    def _request(self, method: str, endpoint: str, body: str | None, limit: float) -> Any:
        # Not urllib.request, which would send this to a proxy that the environment names.
        at = urlsplit(self.url)
        connection = http.client.HTTPConnection(at.hostname or "", at.port, timeout=limit)
        try:
            connection.request(method, at.path + endpoint, body)
            response = connection.getresponse()
            text = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise LockkeeperError(f"{self.url}{endpoint}: {error or type(error).__name__}") from error
        finally:
            connection.close()
        try:
            reply = json.loads(text)
        except ValueError:
            reply = {"error": text.decode(errors="replace").strip()}
        if response.status != http.client.OK:
            name = endpoint.partition("?")[0]
            raise RequestError(name, response.status, str(reply.get("error", reply)))
        return reply

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
        reply = self.post(
            "/inject",
            do=do,
            op=op,
            path=path,
            session=None if session is None else session_id(session),
            nth=nth,
            times=times,
            member=member,
            ms=_ms(seconds),
            error=error,
        )
        fault = Fault(self, reply["id"], optional)
        self._injected.append(fault)
        return fault

    # Waiting without polling. Status 504 follows if it does not happen within timeout.

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
        self.post("/restore", snapshot=snapshot)

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

    def advance(self, by: Duration, *, connected: bool = False) -> tuple[list[str], list[str]]:
        """Move the server's clock forward. Return the sessions that ended and the znodes that were deleted.

        A session with a connection lives on, unless connected. The clients' own timers do not move.
        """
        reply = self.post("/advance", ms=_ms(by), connected=connected)
        return reply.get("expired") or [], reply.get("deleted") or []

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

    @property
    def leader(self) -> int | None:
        """The member that leads, if any; a server alone leads itself."""
        for member in self.state().members:
            if member.role in ("leader", "standalone"):
                return member.member
        return None

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
        return FreshServer(reply["url"], reply["connect"])

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
        wrong = self._wrong()
        self.close_clients()
        changed, self._changed = self._changed, set()
        if {"/partition", "/link"} & changed:
            self.heal()
        if {"/kill", "/pause", "/disk", "/clock"} & changed:
            self._mend_members(changed)
        self.restore(snapshot)
        self._changed.clear()
        if wrong:
            raise CheckFailed(wrong)

    def check(self) -> None:
        """Raise CheckFailed if a lock that is still guarded did not do what it should, or no request has met a fault."""
        if wrong := self._wrong():
            raise CheckFailed(wrong)

    def _wrong(self) -> str:
        verdicts = [(guard.path, guard.verdict()) for guard in self._guards[:]]
        wrong = [f"the lock {path}: {verdict}" for path, verdict in verdicts if not verdict]
        unmet, self._injected = {fault.number for fault in self._injected if not fault.optional}, []
        if unmet:
            wrong += [fault.text for fault in self.state().faults if fault.id in unmet and not fault.fired]
        return "\n".join(wrong)

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

    def stop(self) -> None:
        """End it, and free its ports."""
        self.close_clients()
        self.post("/stop")

    def __enter__(self) -> FreshServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()


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
    return round(seconds * 1000, 3)


def _time(text: str) -> datetime:
    """Parse RFC 3339. The digits after those that datetime has are lost."""
    match = re.fullmatch(r"(.{19})(?:\.(\d+))?(Z|[+-]\d\d:\d\d)", text)
    if match is None:
        raise ValueError(f"{text!r} is not a time")
    whole, fraction, zone = match.groups()
    at = datetime.fromisoformat(whole + ("+00:00" if zone == "Z" else zone))
    return at.replace(microsecond=int((fraction or "").ljust(6, "0")[:6])).astimezone(timezone.utc)
