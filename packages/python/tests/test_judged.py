"""The cases of packages/judged.json, each as a test of a user."""

import json
import pathlib
import xml.etree.ElementTree as ElementTree

from helpers import use_clean_environment

TABLE = pathlib.Path(__file__).parents[2] / "judged.json"
CASES = json.loads(TABLE.read_text(encoding="utf-8"))["cases"]

TESTS = '''
import json, os, pathlib, signal, socket, struct

import pytest
from pytest_lockkeeper import RequestError

CASES = json.loads(pathlib.Path(os.environ["JUDGED"]).read_text(encoding="utf-8"))["cases"]


class Boom(Exception):
    pass


def block(thing, raises, inside):
    with pytest.raises(Boom):
        with thing as it:
            inside(it)
            if raises:
                raise Boom
        raise Boom


def connect(hosts):
    host, port = hosts.split(",")[0].split(":")
    with socket.create_connection((host, int(port)), 30) as connection:
        request = struct.pack(">iqiqi16s?", 0, 0, 10000, 0, 16, bytes(16), False)
        connection.sendall(struct.pack(">i", len(request)) + request)
        connection.recv(4)


@pytest.mark.parametrize("number", range(len(CASES)))
def test(request, lockkeeper_proc, number):
    case = CASES[number]
    zk = request.getfixturevalue("lockkeeper_cluster" if case.get("cluster") else "lockkeeper")
    refusals = {"partition": lambda: zk.partition([1], [2]), "restart": lambda: zk.restart(1)}
    fault = guard = snapshot = None
    for step in case["steps"]:
        name, value = next(iter(step.items()))
        if name == "inject":
            fault = zk.inject(**value)
        elif name == "remove":
            fault.remove()
        elif name == "scoped":
            block(zk.inject(**value), step.get("raise"), lambda fault: None)
        elif name == "guard":
            guard = zk.guard(value)
        elif name == "write":
            guard.write(value)
        elif name == "guarded":
            block(zk.guard(value), step.get("raise"), lambda guard: guard.write(step["write"]))
        elif name == "verdict":
            guard.verdict()
        elif name == "connect":
            connect(zk.hosts)
        elif name == "refused":
            with pytest.raises(RequestError):
                refusals[value]()
        elif name == "kill":
            zk.kill(value)
        elif name == "snapshot":
            snapshot = zk.snapshot()
        elif name == "restore":
            zk.restore(snapshot)
        elif name == "stop":
            zk.stop()
        elif name == "killProcess":
            os.kill(lockkeeper_proc.pid, signal.SIGKILL)
            while lockkeeper_proc.running:
                pass
        else:
            assert False, step
'''


def test_cases(pytester, monkeypatch):
    use_clean_environment(monkeypatch)
    monkeypatch.setenv("JUDGED", str(TABLE))
    pytester.makepyfile(TESTS)
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider", "--junitxml=report.xml", timeout=300)
    tests = {}  # an error at the end of a test that has failed comes in an element of its own
    for test in ElementTree.parse(pytester.path / "report.xml").iter("testcase"):
        problems = [(e.get("message") or "") + (e.text or "") for e in test if e.tag in ("failure", "error")]
        tests.setdefault(test.get("name"), []).extend(problems)
    assert len(tests) == len(CASES) == 29, done.stdout.str()
    wrong = []
    for number, case in enumerate(CASES):
        said = "\n".join(tests[f"test[{number}]"])
        if bool(said) != ("fails" in case) or not all(text in said for text in case.get("fails", [])):
            wrong.append(f"{case['name']}: {said or 'passed'}")
    assert not wrong, "\n\n".join(wrong)
