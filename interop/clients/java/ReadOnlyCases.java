import static java.nio.charset.StandardCharsets.UTF_8;

import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.ZooDefs.Ids;
import org.apache.zookeeper.ZooKeeper;

/** Clients that are content with reads, of a server that loses the majority. */
final class ReadOnlyCases {
    private static final int SESSION_MS = 6_000;

    private static String server;

    public static void main(String[] args) throws Exception {
        server = args[0];
        Cases.run("read-only", ReadOnlyCases::readOnly);
        System.exit(0);
    }

    private static ZooKeeper connect() throws Exception {
        return new ZooKeeper(server, SESSION_MS, e -> { }, true);
    }

    private static void await(ZooKeeper client, ZooKeeper.States state) throws Exception {
        Cases.await("state " + state, () -> client.getState() == state);
    }

    private static void readOnly() throws Exception {
        try (ZooKeeper old = connect()) {
            await(old, ZooKeeper.States.CONNECTED);
            old.create("/mine", "data".getBytes(UTF_8), Ids.OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL);
            long session = old.getSessionId();
            Cases.ask("kill the others");
            await(old, ZooKeeper.States.CONNECTEDREADONLY);
            try (ZooKeeper fresh = connect()) {
                await(fresh, ZooKeeper.States.CONNECTEDREADONLY);
                for (ZooKeeper client : new ZooKeeper[] {old, fresh}) {
                    Cases.equal("data", new String(client.getData("/mine", false, null), UTF_8), "what is read");
                    Cases.fails(KeeperException.NotReadOnlyException.class, "a write",
                        () -> client.create("/other", new byte[0], Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT));
                }
                Cases.ask("start one");
                await(old, ZooKeeper.States.CONNECTED);
                await(fresh, ZooKeeper.States.CONNECTED);
                Cases.equal(session, old.getSessionId(), "the session");
                Cases.equal(session, fresh.exists("/mine", false).getEphemeralOwner(), "the owner");
                fresh.create("/other", new byte[0], Ids.OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL);
            }
        }
    }
}
