import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest
from helpers import await_end, clean_environment, is_running, use_clean_environment

from pytest_lockkeeper import Lockkeeper


@pytest.fixture
def run(pytester, monkeypatch):
    """Run pytest on a test file, as a user does."""
    use_clean_environment(monkeypatch)

    def run(text, *args):
        pytester.makepyfile(text)
        return pytester.runpytest_subprocess("-p", "no:cacheprovider", *args, timeout=100)

    return run


def test_state_is_put_back(run):
    run(
        """
        import pytest

        from pytest_lockkeeper import RequestError

        @pytest.fixture(scope="module", autouse=True)
        def given(lockkeeper_proc):
            lockkeeper_proc.add_tree('/given = "x"')

        @pytest.mark.parametrize("n", [1, 2])
        def test(lockkeeper, n):
            assert lockkeeper.tree() == '/given = "x"\\n'
            client = lockkeeper.client()
            client.set("/given", b"y")
            client.create("/a", ephemeral=True)
            lockkeeper.inject("refuse", op="connect", times=-1, optional=True)
            if n == 1:
                lockkeeper.kill()

        def test_after(lockkeeper):
            state = lockkeeper.state()
            assert state.tree == '/given = "x"\\n' and state.sessions == [] and lockkeeper.requests() == []

        def test_snapshots_of_earlier_tests_are_forgotten(lockkeeper_proc):
            for snapshot in 1, 2, 3:
                with pytest.raises(RequestError, match=f"no snapshot {snapshot}, or it was removed"):
                    lockkeeper_proc.restore(snapshot)
        """
    ).assert_outcomes(passed=4)


def test_user_code_may_leave_its_clients(run):
    run(
        """
        from kazoo.client import KazooClient

        def test_1(lockkeeper):
            client = KazooClient(hosts=lockkeeper.hosts)
            client.start()
            client.create("/a", ephemeral=True)

        def test_2(lockkeeper):
            assert lockkeeper.tree() == ""
        """
    ).assert_outcomes(passed=2)


def test_one_process_for_all_tests(run):
    run(
        """
        seen = set()

        def test_1(lockkeeper, lockkeeper_proc):
            seen.add(lockkeeper_proc.pid)

        def test_2(lockkeeper_cluster, lockkeeper_proc):
            seen.add(lockkeeper_proc.pid)
            assert len(lockkeeper_cluster.hosts.split(",")) == 3

        def test_3():
            assert len(seen) == 1
        """
    ).assert_outcomes(passed=3)


def test_server_that_a_test_stops(run):
    run(
        """
        import os

        def test_1(lockkeeper, lockkeeper_proc):
            lockkeeper_proc.stop()

        def test_2(lockkeeper, lockkeeper_proc):
            lockkeeper.client().create("/a")
            os.kill(lockkeeper_proc.pid, 9)

        def test_3(lockkeeper):
            assert lockkeeper.tree() == ""

        def test_4(lockkeeper_proc):
            lockkeeper_proc.stop()

        def test_5(lockkeeper_cluster, lockkeeper_proc):
            assert lockkeeper_cluster.tree() == ""

        def test_6(lockkeeper_proc):
            lockkeeper_proc.stop()

        def test_7(lockkeeper):
            assert lockkeeper.tree() == ""
        """
    ).assert_outcomes(passed=7, errors=1)


def test_failure_shows_the_znodes_and_requests(run):
    result = run(
        """
        def test(lockkeeper, lockkeeper_cluster):
            lockkeeper.client().create("/here", b"data")
            lockkeeper_cluster.client().create("/there")
            assert False
        """
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*- lockkeeper: znodes -*",
            '/here = "data"',
            "*- lockkeeper: the last 2 of 2 requests -*",
            "*connect*",
            "*create*/here*",
            "*- lockkeeper_cluster: znodes -*",
            "/there",
            "*create*/there*",
        ]
    )


