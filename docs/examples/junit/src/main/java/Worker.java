import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryForever;

/** Writes to a report while it holds a lock. Only one of several workers holds it at a time. */
final class Worker implements AutoCloseable {
    static final String LOCK = "/locks/report";

    /** What the lock protects. */
    interface Report {
        /**
         * Adds a line.
         *
         * @param token the fencing token of the writer: a report refuses one that is less than another that it has seen
         * @return whether it was added
         */
        boolean add(long token, String line);
    }

    /** A lock that tells its fencing token. */
    private static final class Mutex extends InterProcessMutex {
        private final CuratorFramework client;

        Mutex(CuratorFramework client) {
            super(client, LOCK);
            this.client = client;
        }

        long token() throws Exception {
            return client.checkExists().forPath(getLockPath()).getCzxid();
        }
    }

    private final CuratorFramework client;
    private final Mutex mutex;
    private final Report report;
    private long token;

    Worker(String connectString, Report report) {
        client = CuratorFrameworkFactory.newClient(connectString, 10_000, 10_000, new RetryForever(50));
        client.start();
        mutex = new Mutex(client);
        this.report = report;
    }

    /** Takes the lock, and waits for it. */
    void begin() throws Exception {
        mutex.acquire();
        token = mutex.token();
    }

    /** Writes a line. The worker may have lost the lock in the meantime, without knowing it. */
    boolean write(String line) {
        return report.add(token, line);
    }

    /** Releases the lock. */
    void end() throws Exception {
        mutex.release();
    }

    long session() throws Exception {
        return client.getZookeeperClient().getZooKeeper().getSessionId();
    }

    @Override
    public void close() {
        client.close();
    }
}
