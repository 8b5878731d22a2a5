package org.apache.curator.test;

import java.io.BufferedReader;
import java.io.Closeable;
import java.io.File;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.file.Files;
import java.util.Collection;
import java.util.Properties;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.zookeeper.server.quorum.QuorumPeerConfig;

/**
 * Stands in for the class of the same name in curator-test, with the same methods. It starts the
 * program in the property lockkeeper.binary instead of a ZooKeeper inside this process. So
 * Curator's own tests run on it unchanged.
 */
public class TestingZooKeeperServer implements Closeable {
    private static final long PATIENCE = 60;

    private final QuorumConfigBuilder config;
    private final int index;
    private int port;
    private Process process; // null while it is stopped
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
        File file = File.createTempFile("zoo", ".cfg");
        try (OutputStream out = Files.newOutputStream(file.toPath())) {
            keys.store(out, null);
        }
        process = new ProcessBuilder(System.getProperty("lockkeeper.binary"), "serve", "--config", file.getPath()).start();
        Process running = process;
        Runtime.getRuntime().addShutdownHook(new Thread(running::destroyForcibly));
        running.getOutputStream().close();
        CompletableFuture<Integer> serves = new CompletableFuture<>();
        Thread reader = new Thread(() -> {
            try (BufferedReader said = running.errorReader()) {
                for (String line = said.readLine(); line != null; line = said.readLine()) {
                    System.err.println(line);
                    if (line.startsWith("lockkeeper: serving ZooKeeper clients on ")) {
                        serves.complete(Integer.valueOf(line.substring(line.lastIndexOf(':') + 1)));
                    }
                }
            } catch (IOException e) {
                // it has ended
            }
            serves.completeExceptionally(new FailedServerStartException("lockkeeper has ended"));
            file.delete();
        });
        reader.setDaemon(true);
        reader.start();
        if (config.size() == 1) { // a member of a cluster may need others that are started later
            port = serves.get(PATIENCE, TimeUnit.SECONDS);
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
        if (process == null) {
            return;
        }
        if (abruptly) {
            process.destroyForcibly();
        } else {
            process.toHandle().destroy();
        }
        try {
            if (!process.waitFor(PATIENCE, TimeUnit.SECONDS)) {
                process.destroyForcibly();
                throw new IllegalStateException("lockkeeper does not end");
            }
        } catch (InterruptedException e) {
            process.destroyForcibly();
            Thread.currentThread().interrupt();
        }
        process = null;
    }
}
