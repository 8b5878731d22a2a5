"""The pytest plugin: options, fixtures, and what a failed test shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from . import factories
from ._control import LockkeeperError, Server
from ._options import OPTIONS, SERVERS

lockkeeper_proc = factories.lockkeeper_proc()
lockkeeper_noproc = factories.lockkeeper_noproc()
lockkeeper = factories.lockkeeper()
lockkeeper_cluster = factories.lockkeeper_cluster()

SHOWN_REQUESTS = 20


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("lockkeeper")
    for name, text in OPTIONS.items():
        group.addoption(f"--lockkeeper-{name}", dest=f"lockkeeper_{name}", default=None, help=text)
        parser.addini(f"lockkeeper_{name}", text, default=None)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome: Any = yield
    report: pytest.TestReport = outcome.get_result()
    if report.when != "teardown" and report.failed:
        for name, shown in item.stash.get(SERVERS, {}).items():
            if shown.again:
                report.sections.append((f"{name}: started again", shown.again))
            report.sections += _sections(name, shown.server)
            if shown.process and (log := shown.process.log_after(shown.printed)):
                report.sections.append((f"{name}: log", log))


def _sections(name: str, server: Server) -> list[tuple[str, str]]:
    try:
        tree = server.tree()
        requests = server.requests()
    except LockkeeperError as error:
        return [(name, str(error))]
    last = requests[-SHOWN_REQUESTS:]
    lines = [f"{r.time.time().isoformat()} {r.session or '-'} {r.text}" for r in last]
    return [
        (f"{name}: znodes", tree or "none"),
        (f"{name}: the last {len(last)} of {len(requests)} requests", "\n".join(lines) or "none"),
    ]
