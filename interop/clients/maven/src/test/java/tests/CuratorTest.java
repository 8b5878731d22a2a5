package tests;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.lockkeeper.curator.InstanceSpec;
import io.github.lockkeeper.curator.TestingCluster;
import io.github.lockkeeper.curator.TestingServer;
import java.util.Arrays;
import java.util.Map;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryForever;
import org.junit.jupiter.api.Test;

/** TestingServer and TestingCluster, used as those of Curator are. */
class CuratorTest {
    private static CuratorFramework client(String connectString) throws Exception {
        CuratorFramework client = CuratorFrameworkFactory.newClient(connectString, 10_000, 10_000, new RetryForever(50));
        client.start();
        assertTrue(client.blockUntilConnected(1, TimeUnit.MINUTES));
        return client;
    }

    @Test
    void mutex() throws Exception {
        try (TestingServer server = new TestingServer(); CuratorFramework first = client(server.getConnectString()); CuratorFramework second = client(server.getConnectString())) {
            InterProcessMutex held = new InterProcessMutex(first, "/lock");
            held.acquire();
            assertFalse(new InterProcessMutex(second, "/lock").acquire(50, TimeUnit.MILLISECONDS));
            FutureTask<Boolean> next = new FutureTask<>(() -> new InterProcessMutex(second, "/lock").acquire(1, TimeUnit.MINUTES));
            new Thread(next).start();
            server.lockkeeper().waitUntil().waiters("/lock", 1);
            server.lockkeeper().expire(first.getZookeeperClient().getZooKeeper().getSessionId());
            assertTrue(next.get());
        }
    }

    @Test
    void keepsItsStateWhileItIsStopped() throws Exception {
        try (TestingServer server = new TestingServer(false)) {
            assertThrows(IllegalStateException.class, server::getPort);
            server.start();
            int port = server.getPort();
            assertEquals("127.0.0.1:" + port, server.getConnectString());
            assertTrue(server.getTempDirectory().isDirectory());
            try (CuratorFramework client = client(server.getConnectString())) {
                client.create().forPath("/a", "x".getBytes());
                server.stop();
                server.restart();
                assertEquals("x", new String(client.getData().forPath("/a")));
                server.restart();
                assertEquals("x", new String(client.getData().forPath("/a")));
                server.kill();
                server.start();
                assertEquals("x", new String(client.getData().forPath("/a")));
            }
            assertEquals(port, server.getPort());
            server.close();
            assertFalse(server.getTempDirectory().exists());
            assertThrows(IllegalStateException.class, server::restart);
            server.close();
        }
    }

    @Test
    void settings() throws Exception {
        int port = InstanceSpec.getRandomPort();
        InstanceSpec spec = new InstanceSpec(null, port, -1, -1, true, 1, 500, 10, Map.of("maxSessionTimeout", "3000"));
        try (TestingServer server = new TestingServer(spec, true); CuratorFramework client = client(server.getConnectString())) {
            assertEquals(port, server.getPort());
            assertEquals(3000, client.getZookeeperClient().getZooKeeper().getSessionTimeout());
        }
        System.setProperty("znode.container.checkIntervalMs", "100");
        try (TestingServer server = new TestingServer(); CuratorFramework client = client(server.getConnectString())) {
            client.createContainers("/container");
            client.create().forPath("/container/a");
            client.delete().forPath("/container/a");
            server.lockkeeper().waitUntil().gone("/container");
        } finally {
            System.clearProperty("znode.container.checkIntervalMs");
        }
        try (TestingServer server = new TestingServer(port)) {
            assertEquals("127.0.0.1:" + port, server.getConnectString());
        }
    }

    @Test
    void clusterWithAKilledInstance() throws Exception {
        try (TestingCluster cluster = new TestingCluster(3)) {
            cluster.start();
            assertEquals(3, cluster.getInstances().size());
            try (CuratorFramework client = client(cluster.getConnectString())) {
                client.create().forPath("/a", "x".getBytes());
                InstanceSpec instance = cluster.findConnectionInstance(client.getZookeeperClient().getZooKeeper());
                assertNotNull(instance);
                assertTrue(cluster.killServer(instance));
                assertEquals("x", new String(client.getData().forPath("/a")));
                client.create().forPath("/b");
                assertTrue(cluster.restartServer(instance));
                assertFalse(cluster.killServer(InstanceSpec.newInstanceSpec()));
                cluster.lockkeeper().member(1).waitUntil().exists("/b");
                cluster.getServers().get(0).kill();
                cluster.getServers().get(0).restart();
                cluster.stop();
                cluster.start();
                assertEquals("x", new String(client.getData().forPath("/a")));
            }
        }
    }

    @Test
    void clusterThatIsNotStarted() throws Exception {
        try (TestingCluster cluster = new TestingCluster(InstanceSpec.newInstanceSpec(), InstanceSpec.newInstanceSpec(), InstanceSpec.newInstanceSpec())) {
            String before = cluster.getConnectString();
            assertEquals(3, Arrays.stream(before.split(",")).distinct().count());
            cluster.start();
            assertEquals(before, cluster.getConnectString());
            try (CuratorFramework client = client(before)) {
                client.create().forPath("/a");
            }
            cluster.close();
            try (TestingCluster next = new TestingCluster(cluster.getInstances())) {
                next.start();
                assertEquals(before, next.getConnectString());
                assertTrue(next.lockkeeper().state().tree().isEmpty()); // it has not the state of the other one
            }
        }
    }
}
