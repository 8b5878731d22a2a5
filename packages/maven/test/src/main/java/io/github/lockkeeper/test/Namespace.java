package io.github.lockkeeper.test;

import java.util.Map;

/** A znode of a test's own, in which a client can work as if it were the root. */
public final class Namespace implements AutoCloseable {
    private final LockkeeperServer server;
    private final Reply reply;

    Namespace(LockkeeperServer server, Reply reply) {
        this.server = server;
        this.reply = reply;
    }

    /**
     * Its path, with which paths given to {@link LockkeeperServer} begin.
     *
     * @return the path
     */
    public String path() {
        return reply.text("path");
    }

    /**
     * What a client connects to.
     *
     * @return the servers' addresses, and the path
     */
    public String connectString() {
        return reply.text("connect");
    }

    /** Deletes it with all that is in it. */
    @Override
    public void close() {
        server.call("/namespace/remove", Map.of("path", path()));
    }
}
