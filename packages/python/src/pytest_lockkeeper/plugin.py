"""The pytest plugin: options, fixtures, and what a failed test shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from . import factories
from ._options import AT_END, OPTIONS, SERVERS

lockkeeper_proc = factories.lockkeeper_proc()
lockkeeper_noproc = factories.lockkeeper_noproc()
lockkeeper = factories.lockkeeper()
lockkeeper_cluster = factories.lockkeeper_cluster()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("lockkeeper")
    for name, text in OPTIONS.items():
        group.addoption(f"--lockkeeper-{name}", dest=f"lockkeeper_{name}", default=None, help=text)
        parser.addini(f"lockkeeper_{name}", text, default=None)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome: Any = yield
    report: pytest.TestReport = outcome.get_result()
    if not report.failed:
        return
    if report.when == "teardown":  # the servers are not any more what they were at the end of the test
        at_end: list[tuple[str, str]] = item.stash.get(AT_END, [])
        report.sections += at_end
    else:
        for name, shown in item.stash.get(SERVERS, {}).items():
            report.sections += shown.sections(name)
