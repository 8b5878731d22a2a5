package tests;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.lockkeeper.test.Advanced;
import io.github.lockkeeper.test.Fault;
import io.github.lockkeeper.test.Guard;
import io.github.lockkeeper.test.Injection;
import io.github.lockkeeper.test.LockkeeperException;
import io.github.lockkeeper.test.LockkeeperServer;
import io.github.lockkeeper.test.LockkeeperTimeoutException;
import io.github.lockkeeper.test.Member;
import io.github.lockkeeper.test.Namespace;
import io.github.lockkeeper.test.Request;
import io.github.lockkeeper.test.Snapshot;
import io.github.lockkeeper.test.State;
import io.github.lockkeeper.test.Verdict;
import io.github.lockkeeper.test.Znode;
import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.NoSuchElementException;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.Watcher.Event.KeeperState;
import org.apache.zookeeper.ZooDefs.Ids;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.data.Stat;
import org.junit.jupiter.api.Test;

/** Every method of the plain library, on one server and on a cluster. */
class ControlTest {
    private static ZooKeeper connect(String addresses) throws Exception {
        CountDownLatch connected = new CountDownLatch(1);
        ZooKeeper client = new ZooKeeper(addresses, 10_000, event -> {
            if (event.getState() == KeeperState.SyncConnected) {
                connected.countDown();
            }
        });
        assertTrue(connected.await(1, TimeUnit.MINUTES));
        return client;
    }

    private static String create(ZooKeeper client, String path, CreateMode mode) throws Exception {
        return client.create(path, "x".getBytes(), Ids.OPEN_ACL_UNSAFE, mode);
    }

    private static void refused(int status, Runnable call) {
        assertEquals(status, assertThrows(LockkeeperException.class, call::run).status());
    }

    @Test
    void looksInside() throws Exception {
        Instant before = Instant.now().minusSeconds(1);
        try (LockkeeperServer server = LockkeeperServer.start(); ZooKeeper client = connect(server.connectString()); ZooKeeper other = connect(server.connectString())) {
            create(client, "/locks", CreateMode.PERSISTENT);
            String held = create(client, "/locks/a-", CreateMode.EPHEMERAL_SEQUENTIAL);
            create(other, "/locks/b-", CreateMode.EPHEMERAL_SEQUENTIAL);
            other.exists(held, true);
            server.waitUntil().held("/locks", client.getSessionId());
            server.waitUntil().waiters("/locks", 1);

            State state = server.state();
            assertEquals(server.connectString(), state.connectString());
            assertEquals(1, state.leader());
            assertEquals(1, state.shown());
            assertEquals("standalone", state.members().get(0).role());
            assertEquals(server.connectString(), state.members().get(0).address());
            assertTrue(state.tree().startsWith("/locks = \"x\"\n/locks/a-0000000000 = \"x\""), state.tree());
            assertEquals(2, state.sessions().size());
            State.Session session = state.sessions().stream().filter(s -> s.id() == client.getSessionId()).findFirst().orElseThrow();
            assertEquals(Duration.ofSeconds(10), session.timeout());
            assertTrue(session.connected());
            assertEquals(List.of(held), session.ephemerals());
            assertEquals(other.getSessionId(), state.watches().get(0).session());
            assertEquals(held, state.watches().get(0).path());
            State.Lock lock = state.lock("/locks");
            assertEquals(client.getSessionId(), lock.holder());
            assertEquals(List.of(other.getSessionId()), lock.queue());
            assertTrue(lock.since().isAfter(before));
            assertThrows(NoSuchElementException.class, () -> state.lock("/other"));

            Znode znode = server.znode(held);
            Stat stat = client.exists(held, false);
            assertArrayEquals(new byte[] {'x'}, znode.data());
            assertEquals("x", znode.text());
            assertEquals(lock.token(), znode.czxid());
            assertEquals(client.getSessionId(), znode.ephemeralOwner());
            assertEquals(List.of(stat.getCzxid(), stat.getMzxid(), stat.getPzxid(), stat.getCtime(), stat.getMtime()),
                    List.of(znode.czxid(), znode.mzxid(), znode.pzxid(), znode.ctime(), znode.mtime()));
            assertEquals(2, server.znode("/locks").numChildren());
            assertEquals(2, server.znode("/locks").cversion());
            assertEquals(0, server.znode("/locks").version());
            assertEquals(0, server.znode("/locks").aversion());
            assertEquals(0, server.znode("/locks").ephemeralOwner());
            refused(404, () -> server.znode("/none"));

            List<Request> creates = server.requests("create*");
            assertEquals(List.of("/locks", "/locks/a-", "/locks/b-"), creates.stream().map(Request::path).toList());
            assertEquals(client.getSessionId(), creates.get(0).session());
            assertTrue(creates.get(0).op().startsWith("create"), creates.get(0).op());
            assertTrue(creates.get(0).time().isAfter(before));
            assertTrue(creates.get(0).toString().contains("/locks"), creates.get(0).toString());
            String line = "the lock /locks: held by 0x" + Long.toHexString(client.getSessionId()) + " with token " + lock.token() + ", queue [0x" + Long.toHexString(other.getSessionId()) + "]\n";
            assertTrue(server.report().contains(line), server.report());
            assertTrue(server.requests().size() > creates.size());
            assertEquals(creates.size(), server.member(1).requests("create*").size());
            assertEquals(server.connectString(), server.member(1).connectString());
            assertTrue(server.getJson("/state").containsKey("tree"));
        }
    }

