package io.github.lockkeeper.test;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.platform.engine.discovery.DiscoverySelectors.selectClass;

import io.github.lockkeeper.curator.TestingCluster;
import io.github.lockkeeper.curator.TestingServer;
import io.github.lockkeeper.junit5.Lockkeeper;
import java.io.File;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import java.util.stream.Stream;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestFactory;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;
import org.junit.platform.engine.TestExecutionResult;
import org.junit.platform.testkit.engine.EngineTestKit;

/**
 * Runs the cases of packages/judged.json, which says what they mean, as tests of the JUnit extension, and as blocks whose
 * server is closed at their end: a LockkeeperServer, and a TestingServer or TestingCluster.
 */
class JudgedTest {
    private static List<Map<?, ?>> cases() throws Exception {
        List<Map<?, ?>> all = new ArrayList<>();
        try (InputStream in = JudgedTest.class.getResourceAsStream("/judged.json")) {
            Map<?, ?> json = (Map<?, ?>) Json.read(new String(in.readAllBytes(), StandardCharsets.UTF_8));
            ((List<?>) json.get("cases")).forEach(one -> all.add((Map<?, ?>) one));
        }
        return all;
    }

    /** A class whose tests are the cases. */
    static class Cases {
        static Stream<Arguments> single() throws Exception {
            return some(false);
        }

        static Stream<Arguments> cluster() throws Exception {
            return some(true);
        }

        private static Stream<Arguments> some(boolean cluster) throws Exception {
            return cases().stream().filter(one -> one.containsKey("cluster") == cluster).map(one -> Arguments.of(one.get("name"), one));
        }

        @ParameterizedTest(name = "{0}")
        @MethodSource
        void single(String name, Map<?, ?> one, @Lockkeeper LockkeeperServer server) throws Exception {
            new Steps(server).all((List<?>) one.get("steps"));
        }

        @ParameterizedTest(name = "{0}")
        @MethodSource
        void cluster(String name, Map<?, ?> one, @Lockkeeper(cluster = 3) LockkeeperServer server) throws Exception {
            new Steps(server).all((List<?>) one.get("steps"));
        }
    }

    @TestFactory
    List<DynamicTest> judges() throws Exception {
        Map<String, String> whys = new TreeMap<>();
        EngineTestKit.engine("junit-jupiter").selectors(selectClass(Cases.class)).execute().testEvents().finished().stream().forEach(event -> {
            TestExecutionResult result = event.getRequiredPayload(TestExecutionResult.class);
            whys.put(event.getTestDescriptor().getDisplayName(), result.getThrowable().map(JudgedTest::report).orElse(""));
        });
        return tests(one -> whys.get(one.get("name")));
    }

    @TestFactory
    List<DynamicTest> closed() throws Exception {
        return tests(one -> why(() -> {
            LockkeeperServer server = one.containsKey("cluster") ? LockkeeperServer.startCluster(3) : LockkeeperServer.start();
            try (server) {
                new Steps(server).all((List<?>) one.get("steps"));
            } finally {
                assertFalse(ProcessHandle.of(server.pid()).isPresent());
            }
        }));
    }

    @TestFactory
    List<DynamicTest> closedByCurator() throws Exception {
        return tests(one -> why(() -> {
            if (one.containsKey("cluster")) {
                try (TestingCluster cluster = new TestingCluster(3)) {
                    cluster.start();
                    new Steps(cluster.lockkeeper()).all((List<?>) one.get("steps"));
                }
                return;
            }
            TestingServer server = new TestingServer();
            File directory = server.getTempDirectory();
            try (server) {
                new Steps(server.lockkeeper()).all((List<?>) one.get("steps"));
            } finally {
                assertFalse(directory.exists());
            }
        }));
    }

    /** An exception in flight is not hidden. */
    @Test
    void raises() {
        IllegalStateException raised = assertThrows(IllegalStateException.class, () -> {
            try (TestingServer server = new TestingServer()) {
                server.lockkeeper().inject(Fault.drop().path("/typo"));
                throw new IllegalStateException("raised");
            }
        });
        assertTrue(raised.getSuppressed()[0].getMessage().contains("/typo"), raised.getSuppressed()[0].toString());
    }

    /** A server in the process of another one is judged, too. */
    @Test
    void within() throws Exception {
        try (LockkeeperServer first = LockkeeperServer.start()) {
            LockkeeperServer unmet = LockkeeperServer.builder().within(first).start();
            unmet.inject(Fault.drop().path("/typo"));
            assertTrue(why(unmet::close).contains("/typo"));
            assertThrows(LockkeeperException.class, () -> first.getJson(unmet.url().substring(first.url().length())));
        }
        LockkeeperServer closed = LockkeeperServer.start();
        LockkeeperServer after = LockkeeperServer.builder().within(closed).start();
        closed.close();
        after.close();
        LockkeeperServer died = LockkeeperServer.start();
        LockkeeperServer with = LockkeeperServer.builder().within(died).start();
        new Steps(died).step(Map.of("killProcess", true));
        for (LockkeeperServer each : List.of(with, died)) {
            assertTrue(why(each::close).contains("has ended with exit code 137"));
        }
    }

