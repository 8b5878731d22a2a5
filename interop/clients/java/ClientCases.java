import static java.nio.charset.StandardCharsets.UTF_8;
import static org.apache.zookeeper.Watcher.Event.EventType.NodeChildrenChanged;
import static org.apache.zookeeper.Watcher.Event.EventType.NodeCreated;
import static org.apache.zookeeper.Watcher.Event.EventType.NodeDataChanged;
import static org.apache.zookeeper.Watcher.Event.EventType.NodeDeleted;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.zookeeper.AddWatchMode;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.KeeperException.Code;
import org.apache.zookeeper.Op;
import org.apache.zookeeper.OpResult;
import org.apache.zookeeper.WatchedEvent;
import org.apache.zookeeper.Watcher;
import org.apache.zookeeper.Watcher.Event.EventType;
import org.apache.zookeeper.Watcher.Event.KeeperState;
import org.apache.zookeeper.Watcher.WatcherType;
import org.apache.zookeeper.ZKUtil;
import org.apache.zookeeper.ZooDefs;
import org.apache.zookeeper.ZooDefs.Ids;
import org.apache.zookeeper.ZooDefs.Perms;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.admin.ZooKeeperAdmin;
import org.apache.zookeeper.client.ZKClientConfig;
import org.apache.zookeeper.data.ACL;
import org.apache.zookeeper.data.ClientInfo;
import org.apache.zookeeper.data.Id;
import org.apache.zookeeper.data.Stat;
import org.apache.zookeeper.proto.CreateRequest;

/** ZooKeeper's own client, call by call, each case on paths of its own. */
final class ClientCases {
    private static String address;
    private static ZooKeeper zk;

    public static void main(String[] args) throws Exception {
        address = args[0];
        zk = new Client().zk;
        Cases.run("create-modes", ClientCases::createModes);
        Cases.run("create-errors", ClientCases::createErrors);
        Cases.run("set-get", ClientCases::setGet);
        Cases.run("delete", ClientCases::delete);
        Cases.run("parent-stat", ClientCases::parentStat);
        Cases.run("large-data", ClientCases::largeData);
        Cases.run("children", ClientCases::children);
        Cases.run("one-shot-watches", ClientCases::oneShotWatches);
        Cases.run("default-watcher", ClientCases::defaultWatcher);
        Cases.run("persistent-watch", ClientCases::persistentWatch);
        Cases.run("recursive-watch", ClientCases::recursiveWatch);
        Cases.run("remove-watches", ClientCases::removeWatches);
        Cases.run("multi", ClientCases::multi);
        Cases.run("multi-errors", ClientCases::multiErrors);
        Cases.run("multi-read", ClientCases::multiRead);
        Cases.run("async", ClientCases::async);
        Cases.run("async-order", ClientCases::asyncOrder);
        Cases.run("acl", ClientCases::acl);
        Cases.run("digest", ClientCases::digest);
        Cases.run("super", ClientCases::superUser);
        Cases.run("auth-failed", ClientCases::authFailed);
        Cases.run("who-am-i", ClientCases::whoAmI);
        Cases.run("get-ephemerals", ClientCases::getEphemerals);
        Cases.run("all-children-number", ClientCases::allChildrenNumber);
        Cases.run("get-config", ClientCases::getConfig);
        Cases.run("reconfig", ClientCases::reconfig);
        Cases.run("chroot", ClientCases::chroot);
        Cases.run("session-timeout", ClientCases::sessionTimeout);
        Cases.run("read-only-flag", ClientCases::readOnlyFlag);
        Cases.run("resume", ClientCases::resume);
        Cases.run("wrong-password", ClientCases::wrongPassword);
        Cases.run("close", ClientCases::close);
        Cases.run("expiry", ClientCases::expiry);
        Cases.run("ttl-and-container", ClientCases::ttlAndContainer);
        Cases.run("reconnect", ClientCases::reconnect);
        Cases.run("many-watches", ClientCases::manyWatches);
        Cases.run("restart", ClientCases::restart);
        Cases.run("delete-recursive", ClientCases::deleteRecursive);
        Cases.run("netty", ClientCases::netty);
        zk.close();
        System.exit(0);
    }

    /** A client with a list of what its default watcher heard. */
    private static final class Client implements AutoCloseable {
        final BlockingQueue<WatchedEvent> heard = new LinkedBlockingQueue<>();
        final ZooKeeper zk;

        Client() throws Exception {
            this(address, 5_000);
        }

        Client(String to, int timeoutMs) throws Exception {
            zk = new ZooKeeper(to, timeoutMs, heard::add);
            hears(KeeperState.SyncConnected);
        }

        /** Resumes a session, and waits for nothing. */
        Client(long id, byte[] password) throws Exception {
            zk = new ZooKeeper(address, 5_000, heard::add, id, password);
        }

        Client(ZKClientConfig config) throws Exception {
            zk = new ZooKeeper(address, 5_000, heard::add, config);
            hears(KeeperState.SyncConnected);
        }

        void hears(KeeperState state) throws Exception {
            WatchedEvent event = heard.poll(Cases.PATIENCE_MS, TimeUnit.MILLISECONDS);
            Cases.check(event != null, "never heard " + state);
            Cases.equal(EventType.None, event.getType(), "what was heard: " + event);
            Cases.equal(state, event.getState(), "what was heard");
        }

        @Override
        public void close() throws Exception {
            zk.close();
        }
    }

    /** A watcher that keeps the events of znodes. */
    private static final class Log implements Watcher {
        final BlockingQueue<WatchedEvent> events = new LinkedBlockingQueue<>();

        @Override
        public void process(WatchedEvent event) {
            if (event.getType() != EventType.None) {
                events.add(event);
            }
        }

        WatchedEvent next(EventType type, String path) throws Exception {
            WatchedEvent event = events.poll(Cases.PATIENCE_MS, TimeUnit.MILLISECONDS);
            Cases.check(event != null, "never: " + type + " " + path);
            Cases.equal(type + " " + path, event.getType() + " " + event.getPath(), "the event");
            return event;
        }

        /** Nothing more comes: what is to come would come before the answer. */
        void empty() throws Exception {
            zk.exists("/", false);
            Cases.equal(List.of(), new ArrayList<>(events), "what came besides");
        }
    }

