package tests;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotSame;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.platform.engine.discovery.DiscoverySelectors.selectClass;

import io.github.lockkeeper.junit5.Lockkeeper;
import io.github.lockkeeper.test.Fault;
import io.github.lockkeeper.test.Guard;
import io.github.lockkeeper.test.LockkeeperException;
import io.github.lockkeeper.test.LockkeeperServer;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.net.Socket;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.zookeeper.ZooKeeper;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Nested;
import org.junit.jupiter.api.MethodOrderer;
import org.junit.jupiter.api.Order;
import org.junit.jupiter.api.RepeatedTest;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestInstance;
import org.junit.jupiter.api.TestMethodOrder;
import org.junit.jupiter.api.parallel.Execution;
import org.junit.jupiter.api.parallel.ExecutionMode;
import org.junit.platform.engine.TestExecutionResult;
import org.junit.platform.launcher.core.LauncherDiscoveryRequestBuilder;
import org.junit.platform.launcher.core.LauncherFactory;
import org.junit.platform.testkit.engine.EngineTestKit;
import org.junit.platform.testkit.engine.Event;
import org.junit.platform.testkit.engine.Events;

/** The JUnit extension: the classes in this one are run by the tests. */
class ExtensionTest {
    private static Events run(Class<?>... classes) {
        EngineTestKit.Builder kit = EngineTestKit.engine("junit-jupiter")
                .configurationParameter("junit.jupiter.execution.parallel.enabled", "true")
                .configurationParameter("junit.jupiter.execution.parallel.config.strategy", "fixed")
                .configurationParameter("junit.jupiter.execution.parallel.config.fixed.parallelism", "4");
        for (Class<?> one : classes) {
            kit.selectors(selectClass(one));
        }
        return kit.execute().testEvents();
    }

    private static void passes(int tests, Class<?>... classes) {
        Events events = run(classes);
        events.failed().stream().forEach(event -> System.out.println(event));
        events.assertStatistics(stats -> stats.succeeded(tests).failed(0));
    }

    /** What all tests of these classes do: their server must be as it was at the beginning. */
    private static void use(LockkeeperServer server) {
        assertEquals("", server.state().tree());
        server.addTree("/used\n");
        server.znode("/used");
    }

    @Lockkeeper
    static class Fields {
        static final Set<LockkeeperServer> SEEN = ConcurrentHashMap.newKeySet();

        @Lockkeeper
        private LockkeeperServer field;

        @Lockkeeper("other")
        private LockkeeperServer other;

        @BeforeEach
        void before(LockkeeperServer server) {
            assertSame(field, server);
        }

        @RepeatedTest(3)
        void test(LockkeeperServer server) {
            assertSame(field, server);
            assertNotSame(field, other);
            SEEN.add(server);
            use(field);
            use(other);
            server.inject(Fault.drop().optional());
            server.kill();
        }

        @Nested
        class Inner {
            @Test
            void test(LockkeeperServer server) {
                assertSame(field, server);
                use(field);
            }
        }
    }

    @Test
    void fieldsAndParameters() {
        passes(4, Fields.class);
        assertEquals(1, Fields.SEEN.size()); // one test after the other
    }

    @Execution(ExecutionMode.CONCURRENT)
    static class Parallel {
        static final Set<LockkeeperServer> SEEN = ConcurrentHashMap.newKeySet();
        static final CyclicBarrier ALL = new CyclicBarrier(4);

        @RepeatedTest(4)
        void test(@Lockkeeper LockkeeperServer server) throws Exception {
            ALL.await(1, TimeUnit.MINUTES);
            SEEN.add(server);
            use(server);
        }
    }

    @Test
    void eachOfParallelTestsHasItsOwn() {
        passes(4, Parallel.class);
        assertEquals(4, Parallel.SEEN.size());
    }

    static class Shared {
        @Lockkeeper
        static LockkeeperServer server;

        @BeforeAll
        static void before(@Lockkeeper LockkeeperServer parameter) {
            assertSame(server, parameter);
            server.addTree("/common\n");
        }

        @RepeatedTest(2)
        void test(@Lockkeeper LockkeeperServer parameter) {
            assertSame(server, parameter);
            assertEquals("/common\n", server.state().tree());
            server.addTree("/common/used\n");
        }
    }

    static class AfterShared {
        @Test
        void test(@Lockkeeper LockkeeperServer server) {
            use(server);
            LockkeeperException gone = assertThrows(LockkeeperException.class, () -> server.postJson("/restore", Map.of("snapshot", 1)));
            assertEquals(404, gone.status()); // that of Shared was removed
        }
    }

    @Test
    void aStaticFieldIsPutBackToBeforeTheTests() {
        passes(3, Shared.class, AfterShared.class);
    }

    @TestInstance(TestInstance.Lifecycle.PER_CLASS)
    @Execution(ExecutionMode.CONCURRENT)
    static class OneInstance {
        final Set<LockkeeperServer> seen = ConcurrentHashMap.newKeySet();

        @Lockkeeper
        LockkeeperServer server;

