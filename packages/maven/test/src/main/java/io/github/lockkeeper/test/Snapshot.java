package io.github.lockkeeper.test;

/** A state of a server, which {@link LockkeeperServer#restore(Snapshot)} puts back. */
public final class Snapshot {
    final LockkeeperServer server;
    final long id;

    Snapshot(LockkeeperServer server, long id) {
        this.server = server;
        this.id = id;
    }
}
