"""The options of the plugin, each on the command line and in the ini file."""

from __future__ import annotations

import re
import shlex
from typing import NamedTuple

import pytest

from ._control import LockkeeperError, Server
from ._process import Lockkeeper

#: By name: lockkeeper_NAME in the ini file, --lockkeeper-NAME on the command line, which comes first.
OPTIONS = {
    "binary": "the program lockkeeper, instead of the one in the package",
    "tree": "a file with the znodes that each server has at the beginning",
    "members": "how many members lockkeeper_cluster has (3)",
    "args": "more flags of 'lockkeeper serve'",
    "url": "the test control of a running server, for lockkeeper_noproc",
}

SHOWN_REQUESTS = 20


class Shown(NamedTuple):
    """A server that a test uses, for the report of a failure."""

    server: Server
    process: Lockkeeper | None  #: what it runs in, if this process has started that
    printed: int  #: how many lines the process had printed before the test
    again: str  #: when and why the process was started again before the test, or ""

    def sections(self, name: str) -> list[tuple[str, str]]:
        """Return what the report of a failure has of the server, whose fixture has this name."""
        sections = [(f"{name}: started again", self.again)] if self.again else []
        try:
            tree, requests = self.server.tree(), self.server.requests()
        except LockkeeperError as error:
            sections.append((name, str(error)))
        else:
            last = requests[-SHOWN_REQUESTS:]
            lines = [f"{r.time.time().isoformat()} {r.session or '-'} {r.text}" for r in last]
            sections.append((f"{name}: znodes", tree or "none"))
            sections.append((f"{name}: the last {len(last)} of {len(requests)} requests", "\n".join(lines) or "none"))
        if self.process and (log := self.process.log_after(self.printed)):
            sections.append((f"{name}: log", log))
        return sections


#: By process: when and why it was started again.
AGAIN = pytest.StashKey[dict[Lockkeeper, str]]()

#: The servers that a test uses, by the names of their fixtures.
SERVERS = pytest.StashKey[dict[str, Shown]]()

#: What the report has of those that have failed the test at its end.
AT_END = pytest.StashKey[list[tuple[str, str]]]()


def option(config: pytest.Config, name: str) -> str | None:
    """Return an option of the plugin, or None."""
    value = config.getoption(f"lockkeeper_{name}") or config.getini(f"lockkeeper_{name}")
    return str(value) if value else None


def tree(config: pytest.Config) -> str | None:
    """Return the znodes of the option tree, whose path begins at pytest's root directory."""
    name = option(config, "tree")
    if name is None:
        return None
    try:
        return (config.rootpath / name).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        pytest.fail(f"lockkeeper tree: {config.rootpath / name}: {error}", pytrace=False)


def args(config: pytest.Config) -> list[str]:
    return shlex.split(option(config, "args") or "")


def members(config: pytest.Config) -> int:
    text = option(config, "members") or "3"
    if not re.fullmatch("[1-9]", text):
        pytest.fail(f"lockkeeper members: {text!r} is not in 1 to 9", pytrace=False)
    return int(text)
