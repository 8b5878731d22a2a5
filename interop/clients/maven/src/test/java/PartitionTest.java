import io.github.lockkeeper.junit5.Lockkeeper;
import io.github.lockkeeper.test.LockkeeperServer;
import io.github.lockkeeper.test.Member;
import java.util.List;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.ZooDefs.Ids;
import org.apache.zookeeper.ZooKeeper;
import org.junit.jupiter.api.Test;

class PartitionTest {
    @Test
    void aMajorityGoesOn(@Lockkeeper(cluster = 3) LockkeeperServer zookeeper) throws Exception {
        int old = zookeeper.leader().id();
        int[] others = {old % 3 + 1, (old + 1) % 3 + 1};

        zookeeper.partition(List.of(old), List.of(others[0], others[1])); // clients still reach all three

        Member leader = zookeeper.waitUntil().leader(others);
        try (ZooKeeper client = new ZooKeeper(leader.connectString(), 10_000, event -> {})) {
            client.create("/during", new byte[0], Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
        }
        zookeeper.heal();
        zookeeper.member(old).waitUntil().exists("/during"); // it catches up
    }
}
