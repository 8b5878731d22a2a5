import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.api.ACLProvider;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.Watcher.Event.KeeperState;
import org.apache.zookeeper.ZooDefs.Ids;
import org.apache.zookeeper.ZooDefs.Perms;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.client.ZKClientConfig;
import org.apache.zookeeper.data.ACL;
import org.apache.zookeeper.data.ClientInfo;
import org.apache.zookeeper.data.Id;

/** SASL with DIGEST-MD5: users of a JAAS file, in which each has a section for its client. */
final class SaslCases {
    private static final int TIMEOUT_MS = 10_000;
    private static final List<ACL> BOB = Collections.singletonList(new ACL(Perms.ALL, new Id("sasl", "bob")));

    static String address;

    public static void main(String[] args) throws Exception {
        address = args[0];
        System.setProperty("java.security.auth.login.config", args[1]);
        Cases.run("login", SaslCases::login);
        Cases.run("characters", SaslCases::characters);
        Cases.run("acl", SaslCases::acl);
        Cases.run("super", SaslCases::superUser);
        Cases.run("wrong-password", () -> refused("Wrong"));
        Cases.run("unknown-user", () -> refused("Unknown"));
        Cases.run("without-sasl", SaslCases::without);
        Cases.run("curator", SaslCases::curator);
        Cases.run("restart", SaslCases::restart);
        System.exit(0); // whatever threads are left
    }

    /** The configuration of a client that logs in as a section of the JAAS file says. */
    static ZKClientConfig as(String section) {
        ZKClientConfig config = new ZKClientConfig();
        config.setProperty(ZKClientConfig.LOGIN_CONTEXT_NAME_KEY, section);
        config.setProperty("zookeeper.fips-mode", "false"); // which forbids MD5
        return config;
    }

    /** A client, and the states that it has been told. */
    static final class Client implements AutoCloseable {
        // One thread reads them while another adds.
        final List<KeeperState> states = new CopyOnWriteArrayList<>();
        final ZooKeeper zk;

        Client(ZKClientConfig config) throws Exception {
            zk = new ZooKeeper(address, TIMEOUT_MS, event -> states.add(event.getState()), config);
        }

        Client(String section) throws Exception {
            this(as(section));
            await(KeeperState.SaslAuthenticated, 1);
        }

        void await(KeeperState state, int times) throws Exception {
            Cases.await(times + " times " + state + ", not " + states, () -> Collections.frequency(states, state) >= times);
        }

        List<String> identities() throws Exception {
            List<String> all = new ArrayList<>();
            for (ClientInfo info : zk.whoAmI()) {
                all.add(info.getAuthScheme() + ":" + info.getUser());
            }
            Collections.sort(all);
            return all;
        }

        @Override
        public void close() throws Exception {
            zk.close();
        }
    }

    private static void login() throws Exception {
        try (Client bob = new Client("Bob")) {
            List<String> identities = bob.identities();
            Cases.equal(2, identities.size(), "the number of " + identities);
            Cases.equal("sasl:bob", identities.get(1), "the identity");
            bob.zk.create("/mine", "x".getBytes(UTF_8), Ids.CREATOR_ALL_ACL, CreateMode.PERSISTENT);
            Cases.equal(BOB, bob.zk.getACL("/mine", null), "the ACL");
            bob.zk.delete("/mine", -1);
        }
    }

    private static void characters() throws Exception {
        for (String[] user : new String[][] {{"Latin", "jürgen"}, {"Chinese", "嬉"}, {"Slash", "a/b"}}) {
            try (Client client = new Client(user[0])) {
                Cases.check(client.identities().contains("sasl:" + user[1]), client.identities() + " has " + user[1]);
            }
        }
    }

    private static void acl() throws Exception {
        try (Client bob = new Client("Bob"); Client other = new Client("Latin")) {
            bob.zk.create("/bob", null, BOB, CreateMode.PERSISTENT);
            Cases.fails(KeeperException.NoAuthException.class, "another user's read", () -> other.zk.getData("/bob", false, null));
            Cases.fails(KeeperException.NoAuthException.class, "another user's create",
                () -> other.zk.create("/bob/x", null, Ids.OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL));
            bob.zk.create("/bob/x", null, Ids.OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL);
            bob.zk.getData("/bob", false, null);
            Cases.fails(KeeperException.InvalidACLException.class, "an ACL with no name", () -> bob.zk.setACL("/bob",
                Collections.singletonList(new ACL(Perms.ALL, new Id("sasl", "a@b@c"))), -1));
        }
    }

    private static void superUser() throws Exception {
        try (Client superUser = new Client("Super"); Client admin = new Client("Admin")) {
            superUser.zk.getData("/bob", false, null);
            admin.zk.setACL("/bob", Collections.singletonList(new ACL(Perms.READ, new Id("digest", "u:h"))), -1);
            Cases.fails(KeeperException.NoAuthException.class, "super's read of what is digest's",
                () -> superUser.zk.getData("/bob", false, null));
            admin.zk.setACL("/bob", BOB, -1);
            Cases.check(admin.identities().contains("super:"), admin.identities() + " has super");
        }
    }

    private static void refused(String section) throws Exception {
        refused(as(section));
    }

    static void refused(ZKClientConfig config) throws Exception {
        try (Client client = new Client(config)) {
            client.await(KeeperState.AuthFailed, 1);
            Cases.fails(KeeperException.AuthFailedException.class, "a request", () -> client.zk.exists("/", false));
        }
    }

    private static void without() throws Exception {
        ZKClientConfig config = as("Bob");
        config.setProperty(ZKClientConfig.ENABLE_CLIENT_SASL_KEY, "false");
        try (Client client = new Client(config)) {
            client.await(KeeperState.SyncConnected, 1);
            Cases.fails(KeeperException.NoAuthException.class, "nobody's read", () -> client.zk.getData("/bob", false, null));
            Cases.equal(1, client.identities().size(), "the number of " + client.identities());
        }
    }

    private static void curator() throws Exception {
        try (CuratorFramework client = CuratorFrameworkFactory.builder().connectString(address).zkClientConfig(as("Bob"))
            .retryPolicy(new ExponentialBackoffRetry(100, 10)).aclProvider(new ACLProvider() {
                @Override
                public List<ACL> getDefaultAcl() {
                    return Ids.CREATOR_ALL_ACL;
                }

                @Override
                public List<ACL> getAclForPath(String path) {
                    return Ids.CREATOR_ALL_ACL;
                }
            }).build()) {
            client.start();
            InterProcessMutex mutex = new InterProcessMutex(client, "/bob/lock");
            Cases.check(mutex.acquire(Cases.PATIENCE_MS, TimeUnit.MILLISECONDS), "the lock is taken");
            try (Client other = new Client("Latin")) {
                Cases.fails(KeeperException.NoAuthException.class, "another user's look at the queue",
                    () -> other.zk.getChildren("/bob/lock", false));
            }
            mutex.release();
        }
    }

    /** A client whose server restarts authenticates again by itself. */
    private static void restart() throws Exception {
        try (Client bob = new Client("Bob")) {
            long session = bob.zk.getSessionId();
            Cases.ask("restart");
            bob.await(KeeperState.SaslAuthenticated, 2);
            bob.zk.getData("/bob", false, null);
            Cases.equal(session, bob.zk.getSessionId(), "the session");
        }
    }
}
