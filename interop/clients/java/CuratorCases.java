import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.api.CuratorEvent;
import org.apache.curator.framework.api.transaction.CuratorTransactionResult;
import org.apache.curator.framework.recipes.atomic.AtomicValue;
import org.apache.curator.framework.recipes.atomic.DistributedAtomicLong;
import org.apache.curator.framework.recipes.atomic.PromotedToLock;
import org.apache.curator.framework.recipes.barriers.DistributedBarrier;
import org.apache.curator.framework.recipes.barriers.DistributedDoubleBarrier;
import org.apache.curator.framework.recipes.cache.CuratorCache;
import org.apache.curator.framework.recipes.cache.CuratorCacheListener;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.leader.LeaderSelector;
import org.apache.curator.framework.recipes.leader.LeaderSelectorListenerAdapter;
import org.apache.curator.framework.recipes.leader.Participant;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMultiLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreMutex;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.framework.recipes.locks.Revoker;
import org.apache.curator.framework.recipes.nodes.GroupMember;
import org.apache.curator.framework.recipes.nodes.PersistentNode;
import org.apache.curator.framework.recipes.nodes.PersistentTtlNode;
import org.apache.curator.framework.recipes.queue.DistributedQueue;
import org.apache.curator.framework.recipes.queue.QueueBuilder;
import org.apache.curator.framework.recipes.queue.QueueConsumer;
import org.apache.curator.framework.recipes.queue.QueueSerializer;
import org.apache.curator.framework.recipes.shared.SharedCount;
import org.apache.curator.framework.recipes.shared.SharedCountListener;
import org.apache.curator.framework.recipes.shared.SharedCountReader;
import org.apache.curator.framework.recipes.shared.VersionedValue;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.curator.retry.ExponentialBackoffRetry;
import org.apache.curator.retry.RetryNTimes;
import org.apache.zookeeper.AddWatchMode;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.WatchedEvent;
import org.apache.zookeeper.Watcher;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.data.Stat;

/** Every recipe of Curator, each on paths of its own. */
final class CuratorCases {
    private static final int SESSION_MS = 5_000;

    private static String address;

    /** One client is enough where sessions need not be told apart. */
    private static CuratorFramework shared;

    public static void main(String[] args) throws Exception {
        address = args[0];
        shared = client();
        Cases.run("mutex-contended", CuratorCases::mutexContended);
        Cases.run("mutex-reentrant", CuratorCases::mutexReentrant);
        Cases.run("mutex-timeout", CuratorCases::mutexTimeout);
        Cases.run("mutex-revocable", CuratorCases::mutexRevocable);
        Cases.run("mutex-killed-session", CuratorCases::mutexKilledSession);
        Cases.run("read-write-lock", CuratorCases::readWriteLock);
        Cases.run("semaphore", CuratorCases::semaphore);
        Cases.run("semaphore-shared-count", CuratorCases::semaphoreSharedCount);
        Cases.run("semaphore-mutex", CuratorCases::semaphoreMutex);
        Cases.run("multi-lock", CuratorCases::multiLock);
        Cases.run("leader-latch", CuratorCases::leaderLatch);
        Cases.run("leader-selector", CuratorCases::leaderSelector);
        Cases.run("cache", CuratorCases::cache);
        Cases.run("cache-restart", CuratorCases::cacheRestart);
        Cases.run("persistent-node", CuratorCases::persistentNode);
        Cases.run("persistent-ttl-node", CuratorCases::persistentTtlNode);
        Cases.run("barrier", CuratorCases::barrier);
        Cases.run("double-barrier", CuratorCases::doubleBarrier);
        Cases.run("shared-count", CuratorCases::sharedCount);
        Cases.run("atomic-long", CuratorCases::atomicLong);
        Cases.run("queue", CuratorCases::queue);
        Cases.run("group-member", CuratorCases::groupMember);
        Cases.run("container-parents", CuratorCases::containerParents);
        Cases.run("protected-create", CuratorCases::protectedCreate);
        Cases.run("transaction", CuratorCases::transaction);
        Cases.run("namespace", CuratorCases::namespace);
        Cases.run("background", CuratorCases::background);
        Cases.run("watchers", CuratorCases::watchers);
        shared.close();
        // A recipe may leave threads that are no daemons behind a failed case.
        System.exit(0);
    }

    private static CuratorFramework client() throws Exception {
        CuratorFramework c = CuratorFrameworkFactory.builder()
                .connectString(address)
                .sessionTimeoutMs(SESSION_MS)
                .connectionTimeoutMs(SESSION_MS)
                .retryPolicy(new ExponentialBackoffRetry(50, 10, 1_000))
                .build();
        c.start();
        if (!c.blockUntilConnected((int) Cases.PATIENCE_MS, TimeUnit.MILLISECONDS)) {
            c.close();
            throw new AssertionError("no connection");
        }
        return c;
    }

    private static List<CuratorFramework> clients(int n) throws Exception {
        List<CuratorFramework> clients = new ArrayList<>();
        for (int i = 0; i < n; i++) {
            clients.add(client());
        }
        return clients;
    }

