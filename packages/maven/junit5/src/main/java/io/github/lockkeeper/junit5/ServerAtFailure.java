package io.github.lockkeeper.junit5;

import io.github.lockkeeper.test.LockkeeperServer;

/** What a server was like when a test failed, among the suppressed exceptions of the failure. */
final class ServerAtFailure extends RuntimeException {
    private static final long serialVersionUID = 1;

    ServerAtFailure(LockkeeperServer server) {
        super(server.connectString() + ": " + server.report(), null, false, false);
    }
}
