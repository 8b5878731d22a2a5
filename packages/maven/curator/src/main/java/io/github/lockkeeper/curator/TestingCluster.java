package io.github.lockkeeper.curator;

import io.github.lockkeeper.test.LockkeeperServer;
import java.io.Closeable;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.reflect.Method;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.apache.zookeeper.ZooKeeper;

/**
 * A cluster of ZooKeepers for tests, with the constructors and methods of Curator's class of this name: one process of
 * lockkeeper that has all members. Their state is in memory, also while they are stopped.
 */
public class TestingCluster implements Closeable {
    private final Backing backing;
    private final List<TestingZooKeeperServer> servers = new ArrayList<>();

    /**
     * A cluster, which {@link #start} starts.
     *
     * @param instanceQty how many members it has
     */
    public TestingCluster(int instanceQty) {
        this(makeSpecs(instanceQty));
    }

    /**
     * A cluster, which {@link #start} starts.
     *
     * @param specs its members. The settings of the first one are those of all
     */
    public TestingCluster(InstanceSpec... specs) {
        this(Arrays.asList(specs));
    }

    /**
     * A cluster, which {@link #start} starts.
     *
     * @param specs its members. The settings of the first one are those of all
     */
    public TestingCluster(Collection<InstanceSpec> specs) {
        backing = new Backing(new ArrayList<>(specs));
        for (int i = 0; i < specs.size(); i++) {
            servers.add(new TestingZooKeeperServer(backing, i));
        }
    }

    /**
     * A cluster, which {@link #start} starts.
     *
     * @param specs its members, as keys. The settings of the first one are those of all
     */
    public TestingCluster(Map<InstanceSpec, Collection<InstanceSpec>> specs) {
        this(specs.keySet());
    }

    /**
     * Its members. Before the cluster is started, this chooses their ports.
     *
     * @return the members
     */
    public Collection<InstanceSpec> getInstances() {
        reserve();
        return backing.specs();
    }

    /**
     * Its members.
     *
     * @return the members
     */
    public List<TestingZooKeeperServer> getServers() {
        return List.copyOf(servers);
    }

    /**
     * What a client connects to. Before the cluster is started, this chooses the ports.
     *
     * @return HOST:PORT of all members, separated by commas
     */
    public String getConnectString() {
        return getInstances().stream().map(InstanceSpec::getConnectString).collect(Collectors.joining(","));
    }

    private void reserve() {
        try {
            backing.reserve();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        } catch (RuntimeException e) {
            throw e;
        } catch (Exception e) {
            throw new IllegalStateException(e);
        }
    }

    /**
     * Starts all members that do not run.
     *
     * @throws Exception if they cannot be started
     */
    public void start() throws Exception {
        for (TestingZooKeeperServer server : servers) {
            server.start();
        }
    }

    /**
     * Stops all members. They keep their ports and their state.
     *
     * @throws IOException never
     */
    public void stop() throws IOException {
        for (TestingZooKeeperServer server : servers) {
            server.stop();
        }
    }

    /**
     * Ends the cluster, and does what {@link LockkeeperServer#close} does.
     *
     * @throws AssertionError if a fault has not taken effect, a lock under guard did not do what it should, or either
     *     cannot be judged
     * @throws IOException if a directory cannot be deleted
     */
    @Override
    public void close() throws IOException {
        backing.close();
    }

    /**
     * Stops a member as abruptly as if its process had been killed. It keeps its state.
     *
     * @param instance the member
     * @return whether it belongs to this cluster
     * @throws Exception if it cannot be stopped
     */
    public boolean killServer(InstanceSpec instance) throws Exception {
        int index = backing.specs().indexOf(instance);
        if (index >= 0) {
            servers.get(index).kill();
        }
        return index >= 0;
    }

    /**
     * Starts a member again, with the state that it had.
     *
     * @param instance the member
     * @return whether it belongs to this cluster
     * @throws Exception if it cannot be started
     */
    public boolean restartServer(InstanceSpec instance) throws Exception {
        int index = backing.specs().indexOf(instance);
        if (index >= 0) {
            servers.get(index).restart();
        }
        return index >= 0;
    }

    /**
     * The member to which a client is connected.
     *
     * @param client the client
     * @return the member, or null if the client is not connected
     * @throws Exception if the client does not tell
     */
    public InstanceSpec findConnectionInstance(ZooKeeper client) throws Exception {
        Method remote = ZooKeeper.class.getDeclaredMethod("testableRemoteSocketAddress");
        remote.setAccessible(true);
        SocketAddress address = (SocketAddress) remote.invoke(client);
        if (!(address instanceof InetSocketAddress)) {
            return null;
        }
        for (InstanceSpec spec : backing.specs()) {
            if (spec.knownPort() == ((InetSocketAddress) address).getPort()) {
                return spec;
            }
        }
        return null;
    }

    /**
     * Members for a cluster, each with all of them.
     *
     * @param instanceQty how many
     * @return the members
     */
    public static Map<InstanceSpec, Collection<InstanceSpec>> makeSpecs(int instanceQty) {
        return makeSpecs(instanceQty, true);
    }

    /**
     * Members for a cluster, each with all of them.
     *
     * @param instanceQty how many
     * @param withPorts not used: ports are chosen when the cluster is started
     * @return the members
     */
    public static Map<InstanceSpec, Collection<InstanceSpec>> makeSpecs(int instanceQty, boolean withPorts) {
        List<InstanceSpec> all = new ArrayList<>();
        for (int i = 0; i < instanceQty; i++) {
            all.add(InstanceSpec.newInstanceSpec());
        }
        Map<InstanceSpec, Collection<InstanceSpec>> map = new LinkedHashMap<>();
        all.forEach(spec -> map.put(spec, all));
        return map;
    }

    /**
     * What Curator's class does not have: ended sessions, faults, partitions, a look inside, verdicts on locks.
     *
     * @return the cluster
     * @throws Exception if it cannot be started
     */
    public LockkeeperServer lockkeeper() throws Exception {
        return backing.server();
    }
}
