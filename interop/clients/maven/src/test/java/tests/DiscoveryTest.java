package tests;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.lockkeeper.curator.TestingServer;
import java.net.URI;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.api.CuratorWatcher;
import org.apache.zookeeper.Watcher.Event.EventType;
import org.apache.zookeeper.data.Stat;
import org.junit.jupiter.api.Test;
import org.springframework.cloud.client.ServiceInstance;
import org.springframework.cloud.client.discovery.DiscoveryClient;
import org.springframework.context.ConfigurableApplicationContext;

/**
 * Applications of Spring Cloud find each other through spring-cloud-zookeeper-discovery. Only the import of TestingServer
 * is lockkeeper's: the same tests run with Curator's.
 */
class DiscoveryTest {
    private static final String ORDERS = "/services/orders";

    /** The one znode of the service. */
    private static String instance(CuratorFramework client) throws Exception {
        List<String> names = client.getChildren().forPath(ORDERS);
        assertEquals(1, names.size());
        return ORDERS + "/" + names.get(0);
    }

    @Test
    void aServiceIsFoundWhileItsApplicationRuns() throws Exception {
        try (TestingServer server = new TestingServer(); ConfigurableApplicationContext caller = Application.run(server.getConnectString())) {
            DiscoveryClient discovery = caller.getBean(DiscoveryClient.class);
            assertEquals(List.of(), discovery.getInstances("orders"));
            try (ConfigurableApplicationContext first = Application.run(server.getConnectString(), "orders", 8080);
                    ConfigurableApplicationContext second = Application.run(server.getConnectString(), "orders", 8081)) {
                assertEquals(List.of("orders"), discovery.getServices());
                assertEquals(List.of(8080, 8081), discovery.getInstances("orders").stream().map(ServiceInstance::getPort).sorted().toList());
                first.close();
                assertEquals(List.of(URI.create("http://127.0.0.1:8081")), discovery.getInstances("orders").stream().map(ServiceInstance::getUri).toList());
            }
            assertEquals(List.of(), discovery.getInstances("orders"));
        }
    }

    @Test
    void itComesBackAfterItsSessionHasEnded() throws Exception {
        try (TestingServer server = new TestingServer(); ConfigurableApplicationContext caller = Application.run(server.getConnectString());
                ConfigurableApplicationContext orders = Application.run(server.getConnectString(), "orders", 8080)) {
            CuratorFramework watching = caller.getBean(CuratorFramework.class);
            CuratorFramework serving = orders.getBean(CuratorFramework.class);
            String path = instance(watching);
            long before = watching.checkExists().forPath(path).getEphemeralOwner();
            assertEquals(Clients.session(serving), before);
            CountDownLatch gone = new CountDownLatch(1);
            watching.checkExists().usingWatcher((CuratorWatcher) event -> {
                if (event.getType() == EventType.NodeDeleted) {
                    gone.countDown();
                }
            }).forPath(path);

            Clients.endSession(serving, server.getConnectString());
            assertTrue(gone.await(1, TimeUnit.MINUTES), "the instance is still registered");
            found(caller, path, serving);
            assertNotEquals(before, Clients.session(serving));
        }
    }

    @Test
    void itIsFoundAfterTheServerRestarts() throws Exception {
        try (TestingServer server = new TestingServer(); ConfigurableApplicationContext caller = Application.run(server.getConnectString());
                ConfigurableApplicationContext orders = Application.run(server.getConnectString(), "orders", 8080)) {
            String path = instance(caller.getBean(CuratorFramework.class));
            CuratorFramework serving = orders.getBean(CuratorFramework.class);
            long session = Clients.session(serving);
            server.restart();
            found(caller, path, serving);
            assertEquals(session, Clients.session(serving));
        }
    }

    /** Waits until a service is found and its znode belongs to its session. When it reconnects, it creates the znode anew. */
    private static void found(ConfigurableApplicationContext caller, String path, CuratorFramework serving) throws Exception {
        Clients.eventually("the service is found", () -> {
            Stat stat = caller.getBean(CuratorFramework.class).checkExists().forPath(path);
            return stat != null && stat.getEphemeralOwner() == Clients.session(serving)
                    && caller.getBean(DiscoveryClient.class).getInstances("orders").size() == 1;
        });
    }
}