    @Test
    void endsSessions() throws Exception {
        try (LockkeeperServer server = LockkeeperServer.start(); ZooKeeper client = connect(server.connectString())) {
            String path = create(client, "/a", CreateMode.EPHEMERAL);
            server.disconnect(client.getSessionId());
            server.expire(client.getSessionId());
            server.waitUntil().gone(path);
            refused(404, () -> server.expire(client.getSessionId()));
            refused(504, () -> server.waitUntil(Duration.ofMillis(50)).exists(path));
        }
    }

    @Test
    void injectsFaults() throws Exception {
        try (LockkeeperServer server = LockkeeperServer.start(); ZooKeeper client = connect(server.connectString())) {
            Injection answer = server.inject(Fault.answer("NodeExists").op("create*").path("/a").session(client.getSessionId()).nth(2).member(1));
            create(client, "/a", CreateMode.EPHEMERAL);
            assertFalse(answer.fired());
            assertThrows(KeeperException.NodeExistsException.class, () -> create(client, "/a", CreateMode.EPHEMERAL));
            answer.awaitFired();
            assertTrue(answer.fired());
            assertTrue(answer.remove());

            try (Injection slow = server.inject(Fault.delay(Duration.ofMillis(20)).times(2))) {
                client.exists("/a", false);
                assertTrue(slow.fired());
            }
            try (Injection lost = server.inject(Fault.closeAfter().op("setData"))) {
                assertThrows(KeeperException.ConnectionLossException.class, () -> client.setData("/a", null, -1));
                assertEquals(1, server.znode("/a").version());
                assertTrue(lost.fired());
            }
            for (Fault fault : List.of(Fault.hold(), Fault.drop(), Fault.dropReply(), Fault.closeBefore(), Fault.trickle(Duration.ofMillis(1)))) {
                Injection never = server.inject(fault.path("/none").optional().always());
                assertFalse(never.remove());
            }
            try (Injection refused = server.inject(Fault.refuse()); ZooKeeper late = connect(server.connectString())) {
                assertTrue(refused.fired());
            }
            server.check(); // all others have taken effect
            server.inject(Fault.drop().path("/never"));
            assertTrue(assertThrows(AssertionError.class, server::check).getMessage().contains("/never"));
            server.check(); // only once
        }
    }

    @Test
    void stopsAndPauses() throws Exception {
        try (LockkeeperServer server = LockkeeperServer.start(); ZooKeeper client = connect(server.connectString())) {
            create(client, "/a", CreateMode.PERSISTENT);
            server.kill();
            assertEquals("stopped", server.state().members().get(0).role());
            refused(409, server::kill);
            server.restart();
            assertEquals("x", server.znode("/a").text());
            server.pause();
            server.resume();
            server.clock(Duration.ofHours(-1));
            server.clock(Duration.ZERO);
        }
    }

    @Test
    void putsStateBack() throws Exception {
        try (LockkeeperServer server = LockkeeperServer.builder().tree("/config\n/config/limit = \"10\"\n").start(); ZooKeeper client = connect(server.connectString())) {
            assertEquals("10", server.znode("/config/limit").text());
            server.addTree("/config/limit = \"11\"\n/more\n");
            Snapshot snapshot = server.snapshot();
            create(client, "/a", CreateMode.PERSISTENT);
            server.restore(snapshot);
            assertEquals("11", server.znode("/config/limit").text());
            server.znode("/more");
            refused(404, () -> server.znode("/a"));
            server.restore();
            assertEquals("10", server.znode("/config/limit").text());
            refused(404, () -> server.znode("/more"));
            try (LockkeeperServer other = LockkeeperServer.start()) {
                assertThrows(IllegalArgumentException.class, () -> other.restore(snapshot));
            }
        }
    }

