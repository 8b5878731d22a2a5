"""A ZooKeeper for each test, which starts in milliseconds: lockkeeper, with its test control."""
import json
import os
import re
import subprocess
import threading
import urllib.error
import urllib.request

import pytest


class Lockkeeper:
    def __init__(self, *flags):
        command = [os.environ.get("LOCKKEEPER_BINARY", "lockkeeper"), "serve", "--memory", "--log-level", "error",
                   "--listen", "127.0.0.1:0", "--test-control", "127.0.0.1:0", *flags]
        try:
            self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        except OSError as error:
            pytest.fail(f"{error}; LOCKKEEPER_BINARY is the path of the program")
        said = ""  # other lines may come first
        while len(addresses := re.findall(r"^lockkeeper: .* on (\S+)\n", said, re.M)) < 2:
            said += self.process.stderr.readline() or pytest.fail(said)
        self.url, self.hosts = addresses
        self.log = []
        threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True).start()

    def get(self, path, body=None):
        """What docs/test-control.md says about path."""
        try:
            return json.load(urllib.request.urlopen(self.url + path, body))
        except urllib.error.HTTPError as error:
            pytest.fail(f"{path}: {json.load(error)['error']}")

    def post(self, endpoint, /, **body):
        return self.get(endpoint, json.dumps(body).encode())

    def stop(self):
        self.process.terminate()
        assert self.process.wait() == 0, self.log


@pytest.fixture
def zookeeper(request):
    server = Lockkeeper(*getattr(request, "param", []))  # the parameters are more flags
    yield server
    server.stop()
