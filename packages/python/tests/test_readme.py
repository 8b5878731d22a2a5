"""Each piece of Python in the README is a test that passes as it stands."""

import pathlib
import re

import pytest
from helpers import use_clean_environment

README = pathlib.Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.M | re.S)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_block(pytester, monkeypatch, number):
    use_clean_environment(monkeypatch)
    pytester.makepyfile(BLOCKS[number])
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", timeout=60)
    outcomes = result.parseoutcomes()
    assert result.ret == 0 and outcomes == {"passed": BLOCKS[number].count("def test_")}


def test_all_are_run():
    assert len(BLOCKS) == 9 and all("def test_" in block for block in BLOCKS)
