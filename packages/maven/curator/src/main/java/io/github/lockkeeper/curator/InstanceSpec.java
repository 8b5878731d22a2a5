package io.github.lockkeeper.curator;

import java.io.File;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.util.Collections;
import java.util.Map;

/**
 * A server of {@link TestingServer} or {@link TestingCluster}, with the methods of Curator's class of this name. A port
 * below 0 means that a free one is chosen. The members of a cluster have ports that follow each other.
 * Ports for elections and quorums, and the server's id, are never used, since the members of a cluster are in one process.
 */
public class InstanceSpec {
    private final int electionPort;
    private final int quorumPort;
    private final boolean deleteDataDirectoryOnClose;
    private final int serverId;
    private final int tickTime;
    private final int maxClientCnxns;
    private final Map<String, Object> customProperties;
    private final String hostname;
    private int port;
    private File dataDirectory; // null until somebody asks for it

    /** Does nothing; it is there because Curator's class has it. */
    public static void reset() {}

    /**
     * A server with default settings.
     *
     * @return the server
     */
    public static InstanceSpec newInstanceSpec() {
        return new InstanceSpec(null, -1, -1, -1, true, -1, -1, -1, null, null);
    }

    /**
     * A port that is free now.
     *
     * @return the port
     */
    public static int getRandomPort() {
        try (ServerSocket socket = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            return socket.getLocalPort();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    /**
     * A server.
     *
     * @param dataDirectory a directory that stays empty, since the state is kept in memory; null for a temporary one
     * @param port the port for clients
     * @param electionPort not used
     * @param quorumPort not used
     * @param deleteDataDirectoryOnClose whether to delete the directory
     * @param serverId not used
     */
    public InstanceSpec(File dataDirectory, int port, int electionPort, int quorumPort, boolean deleteDataDirectoryOnClose, int serverId) {
        this(dataDirectory, port, electionPort, quorumPort, deleteDataDirectoryOnClose, serverId, -1, -1);
    }

    /**
     * A server.
     *
     * @param dataDirectory a directory that stays empty, since the state is kept in memory; null for a temporary one
     * @param port the port for clients
     * @param electionPort not used
     * @param quorumPort not used
     * @param deleteDataDirectoryOnClose whether to delete the directory
     * @param serverId not used
     * @param tickTime ZooKeeper's tickTime in milliseconds, or -1
     * @param maxClientCnxns ZooKeeper's maxClientCnxns, or -1
     */
    public InstanceSpec(File dataDirectory, int port, int electionPort, int quorumPort, boolean deleteDataDirectoryOnClose, int serverId,
            int tickTime, int maxClientCnxns) {
        this(dataDirectory, port, electionPort, quorumPort, deleteDataDirectoryOnClose, serverId, tickTime, maxClientCnxns, null);
    }

    /**
     * A server.
     *
     * @param dataDirectory a directory that stays empty, since the state is kept in memory; null for a temporary one
     * @param port the port for clients
     * @param electionPort not used
     * @param quorumPort not used
     * @param deleteDataDirectoryOnClose whether to delete the directory
     * @param serverId not used
     * @param tickTime ZooKeeper's tickTime in milliseconds, or -1
     * @param maxClientCnxns ZooKeeper's maxClientCnxns, or -1
     * @param customProperties keys of a zoo.cfg, or null
     */
    public InstanceSpec(File dataDirectory, int port, int electionPort, int quorumPort, boolean deleteDataDirectoryOnClose, int serverId,
            int tickTime, int maxClientCnxns, Map<String, Object> customProperties) {
        this(dataDirectory, port, electionPort, quorumPort, deleteDataDirectoryOnClose, serverId, tickTime, maxClientCnxns, customProperties, null);
    }

    /**
     * A server.
     *
     * @param dataDirectory a directory that stays empty, since the state is kept in memory; null for a temporary one
     * @param port the port for clients
     * @param electionPort not used
     * @param quorumPort not used
     * @param deleteDataDirectoryOnClose whether to delete the directory
     * @param serverId not used
     * @param tickTime ZooKeeper's tickTime in milliseconds, or -1
     * @param maxClientCnxns ZooKeeper's maxClientCnxns, or -1
     * @param customProperties keys of a zoo.cfg, or null
     * @param hostname this machine's name in the connect string; null for 127.0.0.1
     */
    public InstanceSpec(File dataDirectory, int port, int electionPort, int quorumPort, boolean deleteDataDirectoryOnClose, int serverId,
            int tickTime, int maxClientCnxns, Map<String, Object> customProperties, String hostname) {
        this.dataDirectory = dataDirectory;
        this.port = port;
        this.electionPort = electionPort;
        this.quorumPort = quorumPort;
        this.deleteDataDirectoryOnClose = deleteDataDirectoryOnClose;
        this.serverId = serverId;
        this.tickTime = tickTime;
        this.maxClientCnxns = maxClientCnxns;
        this.customProperties = customProperties == null ? Collections.emptyMap() : Collections.unmodifiableMap(customProperties);
        this.hostname = hostname == null ? "127.0.0.1" : hostname;
    }

    static boolean isFree(int port) {
        try (ServerSocket socket = new ServerSocket(port, 1, InetAddress.getLoopbackAddress())) {
            return socket.isBound();
        } catch (IOException e) {
            return false;
        }
    }

    /** Returns the port if it is known, or else 0. */
    synchronized int knownPort() {
        return Math.max(0, port);
    }

    synchronized void setPort(int port) {
        this.port = port;
    }

    synchronized void deleteDataDirectory() throws IOException {
        if (dataDirectory != null && deleteDataDirectoryOnClose) {
            Backing.deleteAll(dataDirectory.toPath());
        }
    }

    /**
     * Its id, which is not used.
     *
     * @return the id
     */
    public int getServerId() {
        return serverId;
    }

    /**
     * Its directory, which stays empty, since the state is kept in memory.
     *
     * @return the directory
     */
    public synchronized File getDataDirectory() {
        if (dataDirectory == null) {
            try {
                dataDirectory = Files.createTempDirectory("lockkeeper-").toFile();
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
        }
        return dataDirectory;
    }

    /**
     * Its port for clients.
     *
     * @return the port, or 0 if the server chooses it when it starts
     */
    public synchronized int getPort() {
        if (port < 0) {
            port = getRandomPort();
        }
        return port;
    }

    /**
     * A port that is not used.
     *
     * @return the port
     */
    public int getElectionPort() {
        return electionPort;
    }

    /**
     * A port that is not used.
     *
     * @return the port
     */
    public int getQuorumPort() {
        return quorumPort;
    }

    /**
     * What a client connects to.
     *
     * @return HOST:PORT
     */
    public String getConnectString() {
        return hostname + ':' + getPort();
    }

    /**
     * ZooKeeper's tickTime.
     *
     * @return the time in milliseconds, or -1
     */
    public int getTickTime() {
        return tickTime;
    }

    /**
     * ZooKeeper's maxClientCnxns.
     *
     * @return the number, or -1
     */
    public int getMaxClientCnxns() {
        return maxClientCnxns;
    }

    /**
     * Is its directory deleted?
     *
     * @return whether it is
     */
    public boolean deleteDataDirectoryOnClose() {
        return deleteDataDirectoryOnClose;
    }

    /**
     * Keys of a zoo.cfg.
     *
     * @return the keys and their values
     */
    public Map<String, Object> getCustomProperties() {
        return customProperties;
    }

    /**
     * Its host in the connect string.
     *
     * @return the name
     */
    public String getHostname() {
        return hostname;
    }

    @Override
    public String toString() {
        return "InstanceSpec{" + hostname + ':' + knownPort() + '}';
    }
}