    private static void close(List<? extends AutoCloseable> all) throws Exception {
        for (AutoCloseable c : all) {
            c.close();
        }
    }

    /** Ends a client's session from another connection, as if it had expired. */
    private static void kill(CuratorFramework client) throws Exception {
        ZooKeeper zk = client.getZookeeperClient().getZooKeeper();
        CountDownLatch connected = new CountDownLatch(1);
        ZooKeeper twin = new ZooKeeper(address, SESSION_MS, event -> {
            if (event.getState() == Watcher.Event.KeeperState.SyncConnected) {
                connected.countDown();
            }
        }, zk.getSessionId(), zk.getSessionPasswd());
        soon(connected, "the twin's connection");
        twin.close();
    }

    private static void soon(CountDownLatch latch, String what) throws Exception {
        Cases.check(latch.await(Cases.PATIENCE_MS, TimeUnit.MILLISECONDS), "never: " + what);
    }

    private static void acquire(InterProcessLock lock) throws Exception {
        Cases.check(lock.acquire(Cases.PATIENCE_MS, TimeUnit.MILLISECONDS), "a lock is not acquired");
    }

    private static boolean tryAcquire(InterProcessLock lock) throws Exception {
        return lock.acquire(100, TimeUnit.MILLISECONDS);
    }

