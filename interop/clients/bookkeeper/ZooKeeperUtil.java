package org.apache.bookkeeper.test;

import java.io.File;
import java.io.IOException;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import lockkeeper.Server;
import org.apache.bookkeeper.util.IOUtils;
import org.apache.bookkeeper.zookeeper.ZooKeeperClient;
import org.apache.commons.io.FileUtils;
import org.apache.zookeeper.ZooKeeper;

/**
 * Stands in for the class of the same name in BookKeeper's tests, with the same methods. It starts
 * the program in the property lockkeeper.binary instead of a ZooKeeper inside this process.
 */
public class ZooKeeperUtil implements ZooKeeperCluster {
    private int port; // 0 until the first start
    private File data;
    private Server server; // null while it is stopped
    protected ZooKeeper zkc;

    @Override
    public ZooKeeper getZooKeeperClient() {
        return zkc;
    }

    @Override
    public String getZooKeeperConnectString() {
        return "127.0.0.1:" + port;
    }

    @Override
    public String getMetadataServiceUri() {
        return getMetadataServiceUri("/ledgers");
    }

    @Override
    public String getMetadataServiceUri(String root) {
        return "zk://" + getZooKeeperConnectString() + root;
    }

    @Override
    public String getMetadataServiceUri(String root, String type) {
        return "zk+" + type + "://" + getZooKeeperConnectString() + root;
    }

    @Override
    public void startCluster() throws Exception {
        data = IOUtils.createTempDir("zookeeper", "test");
        restartCluster();
        createBKEnsemble("/ledgers");
    }

    @Override
    public void restartCluster() throws Exception {
        Properties keys = new Properties();
        keys.setProperty("dataDir", data.getPath());
        keys.setProperty("clientPort", Integer.toString(port));
        keys.setProperty("clientPortAddress", "127.0.0.1");
        keys.setProperty("tickTime", "3000");
        keys.setProperty("maxClientCnxns", "100");
        server = new Server(keys);
        port = server.port();
        zkc = ZooKeeperClient.newBuilder().connectString(getZooKeeperConnectString()).sessionTimeoutMs(10000).build();
    }

    @Override
    public void sleepCluster(int time, TimeUnit unit, CountDownLatch sleeps) throws InterruptedException, IOException {
        Server sleeper = server;
        sleeper.signal("STOP");
        sleeps.countDown();
        new Thread(() -> {
            try {
                unit.sleep(time);
                sleeper.signal("CONT");
            } catch (InterruptedException | IOException e) {
                throw new IllegalStateException(e);
            }
        }).start();
    }

    @Override
    public void stopCluster() throws Exception {
        if (zkc != null) {
            zkc.close();
        }
        if (server != null) {
            server.end(false);
            server = null;
        }
    }

    @Override
    public void killCluster() throws Exception {
        stopCluster();
        FileUtils.deleteDirectory(data);
    }
}