def test_failure_shows_the_line_of_the_test_only(run):
    result = run(
        """
        import os

        def test_inject(lockkeeper):
            lockkeeper.inject("closeAfter", op="craete")

        def test_wait(lockkeeper):
            lockkeeper.wait_exists("/a", timeout=0.05)

        def test_wrong_type(lockkeeper):
            lockkeeper.wait_exists("/a", timeout="5")

        def test_dead(lockkeeper, lockkeeper_proc):
            os.kill(lockkeeper_proc.pid, 9)
            lockkeeper.state()
        """,
    )
    result.assert_outcomes(failed=4, errors=1)
    result.stdout.fnmatch_lines(
        [
            "E *there are no requests of type \"craete\"*",
            "E *pytest_lockkeeper.WaitTimeout: /wait/exists: /a is not created (waited 50ms)",
            "E *TypeError: a timeout is seconds or a timedelta, as all durations are, and not '5'",
            "E *pytest_lockkeeper.LockkeeperError: http://*/state: the server had ended with status -9",
        ]
    )
    assert "def wait_exists" not in result.stdout.str() and "_control.py" not in result.stdout.str()
    assert "client.py" not in result.stdout.str()


def test_failure_in_a_fixture_shows_the_server(run):
    result = run(
        """
        import pytest

        @pytest.fixture
        def service(lockkeeper):
            lockkeeper.client().create("/here")
            raise OSError("cannot start")

        def test(service): pass
        """
    )
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*- lockkeeper: znodes -*", "/here"])


