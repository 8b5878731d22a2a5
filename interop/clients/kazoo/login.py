"""Authenticates with the tickets of its environment, and prints who the client is then; kerberos_test.go says how."""

import sys
import time

from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError
from kazoo.protocol.states import KeeperState
from kazoo.security import make_acl

FAR = 60  # seconds; only decides when it gives up


def main():
    client = KazooClient(hosts=sys.argv[1], timeout=20, sasl_options={"mechanism": "GSSAPI"})
    connected = client.start_async()
    end = time.monotonic() + FAR
    while not connected.wait(0.05) and client.client_state != KeeperState.AUTH_FAILED:
        if time.monotonic() > end:
            sys.exit("it does not connect")
    try:
        path = client.create("/login-", acl=[make_acl("auth", "", all=True)], ephemeral=True, sequence=True)
    except AuthFailedError:
        print("is refused")
        return
    acls, _ = client.get_acls(path)
    print("is", *(acl.id.id for acl in acls if acl.id.scheme == "sasl"))
    client.stop()
    client.close()


main()
