"""mypy --strict finds no fault with the package, nor with a program that uses it."""

import subprocess
import sys

EXAMPLE = '''
from datetime import datetime
from pytest_lockkeeper import FreshServer, Lockkeeper, Server, Verdict

def test(lockkeeper: Server, lockkeeper_cluster: FreshServer) -> None:
    client = lockkeeper.client()
    lockkeeper.expire(client)
    lockkeeper.expire("0x1")
    since: datetime = lockkeeper.state().lock("/a").since
    with lockkeeper.guard("/a") as guard, lockkeeper.inject("delay", seconds=1.5, op="create*") as fault:
        fault.wait_fired()
        verdict: Verdict = guard.verdict()
    with Lockkeeper(cluster=3) as zk:
        leader: int = zk.leader()
        zk.kill(leader)
'''


def mypy(*args):
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--cache-dir", "/dev/null", *args], capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


def test_package():
    for version in ("3.10", "3.13"):
        out = mypy("--python-version", version, "--package", "pytest_lockkeeper")
        assert "Success: no issues found in 7 source files" in out, out


def test_program(tmp_path):
    (tmp_path / "example.py").write_text(EXAMPLE)
    out = mypy(str(tmp_path / "example.py"))
    assert "Success" in out, out


def test_wrong_program(tmp_path):
    """The types are those of the package: a mistake is found."""
    (tmp_path / "example.py").write_text(EXAMPLE.replace('"delay"', '"dely"').replace("lock(\"/a\")", "lock(1)"))
    out = mypy(str(tmp_path / "example.py"))
    assert "Found 2 errors" in out, out
