package io.github.lockkeeper.test;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.stream.Collectors;

/**
 * Waits until a server has a state, from {@link LockkeeperServer#waitUntil()}. The methods return when the state is
 * reached. They see every state, also one that lasts only for a moment. If it is not reached in time, they throw a
 * {@link LockkeeperTimeoutException}, which says how long they have waited, and what there was instead.
 */
public final class Wait {
    private final LockkeeperServer server;
    private final Map<String, Object> common;

    Wait(LockkeeperServer server, Map<String, Object> common) {
        this.server = server;
        this.common = common;
    }

    /** Returns what to wait for, with a timeout and of a member if they are not null. */
    static Wait of(LockkeeperServer server, Duration timeout, Integer member) {
        Map<String, Object> common = new LinkedHashMap<>();
        if (timeout != null) {
            common.put("timeoutMs", timeout.toMillis());
        }
        if (member != null) {
            common.put("member", member);
        }
        return new Wait(server, common);
    }

    private Reply on(String what, Map<String, Object> with) {
        Map<String, Object> body = new LinkedHashMap<>(common);
        body.putAll(with);
        return server.call("/wait/" + what, body);
    }

    /**
     * A session holds a lock: it has the first of the ephemeral and sequential children of the path, or the path itself
     * is an ephemeral of the session.
     *
     * @param path the lock
     * @param session the id of the session
     */
    public void held(String path, long session) {
        on("held", Map.of("path", path, "session", LockkeeperServer.sessionText(session)));
    }

    /**
     * This many sessions wait behind the holder of a lock.
     *
     * @param path the lock
     * @param sessions their number
     */
    public void waiters(String path, int sessions) {
        on("waiters", Map.of("path", path, "waiters", sessions));
    }

    /**
     * A znode does not exist.
     *
     * @param path its path
     */
    public void gone(String path) {
        on("gone", Map.of("path", path));
    }

    /**
     * A znode exists.
     *
     * @param path its path
     */
    public void exists(String path) {
        on("exists", Map.of("path", path));
    }

    /**
     * A znode has this data.
     *
     * @param path its path
     * @param data its data
     */
    public void data(String path, byte[] data) {
        on("data", Map.of("path", path, "data", Base64.getEncoder().encodeToString(data)));
    }

    /**
     * A znode has this text.
     *
     * @param path its path
     * @param text its data, decoded as UTF-8
     */
    public void text(String path, String text) {
        data(path, text.getBytes(StandardCharsets.UTF_8));
    }

    /**
     * A znode has this many children.
     *
     * @param path its path
     * @param number the number of children
     */
    public void children(String path, int number) {
        on("children", Map.of("path", path, "children", number));
    }

    /**
     * Clients have sent at least this many requests since the server's start.
     *
     * @param op ZooKeeper's name of the operation, or a pattern, as in {@link Fault#op}
     * @param path a path, or a pattern as in {@link Fault#path}; "" for any
     * @param count the number of requests
     */
    public void requests(String op, String path, int count) {
        on("requests", path.isEmpty() ? Map.of("op", op, "count", count) : Map.of("op", op, "path", path, "count", count));
    }

    /**
     * A member leads.
     *
     * @param among the ids of those that may lead, such as the others when a partition has cut the leader off; any, if
     *     none are given
     * @return the member
     */
    public Member leader(int... among) {
        return server.member((int) on("leader", Map.of("among", Arrays.stream(among).boxed().collect(Collectors.toList()))).number("leader"));
    }

    /**
     * Somebody watches a path.
     *
     * @param path the path
     */
    public void watch(String path) {
        on("watch", Map.of("path", path));
    }

    /**
     * A session watches a path.
     *
     * @param path the path
     * @param session the id of the session
     */
    public void watch(String path, long session) {
        on("watch", Map.of("path", path, "session", LockkeeperServer.sessionText(session)));
    }
}
