"""Takes a lock of kazoo in turn with clients of other kinds: mixed.py SERVER PATH DIR KIND TURNS.

Whoever is inside has a file in DIR, and looks at the files of the others.
"""

import os
import sys
import time
import uuid

from kazoo.client import KazooClient

server, path, directory, kind, turns = sys.argv[1:]
client = KazooClient(hosts=server, timeout=10)
client.start()
lock = {
    "mutex": lambda: client.Lock(path, extra_lock_patterns=["lock-"]),
    "write": lambda: client.WriteLock(path, extra_lock_patterns=["__WRIT__", "__READ__"]),
    "read": lambda: client.ReadLock(path, extra_lock_patterns=["__WRIT__"]),
}[kind]()
for _ in range(int(turns)):
    with lock:
        me = kind + "-" + uuid.uuid4().hex
        mine = os.path.join(directory, me)
        open(mine, "w").close()
        for other in os.listdir(directory):
            if other != me and not (kind == "read" and other.startswith("read-")):
                sys.exit(me + " is inside together with " + other)
        time.sleep(0.005)
        os.remove(mine)
client.stop()
