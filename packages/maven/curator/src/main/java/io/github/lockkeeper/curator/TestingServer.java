package io.github.lockkeeper.curator;

import io.github.lockkeeper.test.LockkeeperServer;
import java.io.Closeable;
import java.io.File;
import java.io.IOException;
import java.util.List;

/**
 * A ZooKeeper for tests, with the constructors and methods of Curator's class of this name: a process of lockkeeper, which
 * starts in milliseconds, instead of a ZooKeeper in this JVM. Its state is in memory, also while it is stopped.
 */
public class TestingServer implements Closeable {
    private final Backing backing;

    /**
     * Starts a server on a free port.
     *
     * @throws Exception if it cannot be started
     */
    public TestingServer() throws Exception {
        this(true);
    }

    /**
     * A server on a free port.
     *
     * @param start whether to start it
     * @throws Exception if it cannot be started
     */
    public TestingServer(boolean start) throws Exception {
        this(-1, null, start);
    }

    /**
     * Starts a server.
     *
     * @param port the port, or -1 for a free one
     * @throws Exception if it cannot be started
     */
    public TestingServer(int port) throws Exception {
        this(port, true);
    }

    /**
     * A server.
     *
     * @param port the port, or -1 for a free one
     * @param start whether to start it
     * @throws Exception if it cannot be started
     */
    public TestingServer(int port, boolean start) throws Exception {
        this(port, null, start);
    }

    /**
     * Starts a server.
     *
     * @param port the port, or -1 for a free one
     * @param tempDirectory a directory that stays empty, and is deleted; null for a temporary one
     * @throws Exception if it cannot be started
     */
    public TestingServer(int port, File tempDirectory) throws Exception {
        this(port, tempDirectory, true);
    }

    /**
     * A server.
     *
     * @param port the port, or -1 for a free one
     * @param tempDirectory a directory that stays empty, and is deleted; null for a temporary one
     * @param start whether to start it
     * @throws Exception if it cannot be started
     */
    public TestingServer(int port, File tempDirectory, boolean start) throws Exception {
        this(new InstanceSpec(tempDirectory, Math.max(0, port), -1, -1, true, -1), start);
    }

    /**
     * A server.
     *
     * @param spec its settings
     * @param start whether to start it
     * @throws Exception if it cannot be started
     */
    public TestingServer(InstanceSpec spec, boolean start) throws Exception {
        backing = new Backing(List.of(spec));
        if (start) {
            start();
        }
    }

    /**
     * Its port for clients.
     *
     * @return the port
     */
    public int getPort() {
        int port = spec().knownPort();
        if (port == 0) {
            throw new IllegalStateException("the server has no port until it is started");
        }
        return port;
    }

    private InstanceSpec spec() {
        return backing.specs().get(0);
    }

    /**
     * A directory that stays empty, since the state is kept in memory.
     *
     * @return the directory
     */
    public File getTempDirectory() {
        return spec().getDataDirectory();
    }

    /**
     * Starts it, also after {@link #stop}. Does nothing if it runs.
     *
     * @throws Exception if it cannot be started
     */
    public void start() throws Exception {
        backing.start(0);
    }

    /**
     * Stops it. It keeps its port and its state.
     *
     * @throws IOException never
     */
    public void stop() throws IOException {
        backing.stop(0);
    }

    /** Does the same as {@link #stop}. */
    public void kill() {
        backing.stop(0);
    }

    /**
     * Starts it again, with its port and its state, after {@link #stop}, or stops it first.
     *
     * @throws Exception if it cannot be started
     */
    public void restart() throws Exception {
        backing.stop(0);
        backing.start(0);
    }

    /**
     * Ends it, and does what {@link LockkeeperServer#close} does.
     *
     * @throws AssertionError if a fault has not taken effect, a lock under guard did not do what it should, or either
     *     cannot be judged
     * @throws IOException if its directory cannot be deleted
     */
    @Override
    public void close() throws IOException {
        backing.close();
    }

    /**
     * What a client connects to.
     *
     * @return HOST:PORT
     */
    public String getConnectString() {
        return spec().getHostname() + ':' + getPort();
    }

    /**
     * What Curator's class does not have: ended sessions, faults, a look inside, verdicts on locks.
     *
     * @return the server
     * @throws Exception if it cannot be started
     */
    public LockkeeperServer lockkeeper() throws Exception {
        return backing.server();
    }
}
