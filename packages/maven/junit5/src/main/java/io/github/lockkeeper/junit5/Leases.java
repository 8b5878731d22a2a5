package io.github.lockkeeper.junit5;

import io.github.lockkeeper.test.LockkeeperServer;
import io.github.lockkeeper.test.Snapshot;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** The servers that a test has, or a class for all its tests. */
final class Leases {
    private static final class Lease {
        final LockkeeperServer server;
        Snapshot before; // the first test; null if there was none yet

        Lease(LockkeeperServer server) {
            this.server = server;
        }
    }

    private final Pool pool;
    private final Map<Settings, Lease> all = new HashMap<>();
    private int running; // tests that use those of a class

    Leases(Pool pool) {
        this.pool = pool;
    }

    synchronized LockkeeperServer find(Settings settings) {
        Lease lease = all.get(settings);
        return lease == null ? null : lease.server;
    }

    synchronized LockkeeperServer take(Settings settings) {
        return all.computeIfAbsent(settings, key -> new Lease(pool.take(key))).server;
    }

    /** A test begins to use those of a class. */
    synchronized void enter() {
        if (running++ > 0) {
            return;
        }
        for (Lease lease : all.values()) {
            if (lease.before == null) {
                lease.before = lease.server.snapshot();
            }
        }
    }

    /** A test no longer uses those of a class. */
    synchronized void leave(List<AssertionError> failures) {
        if (--running > 0) {
            return;
        }
        for (Lease lease : all.values()) {
            check(lease, failures);
            lease.server.reset(lease.before);
        }
    }

    /** Adds what the servers are like to what failed a test. */
    synchronized void describe(Throwable failure) {
        all.values().forEach(lease -> failure.addSuppressed(new ServerAtFailure(lease.server)));
    }

    /** Judges and gives back all servers. */
    synchronized void end(List<AssertionError> failures) {
        all.forEach((settings, lease) -> {
            check(lease, failures);
            pool.give(settings, lease.server, lease.before);
        });
        all.clear();
    }

    private static void check(Lease lease, List<AssertionError> failures) {
        try {
            lease.server.check();
        } catch (AssertionError e) {
            failures.add(e);
        }
    }
}
