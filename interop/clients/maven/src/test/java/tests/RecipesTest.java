package tests;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.lockkeeper.curator.InstanceSpec;
import io.github.lockkeeper.curator.TestingCluster;
import io.github.lockkeeper.curator.TestingServer;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.atomic.DistributedAtomicLong;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.framework.recipes.locks.Revoker;
import org.apache.curator.framework.recipes.shared.SharedCount;
import org.apache.curator.retry.RetryNTimes;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/**
 * Curator's read and write lock, semaphore, revocable lock and counters, on one server and on a cluster that loses one. Only the
 * imports of TestingServer, TestingCluster and InstanceSpec are lockkeeper's: the same tests run with Curator's.
 */
class RecipesTest {
    private static final int SHORT = 50; // milliseconds in which somebody does not get what another one holds

    private final ExecutorService others = Executors.newCachedThreadPool();

    @AfterEach
    void end() throws Exception {
        others.shutdownNow();
        assertTrue(others.awaitTermination(1, TimeUnit.MINUTES));
    }

    private static void waiting(CuratorFramework client, String path, int znodes) throws Exception {
        Clients.eventually(znodes + " znodes in " + path, () -> client.getChildren().forPath(path).size() == znodes);
    }

    @Test
    void readersShareAndAWriterExcludes() throws Exception {
        try (TestingServer server = new TestingServer(); CuratorFramework one = Clients.connect(server.getConnectString());
                CuratorFramework two = Clients.connect(server.getConnectString()); CuratorFramework three = Clients.connect(server.getConnectString())) {
            InterProcessReadWriteLock first = new InterProcessReadWriteLock(one, "/lock");
            InterProcessReadWriteLock second = new InterProcessReadWriteLock(two, "/lock");
            InterProcessReadWriteLock third = new InterProcessReadWriteLock(three, "/lock");
            first.readLock().acquire();
            second.readLock().acquire();
            assertFalse(third.writeLock().acquire(SHORT, TimeUnit.MILLISECONDS));

            // Readers that come after a writer wait for it.
            CountDownLatch written = new CountDownLatch(1);
            Future<Boolean> writer = others.submit(() -> {
                boolean got = third.writeLock().acquire(1, TimeUnit.MINUTES);
                assertTrue(written.await(1, TimeUnit.MINUTES));
                third.readLock().acquire(); // a writer may read
                third.writeLock().release(); // and stay a reader
                return got;
            });
            waiting(one, "/lock", 3);
            second.readLock().release();
            assertFalse(second.readLock().acquire(SHORT, TimeUnit.MILLISECONDS));
            Future<Boolean> reader = others.submit(() -> second.readLock().acquire(1, TimeUnit.MINUTES));
            waiting(one, "/lock", 3);
            first.readLock().release();
            waiting(one, "/lock", 2);
            assertFalse(reader.isDone());
            written.countDown();
            assertTrue(writer.get(1, TimeUnit.MINUTES));
            assertTrue(reader.get(1, TimeUnit.MINUTES));
            assertFalse(first.writeLock().acquire(SHORT, TimeUnit.MILLISECONDS));
        }
    }

    @Test
    void theWritersLockIsFreeWhenItsSessionHasEnded() throws Exception {
        try (TestingServer server = new TestingServer(); CuratorFramework one = Clients.connect(server.getConnectString());
                CuratorFramework two = Clients.connect(server.getConnectString())) {
            new InterProcessReadWriteLock(one, "/lock").writeLock().acquire();
            Future<Boolean> reader = others.submit(() -> new InterProcessReadWriteLock(two, "/lock").readLock().acquire(1, TimeUnit.MINUTES));
            waiting(two, "/lock", 2);
            Clients.endSession(one, server.getConnectString());
            assertTrue(reader.get(1, TimeUnit.MINUTES));
            waiting(two, "/lock", 1);
        }
    }

