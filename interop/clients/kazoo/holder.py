"""Holds each kind of kazoo's locks on the server in the argument until its input ends."""

import sys
import threading

from kazoo.client import KazooClient

first, second = KazooClient(sys.argv[1]), KazooClient(sys.argv[1])
first.start()
second.start()
first.Lock("/kazoo/mutex", "worker 1\n").acquire()
threading.Thread(target=second.Lock("/kazoo/mutex").acquire, daemon=True).start()
first.ReadLock("/kazoo/rw").acquire()
second.ReadLock("/kazoo/rw").acquire()
threading.Thread(target=first.WriteLock("/kazoo/rw").acquire, daemon=True).start()
for client in (first, second):
    client.Semaphore("/kazoo/semaphore", max_leases=2).acquire()
threading.Thread(target=first.Semaphore("/kazoo/semaphore", max_leases=2).acquire, daemon=True).start()
threading.Thread(target=first.Election("/kazoo/election").run, args=(threading.Event().wait,), daemon=True).start()
print("held", flush=True)
sys.stdin.read()
