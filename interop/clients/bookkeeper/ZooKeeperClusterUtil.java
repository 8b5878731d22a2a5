package org.apache.bookkeeper.test;

import java.io.File;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import lockkeeper.Server;
import org.apache.bookkeeper.util.IOUtils;
import org.apache.bookkeeper.util.PortManager;
import org.apache.bookkeeper.zookeeper.ZooKeeperClient;
import org.apache.commons.io.FileUtils;
import org.apache.zookeeper.ZooKeeper;

/**
 * Stands in for the class of the same name in BookKeeper's tests, with the methods that the tests
 * call: a cluster, in which each server is a process of the program in the property
 * lockkeeper.binary.
 */
public class ZooKeeperClusterUtil implements ZooKeeperCluster {
    private final Server[] servers; // null while it is stopped
    private final int[] clientPorts;
    private final Properties members = new Properties();
    private File data;
    private ZooKeeper client;

    public ZooKeeperClusterUtil(int size) {
        servers = new Server[size];
        clientPorts = IntStream.range(0, size).map(i -> PortManager.nextFreePort()).toArray();
        for (int i = 0; i < size; i++) {
            members.setProperty("server." + (i + 1), "127.0.0.1:" + PortManager.nextFreePort() + ":" + PortManager.nextFreePort());
        }
    }

    /** Does nothing: the tests call it for what a ZooKeeper inside this process needs. */
    public static void enableZookeeperTestEnvVariables() {}

    @Override
    public ZooKeeper getZooKeeperClient() {
        return client;
    }

    @Override
    public String getZooKeeperConnectString() {
        return IntStream.of(clientPorts).mapToObj(port -> "127.0.0.1:" + port).collect(Collectors.joining(","));
    }

    @Override
    public String getMetadataServiceUri() {
        return getMetadataServiceUri("/ledgers");
    }

    @Override
    public String getMetadataServiceUri(String root) {
        return getMetadataServiceUri(root, "longhierarchical");
    }

    @Override
    public String getMetadataServiceUri(String root, String type) {
        return "zk+" + type + "://" + getZooKeeperConnectString().replace(',', ';') + root;
    }

    @Override
    public void startCluster() throws Exception {
        data = IOUtils.createTempDir("zookeeper", "cluster");
        restartCluster();
        client = ZooKeeperClient.newBuilder().connectString(getZooKeeperConnectString()).sessionTimeoutMs(10000).build();
        createBKEnsemble("/ledgers");
    }

    @Override
    public void restartCluster() throws Exception {
        stopServers();
        for (int i = 0; i < servers.length; i++) {
            File dir = new File(data, Integer.toString(i + 1));
            FileUtils.writeStringToFile(new File(dir, "myid"), Integer.toString(i + 1), "UTF-8");
            Properties keys = new Properties();
            keys.putAll(members);
            keys.setProperty("dataDir", dir.getPath());
            keys.setProperty("clientPort", Integer.toString(clientPorts[i]));
            keys.setProperty("clientPortAddress", "127.0.0.1");
            keys.setProperty("tickTime", "4000");
            keys.setProperty("initLimit", "10");
            keys.setProperty("syncLimit", "5");
            keys.setProperty("readonlymode.enabled", System.getProperty("readonlymode.enabled", "false"));
            servers[i] = new Server(keys);
        }
        for (Server server : servers) {
            server.port();
        }
    }

    @Override
    public void sleepCluster(int time, TimeUnit unit, CountDownLatch sleeps) {
        throw new UnsupportedOperationException("as in the original");
    }

    @Override
    public void stopCluster() throws Exception {
        if (client != null) {
            client.close();
        }
        stopServers();
    }

    @Override
    public void killCluster() throws Exception {
        stopCluster();
        FileUtils.deleteDirectory(data);
    }

    /** Stops one server, counted from 1. */
    public void stopPeer(int id) throws Exception {
        servers[id - 1].end(false);
        servers[id - 1] = null;
    }

    /** Does nothing, because lockkeeper has no local sessions: a read-only session needs none. */
    public void enableLocalSession(boolean enabled) {}

    private void stopServers() throws Exception {
        for (int i = 0; i < servers.length; i++) {
            if (servers[i] != null) {
                stopPeer(i + 1);
            }
        }
    }
}