    @Test
    void waits() throws Exception {
        try (LockkeeperServer server = LockkeeperServer.start(); ZooKeeper client = connect(server.connectString())) {
            create(client, "/a", CreateMode.PERSISTENT);
            create(client, "/a/b", CreateMode.PERSISTENT);
            client.exists("/a", true);
            server.waitUntil().exists("/a");
            server.waitUntil().text("/a", "x");
            server.waitUntil(Duration.ofSeconds(5)).data("/a", new byte[] {'x'});
            server.waitUntil().children("/a", 1);
            server.waitUntil().requests("create*", "", 2);
            server.waitUntil().requests("create*", "/a/*", 1);
            server.waitUntil().watch("/a");
            server.member(1).waitUntil().watch("/a", client.getSessionId());
            refused(504, () -> server.waitUntil(Duration.ofMillis(50)).children("/a", 2));
            refused(504, () -> server.member(1).waitUntil(Duration.ofMillis(50)).gone("/a"));
        }
    }

    @Test
    void namespaces() throws Exception {
        try (LockkeeperServer server = LockkeeperServer.start()) {
            Namespace one = server.namespace();
            try (Namespace named = server.namespace("mine"); ZooKeeper client = connect(named.connectString())) {
                assertEquals("/mine", named.path());
                assertNotEquals(one.path(), named.path());
                create(client, "/a", CreateMode.PERSISTENT);
                assertEquals("x", server.znode("/mine/a").text());
            }
            refused(404, () -> server.znode("/mine"));
            one.close();
            refused(404, one::close);
        }
    }

    @Test
    void advancesTime() throws Exception {
        try (LockkeeperServer server = LockkeeperServer.start(); ZooKeeper client = connect(server.connectString())) {
            create(client, "/e", CreateMode.EPHEMERAL);
            client.create("/ttl", null, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT_WITH_TTL, new Stat(), 3_600_000);
            Advanced soon = server.advance(Duration.ofMinutes(30));
            assertEquals(List.of(), soon.expired());
            assertEquals(List.of(), soon.deleted());
            assertEquals(List.of("/ttl"), server.advance(Duration.ofHours(1)).deleted());
            assertEquals(List.of(client.getSessionId()), server.advanceConnected(Duration.ofMinutes(1)).expired());
            server.waitUntil().gone("/e");
            try (ZooKeeper next = connect(server.connectString())) {
                next.create("/ttl", null, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT_WITH_TTL, new Stat(), 3_600_000);
                assertEquals(List.of("/ttl"), server.endTtls());
            }
        }
    }

    @Test
    void judgesLocks() throws Exception {
        try (LockkeeperServer server = LockkeeperServer.start(); ZooKeeper a = connect(server.connectString()); ZooKeeper b = connect(server.connectString())) {
            create(a, "/lock", CreateMode.PERSISTENT);
            Guard good = server.guard("/lock");
            Guard bad = server.guard("/lock");
            create(a, "/lock/lock-", CreateMode.EPHEMERAL_SEQUENTIAL);
            long old = server.state().lock("/lock").token();
            assertTrue(good.write(old).accepted());
            server.expire(a.getSessionId());
            create(b, "/lock/lock-", CreateMode.EPHEMERAL_SEQUENTIAL);
            long now = server.state().lock("/lock").token();
            assertTrue(good.write(now).accepted());
            assertFalse(good.write(old).accepted());
            assertTrue(good.write(old).reason().contains("stale"), good.write(old).toString());
            bad.writeUnchecked(now, "file");
            bad.writeUnchecked(old, "file");
            assertTrue(good.verdict().ok(), good.verdict().toString());
            good.verdict().assertOk();
            Verdict verdict = bad.verdict();
            assertFalse(verdict.ok());
            assertFalse(verdict.violations().isEmpty());
            assertFalse(verdict.timeline().isEmpty());
            assertThrows(AssertionError.class, verdict::assertOk);
            server.check(); // both verdicts were asked for
            Guard unasked = server.guard("/lock");
            unasked.writeUnchecked(now, "file");
            unasked.writeUnchecked(old, "file");
            assertThrows(AssertionError.class, server::check);
        }
    }

