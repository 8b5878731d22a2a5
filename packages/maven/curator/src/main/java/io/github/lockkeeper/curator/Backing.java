package io.github.lockkeeper.curator;

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
        InstanceSpec first = specs.get(0);
        int port = first.knownPort();
        for (int i = 0; i < specs.size(); i++) {
            if (specs.get(i).knownPort() != (port == 0 ? 0 : port + i)) {
                throw new IllegalArgumentException("the members of a cluster need free ports, or one after the other: " + specs);
            }
        }
        LockkeeperServer.Builder builder = LockkeeperServer.builder().port(port).cluster(specs.size() == 1 ? 0 : specs.size());
        if (first.getTickTime() > 0) {
            builder.flags("--tick-time=" + first.getTickTime() + "ms");
        }
        if (first.getMaxClientCnxns() >= 0) {
            builder.flags("--max-client-cnxns=" + first.getMaxClientCnxns());
        }
        Path config = null;
        if (!first.getCustomProperties().isEmpty()) {
            config = write(first);
            builder.flags("--config=" + config);
        }
        try {
            server = builder.start();
        } finally {
            if (config != null) {
                Files.delete(config);
            }
        }
        for (int i = 0; i < specs.size(); i++) {
            String address = server.member(i + 1).connectString();
            specs.get(i).setPort(Integer.parseInt(address.substring(address.lastIndexOf(':') + 1)));
            running[i] = true;
        }
    }

    /** Writes a zoo.cfg. The flags take precedence over the keys that every one must have. */
    private static Path write(InstanceSpec spec) throws IOException {
        Properties keys = new Properties();
        keys.setProperty("dataDir", spec.getDataDirectory().getPath());
        keys.setProperty("extendedTypesEnabled", "true");
        spec.getCustomProperties().forEach((key, value) -> keys.setProperty(key, String.valueOf(value)));
        Path file = Files.createTempFile("lockkeeper-", ".cfg");
        try (OutputStream out = Files.newOutputStream(file)) {
            keys.store(out, null);
        }
        return file;
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
        if (server != null) {
            server.close();
        }
        for (InstanceSpec spec : specs) {
            spec.deleteDataDirectory();
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
