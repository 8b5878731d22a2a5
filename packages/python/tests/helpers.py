"""What several tests use."""

import os
import time


def await_end(pid: int) -> None:
    """Wait until a process has ended. One that is not our child is reaped by whoever has it."""
    deadline = time.monotonic() + 20
    while is_running(pid):
        assert time.monotonic() < deadline, f"process {pid} still runs"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def clean_environment() -> dict[str, str]:
    """The environment without what would change which program is used, and without any other program."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LOCKKEEPER_", "PYTEST_", "GO"))}
    return kept | {"PATH": "/nowhere"}


def use_clean_environment(monkeypatch) -> None:
    """Give the processes that this test starts a clean environment."""
    for name in list(os.environ):
        if name not in clean_environment():
            monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", clean_environment()["PATH"])
