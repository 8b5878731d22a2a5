package tests;

import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.retry.RetryForever;
import org.apache.zookeeper.Watcher.Event.KeeperState;
import org.apache.zookeeper.ZooKeeper;

/** What tests need that use nothing but Curator, and so run with Curator's own TestingServer, too. */
final class Clients {
    private Clients() {}

    static CuratorFramework connect(String connectString) throws Exception {
        CuratorFramework client = CuratorFrameworkFactory.newClient(connectString, 10_000, 10_000, new RetryForever(50));
        client.start();
        assertTrue(client.blockUntilConnected(1, TimeUnit.MINUTES));
        return client;
    }

    static long session(CuratorFramework client) throws Exception {
        return client.getZookeeperClient().getZooKeeper().getSessionId();
    }

    /** Ends a client's session as any ZooKeeper allows it: another client resumes it, and closes it. */
    static void endSession(CuratorFramework client, String connectString) throws Exception {
        ZooKeeper owner = client.getZookeeperClient().getZooKeeper();
        CountDownLatch connected = new CountDownLatch(1);
        try (ZooKeeper thief = new ZooKeeper(connectString, 10_000, event -> {
            if (event.getState() == KeeperState.SyncConnected) {
                connected.countDown();
            }
        }, owner.getSessionId(), owner.getSessionPasswd())) {
            assertTrue(connected.await(1, TimeUnit.MINUTES));
        }
    }

    interface Condition {
        boolean holds() throws Exception;
    }

    static void eventually(String what, Condition condition) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.MINUTES.toNanos(1);
        while (!condition.holds()) {
            assertTrue(System.nanoTime() < deadline, "not after a minute: " + what);
            Thread.sleep(5);
        }
    }
}
