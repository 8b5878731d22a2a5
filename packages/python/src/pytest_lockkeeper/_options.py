"""The options of the plugin, each on the command line and in the ini file."""

from __future__ import annotations

import shlex

import pytest

from ._control import Server

#: By name: lockkeeper_NAME in the ini file, --lockkeeper-NAME on the command line, which comes first.
OPTIONS = {
    "binary": "the program lockkeeper, instead of the one in the package",
    "tree": "a file with the znodes that each server has at the beginning",
    "members": "how many members lockkeeper_cluster has (3)",
    "args": "more flags of 'lockkeeper serve'",
    "url": "the test control of a running server, for lockkeeper_noproc",
}

#: The servers that a test uses, by the names of their fixtures.
SERVERS = pytest.StashKey[dict[str, Server]]()


def option(config: pytest.Config, name: str) -> str | None:
    """Return an option of the plugin, or None."""
    value = config.getoption(f"lockkeeper_{name}") or config.getini(f"lockkeeper_{name}")
    return str(value) if value else None


def tree(config: pytest.Config) -> str | None:
    """Return the znodes of the option tree, whose path begins at pytest's root directory."""
    name = option(config, "tree")
    return None if name is None else (config.rootpath / name).read_text(encoding="utf-8")


def args(config: pytest.Config) -> list[str]:
    return shlex.split(option(config, "args") or "")


def members(config: pytest.Config) -> int:
    text = option(config, "members") or "3"
    if not text.isdigit():
        raise pytest.UsageError(f"lockkeeper members: {text!r} is not a number")
    return int(text)