def test_failure_shows_the_log_of_the_test(run):
    result = run(
        """
        import time

        from pytest_lockkeeper import factories

        chatty_proc = factories.lockkeeper_proc(args=["--log-level", "debug"])
        chatty = factories.lockkeeper("chatty_proc")

        def test(chatty, chatty_proc):
            before = chatty_proc.printed
            chatty.new_server(cluster=3).stop()
            while chatty_proc.printed == before:
                time.sleep(0.01)
            assert False
        """,
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*- chatty: log -*", "*level=*"])


def test_failure_without_a_server_says_so(run):
    result = run(
        """
        def test(lockkeeper, lockkeeper_proc):
            lockkeeper_proc.stop()
            assert False
        """
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*- lockkeeper -*", "the server is not started, or it was stopped"])


def test_later_tests_say_that_the_server_died(run):
    result = run(
        """
        import os, signal
        import pytest
        from pytest_lockkeeper import LockkeeperError

        @pytest.fixture(scope="module")
        def hosts(lockkeeper_proc):
            return lockkeeper_proc.hosts

        def test_first(hosts, lockkeeper, lockkeeper_proc):
            os.kill(lockkeeper_proc.pid, signal.SIGKILL)
            with pytest.raises(LockkeeperError, match="/state: the server had ended with status -9"):
                lockkeeper.state()

        def test_fails_later(hosts, lockkeeper):
            assert hosts == lockkeeper.hosts
            assert False

        def test_passes_later(hosts, lockkeeper):
            assert hosts == lockkeeper.hosts
        """
    )
    result.assert_outcomes(passed=2, failed=1, errors=1)
    result.stdout.fnmatch_lines(
        [
            "*ERROR at teardown of test_first*",
            "its state could not be put back: *the server had ended with status -9",
            "*FAILURES*",
            "*- lockkeeper: started again -*",
            "the server was started again after *::test_first, since its state could not be put back: *status -9",
        ]
    )


def test_request_that_is_refused_changes_nothing(run):
    run(
        """
        import pytest
        from pytest_lockkeeper import RequestError

        seen = set()

        @pytest.mark.parametrize("n", range(3))
        def test(lockkeeper, lockkeeper_proc, n):
            seen.add((lockkeeper_proc.pid, lockkeeper_proc.hosts))
            with pytest.raises(RequestError):
                lockkeeper.partition([1], [2])
            with pytest.raises(RequestError):
                lockkeeper.restart(1)

        def test_same():
            assert len(seen) == 1
        """
    ).assert_outcomes(passed=4)


def test_success_shows_nothing(run):
    result = run("def test(lockkeeper): pass", "-rA")
    assert "znodes" not in result.stdout.str()


def test_open_guard_is_judged(run):
    result = run(
        """
        def test(lockkeeper):
            lockkeeper.guard("/locks/a").write(12345)

        def test_cluster(lockkeeper_cluster):
            lockkeeper_cluster.guard("/locks/a").write(12345)

        def test_after(lockkeeper):
            lockkeeper.guard("/locks/a")
        """
    )
    result.assert_outcomes(passed=3, errors=2)
    result.stdout.fnmatch_lines(["the lock /locks/a: *"])


def test_unmet_fault_fails_the_test(run):
    result = run(
        """
        def test_unmet(lockkeeper):
            lockkeeper.inject("closeAfter", op="create*", path="/typo")
            lockkeeper.client().create("/typed")

        def test_unmet_in_cluster(lockkeeper_cluster):
            lockkeeper_cluster.inject("closeAfter", op="create*", path="/typo")
            lockkeeper_cluster.add_tree("/typed-too")

        def test_met(lockkeeper):
            lockkeeper.inject("delay", seconds=0, op="create*")
            lockkeeper.client().create("/a")

        def test_removed(lockkeeper):
            assert not lockkeeper.inject("drop").remove()

        def test_optional(lockkeeper):
            lockkeeper.inject("refuse", op="connect", times=-1, optional=True)
            with lockkeeper.inject("drop", optional=True):
                pass

        def test_restored(lockkeeper):
            before = lockkeeper.snapshot()
            lockkeeper.inject("drop", optional=True)
            lockkeeper.restore(before)

        def test_matched(lockkeeper):
            lockkeeper.inject("delay", seconds=0, op="create*", nth=2)
            lockkeeper.client().create("/a")
        """
    )
    result.assert_outcomes(passed=7, errors=3)
    result.stdout.fnmatch_lines(['inject("delay", op="create[*]", nth=2): 1 requests have matched it, but not taken effect, so *'])
    result.stdout.fnmatch_lines(
        [
            'inject("closeAfter", op="create[*]", path="/typo"): no request has met this fault, so the test has failed; with optional=True it would not',
            "*- lockkeeper: znodes -*",
            "/typed",
            "*- lockkeeper: the last 2 of 2 requests -*",
            "*create*/typed*",
            "*- lockkeeper_cluster: znodes -*",
            "/typed-too",
        ]
    )


def test_fixtures_have_descriptions(run):
    result = run("def test(): pass", "--fixtures")
    result.stdout.fnmatch_lines(["lockkeeper --*", "    A ZooKeeper for this test*"])
    assert "no docstring available" not in result.stdout.str().partition("pytest_lockkeeper.factories")[2].partition("-- fixtures defined")[0]


def test_missing_tree(run):
    result = run("def test(lockkeeper): pass", "--lockkeeper-tree=missing.txt")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["lockkeeper tree: */missing.txt: *No such file*"])
    assert "Traceback" not in result.stdout.str() and "_options.py" not in result.stdout.str()


@pytest.mark.parametrize("members", ["0", "-1", "10", "12", "three"])
def test_members_that_are_refused(run, members):
    result = run("def test(lockkeeper_cluster): pass", f"--lockkeeper-members={members}")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"lockkeeper members: '{members}' is not in 1 to 9"])
    assert "Traceback" not in result.stdout.str() and "_options.py" not in result.stdout.str()


@pytest.mark.parametrize("where", ["ini", "command line"])
def test_options(run, pytester, where):
    pytester.path.joinpath("tree.txt").write_text('/a = "x"\n')
    options = {"tree": "tree.txt", "members": "5", "args": "--tick-time 500ms"}
    flags = []
    if where == "ini":
        pytester.makeini("[pytest]\n" + "".join(f"lockkeeper_{name} = {value}\n" for name, value in options.items()))
    else:
        flags = [f"--lockkeeper-{name}={value}" for name, value in options.items()]
    run(
        """
        def test(lockkeeper, lockkeeper_cluster):
            assert len(lockkeeper_cluster.hosts.split(",")) == 5
            for server in lockkeeper, lockkeeper_cluster:
                assert server.tree() == '/a = "x"\\n'
            client = lockkeeper.client(timeout=0.1)
            (session,) = lockkeeper.state().sessions
            assert session.timeout == 1.0  # two ticks at least
        """,
        *flags,
    ).assert_outcomes(passed=1)


