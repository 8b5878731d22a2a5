import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.lockkeeper.junit5.Lockkeeper;
import io.github.lockkeeper.test.Guard;
import io.github.lockkeeper.test.LockkeeperServer;
import io.github.lockkeeper.test.Verdict;
import org.junit.jupiter.api.Test;

/** A worker is paused, for instance by its garbage collector, while it holds the lock, and its session ends. */
class WorkerTest {
    @Lockkeeper
    LockkeeperServer zookeeper;

    @Test
    void aReportThatChecksTokensRefusesTheLateWrite() throws Exception {
        Guard guard = zookeeper.guard(Worker.LOCK);
        Worker.Report report = (token, line) -> guard.write(token).accepted();
        try (Worker a = new Worker(zookeeper.connectString(), report); Worker b = new Worker(zookeeper.connectString(), report)) {
            a.begin(); // and now it is paused
            zookeeper.expire(a.session());

            b.begin();
            assertTrue(b.write("b"));

            assertFalse(a.write("a")); // a wakes up, and still believes in its lock
            assertTrue(b.write("b again"));
            b.end();
        }
        guard.verdict().assertOk();
    }

    @Test
    void aReportThatIgnoresTokensIsNotProtected() throws Exception {
        Guard guard = zookeeper.guard(Worker.LOCK);
        Worker.Report report = (token, line) -> {
            guard.writeUnchecked(token, "report");
            return true;
        };
        try (Worker a = new Worker(zookeeper.connectString(), report); Worker b = new Worker(zookeeper.connectString(), report)) {
            a.begin();
            assertTrue(a.write("a"));
            zookeeper.expire(a.session());

            b.begin();
            assertTrue(b.write("b"));

            assertTrue(a.write("a again")); // the lock did not protect the report
            b.end();
        }
        Verdict verdict = guard.verdict();
        assertFalse(verdict.ok(), verdict.toString());
    }
}
