"""Functions that make fixtures, for a conftest.py that needs others than those of the plugin:

    from pytest_lockkeeper import factories

    other_proc = factories.lockkeeper_proc(tree='/config = "x"')
    other = factories.lockkeeper("other_proc")
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from . import _options
from ._control import Duration, FreshServer, LockkeeperError, Server
from ._process import Lockkeeper


def lockkeeper_proc(
    *,
    binary: str | os.PathLike[str] | None = None,
    cluster: int | None = None,
    tree: str | None = None,
    election_timeout: Duration | None = None,
    port: int = 0,
    args: Sequence[str] | None = None,
) -> Callable[..., Iterator[Lockkeeper]]:
    """Make a fixture for the session: a server in a process of its own. With xdist, each worker has one."""

    @pytest.fixture(scope="session")
    def lockkeeper_proc_fixture(pytestconfig: pytest.Config) -> Iterator[Lockkeeper]:
        """A ZooKeeper in a process of its own, for the session. Its state is not put back after a test."""
        server = Lockkeeper(
            binary=binary or _options.option(pytestconfig, "binary"),
            cluster=cluster,
            tree=_options.tree(pytestconfig) if tree is None else tree,
            election_timeout=election_timeout,
            port=port,
            args=_options.args(pytestconfig) if args is None else args,
        )
        try:
            server.start()
        except LockkeeperError as error:
            raise _failure(error) from None
        yield server
        server.stop()

    return lockkeeper_proc_fixture


def lockkeeper_noproc(*, url: str | None = None) -> Callable[..., Iterator[Server]]:
    """Make a fixture for the session: a server that runs already, with its test control at url.

    With xdist, each worker has a server of its own in the same process.
    """

    @pytest.fixture(scope="session")
    def lockkeeper_noproc_fixture(pytestconfig: pytest.Config) -> Iterator[Server]:
        """A lockkeeper that runs already. Its state is not put back after a test."""
        at = url or _options.option(pytestconfig, "url")
        if at is None:
            pytest.fail("--lockkeeper-url must name the test control of a running server", pytrace=False)
        try:
            running = Server(at)
            if not hasattr(pytestconfig, "workerinput"):
                running.state()
                yield running
                return
            with running.new_server(tree=_options.tree(pytestconfig)) as server:
                yield server
        except LockkeeperError as error:
            raise _failure(error) from None

    return lockkeeper_noproc_fixture


def lockkeeper(process_fixture_name: str = "lockkeeper_proc") -> Callable[..., Iterator[Any]]:
    """Make a fixture for each test: the server of another fixture, whose state is put back after the test."""

    @pytest.fixture
    def lockkeeper_fixture(request: pytest.FixtureRequest) -> Iterator[Server]:
        """A ZooKeeper for this test: its client() is a connected KazooClient, its hosts are for other clients."""
        server: Server = request.getfixturevalue(process_fixture_name)
        _usable(request, server)
        snapshot = server.snapshot()
        _show(request, server, server)
        yield server
        _undo(request, server, snapshot)

    return lockkeeper_fixture


def lockkeeper_cluster(
    process_fixture_name: str = "lockkeeper_proc",
    *,
    members: int | None = None,
    tree: str | None = None,
    election_timeout: Duration | None = 0.5,
) -> Callable[..., Iterator[FreshServer]]:
    """Make a fixture for each test: a new cluster, in the process of another fixture."""

    @pytest.fixture
    def lockkeeper_cluster_fixture(request: pytest.FixtureRequest) -> Iterator[FreshServer]:
        """A new ZooKeeper cluster for this test, of three members unless other settings say how many."""
        process: Server = request.getfixturevalue(process_fixture_name)
        _usable(request, process)
        with process.new_server(
            cluster=_options.members(request.config) if members is None else members,
            tree=_options.tree(request.config) if tree is None else tree,
            election_timeout=election_timeout,
        ) as server:
            _show(request, server, process)
            yield server
            _end(request, server)

    return lockkeeper_cluster_fixture


def _show(request: pytest.FixtureRequest, server: Server, process: Server) -> None:
    """Have a failure of the test show the server, which runs in the process."""
    own = process if isinstance(process, Lockkeeper) else None
    again = request.config.stash.get(_options.AGAIN, {}).get(own, "") if own else ""
    shown = _options.Shown(server, own, own.printed if own else 0, again)
    request.node.stash.setdefault(_options.SERVERS, {})[request.fixturename or "lockkeeper"] = shown


def _failure(error: LockkeeperError | str) -> BaseException:
    """Return what fails a test without showing where in this package."""
    return pytest.fail.Exception(str(error), pytrace=False)


def _usable(request: pytest.FixtureRequest, server: Server) -> None:
    """Start a server again that something has stopped since the last test."""
    if isinstance(server, Lockkeeper) and not server.running:
        _again(request, server, f"before {request.node.nodeid}, since {server._ended() or 'it was stopped'}")


def _again(request: pytest.FixtureRequest, server: Lockkeeper, why: str) -> None:
    """Start a server again, and have the failures of later tests say so."""
    server.restart_process()
    request.config.stash.setdefault(_options.AGAIN, {})[server] = f"the server was started again {why}"


def _judge(request: pytest.FixtureRequest, server: Server) -> list[str]:
    """Return what fails the test, whose report then shows the server as it is now."""
    wrong = server._judge()
    if wrong:
        name = request.fixturename or "lockkeeper"
        request.node.stash.setdefault(_options.AT_END, []).extend(request.node.stash[_options.SERVERS][name].sections(name))
    return wrong


def _end(request: pytest.FixtureRequest, server: FreshServer) -> None:
    """End a server. The test fails if a lock that is still guarded did not do what it should, or no request has met a fault."""
    wrong = _judge(request, server)
    try:
        server.stop()
    except LockkeeperError as error:
        wrong.append(str(error))
    if wrong:
        raise _failure("\n".join(wrong))


def _undo(request: pytest.FixtureRequest, server: Server, snapshot: int) -> None:
    """Put the state back. The test fails as with _end, and if the state cannot be put back, unless the test has stopped the server."""
    wrong = _judge(request, server)
    why = "it was stopped" if isinstance(server, Lockkeeper) and server.pid is None else ""
    if not why:
        try:
            server._put_back(snapshot)
            server.remove_snapshot(snapshot)
        except LockkeeperError as error:
            why = f"its state could not be put back: {error}"
            wrong.append(why)
    if why and isinstance(server, Lockkeeper):
        _again(request, server, f"after {request.node.nodeid}, since {why}")
    if wrong:
        raise _failure("\n".join(wrong))
