"""lockkeeper as a process that ends with this one."""

from __future__ import annotations

import collections
import contextlib
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import IO, Any

from ._control import Duration, LockkeeperError, Server, _ms, _raise, _unless_abandoned

ENVIRONMENT = "LOCKKEEPER_BINARY"

__tracebackhide__ = True  # as in _control
START_LIMIT = 60.0
STOP_LIMIT = 30.0
END_LIMIT = 1.0  # for its end to be known, after its connections have ended

_CONTROL = "lockkeeper: test control on "
_SERVING = "lockkeeper: serving ZooKeeper clients on "


class StartError(LockkeeperError):
    """The program did not start, or not serve clients. The text has what it printed."""


def binary() -> str:
    """Return the path of the program: what LOCKKEEPER_BINARY says, or else the one in this package."""
    path = os.environ.get(ENVIRONMENT)
    if path:
        return path
    name = "lockkeeper.exe" if sys.platform == "win32" else "lockkeeper"
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", name)


def _environment() -> dict[str, str]:
    """The variables of this process without those that are flags of the program, which are for its user's own servers."""
    return {name: value for name, value in os.environ.items() if not name.startswith("LOCKKEEPER_")}


class Lockkeeper(Server):
    """A server, or a cluster of that many members, in a process of its own, on ports that are free.

    start, or entering it as a context manager, starts it. Its state is in memory. However this
    process ends, also by SIGKILL, the server ends then.

    tree is text such as '/a = "x"', the znodes to begin with. port is that of clients, by default a
    free one; the members of a cluster have it and those that follow. args are more flags of
    'lockkeeper serve'.
    """

    def __init__(
        self,
        *,
        binary: str | os.PathLike[str] | None = None,
        cluster: int | None = None,
        tree: str | None = None,
        election_timeout: Duration | None = None,
        port: int = 0,
        args: Sequence[str] = (),
    ) -> None:
        super().__init__("")
        self._port = port
        self._binary, self._cluster, self._tree = binary, cluster, tree
        self._election_timeout, self._args = election_timeout, list(args)
        self._process: subprocess.Popen[bytes] | None = None
        self._said: _Said | None = None
        self._last_port = 0  # for clients, when it was started last; 0 for a cluster, whose ports may not be in a row

    @property
    def running(self) -> bool:
        """Whether the process has been started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """The id of the process."""
        return None if self._process is None else self._process.pid

    @property
    def log(self) -> str:
        """What the server has printed last: warnings and errors, or more with args=["--log-level", "debug"]."""
        return "" if self._said is None else self._said.text()

    @property
    def printed(self) -> int:
        """How many lines the server has printed."""
        return 0 if self._said is None else self._said.printed

    def log_after(self, printed: int) -> str:
        """What the server has printed after so many lines, at most the last 50 lines."""
        return "" if self._said is None else self._said.text(min(self._said.printed - printed, 50))

    @property
    def url(self) -> str:
        if not self._url:
            raise LockkeeperError("the server is not started, or it was stopped")
        return self._url

    def start(self) -> Lockkeeper:
        """Start the server, and return when clients can connect."""
        if self._process is not None:
            raise LockkeeperError("the server is started already")
        tree = self._write_tree()
        try:
            self._start(self._command(tree))
        finally:
            if tree is not None:
                os.remove(tree)
        return self

    def stop(self) -> None:
        """Stop the server. It is an error if it had ended before, or ends badly.

        CheckFailed is raised as by :meth:`check`.
        """
        process, said = self._process, self._said
        if process is None or said is None:
            return
        wrong = self._judge()
        self.close_clients()
        ended = self._ended(patience=0)
        self._end(process, said)
        _raise(wrong)
        if ended or process.returncode != 0:
            raise LockkeeperError(ended or f"the server ended with status {process.returncode}:\n{said.text()}")

    def restart_process(self) -> None:
        """Start the server again as it was at first, whatever has become of it: on the same port for clients if it can."""
        if self._process is not None and self._said is not None:
            self._end(self._process, self._said)
        again = self._last_port or self._port
        chosen, self._port = self._port, again
        try:
            self.start()
        except StartError:
            if again == chosen:
                raise
            self._port = chosen
            self.start()
        finally:
            self._port = chosen

    def _ended(self, patience: float = END_LIMIT) -> str:
        if self._process is None or self._said is None:
            return ""
        try:
            status = self._process.wait(patience)
        except subprocess.TimeoutExpired:
            return ""
        return f"the server had ended with status {status}:\n{self.log_after(2)}".rstrip(":\n")  # not the lines of its start

    def __enter__(self) -> Lockkeeper:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with _unless_abandoned(error):
            self.stop()

    def _command(self, tree: str | None) -> list[str]:
        command = [os.fspath(self._binary or binary()), "serve", "--memory", "--log-level", "warn", "--until-stdin-closes"]
        if sys.platform != "win32":
            # Processes that were forked from this one keep its end of the pipe open.
            command += ["--parent-pid", str(os.getpid())]
        command += ["--listen", f"127.0.0.1:{self._port}", "--test-control", "127.0.0.1:0"]
        if self._cluster is not None:
            command += ["--cluster", str(self._cluster)]
        if self._election_timeout is not None:
            command += ["--election-timeout", f"{_ms(self._election_timeout)}ms"]
        if tree is not None:
            command += ["--tree", tree]
        return command + self._args

    def _write_tree(self) -> str | None:
        if self._tree is None:
            return None
        handle, path = tempfile.mkstemp(prefix="lockkeeper-tree-", text=False)
        with os.fdopen(handle, "wb") as file:
            file.write(self._tree.encode())
        return path

    def _start(self, command: list[str]) -> None:
        # Ctrl-C is for the tests, which still need the server when they clean up.
        apart: dict[str, Any] = {"start_new_session": True}
        if sys.platform == "win32":
            apart = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=_environment(), **apart
            )
        except OSError as error:
            raise StartError(f"{command[0]}: {error}; {ENVIRONMENT} is the path of the program, if it is not that of this package") from None
        assert process.stderr is not None
        said = _Said(process.stderr)
        said.done.wait(START_LIMIT)
        if said.hosts is None or said.url is None:
            self._end(process, said)
            raise StartError(f"{' '.join(command)}: no clients are served; status {process.returncode}:\n{said.text()}")
        self._process, self._said, self._url, self._hosts = process, said, said.url, said.hosts
        if self._cluster is None:
            self._last_port = int(said.hosts.rpartition(":")[2])

    def _end(self, process: subprocess.Popen[bytes], said: _Said) -> None:
        self._process, self._url, self._hosts = None, "", None
        self._changed.clear()
        self._guards.clear()
        self._injected.clear()
        self._found.clear()
        assert process.stdin is not None
        if sys.platform == "win32":
            process.stdin.close()
        else:
            process.terminate()
        try:
            process.wait(STOP_LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdin.close()
        said.close()


class _Said:
    """Reads what the server prints, so that it can go on printing."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.url: str | None = None
        self.hosts: str | None = None
        self.done = threading.Event()  # clients are served, or the stream has ended
        self.printed = 0  # lines
        self._stream = stream
        self._lines: collections.deque[str] = collections.deque(maxlen=1000)
        self._thread = threading.Thread(target=self._read, name="lockkeeper's output", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for raw in self._stream:
            line = raw.decode(errors="replace")
            self._lines.append(line)
            self.printed += 1
            # With --log-format json it is in a line of JSON.
            if match := re.search(f'({_CONTROL}|{_SERVING})([^\\s"]+)', line):
                if match[1] == _CONTROL:
                    self.url = match[2]
                else:
                    self.hosts = match[2]
                if self.url and self.hosts:
                    self.done.set()
        self.done.set()

    def text(self, lines: int = 1000) -> str:
        """Return the last lines."""
        return "".join(list(self._lines.copy())[-lines:] if lines > 0 else [])

    def close(self) -> None:
        """Wait until all is read. The process has ended, so that is soon."""
        self._thread.join(STOP_LIMIT)
        self._stream.close()


def cluster(members: int = 3, **options: Any) -> Lockkeeper:
    """Return a cluster, which is to be started like a Lockkeeper and has the same options."""
    return Lockkeeper(cluster=members, **options)