    @Test
    void aSemaphoreHasSoManyLeases() throws Exception {
        try (TestingServer server = new TestingServer(); CuratorFramework one = Clients.connect(server.getConnectString());
                CuratorFramework two = Clients.connect(server.getConnectString()); SharedCount leases = new SharedCount(two, "/leases", 2)) {
            leases.start();
            InterProcessSemaphoreV2 first = new InterProcessSemaphoreV2(one, "/semaphore", leases);
            InterProcessSemaphoreV2 second = new InterProcessSemaphoreV2(two, "/semaphore", leases);
            second.setNodeData("second".getBytes());
            Lease held = first.acquire();
            Lease other = second.acquire();
            assertEquals("second", new String(other.getData()));
            assertNull(second.acquire(SHORT, TimeUnit.MILLISECONDS));
            assertEquals(2, first.getParticipantNodes().size());

            // The number of leases is a shared counter: the one that waits gets a third lease.
            Future<Lease> third = others.submit(() -> second.acquire(1, TimeUnit.MINUTES));
            waiting(one, "/semaphore/leases", 3);
            leases.setCount(3);
            assertNotNull(third.get(1, TimeUnit.MINUTES));
            assertNull(second.acquire(SHORT, TimeUnit.MILLISECONDS));

            // A lease that is returned, and one whose session has ended, are free.
            second.returnLease(other);
            Lease again = second.acquire(1, TimeUnit.MINUTES);
            assertNotNull(again);
            assertNotNull(held);
            Future<Lease> next = others.submit(() -> second.acquire(1, TimeUnit.MINUTES));
            waiting(two, "/semaphore/leases", 4);
            Clients.endSession(one, server.getConnectString());
            assertNotNull(next.get(1, TimeUnit.MINUTES));
            assertNotEquals(again.getNodeName(), next.get().getNodeName());
        }
    }

    @Test
    void aHolderIsAskedToRelease() throws Exception {
        try (TestingServer server = new TestingServer(); CuratorFramework one = Clients.connect(server.getConnectString());
                CuratorFramework two = Clients.connect(server.getConnectString())) {
            InterProcessMutex mutex = new InterProcessMutex(one, "/lock");
            CountDownLatch asked = new CountDownLatch(1);
            mutex.makeRevocable(forLock -> asked.countDown());
            mutex.acquire();
            Future<Boolean> next = others.submit(() -> new InterProcessMutex(two, "/lock").acquire(1, TimeUnit.MINUTES));
            waiting(two, "/lock", 2);
            Revoker.attemptRevoke(two, mutex.getParticipantNodes().iterator().next());
            assertTrue(asked.await(1, TimeUnit.MINUTES));
            assertFalse(next.isDone());
            mutex.release();
            assertTrue(next.get(1, TimeUnit.MINUTES));
        }
    }

    @Test
    void countersCount() throws Exception {
        try (TestingServer server = new TestingServer(); CuratorFramework one = Clients.connect(server.getConnectString());
                CuratorFramework two = Clients.connect(server.getConnectString()); SharedCount mine = new SharedCount(one, "/count", 7);
                SharedCount theirs = new SharedCount(two, "/count", 0)) {
            mine.start();
            theirs.start();
            assertEquals(7, theirs.getCount());
            assertTrue(mine.trySetCount(mine.getVersionedValue(), 8));
            Clients.eventually("the other one sees it", () -> theirs.getCount() == 8);
            assertTrue(theirs.trySetCount(theirs.getVersionedValue(), 9));

            List<Future<?>> all = new ArrayList<>();
            for (CuratorFramework client : List.of(one, two)) {
                all.add(others.submit((Callable<Void>) () -> {
                    DistributedAtomicLong number = new DistributedAtomicLong(client, "/number", new RetryNTimes(1000, 1));
                    for (int i = 0; i < 50; i++) {
                        assertTrue(number.increment().succeeded());
                    }
                    return null;
                }));
            }
            for (Future<?> one50 : all) {
                one50.get(1, TimeUnit.MINUTES);
            }
            assertEquals(100, new DistributedAtomicLong(one, "/number", new RetryNTimes(1, 1)).get().postValue());
        }
    }

