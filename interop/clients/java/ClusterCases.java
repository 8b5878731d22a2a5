import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.curator.retry.RetryNTimes;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.WatchedEvent;
import org.apache.zookeeper.Watcher;
import org.apache.zookeeper.ZooDefs.Ids;
import org.apache.zookeeper.ZooKeeper;

/** Clients of three servers, whose leader is killed. */
final class ClusterCases {
    private static final int SESSION_MS = 10_000;
    private static final int CLIENTS = 8;
    private static final int TURNS = 30;

    private static String servers;

    public static void main(String[] args) throws Exception {
        servers = args[0];
        Cases.run("mutex", ClusterCases::mutex);
        Cases.run("watches", ClusterCases::watches);
        System.exit(0);
    }

    /** Nothing but the lock guards the number, while leaders are killed. */
    private static void mutex() throws Exception {
        AtomicInteger inside = new AtomicInteger();
        AtomicInteger turns = new AtomicInteger();
        int[] number = {0};
        ConcurrentLinkedQueue<String> lost = new ConcurrentLinkedQueue<>();
        ExecutorService pool = Executors.newFixedThreadPool(CLIENTS);
        List<Future<?>> all = new ArrayList<>();
        for (int i = 0; i < CLIENTS; i++) {
            all.add(pool.submit(() -> {
                try (CuratorFramework client = CuratorFrameworkFactory.newClient(servers, SESSION_MS, 5_000, new RetryNTimes(1000, 20))) {
                    client.getConnectionStateListenable().addListener((c, state) -> {
                        if (state == ConnectionState.LOST) {
                            lost.add("a session");
                        }
                    });
                    client.start();
                    InterProcessMutex mutex = new InterProcessMutex(client, "/mutex");
                    for (int n = 0; n < TURNS; n++) {
                        Cases.check(mutex.acquire(Cases.PATIENCE_MS, TimeUnit.MILLISECONDS), "the lock is not ours in time");
                        Cases.equal(1, inside.incrementAndGet(), "the number of holders");
                        int before = number[0];
                        Thread.sleep(2);
                        number[0] = before + 1;
                        inside.decrementAndGet();
                        mutex.release();
                        turns.incrementAndGet();
                    }
                }
                return null;
            }));
        }
        for (int kill = 1; kill <= 3; kill++) {
            int until = kill * CLIENTS * TURNS / 4;
            Cases.await(until + " turns", () -> turns.get() >= until || all.stream().anyMatch(Future::isDone));
            Cases.ask("kill leader");
            Cases.ask("start");
        }
        for (Future<?> f : all) {
            f.get();
        }
        pool.shutdown();
        Cases.equal(CLIENTS * TURNS, number[0], "the number");
        Cases.check(lost.isEmpty(), "lost: " + lost);
    }

    /** Watches, ephemerals and the session live on, whoever is killed. */
    private static void watches() throws Exception {
        ConcurrentLinkedQueue<WatchedEvent> events = new ConcurrentLinkedQueue<>();
        try (ZooKeeper watching = new ZooKeeper(servers, SESSION_MS, e -> { }); ZooKeeper writing = new ZooKeeper(servers, SESSION_MS, e -> { })) {
            Cases.await("a connection", () -> watching.getState().isConnected() && writing.getState().isConnected());
            long session = watching.getSessionId();
            watching.create("/mine", new byte[0], Ids.OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL);
            watching.create("/watched", "0".getBytes(UTF_8), Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
            for (int round = 1; round <= 3; round++) {
                watching.getData("/watched", e -> {
                    if (e.getType() != Watcher.Event.EventType.None) { // of the connection
                        events.add(e);
                    }
                }, null);
                Cases.ask("kill leader");
                byte[] data = String.valueOf(round).getBytes(UTF_8);
                Cases.await("a write", () -> {
                    try {
                        writing.setData("/watched", data, -1);
                        return true;
                    } catch (KeeperException.ConnectionLossException e) {
                        return false;
                    }
                });
                int want = round;
                Cases.await("event " + round, () -> events.size() == want);
                Cases.ask("start");
                Cases.await("an answer", () -> {
                    try {
                        Cases.equal(session, watching.exists("/mine", false).getEphemeralOwner(), "the owner");
                        return true;
                    } catch (KeeperException.ConnectionLossException e) {
                        return false;
                    }
                });
            }
            Cases.equal(session, watching.getSessionId(), "the session");
        }
    }
}
