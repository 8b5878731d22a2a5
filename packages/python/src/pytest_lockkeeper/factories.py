"""Functions that make fixtures, for a conftest.py that needs others than those of the plugin:

    from pytest_lockkeeper import factories

    other_proc = factories.lockkeeper_proc(tree='/config = "x"')
    other = factories.lockkeeper("other_proc")
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from . import _options
from ._control import CheckFailed, Duration, FreshServer, LockkeeperError, Server
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
        _usable(server)
        snapshot = server.snapshot()
        _show(request, server, server)
        yield server
        _undo(server, snapshot)

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
        _usable(process)
        with process.new_server(
            cluster=members or _options.members(request.config),
            tree=_options.tree(request.config) if tree is None else tree,
            election_timeout=election_timeout,
        ) as server:
            _show(request, server, process)
            yield server
            _judge(server)

    return lockkeeper_cluster_fixture


def _show(request: pytest.FixtureRequest, server: Server, process: Server) -> None:
    """Have a failure of the test show the server, which runs in the process."""
    own = process if isinstance(process, Lockkeeper) else None
    shown = _options.Shown(server, own, own.printed if own else 0)
    request.node.stash.setdefault(_options.SERVERS, {})[request.fixturename or "lockkeeper"] = shown


def _failure(error: LockkeeperError) -> BaseException:
    """Return what fails a test without showing where in this package."""
    return pytest.fail.Exception(str(error), pytrace=False)


def _usable(server: Server) -> None:
    """Start a server again that a test has stopped, or that has ended."""
    if isinstance(server, Lockkeeper) and not server.running:
        server.restart_process()


def _judge(server: Server) -> None:
    """Fail the test if a lock that is still guarded did not do what it should, or no request has met a fault."""
    try:
        server.check()
    except CheckFailed as error:
        raise _failure(error) from None


def _undo(server: Server, snapshot: int) -> None:
    try:
        try:
            server.undo(snapshot)
        finally:
            server.remove_snapshot(snapshot)
    except CheckFailed as error:
        raise _failure(error) from None
    except LockkeeperError as error:
        if not isinstance(server, Lockkeeper):
            raise
        warnings.warn(f"the server starts again, since its state could not be put back: {error}", stacklevel=1)
        server.restart_process()
