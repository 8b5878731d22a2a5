import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from helpers import await_end, is_running

from pytest_lockkeeper import Lockkeeper, LockkeeperError, StartError, binary, cluster
from pytest_lockkeeper._process import _Said


def answers(hosts):
    host, port = hosts.split(",")[0].split(":")
    try:
        with socket.create_connection((host, int(port)), 5):
            return True
    except OSError:
        return False


def test_start_and_stop():
    server = Lockkeeper()
    assert not server.running
    assert server.start() is server
    assert server.running and answers(server.hosts)
    hosts, pid = server.hosts, server.pid
    server.stop()
    assert not server.running and not answers(hosts)
    await_end(pid)
    server.stop()  # again: nothing
    server.start()  # it can be started again
    assert answers(server.hosts)
    server.stop()


def test_started_twice():
    with Lockkeeper() as server, pytest.raises(LockkeeperError, match="started already"):
        server.start()


def test_not_started():
    with pytest.raises(LockkeeperError, match="not started"):
        Lockkeeper().state()


def test_tree():
    with Lockkeeper(tree='/a = "x"\n/a/b = "äö"\n') as server:
        assert server.znode("/a").data == b"x"
        assert server.znode("/a/b").data == "äö".encode()


def test_json_log():
    with Lockkeeper(args=["--log-format", "json"]) as server:
        assert answers(server.hosts)
        assert server.state()


def test_cluster():
    with cluster(3, election_timeout=0.5) as server:
        assert len(server.hosts.split(",")) == 3
        assert server.leader() in (1, 2, 3)


def test_last_lines_of_the_log():
    read, write = os.pipe()
    said = _Said(os.fdopen(read, "rb"))
    os.write(write, b"".join(b"%d\n" % n for n in range(60)))
    os.close(write)
    said.close()
    assert said.printed == 60
    assert (said.text(2), said.text(0), said.text(-1)) == ("58\n59\n", "", "")


def test_variables_of_the_user(monkeypatch):
    """They are flags of the program, and would change what is tested."""
    monkeypatch.setenv("LOCKKEEPER_BEHAVE_AS", "3.4")
    monkeypatch.setenv("LOCKKEEPER_NONSENSE", "1")
    with Lockkeeper() as server:
        host, port = server.hosts.split(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(b"srvr")
            assert not connection.makefile("rb").readline().startswith(b"Zookeeper version: 3.4")


def test_start_again_on_a_port_that_is_taken():
    server = Lockkeeper().start()
    server.stop()
    with socket.create_server(("127.0.0.1", server._last_port)):
        server.restart_process()
    assert answers(server.hosts)
    server.stop()


def test_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartError, match=f"127.0.0.1:{port}.*in use"):
            Lockkeeper(port=port).start()
    with Lockkeeper(port=port) as server:
        assert server.hosts == f"127.0.0.1:{port}"


def test_wrong_flag_shows_what_the_server_said():
    with pytest.raises(StartError, match="no-such-flag"):
        Lockkeeper(args=["--no-such-flag"]).start()


def test_wrong_tree_shows_what_the_server_said():
    with pytest.raises(StartError, match="(?s)status.*a b"):
        Lockkeeper(tree="a b").start()


def test_missing_binary():
    with pytest.raises(StartError, match="/missing.*LOCKKEEPER_BINARY is the path of the program"):
        Lockkeeper(binary="/missing/lockkeeper").start()


def test_binary_from_the_environment(monkeypatch):
    monkeypatch.setenv("LOCKKEEPER_BINARY", "/missing/other")
    assert binary() == "/missing/other"


def test_binary_of_the_package(monkeypatch):
    monkeypatch.delenv("LOCKKEEPER_BINARY", raising=False)
    assert os.access(binary(), os.X_OK)
    assert "site-packages" in binary()


@pytest.mark.parametrize(("kill", "status"), [(signal.SIGKILL, -9), (signal.SIGTERM, 0)])
def test_server_that_has_ended_is_an_error(kill, status):
    server = Lockkeeper().start()
    os.kill(server.pid, kill)
    await_end_of_child(server)
    with pytest.raises(LockkeeperError, match=f"had ended with status {status}"):
        server.stop()


def await_end_of_child(server):
    deadline = time.monotonic() + 20
    while server.running:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_no_proxy(monkeypatch):
    for name in "http_proxy", "HTTP_PROXY", "ALL_PROXY":
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with Lockkeeper() as server:
        assert server.state().tree == ""


RUNNER = """
import os, sys, time
from pytest_lockkeeper import Lockkeeper
server = Lockkeeper().start()
child = os.fork() if sys.argv[1:] == ["fork"] else 1
if child != 0:
    os.write(1, f"{server.pid} {server.hosts} {child}\\n".encode())
time.sleep(600)
"""


@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_runner_that_is_killed_leaves_no_server(kill):
    runner = subprocess.Popen([sys.executable, "-c", RUNNER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    pid, hosts, _ = runner.stdout.readline().split()
    assert is_running(int(pid)) and answers(hosts)
    runner.send_signal(kill)
    runner.wait(20)
    await_end(int(pid))
    runner.stdout.close()


def test_closed_pipe_ends_the_server():
    """Where --parent-pid does not exist, this alone ends it."""
    server = Lockkeeper().start()
    server._process.stdin.close()
    await_end_of_child(server)
    with pytest.raises(LockkeeperError, match="had ended with status 0"):
        server.stop()


def test_child_of_the_runner_does_not_keep_the_server():
    """A process that was forked has the pipe, too."""
    runner = subprocess.Popen([sys.executable, "-c", RUNNER, "fork"], stdout=subprocess.PIPE, text=True)
    pid, _, forked = runner.stdout.readline().split()
    server, child = int(pid), int(forked)
    try:
        assert is_running(child) and is_running(server)
        runner.kill()
        runner.wait(20)
        await_end(server)
    finally:
        os.kill(child, signal.SIGKILL)
    runner.stdout.close()


def test_stop_while_a_child_has_the_pipe():
    script = """
import os, time
from pytest_lockkeeper import Lockkeeper
server = Lockkeeper().start()
child = os.fork()
if child == 0: time.sleep(600)
server.stop()
os.kill(child, 9)
print("stopped")
"""
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=25)
    assert out.stdout == "stopped\n", out.stderr


def test_interrupt_reaches_only_the_tests():
    """Ctrl-C goes to the whole group; the server must live until the tests have cleaned up."""
    with Lockkeeper() as server:
        assert os.getpgid(server.pid) != os.getpgid(0)