        @RepeatedTest(4)
        void test() {
            seen.add(server);
            assertEquals(1, seen.size());
            server.state();
        }
    }

    @Test
    void testsThatShareAnInstanceShareItsFields() {
        passes(4, OneInstance.class);
    }

    static class Constructor {
        private final LockkeeperServer server;

        Constructor(@Lockkeeper LockkeeperServer server) {
            this.server = server;
        }

        @RepeatedTest(2)
        void test() {
            use(server);
        }
    }

    @Test
    void constructors() {
        passes(2, Constructor.class);
    }

    static class Cluster {
        @RepeatedTest(2)
        void test(@Lockkeeper(cluster = 3, tree = {"/a", "/a/b = \"1\""}) LockkeeperServer cluster) {
            assertEquals("/a\n/a/b = \"1\"\n", cluster.state().tree());
            cluster.addTree("/used\n");
            cluster.leader().kill();
        }
    }

    @Test
    void clusters() {
        passes(2, Cluster.class);
    }

    static class FullDisk {
        static final Set<LockkeeperServer> SEEN = ConcurrentHashMap.newKeySet();

        @RepeatedTest(2)
        void test(@Lockkeeper LockkeeperServer server) {
            SEEN.add(server);
            use(server);
            server.member(1).fullDisk();
            assertThrows(LockkeeperException.class, () -> server.addTree("/a\n"));
        }
    }

    @Test
    void aServerThatHasFailedStartsAgain() {
        passes(2, FullDisk.class);
        assertEquals(1, FullDisk.SEEN.size()); // and is not replaced
    }

    @TestMethodOrder(MethodOrderer.OrderAnnotation.class)
    static class OpenClient {
        static ZooKeeper client;
        static LockkeeperServer left;
        static LockkeeperServer next;

        @Test
        @Order(1)
        void leavesItOpen(@Lockkeeper("client") LockkeeperServer server) throws Exception {
            left = server;
            client = connect(server);
        }

        @Test
        @Order(2)
        void meetsNoOther(@Lockkeeper("client") LockkeeperServer server) throws Exception {
            assertTrue(left.isClosed());
            next = server;
            try (ZooKeeper own = connect(server)) {
                assertEquals(1, server.state().sessions().size());
            }
        }

        @Test
        @Order(3)
        void hasThatOfTheOneBefore(@Lockkeeper("client") LockkeeperServer server) {
            assertSame(next, server);
        }

        private static ZooKeeper connect(LockkeeperServer server) throws Exception {
            ZooKeeper made = new ZooKeeper(server.connectString(), 10_000, event -> {});
            made.exists("/", false); // when it is connected
            return made;
        }
    }

    @Test
    void aServerWithAnOpenClientIsNotUsedAgain() throws Exception {
        try {
            passes(3, OpenClient.class);
        } finally {
            OpenClient.client.close();
        }
    }

    static class Older {
        @Test
        void test(@Lockkeeper(behaveAs = "3.4") LockkeeperServer annotated) throws Exception {
            assertVersion("3.4", annotated);
            try (LockkeeperServer own = LockkeeperServer.builder().behaveAs("3.5").start();
                    LockkeeperServer within = LockkeeperServer.builder().behaveAs("3.6").within(own).start()) {
                assertVersion("3.5", own);
                assertVersion("3.6", within);
            }
        }

        private static void assertVersion(String line, LockkeeperServer server) throws Exception {
            URI address = URI.create("tcp://" + server.connectString());
            try (Socket socket = new Socket(address.getHost(), address.getPort())) {
                socket.getOutputStream().write("srvr".getBytes(StandardCharsets.US_ASCII));
                String answer = new String(socket.getInputStream().readAllBytes(), StandardCharsets.US_ASCII);
                assertTrue(answer.startsWith("Zookeeper version: " + line), answer);
            }
        }
    }

    @Test
    void olderReleases() {
        passes(1, Older.class);
    }

    static class Failing {
        @Test
        void faultWithoutEffect(@Lockkeeper LockkeeperServer server) {
            server.inject(Fault.drop().path("/never"));
        }

        @Test
        void unguarded(@Lockkeeper LockkeeperServer server) {
            Guard guard = server.guard("/lock");
            guard.writeUnchecked(1, ""); // by nobody who holds the lock
        }

        @Test
        void later(@Lockkeeper LockkeeperServer server) {
            use(server);
        }
    }

    @Test
    void checksWhatTestsDo() {
        Events events = run(Failing.class);
        events.assertStatistics(stats -> stats.succeeded(1).failed(2));
        for (Throwable failure : events.failed().stream().map(ExtensionTest::thrown).collect(Collectors.toList())) {
            assertTrue(failure.getMessage().contains("the znodes:\nnone\n"), failure.getMessage()); // it shows the server
        }
    }

    static class Shown {
        @Lockkeeper(tree = "/shared")
        static LockkeeperServer shared;

        @Test
        void fails(@Lockkeeper(tree = "/here") LockkeeperServer server) {
            server.addTree("/made");
            assertEquals(1, 2);
        }

