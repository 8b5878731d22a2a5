package io.github.lockkeeper.test;

import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * What happens to a client's request: a value for {@link LockkeeperServer#inject}. By default it hits the next request
 * of any client. For example, the second creation of a znode below /locks is executed, and its reply is lost:
 *
 * <pre>{@code
 * server.inject(Fault.closeAfter().op("create*").path("/locks/*").nth(2));
 * }</pre>
 */
public final class Fault {
    private final Map<String, Object> body;
    private final boolean optional;
    private final String code; // that makes it

    private Fault(Map<String, Object> body, boolean optional, String code) {
        this.body = body;
        this.optional = optional;
        this.code = code;
    }

    private static Fault of(String action) {
        return new Fault(Map.of("do", action), false, "Fault." + action + "()");
    }

    private static Fault of(String action, String name, Object value, String argument) {
        return new Fault(Map.of("do", action, name, value), false, "Fault." + action + '(' + argument + ')');
    }

    /** Returns a fault with a field more, which a call has set. */
    private Fault with(String name, Object value, String call) {
        Map<String, Object> more = new LinkedHashMap<>(body);
        more.put(name, value);
        return new Fault(more, optional, code + call);
    }

    private static String ofMillis(Duration time) {
        return "Duration.ofMillis(" + time.toMillis() + ')';
    }

    /**
     * The server receives the request, and all later ones of its connection, only after this time. A watch event, and
     * what follows it, is sent later by this time.
     *
     * @param time how long
     * @return the fault
     */
    public static Fault delay(Duration time) {
        return of("delay", "ms", time.toMillis(), ofMillis(time));
    }

    /**
     * The server receives the request, and all later ones of its connection, when the fault is removed.
     *
     * @return the fault
     */
    public static Fault hold() {
        return of("hold");
    }

    /**
     * The request is answered with an error instead of being executed.
     *
     * @param error ZooKeeper's name of the error, such as NodeExists, or its number
     * @return the fault
     */
    public static Fault answer(String error) {
        return of("answer", "error", error, Json.write(error));
    }

    /**
     * The server never receives the request. A watch event is lost.
     *
     * @return the fault
     */
    public static Fault drop() {
        return of("drop");
    }

    /**
     * The request is executed, and the reply is discarded.
     *
     * @return the fault
     */
    public static Fault dropReply() {
        return of("dropReply");
    }

    /**
     * The connection is closed instead of executing the request, or of sending the watch event.
     *
     * @return the fault
     */
    public static Fault closeBefore() {
        return of("closeBefore");
    }

    /**
     * The request is executed, and the connection is closed instead of sending the reply. A watch event is sent first.
     *
     * @return the fault
     */
    public static Fault closeAfter() {
        return of("closeAfter");
    }

    /**
     * A new connection is refused.
     *
     * @return the fault
     */
    public static Fault refuse() {
        return of("refuse", "op", "connect", "");
    }

    /**
     * The reply, or the watch event, is sent byte by byte, with a pause after each.
     *
     * @param pause how long each pause is
     * @return the fault
     */
    public static Fault trickle(Duration pause) {
        return of("trickle", "ms", pause.toMillis(), ofMillis(pause));
    }

    /**
     * Only requests with this operation: ZooKeeper's name of it, such as create, getChildren2 or multi, or a pattern such
     * as create*. connect is the handshake, and event is a watch event.
     *
     * @param name the name or pattern
     * @return a fault like this one
     */
    public Fault op(String name) {
        return with("op", name, ".op(" + Json.write(name) + ')');
    }

    /**
     * Only requests with this path, or one that this pattern matches. * does not match a slash.
     *
     * @param pattern the path or pattern
     * @return a fault like this one
     */
    public Fault path(String pattern) {
        return with("path", pattern, ".path(" + Json.write(pattern) + ')');
    }

    /**
     * Only requests of this session.
     *
     * @param id the id of the session
     * @return a fault like this one
     */
    public Fault session(long id) {
        return with("session", LockkeeperServer.sessionText(id), ".session(" + LockkeeperServer.sessionText(id) + "L)");
    }

    /**
     * The first matching request that is hit.
     *
     * @param number counted from 1, which is the default
     * @return a fault like this one
     */
    public Fault nth(int number) {
        return with("nth", number, ".nth(" + number + ')');
    }

    /**
     * How many requests are hit.
     *
     * @param number 1 by default
     * @return a fault like this one
     */
    public Fault times(int number) {
        return with("times", number, ".times(" + number + ')');
    }

    /**
     * All matching requests are hit, until the fault is removed.
     *
     * @return a fault like this one
     */
    public Fault always() {
        return with("times", -1, ".always()");
    }

    /**
     * Only requests to this member.
     *
     * @param id the member's id
     * @return a fault like this one
     */
    public Fault member(int id) {
        return with("member", id, ".member(" + id + ')');
    }

    /**
     * It need not take effect. Otherwise {@link LockkeeperServer#check}, which the JUnit extension calls after each test,
     * fails if it has not.
     *
     * @return a fault like this one
     */
    public Fault optional() {
        return new Fault(body, true, code + ".optional()");
    }

    Map<String, Object> body() {
        return body;
    }

    boolean isOptional() {
        return optional;
    }

    /** Returns the Java code that makes it. */
    @Override
    public String toString() {
        return code;
    }
}
