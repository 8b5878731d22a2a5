import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.Collections;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.Watcher.Event.KeeperState;
import org.apache.zookeeper.ZooDefs.Ids;
import org.apache.zookeeper.ZooDefs.Perms;
import org.apache.zookeeper.client.ZKClientConfig;
import org.apache.zookeeper.data.ACL;
import org.apache.zookeeper.data.Id;

/** SASL with GSSAPI: principals with keytabs, each of which has a section of the JAAS file. */
final class KerberosCases {
    private static String user;
    private static String withHost;

    public static void main(String[] args) throws Exception {
        SaslCases.address = args[0];
        System.setProperty("java.security.auth.login.config", args[1]);
        System.setProperty("java.security.krb5.conf", args[2]);
        user = args[3];
        withHost = args[4];
        Cases.run("login", KerberosCases::login);
        Cases.run("host", () -> identity("Host", withHost));
        Cases.run("acl", KerberosCases::acl);
        Cases.run("other-service", () -> SaslCases.refused(to("User", "other/127.0.0.1")));
        Cases.run("other-host", () -> SaslCases.refused(to("User", "zookeeper/other")));
        Cases.run("restart", KerberosCases::restart);
        System.exit(0); // whatever threads are left
    }

    /** The configuration of a client that logs in as a section says, to a server with that principal. */
    private static ZKClientConfig to(String section, String server) {
        ZKClientConfig config = SaslCases.as(section);
        config.setProperty("zookeeper.server.principal", server);
        return config;
    }

    private static SaslCases.Client client(String section) throws Exception {
        SaslCases.Client client = new SaslCases.Client(to(section, "zookeeper/127.0.0.1"));
        client.await(KeeperState.SaslAuthenticated, 1);
        return client;
    }

    private static void identity(String section, String want) throws Exception {
        try (SaslCases.Client client = client(section)) {
            Cases.equal(2, client.identities().size(), "the number of " + client.identities());
            Cases.equal("sasl:" + want, client.identities().get(1), "the identity");
        }
    }

    private static void login() throws Exception {
        identity("User", user);
        try (SaslCases.Client client = client("User")) {
            client.zk.create("/mine", "x".getBytes(UTF_8), Ids.CREATOR_ALL_ACL, CreateMode.PERSISTENT);
            Cases.equal(Collections.singletonList(new ACL(Perms.ALL, new Id("sasl", user))), client.zk.getACL("/mine", null), "the ACL");
        }
    }

    private static void acl() throws Exception {
        try (SaslCases.Client client = client("User"); SaslCases.Client other = client("Other")) {
            client.zk.getData("/mine", false, null);
            Cases.fails(KeeperException.NoAuthException.class, "another user's read", () -> other.zk.getData("/mine", false, null));
        }
    }

    /** A client whose server restarts authenticates again by itself. */
    private static void restart() throws Exception {
        try (SaslCases.Client client = client("User")) {
            long session = client.zk.getSessionId();
            Cases.ask("restart");
            client.await(KeeperState.SaslAuthenticated, 2);
            client.zk.getData("/mine", false, null);
            Cases.equal(session, client.zk.getSessionId(), "the session");
        }
    }
}
