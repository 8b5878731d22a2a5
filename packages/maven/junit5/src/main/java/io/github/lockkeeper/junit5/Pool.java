package io.github.lockkeeper.junit5;

import io.github.lockkeeper.test.LockkeeperException;
import io.github.lockkeeper.test.LockkeeperServer;
import io.github.lockkeeper.test.Snapshot;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.extension.ExtensionContext;

/** The servers of a run that no test uses now. Each has the state with which it began. */
@SuppressWarnings("deprecation") // JUnit before 5.13 closes only a CloseableResource
final class Pool implements ExtensionContext.Store.CloseableResource, AutoCloseable {
    private final Map<Settings, Deque<LockkeeperServer>> idle = new HashMap<>();

    LockkeeperServer take(Settings settings) {
        synchronized (this) {
            Deque<LockkeeperServer> some = idle.get(settings);
            if (some != null && !some.isEmpty()) {
                return some.pop();
            }
        }
        return settings.start();
    }

    /**
     * Takes a server back, with a snapshot that nobody needs any more, or null. One that cannot be put back to its
     * beginning ends, and the exception says why it cannot. One with a session ends, too: a client that was left open would
     * come back, and meet the faults of the next test. A test may have closed it.
     */
    void give(Settings settings, LockkeeperServer server, Snapshot unneeded) {
        if (server.isClosed()) {
            return;
        }
        try {
            if (!server.state().sessions().isEmpty()) {
                server.close();
                return;
            }
            if (unneeded != null) {
                unneeded.remove();
            }
            server.reset(null);
        } catch (LockkeeperException e) {
            try {
                server.close();
            } catch (AssertionError ended) {
                e.addSuppressed(ended);
            }
            throw e;
        }
        synchronized (this) {
            idle.computeIfAbsent(settings, key -> new ArrayDeque<>()).push(server);
        }
    }

    @Override
    public void close() {
        List<LockkeeperServer> all = new ArrayList<>();
        synchronized (this) {
            idle.values().forEach(all::addAll);
            idle.clear();
        }
        List<AssertionError> failures = new ArrayList<>();
        all.forEach(server -> Leases.attempt(failures, server::close));
        LockkeeperExtension.fail(failures);
    }
}
