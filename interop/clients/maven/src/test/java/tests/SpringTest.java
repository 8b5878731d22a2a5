package tests;

import static org.junit.jupiter.api.Assertions.assertEquals;

import io.github.lockkeeper.junit5.Lockkeeper;
import io.github.lockkeeper.test.LockkeeperServer;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.retry.RetryForever;
import org.junit.jupiter.api.RepeatedTest;
import org.springframework.beans.factory.annotation.Autowired;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.test.context.DynamicPropertyRegistry;
import org.springframework.test.context.DynamicPropertySource;
import org.springframework.test.context.junit.jupiter.SpringJUnitConfig;

/** An application context whose client connects to the server of the class. */
@SpringJUnitConfig(SpringTest.Application.class)
class SpringTest {
    @Lockkeeper
    static LockkeeperServer zookeeper;

    @DynamicPropertySource
    static void properties(DynamicPropertyRegistry registry) {
        registry.add("zookeeper.connect", zookeeper::connectString);
    }

    @Configuration
    static class Application {
        @Bean(initMethod = "start", destroyMethod = "close")
        CuratorFramework curator(@Value("${zookeeper.connect}") String connectString) {
            return CuratorFrameworkFactory.newClient(connectString, 10_000, 10_000, new RetryForever(50));
        }
    }

    @Autowired
    CuratorFramework client;

    @RepeatedTest(2)
    void test() throws Exception {
        assertEquals("", zookeeper.state().tree());
        client.create().forPath("/a", "x".getBytes());
        assertEquals("x", zookeeper.znode("/a").text());
    }
}
