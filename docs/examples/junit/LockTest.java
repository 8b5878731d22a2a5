import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.concurrent.CountDownLatch;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.curator.retry.RetryForever;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

class LockTest {
    private static final String LOCK = "/locks/report";

    @RegisterExtension
    final Lockkeeper zookeeper = new Lockkeeper("--cluster", "3", "--election-timeout", "500ms");

    private CuratorFramework holder;
    private CuratorFramework waiter;

    @BeforeEach
    void connect() {
        holder = client();
        waiter = client();
    }

    @AfterEach
    void disconnect() {
        holder.close();
        waiter.close();
    }

    private CuratorFramework client() {
        CuratorFramework client = CuratorFrameworkFactory.newClient(zookeeper.connectString(), 10_000, 10_000, new RetryForever(50));
        client.start();
        return client;
    }

    private static String session(CuratorFramework client) throws Exception {
        return "\"session\": \"0x" + Long.toHexString(client.getZookeeperClient().getZooKeeper().getSessionId()) + '"';
    }

    @Test
    void expiredSessionLosesItsLock() throws Exception {
        CountDownLatch lost = new CountDownLatch(1);
        holder.getConnectionStateListenable().addListener((client, state) -> {
            if (state == ConnectionState.LOST) {
                lost.countDown();
            }
        });
        new InterProcessMutex(holder, LOCK).acquire();
        FutureTask<Boolean> next = new FutureTask<>(() -> new InterProcessMutex(waiter, LOCK).acquire(1, TimeUnit.MINUTES));
        new Thread(next).start();
        zookeeper.post("/wait/waiters", "{\"path\": \"" + LOCK + "\", \"waiters\": 1}");

        zookeeper.post("/expire", "{" + session(holder) + "}");

        zookeeper.post("/wait/held", "{\"path\": \"" + LOCK + "\", " + session(waiter) + "}");
        assertTrue(next.get());
        assertTrue(lost.await(1, TimeUnit.MINUTES));
    }

    @Test
    void lostReplyLeavesOneZnode() throws Exception {
        String fault = zookeeper.post("/inject", "{\"do\": \"closeAfter\", \"op\": \"create*\", \"path\": \"" + LOCK + "/*\"}");
        assertTrue(fault.startsWith("{\"id\":1,"), fault);

        new InterProcessMutex(holder, LOCK).acquire(); // it connects again, and finds its znode

        zookeeper.post("/wait/fired", "{\"id\": 1}");
        assertEquals(1, holder.getChildren().forPath(LOCK).size());
    }

    @Test
    void lockSurvivesPartition() throws Exception {
        new InterProcessMutex(holder, LOCK).acquire();
        String mine = session(holder);

        zookeeper.post("/partition", "{\"groups\": [[1, 2], [3]]}");

        waiter.create().forPath("/written"); // through a member of the majority
        zookeeper.get("/znode?path=/written");
        zookeeper.post("/heal", "{}");
        zookeeper.post("/wait/held", "{\"path\": \"" + LOCK + "\", " + mine + ", \"member\": 3}");
    }
}