def test_missing_binary(run):
    result = run("def test(lockkeeper): pass", "--lockkeeper-binary=/missing")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*/missing*LOCKKEEPER_BINARY is the path of the program*"])
    assert "Traceback" not in result.stdout.str()


def test_factories(run):
    run(
        """
        from pytest_lockkeeper import factories

        other_proc = factories.lockkeeper_proc(tree='/a = "x"', args=["--log-level", "info"])
        other = factories.lockkeeper("other_proc")
        five = factories.lockkeeper_cluster(members=5, tree="/b")
        three_proc = factories.lockkeeper_proc(cluster=3, election_timeout=0.5)
        three = factories.lockkeeper("three_proc")

        def test_other(lockkeeper, other):
            assert (lockkeeper.tree(), other.tree()) == ("", '/a = "x"\\n')

        def test_five(five):
            assert (len(five.hosts.split(",")), five.tree()) == (5, "/b\\n")

        def test_three(three):
            three.client().create("/c")
            three.kill(three.leader())
            three.partition([1], [2])

        def test_three_again(three):
            assert three.tree() == ""
            assert [m.role for m in three.state().members].count("leader") == 1
        """
    ).assert_outcomes(passed=4)


NOPROC = """
    import os, pytest
    from pytest_lockkeeper import factories

    running = factories.lockkeeper("lockkeeper_noproc")

    @pytest.mark.parametrize("n", range(4))
    def test(running, n):
        assert (running.hosts == os.environ["HOSTS"]) == ("PYTEST_XDIST_WORKER" not in os.environ)
        assert running.tree() == ""
        running.client().create("/a")
        assert running.tree() == "/a\\n"
"""


@pytest.mark.parametrize("workers", [[], ["-n2"]])
def test_noproc(run, monkeypatch, workers):
    with Lockkeeper() as server:
        monkeypatch.setenv("HOSTS", server.hosts)
        run(NOPROC, f"--lockkeeper-url={server.url}", *workers).assert_outcomes(passed=4)
        assert server.tree() == ""
        assert len(server.servers()) == 1


def test_noproc_without_a_server(run):
    result = run(NOPROC)
    result.assert_outcomes(errors=4)
    result.stdout.fnmatch_lines(["--lockkeeper-url must name*"])
    run(NOPROC, "--lockkeeper-url=http://127.0.0.1:1").assert_outcomes(errors=4)


def test_xdist(run, pytester):
    run(
        """
        import pathlib, pytest

        @pytest.mark.parametrize("n", range(20))
        def test(lockkeeper, lockkeeper_proc, worker_id, n):
            client = lockkeeper.client()
            client.create("/same")
            pathlib.Path(f"{worker_id}-{lockkeeper_proc.pid}.pid").touch()
        """,
        "-n2",
    ).assert_outcomes(passed=20)
    files = [path.name for path in pytester.path.glob("*.pid")]
    assert len(files) == 2, files  # one process for each worker
    for name in files:
        await_end(int(re.search(r"-(\d+)", name)[1]))


@pytest.mark.parametrize("workers", [[], ["-n2"]])
def test_killed_runner_leaves_no_server(pytester, workers):
    pytester.makepyfile(
        """
        import pathlib, pytest, time

        @pytest.mark.parametrize("n", range(2))
        def test(lockkeeper, lockkeeper_proc, n):
            pathlib.Path(f"{lockkeeper_proc.pid}.pid").touch()
            time.sleep(600)
        """
    )
    servers = max(1, 2 * len(workers))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *workers]
    runner = subprocess.Popen(command, cwd=pytester.path, env=clean_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while len(pids := [int(path.stem) for path in pathlib.Path(pytester.path).glob("*.pid")]) < servers:
            assert time.monotonic() < deadline and runner.poll() is None
            time.sleep(0.05)
        assert all(is_running(pid) for pid in pids)
    finally:
        runner.send_signal(signal.SIGKILL)
        runner.wait(20)
    for pid in pids:
        await_end(pid)
