import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.lockkeeper.junit5.Lockkeeper;
import io.github.lockkeeper.test.Fault;
import io.github.lockkeeper.test.Injection;
import io.github.lockkeeper.test.LockkeeperServer;
import java.util.List;
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

class LockTest {
    private static final String LOCK = "/locks/report";

    @Lockkeeper(cluster = 3)
    LockkeeperServer zookeeper;

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

    private static long session(CuratorFramework client) throws Exception {
        return client.getZookeeperClient().getZooKeeper().getSessionId();
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
        zookeeper.waitUntil().waiters(LOCK, 1);

        zookeeper.expire(session(holder));

        zookeeper.waitUntil().held(LOCK, session(waiter));
        assertTrue(next.get());
        assertTrue(lost.await(1, TimeUnit.MINUTES));
    }

    @Test
    void lostReplyLeavesOneZnode() throws Exception {
        Injection fault = zookeeper.inject(Fault.closeAfter().op("create*").path(LOCK + "/*"));

        new InterProcessMutex(holder, LOCK).acquire(); // it connects again, and finds its znode

        fault.awaitFired();
        assertEquals(1, holder.getChildren().forPath(LOCK).size());
    }

    @Test
    void lockSurvivesPartition() throws Exception {
        new InterProcessMutex(holder, LOCK).acquire();
        long mine = session(holder);

        zookeeper.partition(List.of(1, 2), List.of(3));

        waiter.create().forPath("/written"); // through a member of the majority
        zookeeper.znode("/written");
        zookeeper.heal();
        zookeeper.member(3).waitUntil().held(LOCK, mine);
    }
}