    private static byte[] bytes(String s) {
        return s.getBytes(UTF_8);
    }

    private static String create(String path, CreateMode mode, Stat stat) throws Exception {
        return zk.create(path, bytes("data"), Ids.OPEN_ACL_UNSAFE, mode, stat);
    }

    private static String create(String path) throws Exception {
        return create(path, CreateMode.PERSISTENT, null);
    }

    private static void fresh(Stat s, long owner) {
        Cases.check(s.getCzxid() > 0, "czxid is " + s.getCzxid());
        Cases.equal(s.getCzxid(), s.getMzxid(), "mzxid");
        Cases.equal(s.getCzxid(), s.getPzxid(), "pzxid");
        Cases.check(Math.abs(s.getCtime() - System.currentTimeMillis()) < 60_000, "ctime is " + s.getCtime());
        Cases.equal(s.getCtime(), s.getMtime(), "mtime");
        Cases.equal(List.of(0, 0, 0), List.of(s.getVersion(), s.getCversion(), s.getAversion()), "the versions");
        Cases.equal(owner, s.getEphemeralOwner(), "the owner");
        Cases.equal(4, s.getDataLength(), "the length");
        Cases.equal(0, s.getNumChildren(), "the number of children");
    }

    private static void createModes() throws Exception {
        create("/modes");
        Stat stat = new Stat();
        long session = zk.getSessionId();
        Cases.equal("/modes/p", create("/modes/p", CreateMode.PERSISTENT, stat), "the path");
        fresh(stat, 0);
        Cases.equal("/modes/s0000000001", create("/modes/s", CreateMode.PERSISTENT_SEQUENTIAL, stat), "the path");
        fresh(stat, 0);
        Cases.equal("/modes/e", create("/modes/e", CreateMode.EPHEMERAL, stat), "the path");
        fresh(stat, session);
        Cases.equal("/modes/0000000003", create("/modes/", CreateMode.EPHEMERAL_SEQUENTIAL, stat), "the path");
        fresh(stat, session);
        Cases.equal("/modes/c", create("/modes/c", CreateMode.CONTAINER, stat), "the path");
        fresh(stat, 0);
        Cases.equal("/modes/t", zk.create("/modes/t", bytes("data"), Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT_WITH_TTL, stat, 60_000), "the path");
        fresh(stat, 0);
        Cases.equal("/modes/t0000000006", zk.create("/modes/t", bytes("data"), Ids.OPEN_ACL_UNSAFE,
                CreateMode.PERSISTENT_SEQUENTIAL_WITH_TTL, stat, 60_000), "the path");
        fresh(stat, 0);
        Cases.equal(stat, zk.exists("/modes/t0000000006", false), "the Stat of exists");
        Stat parent = zk.exists("/modes", false);
        Cases.equal(7, parent.getNumChildren(), "the number of children");
        Cases.equal(7, parent.getCversion(), "cversion");
        Cases.equal(stat.getCzxid(), parent.getPzxid(), "pzxid");
        zk.create("/modes/null", null, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
        Cases.equal(null, zk.getData("/modes/null", false, stat), "the data that is none");
        Cases.equal(0, stat.getDataLength(), "its length");
        zk.create("/modes/\u00fcn\u00efc\u00f6d\u00e9-\u6771\u4eac", bytes(""), Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
        Cases.check(zk.getChildren("/modes", false).contains("\u00fcn\u00efc\u00f6d\u00e9-\u6771\u4eac"), "a name is changed");
    }

    private static void createErrors() throws Exception {
        create("/errors");
        create("/errors/e", CreateMode.EPHEMERAL, null);
        KeeperException e = Cases.fails(KeeperException.NodeExistsException.class, "twice", () -> create("/errors"));
        Cases.equal("/errors", e.getPath(), "the path of the failure");
        Cases.fails(KeeperException.NoNodeException.class, "no parent", () -> create("/errors/none/x"));
        Cases.fails(KeeperException.NoChildrenForEphemeralsException.class, "below an ephemeral", () -> create("/errors/e/x"));
        Cases.fails(KeeperException.InvalidACLException.class, "an ACL without a scheme", () -> zk.create("/errors/a", null,
                Arrays.asList(new ACL(Perms.ALL, new Id("none", "x"))), CreateMode.PERSISTENT));
        Cases.fails(KeeperException.InvalidACLException.class, "auth without an identity", () -> zk.create("/errors/a", null,
                Ids.CREATOR_ALL_ACL, CreateMode.PERSISTENT));
        Cases.fails(KeeperException.BadArgumentsException.class, "to delete the root", () -> zk.delete("/", -1));
        Cases.equal(1, zk.exists("/errors", false).getCversion(), "cversion after the failures");
    }

    private static void setGet() throws Exception {
        create("/set");
        Stat made = zk.exists("/set", false);
        Stat first = zk.setData("/set", bytes("longer"), 0);
        Cases.equal(1, first.getVersion(), "the version");
        Cases.equal(6, first.getDataLength(), "the length");
        Cases.equal(made.getCzxid(), first.getCzxid(), "czxid");
        Cases.equal(made.getPzxid(), first.getPzxid(), "pzxid");
        Cases.equal(made.getCtime(), first.getCtime(), "ctime");
        Cases.check(first.getMzxid() > made.getMzxid(), "mzxid did not grow");
        Cases.check(first.getMtime() >= made.getMtime(), "mtime went back");
        Cases.fails(KeeperException.BadVersionException.class, "an old version", () -> zk.setData("/set", bytes("x"), 0));
        Cases.fails(KeeperException.NoNodeException.class, "no znode", () -> zk.setData("/none", bytes("x"), -1));
        zk.setData("/set", bytes("any"), -1);
        Stat stat = new Stat();
        Cases.equal("any", new String(zk.getData("/set", false, stat), UTF_8), "the data");
        Cases.equal(2, stat.getVersion(), "the version");
        zk.setData("/set", null, 2);
        Cases.equal(null, zk.getData("/set", false, stat), "the data that is none");
        Cases.equal(stat, zk.exists("/set", false), "the Stat of exists");
        Cases.equal(null, zk.exists("/none", false), "the Stat of nothing");
        Cases.fails(KeeperException.NoNodeException.class, "no znode", () -> zk.getData("/none", false, null));
    }

    private static void delete() throws Exception {
        create("/delete");
        create("/delete/x");
        zk.setData("/delete/x", null, -1);
        Cases.fails(KeeperException.NotEmptyException.class, "a znode with a child", () -> zk.delete("/delete", -1));
        Cases.fails(KeeperException.BadVersionException.class, "an old version", () -> zk.delete("/delete/x", 0));
        zk.delete("/delete/x", 1);
        Cases.fails(KeeperException.NoNodeException.class, "twice", () -> zk.delete("/delete/x", -1));
        zk.delete("/delete", 0);
        Cases.equal(null, zk.exists("/delete", false), "what was deleted");
    }

    private static void parentStat() throws Exception {
        create("/parent");
        Stat a = zk.exists("/parent", false);
        create("/parent/x");
        Stat b = zk.exists("/parent", false);
        zk.setData("/parent/x", bytes("y"), -1);
        Cases.equal(b, zk.exists("/parent", false), "the parent's Stat after a child's data changed");
        zk.delete("/parent/x", -1);
        Stat c = zk.exists("/parent", false);
        Cases.equal(List.of(0, 1, 2), List.of(a.getCversion(), b.getCversion(), c.getCversion()), "cversion");
        Cases.equal(List.of(0, 1, 0), List.of(a.getNumChildren(), b.getNumChildren(), c.getNumChildren()), "the number of children");
        Cases.check(a.getPzxid() < b.getPzxid() && b.getPzxid() < c.getPzxid(), "pzxid did not grow");
        Cases.equal(List.of(a.getMzxid(), 0), List.of(c.getMzxid(), c.getVersion()), "mzxid and version");
    }

    private static void largeData() throws Exception {
        byte[] large = new byte[1_000_000];
        Arrays.fill(large, (byte) 'x');
        zk.create("/large", large, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
        Cases.check(Arrays.equals(large, zk.getData("/large", false, null)), "the data is changed");
        try (Client c = new Client()) {
            Cases.fails(KeeperException.ConnectionLossException.class, "a request over the limit",
                    () -> c.zk.setData("/large", new byte[1_100_000], -1));
            c.hears(KeeperState.Disconnected);
            c.hears(KeeperState.SyncConnected);
            Cases.equal(0, c.zk.exists("/large", false).getVersion(), "the version after it");
        }
    }

    private static void children() throws Exception {
        create("/children");
        Set<String> want = new TreeSet<>();
        for (int i = 0; i < 200; i++) {
            want.add("c" + i);
            create("/children/c" + i);
        }
        Stat stat = new Stat();
        List<String> got = zk.getChildren("/children", false, stat);
        Cases.equal(200, got.size(), "the number of names");
        Cases.equal(want, new TreeSet<>(got), "the names");
        Cases.equal(zk.exists("/children", false), stat, "the Stat");
        Cases.equal(List.of(), zk.getChildren("/children/c7", false), "the children of a leaf");
        Cases.fails(KeeperException.NoNodeException.class, "no znode", () -> zk.getChildren("/none", false));
    }

    private static void oneShotWatches() throws Exception {
        try (Client other = new Client()) {
            Log exists = new Log();
            Log data = new Log();
            Log children = new Log();
            zk.exists("/watched", exists);
            other.zk.create("/watched", null, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
            WatchedEvent event = exists.next(NodeCreated, "/watched");
            Cases.equal(zk.exists("/watched", exists).getCzxid(), event.getZxid(), "the event's zxid");
            zk.getData("/watched", data, null);
            zk.getChildren("/watched", children);
            other.zk.create("/watched/x", null, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
            children.next(NodeChildrenChanged, "/watched");
            Stat set = other.zk.setData("/watched", bytes("x"), -1);
            Cases.equal(set.getMzxid(), data.next(NodeDataChanged, "/watched").getZxid(), "the event's zxid");
            exists.next(NodeDataChanged, "/watched");
            other.zk.setData("/watched", bytes("y"), -1);
            other.zk.delete("/watched/x", -1);
            zk.sync("/watched", null, null);
            exists.empty();
            data.empty();
            children.empty();
            zk.getData("/watched", data, null);
            zk.getChildren("/watched", children);
            other.zk.delete("/watched", -1);
            data.next(NodeDeleted, "/watched");
            children.next(NodeDeleted, "/watched");
            // A watcher that waits for two things of one znode hears once.
            Log both = new Log();
            other.zk.create("/watched", null, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
            zk.sync("/watched", null, null);
            zk.getData("/watched", both, null);
            zk.getChildren("/watched", both);
            other.zk.delete("/watched", -1);
            both.next(NodeDeleted, "/watched");
            zk.sync("/watched", null, null);
            both.empty();
        }
    }

    private static void defaultWatcher() throws Exception {
        try (Client c = new Client()) {
            c.zk.exists("/default", true);
            create("/default");
            WatchedEvent event = c.heard.poll(Cases.PATIENCE_MS, TimeUnit.MILLISECONDS);
            Cases.check(event != null, "nothing heard");
            Cases.equal("NodeCreated /default", event.getType() + " " + event.getPath(), "the event");
            Cases.equal(KeeperState.SyncConnected, event.getState(), "its state");
        }
    }

    private static void persistentWatch() throws Exception {
        Log log = new Log();
        zk.addWatch("/persistent", log, AddWatchMode.PERSISTENT);
        create("/persistent");
        log.next(NodeCreated, "/persistent");
        for (int i = 0; i < 2; i++) {
            Stat set = zk.setData("/persistent", bytes("x"), -1);
            Cases.equal(set.getMzxid(), log.next(NodeDataChanged, "/persistent").getZxid(), "the event's zxid");
            create("/persistent/x");
            log.next(NodeChildrenChanged, "/persistent");
            zk.setData("/persistent/x", bytes("x"), -1);
            zk.delete("/persistent/x", -1);
            log.next(NodeChildrenChanged, "/persistent");
        }
        zk.delete("/persistent", -1);
        log.next(NodeDeleted, "/persistent");
        create("/persistent");
        log.next(NodeCreated, "/persistent");
        log.empty();
    }

    private static void recursiveWatch() throws Exception {
        Log log = new Log();
        create("/recursive");
        zk.addWatch("/recursive", log, AddWatchMode.PERSISTENT_RECURSIVE);
        create("/recursive/a");
        create("/recursive/a/b");
        zk.setData("/recursive/a/b", bytes("x"), -1);
        zk.multi(List.of(Op.delete("/recursive/a/b", -1), Op.delete("/recursive/a", -1)));
        zk.setData("/recursive", bytes("x"), -1);
        log.next(NodeCreated, "/recursive/a");
        log.next(NodeCreated, "/recursive/a/b");
        log.next(NodeDataChanged, "/recursive/a/b");
        long first = log.next(NodeDeleted, "/recursive/a/b").getZxid();
        Cases.equal(first, log.next(NodeDeleted, "/recursive/a").getZxid(), "the zxid of the same multi");
        log.next(NodeDataChanged, "/recursive");
        create("/recursive-not");
        log.empty();
    }

    private static void removeWatches() throws Exception {
        create("/remove");
        Log data = new Log();
        Log child = new Log();
        Log persistent = new Log();
        Log recursive = new Log();
        zk.getData("/remove", data, null);
        zk.getChildren("/remove", child);
        zk.addWatch("/remove", persistent, AddWatchMode.PERSISTENT);
        zk.removeWatches("/remove", data, WatcherType.Data, false);
        data.next(EventType.DataWatchRemoved, "/remove");
        Cases.fails(KeeperException.NoWatcherException.class, "a watch that is removed",
                () -> zk.removeWatches("/remove", data, WatcherType.Data, false));
        Cases.fails(KeeperException.NoWatcherException.class, "a watch of another type",
                () -> zk.removeWatches("/remove", child, WatcherType.Data, false));
        zk.removeWatches("/remove", child, WatcherType.Children, false);
        child.next(EventType.ChildWatchRemoved, "/remove");
        zk.setData("/remove", bytes("x"), -1);
        create("/remove/x");
        persistent.next(NodeDataChanged, "/remove");
        persistent.next(NodeChildrenChanged, "/remove");
        zk.removeWatches("/remove", persistent, WatcherType.Any, false);
        persistent.next(EventType.PersistentWatchRemoved, "/remove");
        zk.addWatch("/remove", recursive, AddWatchMode.PERSISTENT_RECURSIVE);
        zk.removeAllWatches("/remove", WatcherType.Any, false);
        recursive.next(EventType.PersistentWatchRemoved, "/remove");
        zk.delete("/remove/x", -1);
        zk.delete("/remove", -1);
        data.empty();
        child.empty();
        persistent.empty();
        recursive.empty();
    }

    private static void multi() throws Exception {
        List<OpResult> results = zk.multi(List.of(
                Op.create("/multi", bytes("data"), Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT),
                Op.create("/multi/s", bytes("data"), Ids.OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL_SEQUENTIAL),
                Op.create("/multi/c", bytes("data"), Ids.OPEN_ACL_UNSAFE, CreateMode.CONTAINER),
                Op.create("/multi/t", bytes("data"), Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT_WITH_TTL, 60_000),
                Op.setData("/multi", bytes("other"), 0),
                Op.check("/multi", 1),
                Op.delete("/multi/c", 0)));
        Cases.equal(7, results.size(), "the number of results");
        Cases.equal("/multi/s0000000000", ((OpResult.CreateResult) results.get(1)).getPath(), "the second path");
        Stat set = ((OpResult.SetDataResult) results.get(4)).getStat();
        Cases.equal(List.of(1, 5, 3), List.of(set.getVersion(), set.getDataLength(), set.getNumChildren()), "the Stat in the middle");
        Cases.equal(set.getCzxid(), set.getMzxid(), "the zxid of the whole");
        Cases.equal(set.getCzxid(), zk.exists("/multi/t", false).getCzxid(), "the zxid of the whole");
        Cases.check(results.get(5) instanceof OpResult.CheckResult, "the result of check is " + results.get(5));
        Cases.check(results.get(6) instanceof OpResult.DeleteResult, "the result of delete is " + results.get(6));
        Cases.equal(4, zk.exists("/multi", false).getCversion(), "cversion");
        Cases.equal(1, zk.transaction().check("/multi", 1).setData("/multi", bytes("third"), 1).commit().size() - 1, "what a transaction does");
        Cases.equal(List.of(), zk.multi(List.of()), "the results of nothing");
    }

    private static void multiErrors() throws Exception {
        create("/multi-errors");
        KeeperException e = Cases.fails(KeeperException.NoNodeException.class, "a multi that fails in the middle", () -> zk.multi(List.of(
                Op.create("/multi-errors/x", null, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT),
                Op.setData("/multi-errors/none", null, -1),
                Op.delete("/multi-errors", -1))));
        Cases.equal(List.of(Code.OK.intValue(), Code.NONODE.intValue(), Code.RUNTIMEINCONSISTENCY.intValue()),
                e.getResults().stream().map(r -> ((OpResult.ErrorResult) r).getErr()).toList(), "the results");
        Cases.equal(0, zk.exists("/multi-errors", false).getCversion(), "cversion after it");
        BlockingQueue<List<Object>> done = new LinkedBlockingQueue<>();
        zk.multi(List.of(Op.check("/multi-errors", 7)), (rc, path, ctx, results) ->
                done.add(List.of(rc, ctx, results.size(), ((OpResult.ErrorResult) results.get(0)).getErr())), "context");
        Cases.equal(List.of(Code.BADVERSION.intValue(), "context", 1, Code.BADVERSION.intValue()),
                done.poll(Cases.PATIENCE_MS, TimeUnit.MILLISECONDS), "the answer");
    }

    private static void multiRead() throws Exception {
        create("/multi-read");
        create("/multi-read/x");
        List<OpResult> results = zk.multi(List.of(Op.getData("/multi-read"), Op.getChildren("/multi-read"), Op.getData("/none")));
        Cases.equal("data", new String(((OpResult.GetDataResult) results.get(0)).getData(), UTF_8), "the data");
        Cases.equal(zk.exists("/multi-read", false), ((OpResult.GetDataResult) results.get(0)).getStat(), "the Stat");
        Cases.equal(List.of("x"), ((OpResult.GetChildrenResult) results.get(1)).getChildren(), "the children");
        Cases.equal(Code.NONODE.intValue(), ((OpResult.ErrorResult) results.get(2)).getErr(), "the failure");
    }

    private static void async() throws Exception {
        BlockingQueue<List<Object>> done = new LinkedBlockingQueue<>();
        zk.create("/async", bytes("data"), Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT,
                (rc, path, ctx, name, stat) -> done.add(List.of("create", rc, path, ctx, name, stat.getVersion())), 1);
        zk.create("/async/old", null, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT,
                (rc, path, ctx, name) -> done.add(List.of("old create", rc, path, ctx, name)), 2);
        zk.exists("/async", false, (rc, path, ctx, stat) -> done.add(List.of("exists", rc, path, ctx, stat.getNumChildren())), 3);
        zk.getData("/async", false, (rc, path, ctx, data, stat) -> done.add(List.of("getData", rc, path, ctx, new String(data, UTF_8))), 4);
        zk.setData("/async", bytes("x"), 0, (rc, path, ctx, stat) -> done.add(List.of("setData", rc, path, ctx, stat.getVersion())), 5);
        zk.getACL("/async", new Stat(), (rc, path, ctx, acl, stat) -> done.add(List.of("getACL", rc, path, ctx, acl.size())), 6);
        zk.setACL("/async", Ids.OPEN_ACL_UNSAFE, 0, (rc, path, ctx, stat) -> done.add(List.of("setACL", rc, path, ctx, stat.getAversion())), 7);
        zk.getChildren("/async", false, (rc, path, ctx, names) -> done.add(List.of("getChildren", rc, path, ctx, names)), 8);
        zk.getChildren("/async", false, (rc, path, ctx, names, stat) -> done.add(List.of("getChildren2", rc, path, ctx, names, stat.getCversion())), 9);
        zk.getAllChildrenNumber("/async", (rc, path, ctx, n) -> done.add(List.of("number", rc, path, ctx, n)), 10);
        zk.getEphemerals("/async", (rc, ctx, names) -> done.add(List.of("ephemerals", rc, ctx, names)), 11);
        zk.sync("/async", (rc, path, ctx) -> done.add(List.of("sync", rc, path, ctx)), 12);
        zk.addWatch("/async", new Log(), AddWatchMode.PERSISTENT, (rc, path, ctx) -> done.add(List.of("addWatch", rc, path, ctx)), 13);
        zk.delete("/async/old", 7, (rc, path, ctx) -> done.add(List.of("delete", rc, path, ctx)), 14);
        zk.delete("/async/old", 0, (rc, path, ctx) -> done.add(List.of("delete", rc, path, ctx)), 15);
        for (List<?> want : List.of(
                List.of("create", 0, "/async", 1, "/async", 0),
                List.of("old create", 0, "/async/old", 2, "/async/old"),
                List.of("exists", 0, "/async", 3, 1),
                List.of("getData", 0, "/async", 4, "data"),
                List.of("setData", 0, "/async", 5, 1),
                List.of("getACL", 0, "/async", 6, 1),
                List.of("setACL", 0, "/async", 7, 1),
                List.of("getChildren", 0, "/async", 8, List.of("old")),
                List.of("getChildren2", 0, "/async", 9, List.of("old"), 1),
                List.of("number", 0, "/async", 10, 1),
                List.of("ephemerals", 0, 11, List.of()),
                List.of("sync", 0, "/async", 12),
                List.of("addWatch", 0, "/async", 13),
                List.of("delete", Code.BADVERSION.intValue(), "/async/old", 14),
                List.of("delete", 0, "/async/old", 15))) {
            Cases.equal(want, done.poll(Cases.PATIENCE_MS, TimeUnit.MILLISECONDS), "the answer");
        }
    }

    /** Many requests at once are answered in order, and a watch fires before the answer that shows its change. */
    private static void asyncOrder() throws Exception {
        create("/order");
        List<String> seen = Collections.synchronizedList(new ArrayList<>());
        zk.getData("/order", event -> seen.add(event.getType().name()), null);
        int n = 2_000;
        for (int i = 0; i < n; i++) {
            int me = i;
            if (i % 2 == 0) {
                zk.setData("/order", bytes(String.valueOf(i)), i / 2, (rc, path, ctx, stat) -> seen.add("set " + me + " " + rc), null);
            } else {
                zk.getData("/order", false, (rc, path, ctx, data, stat) -> seen.add("get " + me + " " + new String(data, UTF_8)), null);
            }
        }
        Cases.await("all answers", () -> seen.size() == n + 1);
        List<String> want = new ArrayList<>();
        want.add("NodeDataChanged");
        for (int i = 0; i < n; i += 2) {
            want.add("set " + i + " 0");
            want.add("get " + (i + 1) + " " + i);
        }
        Cases.equal(want, new ArrayList<>(seen), "what came");
    }

    private static void acl() throws Exception {
        Stat stat = new Stat();
        create("/acl");
        Cases.equal(Ids.OPEN_ACL_UNSAFE, zk.getACL("/acl", stat), "the ACL");
        List<ACL> mixed = Arrays.asList(new ACL(Perms.READ | Perms.ADMIN, Ids.ANYONE_ID_UNSAFE), new ACL(Perms.ALL, new Id("ip", "10.0.0.0/8")));
        Cases.equal(1, zk.setACL("/acl", mixed, 0).getAversion(), "aversion");
        Cases.equal(mixed, zk.getACL("/acl", stat), "the ACL");
        Cases.equal(List.of(0, 1), List.of(stat.getVersion(), stat.getAversion()), "the versions");
        Cases.fails(KeeperException.BadVersionException.class, "an old version", () -> zk.setACL("/acl", mixed, 0));
        Cases.fails(KeeperException.NoAuthException.class, "to write", () -> zk.setData("/acl", null, -1));
        Cases.fails(KeeperException.NoAuthException.class, "to create", () -> create("/acl/x"));
        zk.setACL("/acl", Arrays.asList(new ACL(Perms.ALL & ~Perms.READ, new Id("ip", "127.0.0.1"))), 1);
        Cases.fails(KeeperException.NoAuthException.class, "to read", () -> zk.getData("/acl", false, null));
        Cases.fails(KeeperException.NoAuthException.class, "to list", () -> zk.getChildren("/acl", false));
        Cases.fails(KeeperException.NoAuthException.class, "to look", () -> zk.exists("/acl", false));
        create("/acl/x");
        zk.setACL("/acl", Arrays.asList(new ACL(Perms.ADMIN, Ids.ANYONE_ID_UNSAFE)), 2);
        Cases.fails(KeeperException.NoAuthException.class, "to delete", () -> zk.delete("/acl/x", -1));
        Cases.fails(KeeperException.NotEmptyException.class, "a znode with a child, which its parent allows", () -> zk.delete("/acl", -1));
    }

    private static void digest() throws Exception {
        try (Client owner = new Client(); Client thief = new Client()) {
            owner.zk.addAuthInfo("digest", bytes("user:secret"));
            owner.zk.create("/digest", bytes("x"), Ids.CREATOR_ALL_ACL, CreateMode.PERSISTENT);
            Id id = owner.zk.getACL("/digest", null).get(0).getId();
            Cases.equal("digest", id.getScheme(), "the scheme");
            Cases.equal(org.apache.zookeeper.server.auth.DigestAuthenticationProvider.generateDigest("user:secret"), id.getId(), "the id");
            Cases.fails(KeeperException.NoAuthException.class, "to read", () -> thief.zk.getData("/digest", false, null));
            Cases.fails(KeeperException.NoAuthException.class, "to read the ACL", () -> thief.zk.getACL("/digest", null));
            thief.zk.addAuthInfo("digest", bytes("user:wrong"));
            Cases.fails(KeeperException.NoAuthException.class, "to read", () -> thief.zk.getData("/digest", false, null));
            thief.zk.addAuthInfo("digest", bytes("user:secret"));
            Cases.equal("x", new String(thief.zk.getData("/digest", false, null), UTF_8), "the data");
            thief.zk.create("/digest/both", null, Ids.CREATOR_ALL_ACL, CreateMode.PERSISTENT);
            Cases.equal(2, thief.zk.getACL("/digest/both", null).size(), "the number of identities in the ACL");
            // A new connection of the session proves them again.
            new RawSession(address, 5_000, thief.zk.getSessionId(), thief.zk.getSessionPasswd()).close();
            thief.hears(KeeperState.Disconnected);
            thief.hears(KeeperState.SyncConnected);
            Cases.equal("x", new String(thief.zk.getData("/digest", false, null), UTF_8), "the data");
            // Who may read the ACL but not administer it sees no hash.
            owner.zk.setACL("/digest", Arrays.asList(new ACL(Perms.ALL, id), new ACL(Perms.READ, Ids.ANYONE_ID_UNSAFE)), -1);
            Cases.equal("user:x", zk.getACL("/digest", null).get(0).getId().getId(), "the id that a reader sees");
        }
    }

    private static void superUser() throws Exception {
        try (Client owner = new Client(); Client root = new Client()) {
            owner.zk.addAuthInfo("digest", bytes("user:secret"));
            owner.zk.create("/super", bytes("x"), Ids.CREATOR_ALL_ACL, CreateMode.PERSISTENT);
            Cases.fails(KeeperException.NoAuthException.class, "to read", () -> root.zk.getData("/super", false, null));
            root.zk.addAuthInfo("digest", bytes("super:secret"));
            Cases.equal("x", new String(root.zk.getData("/super", false, null), UTF_8), "the data");
            root.zk.delete("/super", 0);
        }
    }

    private static void authFailed() throws Exception {
        Client c = new Client();
        c.zk.addAuthInfo("none", bytes("x"));
        c.hears(KeeperState.AuthFailed);
        Cases.await("the client gives up", () -> c.zk.getState() == ZooKeeper.States.AUTH_FAILED);
        Cases.fails(KeeperException.class, "a request after it", () -> c.zk.exists("/", false));
        c.close();
    }

    private static void whoAmI() throws Exception {
        Cases.equal(List.of(new ClientInfo("ip", "127.0.0.1")), zk.whoAmI(), "the identities");
        try (Client c = new Client()) {
            c.zk.addAuthInfo("digest", bytes("user:secret"));
            c.zk.addAuthInfo("digest", bytes("super:secret"));
            Set<String> got = new HashSet<>();
            for (ClientInfo info : c.zk.whoAmI()) {
                got.add(info.getAuthScheme() + ":" + info.getUser());
            }
            Cases.equal(Set.of("ip:127.0.0.1", "digest:user", "digest:super", "super:"), got, "the identities");
        }
    }

    private static void getEphemerals() throws Exception {
        try (Client c = new Client()) {
            create("/ephemerals");
            for (String name : List.of("a", "ab", "b")) {
                c.zk.create("/ephemerals/" + name, null, Ids.OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL);
            }
            create("/ephemerals/foreign", CreateMode.EPHEMERAL, null);
            Cases.equal(Set.of("/ephemerals/a", "/ephemerals/ab", "/ephemerals/b"), new HashSet<>(c.zk.getEphemerals()), "all");
            Cases.equal(Set.of("/ephemerals/a", "/ephemerals/ab"), new HashSet<>(c.zk.getEphemerals("/ephemerals/a")), "those with a prefix");
            Cases.equal(List.of(), c.zk.getEphemerals("/none"), "those that are not");
        }
    }

    private static void allChildrenNumber() throws Exception {
        create("/number");
        create("/number/a");
        create("/number/a/b");
        create("/number-other");
        Cases.equal(2, zk.getAllChildrenNumber("/number"), "the number");
        Cases.equal(0, zk.getAllChildrenNumber("/number/a/b"), "the number below a leaf");
        Cases.fails(KeeperException.NoNodeException.class, "no znode", () -> zk.getAllChildrenNumber("/none"));
    }

    private static void getConfig() throws Exception {
        Stat stat = new Stat();
        byte[] config = zk.getConfig(false, stat);
        Cases.equal("", config == null ? "" : new String(config, UTF_8), "the configuration of one server");
        Cases.equal(zk.exists(ZooDefs.CONFIG_NODE, false), stat, "the Stat");
        Cases.fails(KeeperException.NoAuthException.class, "to write it", () -> zk.setData(ZooDefs.CONFIG_NODE, null, -1));
    }

    private static void reconfig() throws Exception {
        BlockingQueue<WatchedEvent> heard = new LinkedBlockingQueue<>();
        ZooKeeperAdmin admin = new ZooKeeperAdmin(address, 5_000, heard::add);
        Cases.fails(KeeperException.ReconfigDisabledException.class, "reconfig",
                () -> admin.reconfigure("server.9=127.0.0.1:1:2;3", null, null, -1, new Stat()));
        admin.close();
    }

    private static void chroot() throws Exception {
        create("/chroot");
        try (Client c = new Client(address + "/chroot", 5_000)) {
            Cases.equal("/in", c.zk.create("/in", bytes("x"), Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT), "the path");
            Cases.equal("x", new String(zk.getData("/chroot/in", false, null), UTF_8), "the data from outside");
            Log log = new Log();
            c.zk.addWatch("/", log, AddWatchMode.PERSISTENT_RECURSIVE);
            zk.setData("/chroot/in", bytes("y"), -1);
            log.next(NodeDataChanged, "/in");
            c.zk.multi(List.of(Op.delete("/in", -1), Op.create("/in", null, Ids.OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL)));
            // The client does not take its root off here.
            Cases.equal(List.of("/chroot/in"), c.zk.getEphemerals("/"), "the ephemerals");
        }
    }

    private static void sessionTimeout() throws Exception {
        for (int[] t : new int[][] {{300, 500}, {500, 500}, {777, 777}, {5_000, 5_000}, {1_000_000, 5_000}}) {
            try (Client c = new Client(address, t[0])) {
                Cases.equal(t[1], c.zk.getSessionTimeout(), "the timeout for " + t[0]);
                Cases.check(c.zk.getSessionId() != 0, "the session's id is 0");
                Cases.equal(16, c.zk.getSessionPasswd().length, "the length of the password");
            }
        }
    }

    private static void readOnlyFlag() throws Exception {
        BlockingQueue<WatchedEvent> heard = new LinkedBlockingQueue<>();
        ZooKeeper c = new ZooKeeper(address, 5_000, heard::add, true);
        WatchedEvent first = heard.poll(Cases.PATIENCE_MS, TimeUnit.MILLISECONDS);
        Cases.check(first != null, "nothing heard");
        Cases.equal(KeeperState.SyncConnected, first.getState(), "the state");
        Cases.equal(ZooKeeper.States.CONNECTED, c.getState(), "the client's state");
        c.create("/read-only", null, Ids.OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL);
        c.close();
    }

    private static void resume() throws Exception {
        Client first = new Client();
        first.zk.create("/resume", null, Ids.OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL);
        Client second = new Client(first.zk.getSessionId(), first.zk.getSessionPasswd());
        second.hears(KeeperState.SyncConnected);
        first.hears(KeeperState.Disconnected);
        Cases.equal(first.zk.getSessionId(), second.zk.getSessionId(), "the session");
        Cases.equal(second.zk.getSessionId(), zk.exists("/resume", false).getEphemeralOwner(), "the owner");
        second.close();
        Cases.equal(null, zk.exists("/resume", false), "the ephemeral after the close");
        first.hears(KeeperState.Expired);
        first.close();
    }

    private static void wrongPassword() throws Exception {
        try (Client first = new Client()) {
            byte[] wrong = first.zk.getSessionPasswd().clone();
            wrong[3] ^= 1;
            Client second = new Client(first.zk.getSessionId(), wrong);
            second.hears(KeeperState.Expired);
            Cases.equal(ZooKeeper.States.CLOSED, second.zk.getState(), "the state");
            second.close();
            Client unknown = new Client(0x123456789abcdefL, wrong);
            unknown.hears(KeeperState.Expired);
            unknown.close();
        }
    }

    private static void close() throws Exception {
        Client c = new Client();
        Log log = new Log();
        for (int i = 0; i < 3; i++) {
            c.zk.create("/close-" + i, null, Ids.OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL);
            zk.exists("/close-" + i, log);
        }
        c.close();
        Set<String> gone = new TreeSet<>();
        Set<Long> zxids = new HashSet<>();
        for (int i = 0; i < 3; i++) {
            WatchedEvent event = log.events.poll(Cases.PATIENCE_MS, TimeUnit.MILLISECONDS);
            Cases.check(event != null && event.getType() == NodeDeleted, "the event is " + event);
            gone.add(event.getPath());
            zxids.add(event.getZxid());
        }
        Cases.equal(Set.of("/close-0", "/close-1", "/close-2"), gone, "what is gone");
        Cases.equal(1, zxids.size(), "the number of transactions that took it");
        Cases.fails(KeeperException.SessionExpiredException.class, "a request after the close", () -> c.zk.exists("/", false));
    }

    private static void expiry() throws Exception {
        Log log = new Log();
        RawSession raw = new RawSession(address, 3_000, 0, new byte[16]);
        Cases.equal(3_000, raw.session.getTimeOut(), "the timeout");
        long began = System.nanoTime();
        raw.call(ZooDefs.OpCode.create, new CreateRequest("/expiry", null, Ids.OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL.toFlag()));
        Cases.equal(raw.session.getSessionId(), zk.exists("/expiry", log).getEphemeralOwner(), "the owner");
        log.next(NodeDeleted, "/expiry");
        long took = (System.nanoTime() - began) / 1_000_000;
        Cases.check(took > 2_900, "the session expired after " + took + " ms");
        Client late = new Client(raw.session.getSessionId(), raw.session.getPasswd());
        late.hears(KeeperState.Expired);
        late.close();
        raw.close();
    }

    private static void ttlAndContainer() throws Exception {
        zk.create("/ttl", null, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT_WITH_TTL, null, 300);
        create("/box", CreateMode.CONTAINER, null);
        create("/box/x");
        create("/box-unused", CreateMode.CONTAINER, null);
        Log log = new Log();
        zk.exists("/box", log);
        zk.delete("/box/x", -1);
        log.next(NodeDeleted, "/box");
        Cases.await("the TTL znode goes", () -> zk.exists("/ttl", false) == null);
        Cases.check(zk.exists("/box-unused", false) != null, "a container that never had a child is gone");
    }

    /** Takes a client's connection away, and waits until it knows. */
    private static void cut(Client c) throws Exception {
        new RawSession(address, 5_000, c.zk.getSessionId(), c.zk.getSessionPasswd()).close();
        c.hears(KeeperState.Disconnected);
    }

    /** What changes while a client is away, it hears of when it is back; what does not, it does not. */
    private static void reconnect() throws Exception {
        for (String root : List.of("/reconnect-1", "/reconnect-2", "/reconnect-3")) {
            create(root);
            for (String name : List.of("data", "gone", "children", "persistent", "recursive", "same")) {
                create(root + "/" + name);
            }
            try (Client c = new Client()) {
                Log data = new Log();
                Log gone = new Log();
                Log exists = new Log();
                Log children = new Log();
                Log same = new Log();
                Log persistent = new Log();
                Log recursive = new Log();
                c.zk.getData(root + "/data", data, null);
                c.zk.getData(root + "/gone", gone, null);
                c.zk.exists(root + "/new", exists);
                c.zk.getChildren(root + "/children", children);
                c.zk.getData(root + "/same", same, null);
                c.zk.getChildren(root + "/same", same);
                c.zk.exists(root + "/never", same);
                c.zk.addWatch(root + "/persistent", persistent, AddWatchMode.PERSISTENT);
                c.zk.addWatch(root + "/recursive", recursive, AddWatchMode.PERSISTENT_RECURSIVE);
                cut(c);
                zk.setData(root + "/data", bytes("x"), -1);
                zk.delete(root + "/gone", -1);
                create(root + "/new");
                create(root + "/children/x");
                c.hears(KeeperState.SyncConnected);
                data.next(NodeDataChanged, root + "/data");
                gone.next(NodeDeleted, root + "/gone");
                exists.next(NodeCreated, root + "/new");
                children.next(NodeChildrenChanged, root + "/children");
                // Watches that stay work on the new connection.
                c.zk.sync("/", null, null);
                c.zk.exists("/", false);
                zk.setData(root + "/persistent", bytes("x"), -1);
                create(root + "/recursive/a");
                persistent.next(NodeDataChanged, root + "/persistent");
                recursive.next(NodeCreated, root + "/recursive/a");
                zk.setData(root + "/same", bytes("x"), -1);
                same.next(NodeDataChanged, root + "/same");
                c.zk.exists("/", false);
                for (Log log : List.of(data, gone, exists, children, same, persistent, recursive)) {
                    log.empty();
                }
            }
        }
    }

    /** More watches than the client puts into one request. */
    private static void manyWatches() throws Exception {
        create("/many");
        int n = 3_000;
        String pad = "x".repeat(100);
        try (Client c = new Client()) {
            Log log = new Log();
            for (int i = 0; i < n - 1; i++) {
                c.zk.exists("/many/" + pad + i, log, null, null);
            }
            c.zk.exists("/many/" + pad + (n - 1), log);
            cut(c);
            c.hears(KeeperState.SyncConnected);
            c.zk.exists("/", false);
            List<Op> ops = new ArrayList<>();
            Set<String> want = new TreeSet<>();
            for (int i = 0; i < n; i++) {
                ops.add(Op.create("/many/" + pad + i, null, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT));
                want.add("/many/" + pad + i);
            }
            zk.multi(ops);
            Set<String> got = new TreeSet<>();
            for (int i = 0; i < n; i++) {
                WatchedEvent event = log.events.poll(Cases.PATIENCE_MS, TimeUnit.MILLISECONDS);
                Cases.check(event != null, "only " + i + " of " + n + " watches fire");
                got.add(event.getPath());
            }
            Cases.equal(want, got, "the paths");
        }
    }

    private static void restart() throws Exception {
        try (Client c = new Client()) {
            create("/restart");
            c.zk.create("/restart/ephemeral", bytes("x"), Ids.OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL);
            Stat before = c.zk.exists("/restart", false);
            Log data = new Log();
            Log recursive = new Log();
            c.zk.getData("/restart", data, null);
            c.zk.addWatch("/restart", recursive, AddWatchMode.PERSISTENT_RECURSIVE);
            long session = c.zk.getSessionId();
            Cases.ask("restart");
            c.hears(KeeperState.Disconnected);
            c.hears(KeeperState.SyncConnected);
            Cases.equal(session, c.zk.getSessionId(), "the session");
            Cases.equal(before, c.zk.exists("/restart", false), "the Stat");
            Cases.equal(session, c.zk.exists("/restart/ephemeral", false).getEphemeralOwner(), "the owner");
            Stat set = c.zk.setData("/restart", bytes("y"), 0);
            Cases.check(set.getMzxid() > before.getPzxid(), "a zxid went back");
            data.next(NodeDataChanged, "/restart");
            recursive.next(NodeDataChanged, "/restart");
            Cases.equal("/restart/s0000000001", c.zk.create("/restart/s", null, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT_SEQUENTIAL), "the path");
            recursive.next(NodeCreated, "/restart/s0000000001");
        }
        Cases.await("the shared client is back", () -> zk.getState() == ZooKeeper.States.CONNECTED);
        Cases.equal(null, zk.exists("/restart/ephemeral", false), "the ephemeral after the close");
    }

    private static void deleteRecursive() throws Exception {
        create("/tree");
        List<Op> ops = new ArrayList<>();
        for (int i = 0; i < 30; i++) {
            ops.add(Op.create("/tree/" + i, null, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT));
            for (int j = 0; j < 30; j++) {
                ops.add(Op.create("/tree/" + i + "/" + j, null, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT));
            }
        }
        zk.multi(ops);
        Cases.equal(930, zk.getAllChildrenNumber("/tree"), "the number below it");
        List<String> seen = Collections.synchronizedList(new ArrayList<>());
        ZKUtil.visitSubTreeDFS(zk, "/tree", false, (rc, path, ctx, name) -> seen.add(path));
        Cases.equal(931, seen.size(), "the number of visited znodes");
        Cases.check(ZKUtil.deleteRecursive(zk, "/tree", 50), "not all is deleted");
        Cases.equal(null, zk.exists("/tree", false), "the tree");
    }

    private static void netty() throws Exception {
        ZKClientConfig config = new ZKClientConfig();
        config.setProperty(ZKClientConfig.ZOOKEEPER_CLIENT_CNXN_SOCKET, "org.apache.zookeeper.ClientCnxnSocketNetty");
        try (Client c = new Client(config)) {
            Log log = new Log();
            c.zk.exists("/netty", log);
            c.zk.create("/netty", bytes("x"), Ids.OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL);
            log.next(NodeCreated, "/netty");
            c.zk.exists("/netty", log);
            cut(c);
            c.hears(KeeperState.SyncConnected);
            zk.setData("/netty", bytes("y"), 0);
            log.next(NodeDataChanged, "/netty");
        }
    }
}
