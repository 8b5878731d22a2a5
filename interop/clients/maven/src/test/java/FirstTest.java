import static org.junit.jupiter.api.Assertions.assertEquals;

import io.github.lockkeeper.junit5.Lockkeeper;
import io.github.lockkeeper.test.LockkeeperServer;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.ZooDefs.Ids;
import org.apache.zookeeper.ZooKeeper;
import org.junit.jupiter.api.Test;

class FirstTest {
    @Test
    void greets(@Lockkeeper LockkeeperServer zookeeper) throws Exception {
        try (ZooKeeper client = new ZooKeeper(zookeeper.connectString(), 10_000, event -> {})) {
            client.create("/greeting", "hello".getBytes(), Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
        }
        assertEquals("hello", zookeeper.znode("/greeting").text());
    }
}
