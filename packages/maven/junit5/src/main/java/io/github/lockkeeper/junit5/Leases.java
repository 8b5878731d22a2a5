package io.github.lockkeeper.junit5;

import io.github.lockkeeper.test.LockkeeperException;
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
    synchronized void enter(List<AssertionError> failures) {
        if (running++ > 0) {
            return;
        }
        for (Lease lease : all.values()) {
            if (lease.before == null) {
                attempt(failures, () -> lease.before = lease.server.snapshot());
            }
        }
    }

    /** A test no longer uses those of a class. */
    synchronized void leave(List<AssertionError> failures) {
        if (--running > 0) {
            return;
        }
        all.values().forEach(lease -> attempt(failures, lease.server::check));
        all.values().forEach(lease -> attempt(failures, () -> lease.server.reset(lease.before)));
    }

    /** Adds what the servers are like to what failed a test. */
    synchronized void describe(Throwable failure) {
        all.values().forEach(lease -> failure.addSuppressed(new ServerAtFailure(lease.server)));
    }

    /** Judges and gives back all servers. */
    synchronized void end(List<AssertionError> failures) {
        all.values().forEach(lease -> attempt(failures, lease.server::check));
        all.forEach((settings, lease) -> attempt(failures, () -> pool.give(settings, lease.server, lease.before)));
        all.clear();
    }

    /** Does a step of the beginning or the end of a test. If it fails, the test does, and the steps after it are done all the same. */
    static void attempt(List<AssertionError> failures, Runnable step) {
        try {
            step.run();
        } catch (AssertionError e) {
            failures.add(e);
        } catch (LockkeeperException e) {
            failures.add(new AssertionError(e.getMessage(), e));
        }
    }
}
