"""A plugin for pytest that lets kazoo's own tests run against lockkeeper.

It stands in for kazoo.testing.common, which starts Java servers.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import types

SUPER = "super:D/InIHSb7yEEbrWz8b9l71RjZJU="  # super:test, which the tests know


class Server:
    def __init__(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.address = "%s:%d" % s.getsockname()
        self.dir = tempfile.mkdtemp(prefix="lockkeeper-interop-")
        self.process = None

    @property
    def running(self):
        return self.process is not None

    def run(self):
        if self.running:
            return
        command = [os.environ["LOCKKEEPER_BINARY"], "serve", "--listen", self.address, "--data", self.dir, "--super-digest", SUPER]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        # There may be a line before it, about a client that outlived its test.
        line = ""
        while not line.startswith("lockkeeper: serving ZooKeeper clients on "):
            line = self.process.stderr.readline()
            assert line, "lockkeeper has ended"

    def stop(self):
        if self.running:
            self.process.terminate()
            said = self.process.stderr.read()
            assert self.process.wait() == 0, said
            self.process = None


class Cluster(list):
    def __init__(self, **settings):
        super().__init__([Server()])

    def start(self):
        for server in self:
            server.run()

    def terminate(self):
        for server in self:
            server.stop()
            shutil.rmtree(server.dir)
            os.mkdir(server.dir)

    def get_logs(self):
        return []


def pytest_unconfigure():
    from kazoo.testing import harness

    if harness.CLUSTER is not None:
        harness.CLUSTER.terminate()
        for server in harness.CLUSTER:
            os.rmdir(server.dir)
        harness.CLUSTER.clear()  # the harness terminates it once more


common = types.ModuleType("kazoo.testing.common")
common.ZookeeperCluster = Cluster
sys.modules[common.__name__] = common