    private static String why(Executable test) {
        try {
            test.execute();
            return "";
        } catch (Throwable e) {
            return report(e);
        }
    }

    private static List<DynamicTest> tests(Function<Map<?, ?>, String> run) throws Exception {
        List<DynamicTest> all = new ArrayList<>();
        for (Map<?, ?> one : cases()) {
            all.add(DynamicTest.dynamicTest((String) one.get("name"), () -> {
                String why = run.apply(one);
                if (!one.containsKey("fails")) {
                    assertEquals("", why);
                    return;
                }
                for (Object text : (List<?>) one.get("fails")) {
                    assertTrue(why.contains((String) text), '"' + text.toString() + "\" is not in: " + why);
                }
            }));
        }
        return all;
    }

    /** Returns what JUnit shows of a failure. */
    private static String report(Throwable failure) {
        StringBuilder all = new StringBuilder(failure.toString());
        for (Throwable more : failure.getSuppressed()) {
            all.append('\n').append(more);
        }
        return all.toString();
    }

    /** Does what a case says to a server. */
    private static final class Steps {
        private final LockkeeperServer server;
        private Injection fault;
        private Guard guard;
        private Snapshot snapshot;

        Steps(LockkeeperServer server) {
            this.server = server;
        }

        void all(List<?> steps) throws Exception {
            for (Object step : steps) {
                step((Map<?, ?>) step);
            }
        }

        private void step(Map<?, ?> step) throws Exception {
            String name = step.keySet().iterator().next().toString();
            Object argument = step.get(name);
            switch (name) {
                case "inject":
                    fault = server.inject(fault((Map<?, ?>) argument));
                    break;
                case "remove":
                    fault.remove();
                    break;
                case "scoped":
                    try (Injection closed = server.inject(fault((Map<?, ?>) argument))) {
                        if (step.containsKey("raise")) {
                            throw new IllegalStateException("raised with " + closed);
                        }
                    } catch (IllegalStateException e) {
                        // as a test that expects it
                    }
                    break;
                case "guard":
                    guard = server.guard((String) argument);
                    break;
                case "write":
                    guard.write((Long) argument);
                    break;
                case "guarded":
                    server.guard((String) argument).write((Long) step.get("write"));
                    break;
                case "verdict":
                    guard.verdict();
                    break;
                case "connect":
                    handshake();
                    break;
                case "refused":
                    assertThrows(LockkeeperException.class, argument.equals("partition") ? () -> server.partition(List.of(1), List.of(2)) : server.member(1)::restart);
                    break;
                case "kill":
                    server.member(((Long) argument).intValue()).kill();
                    break;
                case "snapshot":
                    snapshot = server.snapshot();
                    break;
                case "restore":
                    server.restore(snapshot);
                    break;
                case "stop":
                    server.close();
                    break;
                case "killProcess":
                    ProcessHandle process = ProcessHandle.of(server.pid()).orElseThrow();
                    process.destroyForcibly();
                    process.onExit().get(1, TimeUnit.MINUTES);
                    break;
                default:
                    throw new IllegalArgumentException(name);
            }
        }

        private static Fault fault(Map<?, ?> fields) {
            Fault fault = fields.get("do").equals("closeBefore") ? Fault.closeBefore() : Fault.closeAfter();
            for (Map.Entry<?, ?> field : fields.entrySet()) {
                switch ((String) field.getKey()) {
                    case "do":
                        break;
                    case "op":
                        fault = fault.op((String) field.getValue());
                        break;
                    case "path":
                        fault = fault.path((String) field.getValue());
                        break;
                    case "optional":
                        fault = fault.optional();
                        break;
                    default:
                        throw new IllegalArgumentException(field.toString());
                }
            }
            return fault;
        }

        /** Sends what a client begins with, for a new session, and waits until the server answers or closes the connection. */
        private void handshake() throws Exception {
            try (Socket socket = new Socket("127.0.0.1", Integer.parseInt(server.connectString().split(":")[1])); OutputStream out = socket.getOutputStream()) {
                out.write(ByteBuffer.allocate(48).putInt(0, 44).putInt(16, 10_000).putInt(28, 16).array());
                socket.getInputStream().read();
            }
        }
    }
}
