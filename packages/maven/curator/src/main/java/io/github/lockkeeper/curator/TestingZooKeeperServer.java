package io.github.lockkeeper.curator;

import java.io.Closeable;
import java.io.IOException;
import java.util.Collection;

/** A server of a {@link TestingCluster}, with the methods of Curator's class of this name. */
public class TestingZooKeeperServer implements Closeable {
    private final Backing backing;
    private final int index;

    TestingZooKeeperServer(Backing backing, int index) {
        this.backing = backing;
        this.index = index;
    }

    /**
     * All servers of the cluster.
     *
     * @return the servers
     */
    public Collection<InstanceSpec> getInstanceSpecs() {
        return backing.specs();
    }

    /**
     * This server.
     *
     * @return the server
     */
    public InstanceSpec getInstanceSpec() {
        return backing.specs().get(index);
    }

    /**
     * Its port for clients.
     *
     * @return the port
     */
    public int getLocalPort() {
        int port = getInstanceSpec().knownPort();
        if (port == 0) {
            throw new IllegalStateException("the server has no port yet");
        }
        return port;
    }

    /**
     * Starts it.
     *
     * @throws Exception if it cannot be started
     */
    public void start() throws Exception {
        backing.start(index);
    }

    /** Stops it as abruptly as if its process had been killed. It keeps its state. */
    public void kill() {
        backing.stop(index);
    }

    /**
     * Stops it. It keeps its state.
     *
     * @throws IOException never
     */
    public void stop() throws IOException {
        backing.stop(index);
    }

    /**
     * Starts it again, with the state that it had, after it was stopped or killed, or stops it first.
     *
     * @throws Exception if it cannot be started
     */
    public void restart() throws Exception {
        backing.stop(index);
        backing.start(index);
    }

    /**
     * Stops it. Its cluster must be closed, too.
     *
     * @throws IOException never
     */
    @Override
    public void close() throws IOException {
        backing.stop(index);
    }
}
