package io.github.lockkeeper.test;

import java.util.Map;

/** A state of a server, which {@link LockkeeperServer#restore(Snapshot)} puts back. */
public final class Snapshot {
    final LockkeeperServer server;
    final long id;

    Snapshot(LockkeeperServer server, long id) {
        this.server = server;
        this.id = id;
    }

    /** Forgets the state, and frees its memory. It cannot be put back any more. */
    public void remove() {
        server.call("/snapshot/remove", Map.of("snapshot", id));
    }
}
