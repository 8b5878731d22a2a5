package org.apache.hadoop.ha;

import static org.junit.Assert.assertTrue;
import static org.mockito.Mockito.mock;
import static org.mockito.Mockito.withSettings;

import java.io.File;
import java.io.IOException;
import java.io.OutputStream;
import java.net.HttpURLConnection;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.URL;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import lockkeeper.Server;
import org.apache.hadoop.net.ServerSocketUtil;
import org.apache.zookeeper.TestableZooKeeper;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.data.Stat;
import org.apache.zookeeper.server.ServerCnxnFactory;
import org.apache.zookeeper.server.ZKDatabase;
import org.apache.zookeeper.server.ZooKeeperServer;
import org.junit.After;
import org.junit.Before;
import org.junit.Rule;
import org.junit.rules.TemporaryFolder;
import org.mockito.stubbing.Answer;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Stands in for the class of the same name in Hadoop's tests, the base class of those that need a
 * ZooKeeper. It starts the program in the property lockkeeper.binary instead of a ZooKeeper
 * inside this process. Clients reach it through a relay, so that all connections can be cut.
 *
 * <p>The tests also call ZooKeeper's own objects. What they ask of them is done here with the
 * process: closeSession through the port for operators, getData as a super user, closeAll by the
 * relay.
 */
public abstract class ClientBaseWithFixes {
    protected static final Logger LOG = LoggerFactory.getLogger(ClientBaseWithFixes.class);
    public static int CONNECTION_TIMEOUT = 30000;

    @Rule
    public final TemporaryFolder folder = new TemporaryFolder();

    protected final String hostPort = "127.0.0.1:" + freePort();
    protected ServerCnxnFactory serverFactory;

    private final int adminPort = freePort();
    private final List<ZooKeeper> clients = new CopyOnWriteArrayList<>();
    private TestableZooKeeper reader; // of the values that the tests look up
    private final ZKDatabase database = mock(ZKDatabase.class, withSettings().stubOnly().defaultAnswer(call -> {
        if (!call.getMethod().getName().equals("getData")) {
            throw new UnsupportedOperationException(call.toString());
        }
        return reader.getData(call.getArgument(0), false, call.<Stat>getArgument(1));
    }));
    private final ZooKeeperServer zooKeeper = mock(ZooKeeperServer.class, withSettings().stubOnly().defaultAnswer(call -> {
        switch (call.getMethod().getName()) {
            case "closeSession":
                endSession(call.getArgument(0));
                return null;
            case "getZKDatabase":
                return database;
            default:
                throw new UnsupportedOperationException(call.toString());
        }
    }));
    private static volatile ZooKeeperServer current; // for getServer, which is static

    private File data;
    private Server server;
    private Relay relay;

    @Before
    public void setUp() throws Exception {
        data = folder.newFolder("data");
        current = zooKeeper;
        startServer();
        reader = createClient();
        reader.addAuthInfo("digest", "super:secret".getBytes(StandardCharsets.UTF_8));
    }

    @After
    public void tearDown() throws Exception {
        for (ZooKeeper client : clients) {
            client.close();
        }
        stopServer();
    }

    protected void startServer() throws Exception {
        Properties keys = new Properties();
        keys.setProperty("dataDir", data.getPath());
        keys.setProperty("clientPort", "0");
        keys.setProperty("clientPortAddress", "127.0.0.1");
        keys.setProperty("tickTime", "3000");
        keys.setProperty("maxClientCnxns", "0");
        keys.setProperty("4lw.commands.whitelist", "*");
        keys.setProperty("DigestAuthenticationProvider.superDigest", "super:lK75jTNcA+U9vtVEw5vB51mj/w4=");
        server = new Server(keys, "--admin", "127.0.0.1:" + adminPort, "--admin-write");
        relay = new Relay(Integer.parseInt(hostPort.substring(hostPort.indexOf(':') + 1)), server.port());
        serverFactory = mock(ServerCnxnFactory.class, withSettings().stubOnly().defaultAnswer((Answer<Void>) call -> {
            if (!call.getMethod().getName().equals("closeAll")) {
                throw new UnsupportedOperationException(call.toString());
            }
            relay.cut();
            return null;
        }));
    }

    protected void stopServer() throws Exception {
        if (server != null) {
            relay.close();
            server.end(false);
            server = null;
        }
    }

    protected static ZooKeeperServer getServer(ServerCnxnFactory factory) {
        return current;
    }

    protected TestableZooKeeper createClient() throws IOException, InterruptedException {
        CountDownLatch connected = new CountDownLatch(1);
        TestableZooKeeper client = new TestableZooKeeper(hostPort, CONNECTION_TIMEOUT, event -> connected.countDown());
        clients.add(client);
        assertTrue("no connection", connected.await(CONNECTION_TIMEOUT, TimeUnit.MILLISECONDS));
        return client;
    }

    /** Waits for nothing, because startServer does. */
    public static boolean waitForServerUp(String hostPort, long timeout) {
        return true;
    }

    /** Waits for nothing, because stopServer does. */
    public static boolean waitForServerDown(String hostPort, long timeout) {
        return true;
    }

    private void endSession(long id) throws IOException {
        URL url = new URL("http://127.0.0.1:" + adminPort + "/console/sessions/0x" + Long.toHexString(id) + "/end");
        HttpURLConnection request = (HttpURLConnection) url.openConnection();
        request.setRequestMethod("POST");
        request.setRequestProperty("Content-Type", "application/json");
        request.setDoOutput(true);
        try (OutputStream body = request.getOutputStream()) {
            body.write("{}".getBytes(StandardCharsets.UTF_8));
        }
        int status = request.getResponseCode();
        if (status != 204 && status != 404) { // 404: it has already ended
            throw new IOException(url + ": status " + status);
        }
    }

    private static int freePort() {
        try {
            return ServerSocketUtil.getPort(0, 100);
        } catch (IOException e) {
            throw new IllegalStateException(e);
        }
    }

    /** Passes on the bytes of connections to a port. */
    private static final class Relay {
        private final ServerSocket listener;
        private final Set<Socket> sockets = ConcurrentHashMap.newKeySet();

        Relay(int from, int to) throws IOException {
            listener = new ServerSocket(from, 50, InetAddress.getLoopbackAddress());
            start(() -> {
                while (true) {
                    Socket client = listener.accept();
                    Socket server = new Socket(InetAddress.getLoopbackAddress(), to);
                    sockets.add(client);
                    sockets.add(server);
                    start(() -> copy(client, server));
                    start(() -> copy(server, client));
                }
            });
        }

        private void copy(Socket from, Socket to) throws IOException {
            try (from; to) {
                from.getInputStream().transferTo(to.getOutputStream());
            } finally {
                sockets.remove(from);
            }
        }

        /** Closes all connections. */
        void cut() throws IOException {
            for (Socket socket : sockets) {
                socket.close();
            }
        }

        void close() throws IOException {
            listener.close();
            cut();
        }

        private interface Work {
            void run() throws IOException;
        }

        private static void start(Work work) {
            Thread thread = new Thread(() -> {
                try {
                    work.run();
                } catch (IOException e) {
                    // closed
                }
            });
            thread.setDaemon(true);
            thread.start();
        }
    }
}