        @Test
        void isAborted(@Lockkeeper LockkeeperServer server) {
            Assumptions.abort();
        }
    }

    @Test
    void failureShowsTheServers() {
        Events events = run(Shown.class);
        events.assertStatistics(stats -> stats.failed(1).aborted(1));
        Throwable failure = thrown(events.failed());
        assertEquals(2, failure.getSuppressed().length);
        String own = failure.getSuppressed()[0].getMessage();
        assertTrue(own.contains("the znodes:\n") && own.contains("/here\n/made\n") && own.contains("the last 0 of 0 requests:"), own);
        assertTrue(failure.getSuppressed()[1].getMessage().contains("/shared\n"), failure.getSuppressed()[1].getMessage());
        assertEquals(0, thrown(events.aborted()).getSuppressed().length);
    }

    private static Throwable thrown(Events events) {
        return thrown(events.stream().findFirst().orElseThrow());
    }

    private static Throwable thrown(Event event) {
        return event.getRequiredPayload(TestExecutionResult.class).getThrowable().orElseThrow();
    }

    @Test
    void reportOfAServerThatHasEnded() {
        LockkeeperServer server = LockkeeperServer.start();
        assertEquals("the members: 1 standalone\nthe znodes:\nnone\nthe last 0 of 0 requests:", server.report());
        server.inject(Fault.drop().path("/never").optional());
        server.kill();
        assertTrue(server.report().startsWith("the members: 1 stopped\nthe test has sent /kill {}\nthe znodes:\nnone\nFault{Path: /never, "), server.report());
        server.reset(null);
        assertEquals("the members: 1 standalone\nthe znodes:\nnone\nthe last 0 of 0 requests:", server.report());
        server.close();
        assertTrue(server.report().endsWith("was closed"), server.report());
    }

    @TestMethodOrder(MethodOrderer.OrderAnnotation.class)
    static class Dying {
        @Lockkeeper
        static LockkeeperServer server;

        @Test
        @Order(1)
        void dies(@Lockkeeper("open") LockkeeperServer open, @Lockkeeper("idle") LockkeeperServer idle) {
            open.guard("/lock");
            open.inject(Fault.drop().path("/never"));
            for (LockkeeperServer each : List.of(open, idle, server)) {
                ProcessHandle.of(each.pid()).orElseThrow().destroyForcibly();
            }
        }

        @Test
        @Order(2)
        void later() {}

        @Test
        @Order(3)
        void others(@Lockkeeper("open") LockkeeperServer open, @Lockkeeper("idle") LockkeeperServer idle) {
            use(open);
            use(idle);
        }
    }

    @Test
    void whatCannotBeJudgedFailsTheTest() {
        Events events = run(Dying.class);
        events.assertStatistics(stats -> stats.failed(3));
        List<String> whys = events.failed().stream().map(ExtensionTest::thrown)
                .map(why -> why.getMessage() + Arrays.toString(why.getSuppressed())).collect(Collectors.toList());
        String first = whys.get(0);
        for (String part : List.of("its lock /lock cannot be judged", "its fault Fault.drop().path(\"/never\") cannot be judged: ", "has ended with exit code 137")) {
            assertTrue(first.contains(part), first);
        }
        assertEquals(6, first.split("has ended with exit code 137, so it is of no use to this test or a later one", -1).length - 1, first);
        for (String later : whys.subList(1, 3)) {
            assertTrue(later.startsWith("/restore: the server ") && later.contains("has ended with exit code 137"), later);
        }
    }

    static class Unannotated {
        @Test
        void test(LockkeeperServer server) {}
    }

    static class HalfAnnotated {
        @Test
        void test(@Lockkeeper LockkeeperServer server, LockkeeperServer other) {}
    }

    @Test
    void namesTheAnnotationThatIsMissing() {
        Throwable failure = thrown(run(HalfAnnotated.class).failed());
        assertTrue(failure.getMessage().contains("add @Lockkeeper to the parameter "), failure.getMessage());

        PrintStream before = System.err;
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        System.setErr(new PrintStream(printed, true));
        try {
            LauncherFactory.create().execute(LauncherDiscoveryRequestBuilder.request().selectors(selectClass(Unannotated.class)).build());
        } finally {
            System.setErr(before);
        }
        assertTrue(printed.toString().contains("lockkeeper: test(LockkeeperServer): add @Lockkeeper to the parameter, or to the class"), printed.toString());
    }

    static class Wrong {
        @Lockkeeper
        String field;

        @Test
        void test() {}
    }

    @Test
    void refusesOtherTypes() {
        run(Wrong.class).assertStatistics(stats -> stats.failed(1));
    }

    static class Seen {
        static LockkeeperServer last;

        @Test
        void test(@Lockkeeper LockkeeperServer server) {
            last = server;
        }
    }

    @Test
    void serversEndWithTheRun() {
        passes(1, Seen.class);
        assertThrows(LockkeeperException.class, Seen.last::state);
    }
}