    /** Every client loses its server once, while it has a lock, a lease or neither. */
    @Test
    void aClusterLosesTheServersOfItsClients() throws Exception {
        try (TestingCluster cluster = new TestingCluster(3)) {
            cluster.start();
            try (CuratorFramework one = Clients.connect(cluster.getConnectString()); CuratorFramework two = Clients.connect(cluster.getConnectString());
                    CuratorFramework three = Clients.connect(cluster.getConnectString())) {
                InterProcessReadWriteLock held = new InterProcessReadWriteLock(one, "/lock");
                held.writeLock().acquire();
                Lease lease = new InterProcessSemaphoreV2(one, "/leases", 1).acquire();
                Future<Boolean> reader = others.submit(() -> new InterProcessReadWriteLock(two, "/lock").readLock().acquire(1, TimeUnit.MINUTES));
                Future<Lease> next = others.submit(() -> new InterProcessSemaphoreV2(three, "/leases", 1).acquire(1, TimeUnit.MINUTES));
                waiting(three, "/lock", 2);
                waiting(three, "/leases/leases", 2);
                long session = Clients.session(one);
                loseServer(cluster, one);
                assertFalse(reader.isDone() || next.isDone());
                assertTrue(held.writeLock().isOwnedByCurrentThread());
                loseServer(cluster, two);
                loseServer(cluster, three);
                assertEquals(session, Clients.session(one));
                held.writeLock().release();
                new InterProcessSemaphoreV2(one, "/leases", 1).returnLease(lease);
                assertTrue(reader.get(1, TimeUnit.MINUTES));
                assertNotNull(next.get(1, TimeUnit.MINUTES));
            }
        }
    }

    @Test
    void atMostTwoHaveALeaseWhileServersAreKilled() throws Exception {
        try (TestingCluster cluster = new TestingCluster(3)) {
            cluster.start();
            AtomicInteger inside = new AtomicInteger();
            AtomicInteger most = new AtomicInteger();
            AtomicInteger turns = new AtomicInteger();
            List<CuratorFramework> clients = new ArrayList<>();
            List<Future<?>> all = new ArrayList<>();
            try {
                for (int i = 0; i < 5; i++) {
                    CuratorFramework client = Clients.connect(cluster.getConnectString());
                    clients.add(client);
                    all.add(others.submit((Callable<Void>) () -> {
                        InterProcessSemaphoreV2 semaphore = new InterProcessSemaphoreV2(client, "/leases", 2);
                        for (int turn = 0; turn < 10; turn++) {
                            Lease lease = semaphore.acquire(1, TimeUnit.MINUTES);
                            assertNotNull(lease);
                            most.accumulateAndGet(inside.incrementAndGet(), Math::max);
                            Thread.sleep(5);
                            inside.decrementAndGet();
                            semaphore.returnLease(lease);
                            turns.incrementAndGet();
                        }
                        return null;
                    }));
                }
                for (int enough : new int[] {10, 25}) {
                    Clients.eventually("the turns go on", () -> turns.get() >= enough);
                    loseServer(cluster, clients.get(enough % clients.size()));
                }
                for (Future<?> worker : all) {
                    worker.get(1, TimeUnit.MINUTES);
                }
                assertEquals(50, turns.get());
                assertEquals(2, most.get());
                waiting(clients.get(0), "/leases/leases", 0);
            } finally {
                clients.forEach(CuratorFramework::close);
            }
        }
    }

    /** Kills the server to which a client is connected, waits until the client is at another one, and starts it again. */
    private static void loseServer(TestingCluster cluster, CuratorFramework client) throws Exception {
        InstanceSpec lost = cluster.findConnectionInstance(client.getZookeeperClient().getZooKeeper());
        assertNotNull(lost);
        assertTrue(cluster.killServer(lost));
        assertNotNull(client.checkExists().forPath("/"));
        assertTrue(cluster.restartServer(lost));
    }
}
