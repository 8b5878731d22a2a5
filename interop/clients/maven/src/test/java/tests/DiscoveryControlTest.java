package tests;

import static org.junit.jupiter.api.Assertions.assertEquals;

import io.github.lockkeeper.curator.TestingServer;
import io.github.lockkeeper.test.Fault;
import io.github.lockkeeper.test.Injection;
import java.util.List;
import org.apache.curator.framework.CuratorFramework;
import org.junit.jupiter.api.Test;
import org.springframework.cloud.client.discovery.DiscoveryClient;
import org.springframework.context.ConfigurableApplicationContext;

/** What only lockkeeper's TestingServer can show of a service: how long it is away is up to the test. */
class DiscoveryControlTest {
    @Test
    void aServiceIsAwayWhileItsSessionHasEnded() throws Exception {
        try (TestingServer server = new TestingServer(); ConfigurableApplicationContext caller = Application.run(server.getConnectString());
                ConfigurableApplicationContext orders = Application.run(server.getConnectString(), "orders", 8080)) {
            DiscoveryClient discovery = caller.getBean(DiscoveryClient.class);
            assertEquals(1, discovery.getInstances("orders").size());
            long session = Clients.session(orders.getBean(CuratorFramework.class));
            try (Injection nobodyConnects = server.lockkeeper().inject(Fault.refuse().always())) {
                server.lockkeeper().expire(session);
                assertEquals(List.of(), discovery.getInstances("orders"));
                nobodyConnects.awaitFired();
                assertEquals(List.of(), discovery.getInstances("orders"));
            }
            Clients.eventually("the instance is registered again", () -> discovery.getInstances("orders").size() == 1);
        }
    }
}
