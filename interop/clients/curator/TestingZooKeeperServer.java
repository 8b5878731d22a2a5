package org.apache.curator.test;

import java.io.Closeable;
import java.io.IOException;
import java.util.Collection;
import java.util.Properties;
import lockkeeper.Server;
import org.apache.zookeeper.server.quorum.QuorumPeerConfig;

/**
 * Stands in for the class of the same name in curator-test, with the same methods. It starts the
 * program in the property lockkeeper.binary instead of a ZooKeeper inside this process. So
 * Curator's own tests run on it unchanged.
 */
public class TestingZooKeeperServer implements Closeable {
    private final QuorumConfigBuilder config;
    private final int index;
    private int port;
    private Server process; // null while it is stopped
    private boolean started;
    private boolean closed;

    public TestingZooKeeperServer(QuorumConfigBuilder config) {
        this(config, 0);
    }

    public TestingZooKeeperServer(QuorumConfigBuilder config, int index) {
        this.config = config;
        this.index = index;
        port = config.getInstanceSpec(index).getPort();
    }

    public Collection<InstanceSpec> getInstanceSpecs() {
        return config.getInstanceSpecs();
    }

    public InstanceSpec getInstanceSpec() {
        return config.getInstanceSpec(index);
    }

    public synchronized int getLocalPort() {
        if (port == 0) {
            throw new IllegalStateException("the server has no port yet");
        }
        return port;
    }

    public synchronized void start() throws Exception {
        if (started) {
            return;
        }
        started = true;
        Properties keys = config.buildConfigProperties(index, port);
        // What ZooKeeper's classes would read from this process.
        for (String name : System.getProperties().stringPropertyNames()) {
            if (name.startsWith("zookeeper.") || name.startsWith("znode.") || name.equals("readonlymode.enabled")) {
                keys.putIfAbsent(name, System.getProperty(name));
            }
        }
        if (QuorumPeerConfig.isReconfigEnabled()) {
            keys.putIfAbsent("reconfigEnabled", "true");
        }
        process = new Server(keys);
        if (config.size() == 1) { // a member of a cluster may need others that are started later
            port = process.port();
        }
    }

    public synchronized void kill() {
        end(true);
    }

    public synchronized void stop() throws IOException {
        end(false);
    }

    public synchronized void restart() throws Exception {
        if (closed) {
            throw new IllegalStateException("the server is closed, and its data deleted");
        }
        end(false);
        start();
    }

    @Override
    public synchronized void close() throws IOException {
        end(false);
        if (!closed) {
            closed = true;
            config.close();
            if (getInstanceSpec().deleteDataDirectoryOnClose()) {
                DirectoryUtils.deleteRecursively(getInstanceSpec().getDataDirectory());
            }
        }
    }

    private void end(boolean abruptly) {
        started = false;
        if (process != null) {
            process.end(abruptly);
            process = null;
        }
    }
}
