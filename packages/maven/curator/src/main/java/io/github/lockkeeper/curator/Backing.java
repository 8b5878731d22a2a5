package io.github.lockkeeper.curator;

import io.github.lockkeeper.test.LockkeeperException;
import io.github.lockkeeper.test.LockkeeperServer;
import io.github.lockkeeper.test.Member;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Properties;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/** The process behind the classes of this package. Its members are those of specs, in this order. */
final class Backing {
    private static final int ATTEMPTS = 10;

    private final List<InstanceSpec> specs;
    private final boolean[] running;
    private LockkeeperServer server; // null until something is started, or somebody asks for a port
    private boolean closed;

    Backing(List<InstanceSpec> specs) {
        this.specs = List.copyOf(specs);
        running = new boolean[specs.size()];
    }

    List<InstanceSpec> specs() {
        return specs;
    }

    synchronized LockkeeperServer server() throws Exception {
        if (closed) {
            throw new IllegalStateException("the server is closed, and its data deleted");
        }
        if (server == null) {
            launch();
        }
        return server;
    }

    private void launch() throws Exception {
        int port = specs.get(0).knownPort();
        for (int i = 0; i < specs.size(); i++) {
            if (specs.get(i).knownPort() != (port == 0 ? 0 : port + i)) {
                throw new IllegalArgumentException("the members of a cluster need free ports, or one after the other: " + specs);
            }
        }
        for (int attempt = 1; server == null; attempt++) {
            try {
                server = start(builder(port == 0 && specs.size() > 1 ? freePorts(specs.size()) : port));
            } catch (LockkeeperException e) {
                if (port != 0 || attempt == ATTEMPTS) { // somebody else may have taken a free port
                    throw e;
                }
            }
        }
        for (int i = 0; i < specs.size(); i++) {
            String address = server.member(i + 1).connectString();
            specs.get(i).setPort(Integer.parseInt(address.substring(address.lastIndexOf(':') + 1)));
            running[i] = true;
        }
    }

    /** Returns the first of some free ports that follow each other, so that the same specs can be those of another cluster. */
    private static int freePorts(int number) {
        for (; ; ) {
            int first = InstanceSpec.getRandomPort();
            int free = 1;
            while (free < number && first + free < 65536 && InstanceSpec.isFree(first + free)) {
                free++;
            }
            if (free == number) {
                return first;
            }
        }
    }

    private LockkeeperServer.Builder builder(int port) {
        InstanceSpec first = specs.get(0);
        LockkeeperServer.Builder builder = LockkeeperServer.builder().port(port).cluster(specs.size() == 1 ? 0 : specs.size());
        if (first.getTickTime() > 0) {
            builder.flags("--tick-time=" + first.getTickTime() + "ms");
        }
        if (first.getMaxClientCnxns() >= 0) {
            builder.flags("--max-client-cnxns=" + first.getMaxClientCnxns());
        }
        return builder;
    }

    /** Starts a server with the keys of a zoo.cfg, and what a ZooKeeper in this JVM would read from system properties. */
    private LockkeeperServer start(LockkeeperServer.Builder builder) throws IOException {
        Properties keys = new Properties();
        specs.get(0).getCustomProperties().forEach((key, value) -> keys.setProperty(key, String.valueOf(value)));
        for (String name : System.getProperties().stringPropertyNames()) {
            if (name.startsWith("zookeeper.") || name.startsWith("znode.") || name.equals("readonlymode.enabled")) {
                keys.putIfAbsent(name, System.getProperty(name));
            }
        }
        if (keys.isEmpty()) {
            return builder.start();
        }
        // Keys that every zoo.cfg must have, or that keep what lockkeeper has without one.
        keys.putIfAbsent("dataDir", specs.get(0).getDataDirectory().getPath());
        keys.putIfAbsent("extendedTypesEnabled", "true");
        Path file = Files.createTempFile("lockkeeper-", ".cfg");
        try {
            try (OutputStream out = Files.newOutputStream(file)) {
                keys.store(out, null);
            }
            return builder.flags("--config=" + file).start();
        } finally {
            Files.delete(file);
        }
    }

    synchronized void start(int index) throws Exception {
        Member member = server().member(index + 1);
        if (!running[index]) {
            member.restart();
            running[index] = true;
        }
    }

    synchronized void stop(int index) {
        if (running[index] && !closed) {
            server.member(index + 1).kill();
            running[index] = false;
        }
    }

    /** Makes the ports known, without serving clients. */
    synchronized void reserve() throws Exception {
        if (server == null && !closed) {
            server();
            for (int i = 0; i < specs.size(); i++) {
                stop(i);
            }
        }
    }

    synchronized void close() throws IOException {
        if (closed) {
            return;
        }
        closed = true;
        try {
            if (server != null) {
                server.close();
            }
        } finally {
            for (InstanceSpec spec : specs) {
                spec.deleteDataDirectory();
            }
        }
    }

    static void deleteAll(Path directory) throws IOException {
        if (!Files.exists(directory)) {
            return;
        }
        List<Path> all;
        try (Stream<Path> walk = Files.walk(directory)) {
            all = walk.sorted(Comparator.reverseOrder()).collect(Collectors.toCollection(ArrayList::new));
        }
        for (Path path : all) {
            Files.delete(path);
        }
    }
}
