"""A plugin for pytest that lets kazoo's own tests run against lockkeeper.

It stands in for kazoo.testing.common, which starts Java servers.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import types

import pytest_lockkeeper

SUPER = "super:D/InIHSb7yEEbrWz8b9l71RjZJU="  # super:test, which the tests know


SERVING = "lockkeeper: serving ZooKeeper clients on "


def pem(name):
    """The file with the certificate, the key or the authority that servers and clients use for TLS."""
    return os.path.join(os.environ["LOCKKEEPER_INTEROP_TLS"], name + ".pem")


kept = []


def free_port():
    """A port that is kept for our servers: who names it can listen there."""
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("127.0.0.1", 0))
    kept.append(s)
    return s.getsockname()[1]


class Server:
    def __init__(self):
        self.address = "127.0.0.1:%d" % free_port()
        self.secure_address = "127.0.0.1:%d" % free_port()
        self.peer = "127.0.0.1:%d" % free_port()
        self.dir = tempfile.mkdtemp(prefix="lockkeeper-interop-")
        self.process = None
        self.flags = []

    @property
    def running(self):
        return self.process is not None

    def launch(self):
        command = [pytest_lockkeeper.binary(), "serve", "--listen", self.address, "--data", self.dir, "--super-digest", SUPER, "--reconfig", "--read-only"]
        command += ["--tls-listen", self.secure_address, "--tls-cert", pem("cert"), "--tls-key", pem("key"), "--tls-ca", pem("ca")]
        self.said = tempfile.TemporaryFile(mode="w+")
        self.process = subprocess.Popen(command + self.flags, stderr=self.said)

    def text(self):
        self.said.flush()
        return os.pread(self.said.fileno(), 1 << 20, 0).decode()

    def await_(self):
        deadline = time.monotonic() + 60
        while SERVING not in self.text():
            assert self.process.poll() is None, self.text()
            assert time.monotonic() < deadline, self.text()
            time.sleep(0.005)

    def run(self):
        if not self.running:
            self.launch()
            self.await_()

    def stop(self):
        if self.running:
            self.process.terminate()
            assert self.process.wait() == 0, self.text()
            self.process = None


class Cluster(list):
    def __init__(self, size, **settings):
        super().__init__(Server() for _ in range(size))
        peers = ",".join("%d=%s" % (i, server.peer) for i, server in enumerate(self, 1))
        for i, server in enumerate(self, 1):
            server.flags = ["--id", str(i), "--peers", peers] if size > 1 else []
        if settings.get("jaas_config"):
            self.jaas = tempfile.NamedTemporaryFile("w")  # until the cluster is forgotten
            self.jaas.write(settings["jaas_config"])
            self.jaas.flush()
            for server in self:
                server.flags += ["--jaas", self.jaas.name]

    def start(self):
        down = [server for server in self if not server.running]
        for server in down:
            server.launch()
        for server in down:
            server.await_()

    def terminate(self):
        for server in self:
            server.stop()
            shutil.rmtree(server.dir)
            os.mkdir(server.dir)

    def get_logs(self):
        return []

    def get_ssl_client_configuration(self):
        pems = {}
        for name, file in ("client_key", "key"), ("client_cert", "cert"), ("ca_cert", "ca"):
            with open(pem(file), "rb") as f:
                pems[name] = f.read()
        return pems


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