    @Test
    void saysWhatIsWrong() {
        try (LockkeeperServer server = LockkeeperServer.start()) {
            LockkeeperException alone = assertThrows(LockkeeperException.class, () -> server.partition(List.of(1)));
            assertTrue(alone.getMessage().contains("@Lockkeeper(cluster = 3), or LockkeeperServer.startCluster(3)"), alone.getMessage());
            LockkeeperTimeoutException late = assertThrows(LockkeeperTimeoutException.class, () -> server.waitUntil(Duration.ofMillis(50)).exists("/a"));
            assertInstanceOf(TimeoutException.class, late.getCause());
            assertTrue(late.getMessage().contains("50ms"), late.getMessage());
            assertEquals("member 1 at " + server.connectString(), server.leader().toString());
            server.inject(Fault.answer("NoNode").op("get*").path("/a").nth(2).always());
            String unmet = assertThrows(AssertionError.class, server::check).getMessage();
            assertEquals("the test fails, since its fault Fault.answer(\"NoNode\").op(\"get*\").path(\"/a\").nth(2).always() has had no effect"
                    + " (requests that it matched: 0). If it need not meet a request, add .optional()\n\n" + server.connectString() + ": " + server.report(), unmet);
            LockkeeperException early = assertThrows(LockkeeperException.class, () -> server.expire(0));
            assertTrue(early.getMessage().endsWith("the client has not connected yet"), early.getMessage());
        }
    }

    @Test
    void clusters() throws Exception {
        try (LockkeeperServer cluster = LockkeeperServer.startCluster(3)) {
            assertEquals(3, cluster.members().size());
            assertThrows(IllegalArgumentException.class, () -> cluster.member(4));
            Member leader = cluster.leader();
            Member next = cluster.stepDown();
            assertNotEquals(leader.id(), next.id());
            cluster.member(1).slowDisk(Duration.ofMillis(1));
            cluster.member(1).fullDisk();
            cluster.member(1).healDisk();
            cluster.cutLink(1, 2);
            cluster.link(2, 3, Duration.ofMillis(10), 0.1);
            cluster.heal();
            int old = cluster.leader().id();
            int[] others = {old % 3 + 1, (old + 1) % 3 + 1};
            cluster.partition(List.of(old), List.of(others[0], others[1]));
            assertTrue(cluster.report().contains("\nthe test has sent /heal {}\nthe test has sent /partition {\"groups\":[[" + old + "],["), cluster.report());
            assertNotEquals(old, cluster.waitUntil().leader(others).id());
            cluster.heal();
            cluster.member(2).pause();
            cluster.member(2).resume();
            cluster.member(2).clock(Duration.ofHours(1));
            cluster.member(2).clock(Duration.ZERO);
            cluster.reset(null);
            try (ZooKeeper client = connect(cluster.connectString())) {
                create(client, "/a", CreateMode.PERSISTENT);
            }
            for (Member member : cluster.members()) {
                member.waitUntil().exists("/a");
                assertEquals("x", member.znode("/a").text());
                assertEquals(member.id(), member.state().shown());
            }
            Member killed = cluster.leader();
            killed.kill();
            cluster.reset(null);
            killed.waitUntil().gone("/a");
        }
    }

    @Test
    void severalInOneProcess() throws Exception {
        try (LockkeeperServer first = LockkeeperServer.start()) {
            LockkeeperServer second = LockkeeperServer.builder().within(first).cluster(3).tree("/b\n").start();
            assertEquals(first.pid(), second.pid());
            assertEquals(3, second.members().size());
            second.znode("/b");
            refused(404, () -> first.znode("/b"));
            second.close();
            assertThrows(LockkeeperException.class, second::state);
            LockkeeperServer.builder().within(first).start(); // ends with the process
            assertThrows(IllegalArgumentException.class, () -> LockkeeperServer.builder().within(first).port(1).start());
        }
    }

    @Test
    void saysWhyItDoesNotStart() {
        String why = assertThrows(LockkeeperException.class, () -> LockkeeperServer.builder().flags("--tick-time=never").start()).getMessage();
        assertTrue(why.contains("tick-time"), why);
    }

    @Test
    void endsItsProcess() {
        LockkeeperServer server = LockkeeperServer.start();
        ProcessHandle process = ProcessHandle.of(server.pid()).orElseThrow();
        server.close();
        server.close();
        assertFalse(process.isAlive());
        assertThrows(LockkeeperException.class, server::state);
    }
}