    /** Runs tasks at once, each on a thread of its own, and rethrows what they throw. */
    private static <T> List<T> together(List<Callable<T>> tasks) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(tasks.size());
        try {
            List<T> results = new ArrayList<>();
            for (Future<T> f : pool.invokeAll(tasks, 2 * Cases.PATIENCE_MS, TimeUnit.MILLISECONDS)) {
                results.add(f.get());
            }
            return results;
        } finally {
            pool.shutdownNow();
        }
    }

    private static byte[] bytes(String s) {
        return s.getBytes(UTF_8);
    }

    private static String text(CuratorFramework c, String path) throws Exception {
        return new String(c.getData().forPath(path), UTF_8);
    }

    // Nothing but the lock keeps the threads apart here.
    private static volatile int counter;
    private static volatile int inside;

    /** Counts in two steps that another thread may come between. */
    private static void countAlone() throws Exception {
        int others = inside;
        inside = others + 1;
        int before = counter;
        Cases.equal(0, others, "the number of other holders");
        Thread.yield();
        counter = before + 1;
        inside = others;
    }

    private static void mutexContended() throws Exception {
        counter = 0;
        inside = 0;
        List<CuratorFramework> clients = clients(4);
        List<Callable<Void>> tasks = new ArrayList<>();
        for (CuratorFramework c : clients) {
            for (int i = 0; i < 2; i++) {
                InterProcessMutex mutex = new InterProcessMutex(c, "/mutex");
                tasks.add(() -> {
                    for (int n = 0; n < 25; n++) {
                        acquire(mutex);
                        try {
                            countAlone();
                        } finally {
                            mutex.release();
                        }
                    }
                    return null;
                });
            }
        }
        together(tasks);
        Cases.equal(200, counter, "the counter");
        Cases.equal(List.of(), shared.getChildren().forPath("/mutex"), "what is left of the lock");
        close(clients);
    }

    private static void mutexReentrant() throws Exception {
        InterProcessMutex mutex = new InterProcessMutex(shared, "/reentrant");
        InterProcessMutex other = new InterProcessMutex(shared, "/reentrant");
        mutex.acquire();
        mutex.acquire();
        Cases.check(mutex.isOwnedByCurrentThread(), "not owned");
        Cases.equal(1, mutex.getParticipantNodes().size(), "the number of participants");
        mutex.release();
        Cases.check(!tryAcquire(other), "released once, and it is free");
        mutex.release();
        Cases.check(!mutex.isAcquiredInThisProcess(), "still acquired");
        acquire(other);
        other.release();
        Cases.fails(IllegalMonitorStateException.class, "a release too many", mutex::release);
    }

    private static void mutexTimeout() throws Exception {
        InterProcessMutex holder = new InterProcessMutex(shared, "/timeout");
        InterProcessMutex late = new InterProcessMutex(shared, "/timeout");
        holder.acquire();
        Cases.check(!tryAcquire(late), "two hold the lock");
        Cases.equal(1, holder.getParticipantNodes().size(), "the number of participants after one gave up");
        holder.release();
        acquire(late);
        late.release();
    }

    private static void mutexRevocable() throws Exception {
        InterProcessMutex mutex = new InterProcessMutex(shared, "/revocable");
        CountDownLatch asked = new CountDownLatch(1);
        mutex.makeRevocable(m -> asked.countDown());
        mutex.acquire();
        CuratorFramework rival = client();
        InterProcessMutex late = new InterProcessMutex(rival, "/revocable");
        Cases.check(!tryAcquire(late), "two hold the lock");
        Revoker.attemptRevoke(rival, mutex.getParticipantNodes().iterator().next());
        soon(asked, "the holder is asked to release");
        mutex.release();
        acquire(late);
        late.release();
        rival.close();
    }

    private static void mutexKilledSession() throws Exception {
        CuratorFramework doomed = client();
        CountDownLatch lost = new CountDownLatch(1);
        CountDownLatch reconnected = new CountDownLatch(1);
        doomed.getConnectionStateListenable().addListener((c, state) -> {
            if (state == ConnectionState.LOST) {
                lost.countDown();
            } else if (state == ConnectionState.RECONNECTED && lost.getCount() == 0) {
                reconnected.countDown();
            }
        });
        long session = doomed.getZookeeperClient().getZooKeeper().getSessionId();
        InterProcessMutex holder = new InterProcessMutex(doomed, "/killed");
        holder.acquire();
        InterProcessMutex next = new InterProcessMutex(shared, "/killed");
        Cases.check(!tryAcquire(next), "two hold the lock");
        kill(doomed);
        acquire(next);
        soon(lost, "LOST");
        soon(reconnected, "RECONNECTED");
        Cases.check(doomed.getZookeeperClient().getZooKeeper().getSessionId() != session, "the session's id is the old one");
        next.release();
        doomed.close();
    }

    private static void readWriteLock() throws Exception {
        InterProcessReadWriteLock a = new InterProcessReadWriteLock(shared, "/read-write");
        CuratorFramework rival = client();
        InterProcessReadWriteLock b = new InterProcessReadWriteLock(rival, "/read-write");
        a.readLock().acquire();
        acquire(b.readLock());
        Cases.check(!tryAcquire(b.writeLock()), "a writer gets in between readers");
        b.readLock().release();
        a.readLock().release();
        acquire(b.writeLock());
        Cases.check(!tryAcquire(a.readLock()), "a reader gets in beside a writer");
        Cases.check(!tryAcquire(a.writeLock()), "two writers");
        acquire(b.readLock()); // who writes may read, and go on reading
        b.writeLock().release();
        acquire(a.readLock());
        a.readLock().release();
        b.readLock().release();

        // Readers at once, writers alone.
        counter = 0;
        inside = 0;
        List<Callable<Void>> tasks = new ArrayList<>();
        for (int i = 0; i < 4; i++) {
            InterProcessReadWriteLock lock = i % 2 == 0 ? a : b;
            boolean writes = i < 2;
            tasks.add(() -> {
                for (int n = 0; n < 20; n++) {
                    InterProcessLock half = writes ? lock.writeLock() : lock.readLock();
                    acquire(half);
                    try {
                        if (writes) {
                            countAlone();
                        } else {
                            Cases.equal(0, inside, "the number of writers beside a reader");
                        }
                    } finally {
                        half.release();
                    }
                }
                return null;
            });
        }
        together(tasks);
        Cases.equal(40, counter, "the counter");
        rival.close();
    }

    private static void semaphore() throws Exception {
        List<CuratorFramework> clients = clients(2);
        AtomicInteger holders = new AtomicInteger();
        AtomicInteger most = new AtomicInteger();
        CountDownLatch full = new CountDownLatch(3);
        List<Callable<Void>> tasks = new ArrayList<>();
        for (int i = 0; i < 8; i++) {
            InterProcessSemaphoreV2 semaphore = new InterProcessSemaphoreV2(clients.get(i % 2), "/semaphore", 3);
            tasks.add(() -> {
                for (int n = 0; n < 5; n++) {
                    Lease lease = semaphore.acquire(Cases.PATIENCE_MS, TimeUnit.MILLISECONDS);
                    Cases.check(lease != null, "no lease");
                    int now = holders.incrementAndGet();
                    most.accumulateAndGet(now, Math::max);
                    full.countDown();
                    soon(full, "three leases at once");
                    holders.decrementAndGet();
                    semaphore.returnLease(lease);
                }
                return null;
            });
        }
        together(tasks);
        Cases.equal(3, most.get(), "the largest number of leases at once");

        InterProcessSemaphoreV2 semaphore = new InterProcessSemaphoreV2(shared, "/semaphore", 3);
        semaphore.setNodeData(bytes("mine"));
        Cases.check(semaphore.acquire(4, 100, TimeUnit.MILLISECONDS) == null, "four leases of three");
        java.util.Collection<Lease> leases = semaphore.acquire(3, Cases.PATIENCE_MS, TimeUnit.MILLISECONDS);
        Cases.equal(3, leases.size(), "the number of leases");
        for (Lease lease : leases) {
            Cases.equal("mine", new String(lease.getData(), UTF_8), "the data of a lease");
        }
        semaphore.returnAll(leases);
        try {
            Cases.equal(0, semaphore.getParticipantNodes().size(), "the number of participants at the end");
        } catch (KeeperException.NoNodeException e) {
            // They were in a container, which is soon gone when it is empty.
        }
        close(clients);
    }

    private static void semaphoreSharedCount() throws Exception {
        SharedCount leases = new SharedCount(shared, "/semaphore-count", 1);
        leases.start();
        InterProcessSemaphoreV2 semaphore = new InterProcessSemaphoreV2(shared, "/semaphore-counted", leases);
        Lease first = semaphore.acquire(Cases.PATIENCE_MS, TimeUnit.MILLISECONDS);
        Cases.check(semaphore.acquire(100, TimeUnit.MILLISECONDS) == null, "two leases of one");
        leases.setCount(2);
        Lease second = semaphore.acquire(Cases.PATIENCE_MS, TimeUnit.MILLISECONDS);
        Cases.check(second != null, "no second lease after the count was raised");
        first.close();
        second.close();
        leases.close();
    }

    private static void semaphoreMutex() throws Exception {
        InterProcessSemaphoreMutex a = new InterProcessSemaphoreMutex(shared, "/semaphore-mutex");
        InterProcessSemaphoreMutex b = new InterProcessSemaphoreMutex(shared, "/semaphore-mutex");
        a.acquire();
        Cases.check(!tryAcquire(a), "it is reentrant");
        Cases.check(!tryAcquire(b), "two hold the lock");
        a.release();
        acquire(b);
        b.release();
    }

    private static void multiLock() throws Exception {
        InterProcessMutex second = new InterProcessMutex(shared, "/multi/2");
        InterProcessMultiLock both = new InterProcessMultiLock(shared, List.of("/multi/1", "/multi/2"));
        both.acquire();
        Cases.check(!tryAcquire(second), "one of the locks is free");
        both.release();
        CuratorFramework rival = client();
        InterProcessMutex held = new InterProcessMutex(rival, "/multi/2");
        acquire(held);
        Cases.check(!tryAcquire(both), "the multi lock holds what another holds");
        InterProcessMutex first = new InterProcessMutex(rival, "/multi/1");
        Cases.check(first.acquire(0, TimeUnit.SECONDS), "the failed multi lock kept its first half");
        first.release();
        held.release();
        acquire(both);
        both.release();
        rival.close();
    }

    private static void leaderLatch() throws Exception {
        List<CuratorFramework> clients = clients(3);
        List<LeaderLatch> latches = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            LeaderLatch latch = new LeaderLatch(clients.get(i), "/latch", "member " + i);
            latches.add(latch);
            latch.start();
        }
        LeaderLatch first = oneLeader(latches);
        Cases.await("three participants", () -> first.getParticipants().size() == 3);
        Participant leader = latches.get(1).getLeader();
        Cases.equal(first.getId(), leader.getId(), "the leader's id");
        Cases.check(leader.isLeader(), "the leader is none");

        first.close();
        List<LeaderLatch> rest = new ArrayList<>(latches);
        rest.remove(first);
        LeaderLatch second = oneLeader(rest);

        // The killed one loses at once, and may stand again.
        int doomed = latches.indexOf(second);
        LeaderLatch third = rest.get(1 - rest.indexOf(second));
        kill(clients.get(doomed));
        Cases.check(third.await(Cases.PATIENCE_MS, TimeUnit.MILLISECONDS), "nobody follows the killed leader");
        Cases.await("the killed leader knows", () -> !second.hasLeadership());
        third.close();
        Cases.check(second.await(Cases.PATIENCE_MS, TimeUnit.MILLISECONDS), "the killed leader does not come back");
        second.close();
        close(clients);
    }

    private static LeaderLatch oneLeader(List<LeaderLatch> latches) throws Exception {
        Cases.await("a leader", () -> latches.stream().anyMatch(LeaderLatch::hasLeadership));
        Cases.equal(1L, latches.stream().filter(LeaderLatch::hasLeadership).count(), "the number of leaders");
        return latches.stream().filter(LeaderLatch::hasLeadership).findFirst().orElseThrow();
    }

    private static void leaderSelector() throws Exception {
        List<CuratorFramework> clients = clients(3);
        AtomicInteger leading = new AtomicInteger();
        AtomicInteger tooMany = new AtomicInteger();
        int[] terms = new int[3];
        CountDownLatch[] twice = {new CountDownLatch(2), new CountDownLatch(2), new CountDownLatch(2)};
        List<LeaderSelector> selectors = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            int me = i;
            LeaderSelector selector = new LeaderSelector(clients.get(i), "/selector", new LeaderSelectorListenerAdapter() {
                @Override
                public void takeLeadership(CuratorFramework c) throws Exception {
                    if (leading.incrementAndGet() > 1) {
                        tooMany.incrementAndGet();
                    }
                    Thread.sleep(5);
                    leading.decrementAndGet();
                    terms[me]++;
                    twice[me].countDown();
                }
            });
            selector.setId("member " + i);
            selector.autoRequeue();
            selectors.add(selector);
            selector.start();
        }
        for (int i = 0; i < 3; i++) {
            soon(twice[i], "two terms of member " + i);
        }
        Cases.equal(0, tooMany.get(), "how often two led at once");
        close(selectors);
        close(clients);
    }

    private static void cache() throws Exception {
        shared.create().creatingParentsIfNeeded().forPath("/cache/old", bytes("0"));
        BlockingQueue<String> seen = new LinkedBlockingQueue<>();
        CuratorFramework other = client();
        CuratorCache cache = CuratorCache.build(other, "/cache");
        CountDownLatch ready = new CountDownLatch(1);
        cache.listenable().addListener(CuratorCacheListener.builder()
                .forInitialized(ready::countDown)
                .afterInitialized()
                .forCreates(n -> seen.add("created " + n.getPath()))
                .forChanges((before, now) -> seen.add("changed " + now.getPath() + " from "
                        + new String(before.getData(), UTF_8) + " to " + new String(now.getData(), UTF_8)))
                .forDeletes(n -> seen.add("deleted " + n.getPath()))
                .build());
        cache.start();
        soon(ready, "the cache is filled");
        Cases.equal("0", new String(cache.get("/cache/old").orElseThrow().getData(), UTF_8), "what was there before");
        shared.create().creatingParentsIfNeeded().forPath("/cache/a/b", bytes("1"));
        expect(seen, "created /cache/a", "created /cache/a/b");
        shared.setData().forPath("/cache/a/b", bytes("2"));
        shared.setData().forPath("/cache/old", bytes("3"));
        expect(seen, "changed /cache/a/b from 1 to 2", "changed /cache/old from 0 to 3");
        shared.delete().deletingChildrenIfNeeded().forPath("/cache/a");
        expect(seen, "deleted /cache/a/b", "deleted /cache/a");
        Cases.equal(2, cache.size(), "the number of znodes in the cache");
        cache.close();
        other.close();
    }

    /** Waits for these events, in any order: the cache reads what a watch tells of. */
    private static void expect(BlockingQueue<String> seen, String... events) throws Exception {
        Set<String> got = new TreeSet<>();
        for (int i = 0; i < events.length; i++) {
            got.add(String.valueOf(seen.poll(Cases.PATIENCE_MS, TimeUnit.MILLISECONDS)));
        }
        Cases.equal(new TreeSet<>(Arrays.asList(events)), got, "the events");
    }

    private static void cacheRestart() throws Exception {
        shared.create().creatingParentsIfNeeded().forPath("/cache-restart/kept", bytes("0"));
        CuratorFramework other = client();
        CuratorCache cache = CuratorCache.build(other, "/cache-restart");
        CountDownLatch ready = new CountDownLatch(1);
        cache.listenable().addListener(CuratorCacheListener.builder().forInitialized(ready::countDown).build());
        cache.start();
        soon(ready, "the cache is filled");
        Cases.ask("restart");
        shared.setData().forPath("/cache-restart/kept", bytes("1"));
        shared.create().forPath("/cache-restart/new", bytes("2"));
        Cases.await("the cache sees what changed after the restart",
                () -> cache.get("/cache-restart/kept").map(n -> new String(n.getData(), UTF_8)).orElse("").equals("1")
                        && cache.get("/cache-restart/new").isPresent());
        cache.close();
        other.close();
    }

    private static void persistentNode() throws Exception {
        CuratorFramework owner = client();
        PersistentNode node = new PersistentNode(owner, CreateMode.EPHEMERAL, false, "/persistent/node", bytes("x"));
        node.start();
        Cases.check(node.waitForInitialCreate(Cases.PATIENCE_MS, TimeUnit.MILLISECONDS), "not created");
        long first = shared.checkExists().forPath("/persistent/node").getCzxid();
        shared.delete().forPath("/persistent/node");
        Cases.await("it comes back after a delete", () -> newer("/persistent/node", first));
        long second = shared.checkExists().forPath("/persistent/node").getCzxid();
        kill(owner);
        Cases.await("it comes back in a new session", () -> newer("/persistent/node", second));
        // Again and again: the recipe may just be handling that it has created the node.
        Cases.await("its data changes", () -> {
            node.setData(bytes("y"));
            Thread.sleep(200);
            return text(shared, "/persistent/node").equals("y");
        });
        node.close();
        Cases.check(shared.checkExists().forPath("/persistent/node") == null, "it stays when closed");
        owner.close();
    }

    private static boolean newer(String path, long czxid) throws Exception {
        Stat stat = shared.checkExists().forPath(path);
        return stat != null && stat.getCzxid() > czxid;
    }

    private static void persistentTtlNode() throws Exception {
        PersistentTtlNode node = new PersistentTtlNode(shared, "/ttl-node", 600, bytes("x"));
        node.start();
        Cases.check(node.waitForInitialCreate(Cases.PATIENCE_MS, TimeUnit.MILLISECONDS), "not created");
        Cases.equal("x", text(shared, "/ttl-node"), "its data");
        Cases.await("it is touched", () -> {
            List<String> children = shared.getChildren().forPath("/ttl-node");
            if (children.isEmpty()) {
                return false;
            }
            Stat stat = shared.checkExists().forPath("/ttl-node/" + children.get(0));
            return stat != null && stat.getVersion() > 1;
        });
        Cases.check(shared.checkExists().forPath("/ttl-node") != null, "it goes while it is held");
        node.close();
        Cases.await("it goes when nobody holds it", () -> shared.checkExists().forPath("/ttl-node") == null);
    }

    private static void barrier() throws Exception {
        DistributedBarrier barrier = new DistributedBarrier(shared, "/barrier");
        barrier.setBarrier();
        List<CuratorFramework> clients = clients(2);
        CountDownLatch passed = new CountDownLatch(2);
        List<Callable<Void>> tasks = new ArrayList<>();
        for (CuratorFramework c : clients) {
            tasks.add(() -> {
                DistributedBarrier mine = new DistributedBarrier(c, "/barrier");
                Cases.check(!mine.waitOnBarrier(100, TimeUnit.MILLISECONDS), "the barrier is open");
                passed.countDown();
                Cases.check(mine.waitOnBarrier(Cases.PATIENCE_MS, TimeUnit.MILLISECONDS), "the barrier stays");
                return null;
            });
        }
        tasks.add(() -> {
            soon(passed, "two stand before the barrier");
            barrier.removeBarrier();
            return null;
        });
        together(tasks);
        close(clients);
    }

    private static void doubleBarrier() throws Exception {
        List<CuratorFramework> clients = clients(3);
        AtomicInteger entered = new AtomicInteger();
        AtomicInteger leaving = new AtomicInteger();
        AtomicInteger arrived = new AtomicInteger();
        List<Callable<Void>> tasks = new ArrayList<>();
        for (CuratorFramework c : clients) {
            tasks.add(() -> {
                DistributedDoubleBarrier barrier = new DistributedDoubleBarrier(c, "/double-barrier", 3);
                arrived.incrementAndGet();
                Cases.check(barrier.enter(Cases.PATIENCE_MS, TimeUnit.MILLISECONDS), "it does not enter");
                Cases.equal(3, arrived.get(), "how many had arrived when one entered");
                entered.incrementAndGet();
                leaving.incrementAndGet();
                Cases.check(barrier.leave(Cases.PATIENCE_MS, TimeUnit.MILLISECONDS), "it does not leave");
                Cases.equal(3, leaving.get(), "how many were leaving when one left");
                return null;
            });
        }
        together(tasks);
        Cases.equal(3, entered.get(), "how many entered");
        close(clients);
    }

    private static void sharedCount() throws Exception {
        CuratorFramework other = client();
        SharedCount a = new SharedCount(shared, "/count", 7);
        SharedCount b = new SharedCount(other, "/count", 7);
        a.start();
        b.start();
        BlockingQueue<Integer> heard = new LinkedBlockingQueue<>();
        b.addListener(new SharedCountListener() {
            @Override
            public void countHasChanged(SharedCountReader reader, int count) {
                heard.add(count);
            }

            @Override
            public void stateChanged(CuratorFramework c, ConnectionState state) {
            }
        });
        Cases.equal(7, b.getCount(), "the seed");
        VersionedValue<Integer> old = b.getVersionedValue();
        a.setCount(8);
        Cases.equal(8, heard.poll(Cases.PATIENCE_MS, TimeUnit.MILLISECONDS), "the count that was heard");
        Cases.check(!b.trySetCount(old, 100), "a count is set on an old version");
        Cases.await("the new version", () -> b.getCount() == 8);
        Cases.check(b.trySetCount(b.getVersionedValue(), 9), "a count is not set on the newest version");
        Cases.await("the other's count", () -> a.getCount() == 9);
        a.close();
        b.close();
        other.close();
    }

    private static void atomicLong() throws Exception {
        List<CuratorFramework> clients = clients(4);
        Set<Long> values = ConcurrentHashMap.newKeySet();
        List<Callable<Void>> tasks = new ArrayList<>();
        for (CuratorFramework c : clients) {
            tasks.add(() -> {
                DistributedAtomicLong number = new DistributedAtomicLong(c, "/atomic", new RetryNTimes(2, 1),
                        PromotedToLock.builder()
                                .lockPath("/atomic-lock")
                                .timeout(Cases.PATIENCE_MS, TimeUnit.MILLISECONDS)
                                .retryPolicy(new RetryNTimes(100, 5))
                                .build());
                for (int n = 0; n < 25; n++) {
                    AtomicValue<Long> value = number.increment();
                    Cases.check(value.succeeded(), "an increment fails");
                    Cases.equal(value.preValue() + 1, value.postValue(), "the value after");
                    Cases.check(values.add(value.postValue()), "a value comes twice");
                }
                return null;
            });
        }
        together(tasks);
        DistributedAtomicLong number = new DistributedAtomicLong(shared, "/atomic", new RetryNTimes(2, 1));
        Cases.equal(100L, number.get().postValue(), "the number");
        Cases.check(!number.compareAndSet(99L, 0L).succeeded(), "it is set from what it is not");
        Cases.check(number.compareAndSet(100L, 0L).succeeded(), "it is not set from what it is");
        close(clients);
    }

    private static void queue() throws Exception {
        List<CuratorFramework> clients = clients(2);
        QueueSerializer<String> serializer = new QueueSerializer<>() {
            @Override
            public byte[] serialize(String item) {
                return bytes(item);
            }

            @Override
            public String deserialize(byte[] data) {
                return new String(data, UTF_8);
            }
        };
        List<String> got = Collections.synchronizedList(new ArrayList<>());
        List<DistributedQueue<String>> queues = new ArrayList<>();
        for (CuratorFramework c : clients) {
            DistributedQueue<String> queue = QueueBuilder.builder(c, new QueueConsumer<String>() {
                @Override
                public void consumeMessage(String message) {
                    got.add(message);
                }

                @Override
                public void stateChanged(CuratorFramework client, ConnectionState state) {
                }
            }, serializer, "/queue").lockPath("/queue-locks").buildQueue();
            queue.start();
            queues.add(queue);
        }
        DistributedQueue<String> producer = QueueBuilder.builder(shared, null, serializer, "/queue").buildQueue();
        producer.start();
        Set<String> put = new TreeSet<>();
        for (int i = 0; i < 50; i++) {
            put.add("item " + i);
            producer.put("item " + i);
        }
        Cases.await("every item comes", () -> got.size() >= put.size());
        Cases.equal(put, new TreeSet<>(got), "the items");
        Cases.equal(put.size(), got.size(), "how many came");
        producer.close();
        close(queues);
        close(clients);
    }

    private static void groupMember() throws Exception {
        List<CuratorFramework> clients = clients(3);
        List<GroupMember> members = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            GroupMember member = new GroupMember(clients.get(i), "/group", "m" + i, bytes("data " + i));
            member.start();
            members.add(member);
        }
        for (GroupMember member : members) {
            Cases.await("all members are seen", () -> member.getCurrentMembers().size() == 3);
        }
        Map<String, byte[]> group = members.get(0).getCurrentMembers();
        Cases.equal("data 2", new String(group.get("m2"), UTF_8), "a member's data");
        members.get(2).close();
        Cases.await("a closed member is gone", () -> members.get(0).getCurrentMembers().keySet().equals(Set.of("m0", "m1")));
        kill(clients.get(1));
        Cases.await("a killed member comes back", () -> {
            Stat stat = shared.checkExists().forPath("/group/m1");
            return stat != null && stat.getEphemeralOwner() == clients.get(1).getZookeeperClient().getZooKeeper().getSessionId();
        });
        Cases.await("and is seen", () -> members.get(0).getCurrentMembers().keySet().equals(Set.of("m0", "m1")));
        members.get(0).close();
        members.get(1).close();
        close(clients);
    }

    private static void containerParents() throws Exception {
        shared.create().creatingParentContainersIfNeeded().withMode(CreateMode.EPHEMERAL).forPath("/box/inner/leaf");
        shared.create().creatingParentsIfNeeded().forPath("/crate/leaf");
        shared.delete().forPath("/crate/leaf");
        shared.delete().forPath("/box/inner/leaf");
        Cases.await("empty containers are deleted", () -> shared.checkExists().forPath("/box") == null);
        Cases.check(shared.checkExists().forPath("/crate") != null, "a parent that is no container is deleted");
    }

    private static void protectedCreate() throws Exception {
        String path = shared.create().creatingParentsIfNeeded().withProtection()
                .withMode(CreateMode.EPHEMERAL_SEQUENTIAL).forPath("/protected/n-");
        Cases.check(path.matches("/protected/_c_[0-9a-f-]{36}-n-0000000000"), "the path is " + path);
        Stat stat = new Stat();
        String same = shared.create().orSetData().storingStatIn(stat).forPath("/protected/set", bytes("1"));
        Cases.equal("/protected/set", same, "the path");
        Cases.equal(0, stat.getVersion(), "the version of what was created");
        shared.create().orSetData().storingStatIn(stat).forPath("/protected/set", bytes("22"));
        Cases.equal(1, stat.getVersion(), "the version of what was set");
        Cases.equal(2, stat.getDataLength(), "its length");
        shared.create().idempotent().forPath("/protected/idem", bytes("1"));
        shared.create().idempotent().forPath("/protected/idem", bytes("1"));
        Cases.fails(KeeperException.NodeExistsException.class, "an idempotent create with other data",
                () -> shared.create().idempotent().forPath("/protected/idem", bytes("2")));
        shared.delete().quietly().forPath("/protected/none");
        shared.delete().guaranteed().deletingChildrenIfNeeded().forPath("/protected");
        String ttl = shared.create().withTtl(600_000).withMode(CreateMode.PERSISTENT_SEQUENTIAL_WITH_TTL).forPath("/with-ttl-");
        Cases.check(ttl.matches("/with-ttl-\\d{10}"), "the path is " + ttl);
    }

    private static void transaction() throws Exception {
        List<CuratorTransactionResult> results = shared.transaction().forOperations(
                shared.transactionOp().create().forPath("/tx", bytes("1")),
                shared.transactionOp().create().withMode(CreateMode.PERSISTENT_SEQUENTIAL).forPath("/tx/n-", bytes("2")),
                shared.transactionOp().setData().withVersion(0).forPath("/tx", bytes("3")),
                shared.transactionOp().check().withVersion(1).forPath("/tx"));
        Cases.equal(4, results.size(), "the number of results");
        Cases.equal("/tx/n-0000000000", results.get(1).getResultPath(), "the path of the second");
        Cases.equal(1, results.get(2).getResultStat().getVersion(), "the version of the third");
        KeeperException e = Cases.fails(KeeperException.BadVersionException.class, "a transaction with a wrong version",
                () -> shared.transaction().forOperations(
                        shared.transactionOp().create().forPath("/tx/never"),
                        shared.transactionOp().check().withVersion(7).forPath("/tx"),
                        shared.transactionOp().delete().forPath("/tx/n-0000000000")));
        Cases.equal(List.of("OK", "BADVERSION", "RUNTIMEINCONSISTENCY"),
                e.getResults().stream().map(r -> KeeperException.Code.get(((org.apache.zookeeper.OpResult.ErrorResult) r).getErr()).name()).toList(),
                "the results");
        Cases.check(shared.checkExists().forPath("/tx/never") == null, "half of a transaction happened");
        Cases.check(shared.checkExists().forPath("/tx/n-0000000000") != null, "half of a transaction happened");
    }

    private static void namespace() throws Exception {
        CuratorFramework space = shared.usingNamespace("space");
        BlockingQueue<String> events = new LinkedBlockingQueue<>();
        Cases.equal("/in", space.create().forPath("/in", bytes("x")), "the path in the namespace");
        Cases.equal("x", text(shared, "/space/in"), "the data from outside");
        space.getData().usingWatcher((Watcher) e -> events.add(e.getType() + " " + e.getPath())).forPath("/in");
        shared.setData().forPath("/space/in", bytes("y"));
        Cases.equal("NodeDataChanged /in", events.poll(Cases.PATIENCE_MS, TimeUnit.MILLISECONDS), "the event in the namespace");
        InterProcessMutex mutex = new InterProcessMutex(space, "/lock");
        mutex.acquire();
        Cases.equal(1, shared.getChildren().forPath("/space/lock").size(), "the number of znodes of the lock");
        mutex.release();
    }

    private static void background() throws Exception {
        BlockingQueue<CuratorEvent> done = new LinkedBlockingQueue<>();
        for (int i = 0; i < 100; i++) {
            shared.create().withMode(CreateMode.PERSISTENT_SEQUENTIAL)
                    .inBackground((c, event) -> done.add(event), i).forPath("/background-", bytes("x"));
        }
        String last = "";
        for (int i = 0; i < 100; i++) {
            CuratorEvent event = done.poll(Cases.PATIENCE_MS, TimeUnit.MILLISECONDS);
            Cases.check(event != null, "an answer is missing");
            Cases.equal(0, event.getResultCode(), "the code");
            Cases.equal(i, event.getContext(), "the order of the answers");
            Cases.check(event.getName().compareTo(last) > 0, event.getName() + " after " + last);
            last = event.getName();
        }
        shared.delete().inBackground((c, event) -> done.add(event)).forPath("/background-none");
        Cases.equal(KeeperException.Code.NONODE.intValue(), done.poll(Cases.PATIENCE_MS, TimeUnit.MILLISECONDS).getResultCode(), "the code");
        shared.sync().inBackground((c, event) -> done.add(event)).forPath("/");
        Cases.equal(0, done.poll(Cases.PATIENCE_MS, TimeUnit.MILLISECONDS).getResultCode(), "the code of sync");
    }

    private static void watchers() throws Exception {
        BlockingQueue<WatchedEvent> events = new LinkedBlockingQueue<>();
        Watcher watcher = events::add;
        shared.create().forPath("/watchers");
        shared.watchers().add().withMode(AddWatchMode.PERSISTENT_RECURSIVE).usingWatcher(watcher).forPath("/watchers");
        shared.create().forPath("/watchers/a");
        shared.setData().forPath("/watchers/a", bytes("x"));
        shared.delete().forPath("/watchers/a");
        for (String want : List.of("NodeCreated", "NodeDataChanged", "NodeDeleted")) {
            WatchedEvent event = events.poll(Cases.PATIENCE_MS, TimeUnit.MILLISECONDS);
            Cases.check(event != null, "no " + want);
            Cases.equal(want + " /watchers/a", event.getType() + " " + event.getPath(), "the event");
        }
        shared.watchers().remove(watcher).ofType(Watcher.WatcherType.Any).forPath("/watchers");
        WatchedEvent removed = events.poll(Cases.PATIENCE_MS, TimeUnit.MILLISECONDS);
        Cases.check(removed != null, "nobody says that the watch is removed");
        Cases.equal("PersistentWatchRemoved", removed.getType().name(), "the event");
        shared.create().forPath("/watchers/b");
        Cases.equal(0, events.size(), "the number of events after the watch was removed");
        Cases.fails(KeeperException.NoWatcherException.class, "to remove a watch twice",
                () -> shared.watchers().remove(watcher).ofType(Watcher.WatcherType.Any).forPath("/watchers"));
    }
}
