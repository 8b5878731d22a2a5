package io.github.lockkeeper.test;

import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** A member of a cluster, or the only server, from {@link LockkeeperServer#member}. */
public final class Member {
    private final LockkeeperServer server;
    private final int id;

    Member(LockkeeperServer server, int id) {
        this.server = server;
        this.id = id;
    }

    private void on(String path) {
        server.call(path, Map.of("member", id));
    }

    /**
     * Its id.
     *
     * @return a number from 1
     */
    public int id() {
        return id;
    }

    /**
     * Where clients connect to this member only.
     *
     * @return HOST:PORT
     */
    public String connectString() {
        return server.connectString().split(",")[id - 1];
    }

    /** Stops it as abruptly as if its process had been killed. It keeps its state. */
    public void kill() {
        on("/kill");
    }

    /** Starts it after {@link #kill}, with the state that it had. It does not wait for a leader. */
    public void restart() {
        on("/restart");
    }

    /** Keeps it from sending, receiving and writing to its disk. */
    public void pause() {
        on("/pause");
    }

    /** Continues it after {@link #pause}. */
    public void resume() {
        on("/resume");
    }

    /**
     * Makes each write to its disk slow.
     *
     * @param delay how long it takes; zero ends it
     */
    public void slowDisk(Duration delay) {
        server.call("/disk", Map.of("member", id, "delayMs", delay.toMillis()));
    }

    /** Makes each write to its disk fail. It then stops serving, until {@link #healDisk}, {@link #kill} and {@link #restart}. */
    public void fullDisk() {
        server.call("/disk", Map.of("member", id, "full", true));
    }

    /** Ends {@link #slowDisk} and {@link #fullDisk}. */
    public void healDisk() {
        on("/disk");
    }

    /**
     * Makes its clock wrong.
     *
     * @param skew how far it is ahead; zero makes it right
     */
    public void clock(Duration skew) {
        server.call("/clock", Map.of("member", id, "skewMs", skew.toMillis()));
    }

    /**
     * What it has applied.
     *
     * @return its state
     */
    public State state() {
        return new State(server.get("/state", Map.of("member", id)));
    }

    /**
     * A znode, as this member has it.
     *
     * @param path its path
     * @return the znode
     */
    public Znode znode(String path) {
        return new Znode(server.get("/znode", Map.of("path", path, "member", id)));
    }

    /**
     * The requests that clients have sent to this member.
     *
     * @param op ZooKeeper's name of an operation, or a pattern; "" for all
     * @return the requests, the oldest first, without pings
     */
    public List<Request> requests(String op) {
        Map<String, Object> query = new LinkedHashMap<>(Map.of("member", id));
        if (!op.isEmpty()) {
            query.put("op", op);
        }
        return server.get("/requests", query).objects("requests", Request::new);
    }

    /**
     * Waits until this member has applied something.
     *
     * @return what to wait for
     */
    public Wait waitUntil() {
        return Wait.of(server, null, id);
    }

    /**
     * Waits until this member has applied something.
     *
     * @param timeout how long to wait at most
     * @return what to wait for
     */
    public Wait waitUntil(Duration timeout) {
        return Wait.of(server, timeout, id);
    }

    @Override
    public String toString() {
        return "member " + id + " at " + connectString();
    }
}
