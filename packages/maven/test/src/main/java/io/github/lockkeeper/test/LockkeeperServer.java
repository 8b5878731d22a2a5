package io.github.lockkeeper.test;

import java.io.IOException;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;

/**
 * A ZooKeeper for tests: a process of lockkeeper, which keeps its state in memory and starts in milliseconds, as one
 * server or as a cluster. Tests end its sessions, aim faults at single requests, kill and cut off members, look inside,
 * and ask for a verdict on locks.
 *
 * <pre>{@code
 * try (LockkeeperServer server = LockkeeperServer.start()) {
 *     ZooKeeper client = new ZooKeeper(server.connectString(), 10_000, event -> {});
 *     ...
 *     server.expire(client.getSessionId());
 * }
 * }</pre>
 *
 * The methods are those of lockkeeper's test control. A method that the server refuses throws a
 * {@link LockkeeperException}. All methods may be called by several threads at once.
 */
public final class LockkeeperServer implements AutoCloseable {
    /** The server replies to all requests; a wait has its own limit, which is below this. */
    private static final Duration LONGEST = Duration.ofMinutes(10);

    /** How long a cluster may take to have a leader and a majority again. */
    private static final Duration RECOVERS = Duration.ofMinutes(1);

    /** What {@link #reset} must undo, or what has undone that, beside the state and the faults of requests. */
    private static final Set<String> DISTURBING =
            Set.of("/kill", "/restart", "/partition", "/heal", "/link", "/disk", "/pause", "/resume", "/clock", "/step-down");

    /** How many requests {@link #report} has, and how many of the test's own. */
    private static final int SHOWN = 20;

    private static final HttpClient HTTP =
            HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).connectTimeout(Duration.ofSeconds(30)).proxy(HttpClient.Builder.NO_PROXY).build();

    private final ServerProcess process;
    private final boolean within; // a process that another object has started, and ends
    private final String url;
    private final String connectString;
    private final List<Guard> guards = new ArrayList<>();
    private final List<Injection> injections = new ArrayList<>();
    private final Object closing = new Object(); // held while it is closed
    private boolean closed;
    private final List<String> disturbing = new ArrayList<>(); // requests of DISTURBING since the last reset

    private LockkeeperServer(ServerProcess process, boolean within, String url, String connectString) {
        this.process = process;
        this.within = within;
        this.url = url;
        this.connectString = connectString;
    }

    /**
     * Starts a server, and waits until clients can connect.
     *
     * @return the server
     */
    public static LockkeeperServer start() {
        return builder().start();
    }

    /**
     * Starts a cluster, and waits until clients can connect.
     *
     * @param members how many members it has
     * @return the cluster
     */
    public static LockkeeperServer startCluster(int members) {
        return builder().cluster(members).start();
    }

    /**
     * For a server with settings.
     *
     * @return a builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /** Settings of a server. */
    public static final class Builder {
        private int cluster;
        private String tree;
        private Duration electionTimeout;
        private String line;
        private int port;
        private Path binary;
        private LockkeeperServer within;
        private final List<String> flags = new ArrayList<>();

        private Builder() {}

        /**
         * Start a cluster.
         *
         * @param members how many members it has, or 0 for a single server
         * @return this
         */
        public Builder cluster(int members) {
            cluster = members;
            return this;
        }

        /**
         * Begin with these znodes.
         *
         * @param text a line for each znode, as {@link State#tree} has them: {@code /config/limit = "10"}
         * @return this
         */
        public Builder tree(String text) {
            tree = text;
            return this;
        }

        /**
         * How long the leader of a cluster may be silent before the others elect a new one.
         *
         * @param time at least 100 ms; 500 ms by default
         * @return this
         */
        public Builder electionTimeout(Duration time) {
            electionTimeout = time;
            return this;
        }

        /**
         * Answer as an older release line of ZooKeeper.
         *
         * @param releases 3.4, 3.5, 3.6, 3.7, 3.8 or 3.9, which is the default
         * @return this
         */
        public Builder behaveAs(String releases) {
            line = releases;
            return this;
        }

        /**
         * Serve clients on this port. The members of a cluster take this port and those after it.
         *
         * @param number the port; by default free ones
         * @return this
         */
        public Builder port(int number) {
            port = number;
            return this;
        }

        /**
         * Use this program instead of the one on the class path.
         *
         * @param program its path
         * @return this
         */
        public Builder binary(Path program) {
            binary = program;
            return this;
        }

        /**
         * Pass flags to {@code lockkeeper serve}.
         *
         * @param more the flags, such as --tick-time=500ms
         * @return this
         */
        public Builder flags(String... more) {
            flags.addAll(List.of(more));
            return this;
        }

        /**
         * Start it in the process of another server, which is quicker. Closing that one ends this one too.
         *
         * @param server a server that runs
         * @return this
         */
        public Builder within(LockkeeperServer server) {
            within = server;
            return this;
        }

        /**
         * Starts the server, and waits until clients can connect.
         *
         * @return the server
         */
        public LockkeeperServer start() {
            return within == null ? process() : another();
        }

        private LockkeeperServer process() {
            List<String> all = new ArrayList<>(List.of("--listen", "127.0.0.1:" + port));
            if (cluster > 0) {
                all.addAll(List.of("--cluster", Integer.toString(cluster), "--election-timeout", election() + "ms"));
            }
            if (line != null) {
                all.addAll(List.of("--behave-as", line));
            }
            all.addAll(flags);
            Path program = binary == null ? Binary.find() : binary;
            if (tree == null) {
                return of(program, all);
            }
            try {
                Path file = Files.createTempFile("lockkeeper-", ".tree");
                try {
                    Files.write(file, tree.getBytes(StandardCharsets.UTF_8));
                    all.addAll(List.of("--tree", file.toString()));
                    return of(program, all);
                } finally {
                    Files.delete(file);
                }
            } catch (IOException e) {
                throw new LockkeeperException("cannot write a file with the tree: " + e, e);
            }
        }

        private static LockkeeperServer of(Path program, List<String> flags) {
            ServerProcess process = new ServerProcess(program, flags);
            return new LockkeeperServer(process, false, process.url, process.connectString);
        }

        private long election() {
            return electionTimeout == null ? 500 : electionTimeout.toMillis();
        }

        private LockkeeperServer another() {
            if (port != 0 || binary != null || !flags.isEmpty()) {
                throw new IllegalArgumentException("a server in the process of another one has no port, binary or flags of its own");
            }
            Map<String, Object> body = new LinkedHashMap<>();
            if (cluster > 0) {
                body.put("cluster", cluster);
                body.put("electionTimeoutMs", election());
            }
            if (tree != null) {
                body.put("tree", tree);
            }
            if (line != null) {
                body.put("behaveAs", line);
            }
            Reply reply = within.call("/servers", body);
            return new LockkeeperServer(within.process, true, reply.text("url"), reply.text("connect"));
        }
    }

    /**
     * What a client connects to.
     *
     * @return the addresses of all members, HOST:PORT, separated by commas
     */
    public String connectString() {
        return connectString;
    }

    /**
     * The URL of the test control.
     *
     * @return the URL, without a slash at its end
     */
    public String url() {
        return url;
    }

    /**
     * The process.
     *
     * @return its id
     */
    public long pid() {
        return process.pid();
    }

    /**
     * Does what {@link #check} does, and ends the server in any case. Does nothing if it was closed before. If an exception
     * leaves a try-with-resources statement, Java adds that of this method to it, as suppressed.
     *
     * @throws AssertionError if {@link #check} does, or the server has ended before
     */
    @Override
    public void close() {
        synchronized (closing) {
            if (isClosed()) {
                return;
            }
            List<String> problems = judge();
            synchronized (this) {
                closed = true;
            }
            String ended = stop();
            if (!ended.isEmpty()) {
                problems.add("the test fails, since its server " + connectString + ' ' + ended + " before it was closed");
            }
            fail(problems);
        }
    }

    /** Ends the server. Returns how it has ended, if something else has ended it, or "". */
    private String stop() {
        if (!within) {
            return process.end();
        }
        try {
            call("/stop", Map.of());
            return "";
        } catch (LockkeeperException e) {
            String ended = process.ended();
            if (ended.isEmpty()) {
                throw e;
            }
            return process.wasEnded() ? "" : ended; // by closing the server that started it
        }
    }

    /**
     * Was it closed?
     *
     * @return whether {@link #close} was called
     */
    public synchronized boolean isClosed() {
        return closed;
    }

    /**
     * A member of a cluster, or the only server.
     *
     * @param id a number from 1
     * @return the member
     */
    public Member member(int id) {
        if (id < 1 || id > size()) {
            throw new IllegalArgumentException("there is no member " + id + ", only 1 to " + size());
        }
        return new Member(this, id);
    }

    /**
     * All members.
     *
     * @return the members, the one with the id 1 first
     */
    public List<Member> members() {
        List<Member> all = new ArrayList<>();
        for (int id = 1; id <= size(); id++) {
            all.add(member(id));
        }
        return all;
    }

    private int size() {
        return connectString.split(",").length;
    }

    /**
     * The member that leads. If there is none, waits until there is.
     *
     * @return the leader of a cluster, or the only server
     * @throws LockkeeperTimeoutException if none leads in time
     */
    public Member leader() {
        return waitUntil().leader();
    }

    /**
     * What the leader has applied or, if there is none, another member.
     *
     * @return the state
     */
    public State state() {
        return new State(get("/state", Map.of()));
    }

    /**
     * A znode.
     *
     * @param path its path
     * @return the znode
     */
    public Znode znode(String path) {
        return new Znode(get("/znode", Map.of("path", path)));
    }

    /**
     * The requests that clients have sent.
     *
     * @return the requests, the oldest first, without pings
     */
    public List<Request> requests() {
        return requests("");
    }

    /**
     * Some of the requests that clients have sent.
     *
     * @param op ZooKeeper's name of an operation, or a pattern such as create*; "" for all
     * @return the requests, the oldest first
     */
    public List<Request> requests(String op) {
        return get("/requests", op.isEmpty() ? Map.of() : Map.of("op", op)).objects("requests", Request::new);
    }

    /**
     * Ends a session as if its client had been silent for its timeout. Returns when it has ended.
     *
     * @param session the id of the session
     */
    public void expire(long session) {
        call("/expire", Map.of("session", sessionText(session)));
    }

    /**
     * Closes the connection of a session.
     *
     * @param session the id of the session
     */
    public void disconnect(long session) {
        call("/disconnect", Map.of("session", sessionText(session)));
    }

    /**
     * Injects a fault.
     *
     * @param fault what happens to which requests
     * @return the fault in this server
     */
    public Injection inject(Fault fault) {
        Injection injection = new Injection(this, call("/inject", fault.body()).number("id"), fault);
        synchronized (this) {
            injections.add(injection);
        }
        return injection;
    }

    /**
     * Waits until the server has a state, for 60 s and the longest timeout of all sessions at most.
     *
     * @return what to wait for
     */
    public Wait waitUntil() {
        return Wait.of(this, null, null);
    }

    /**
     * Waits until the server has a state.
     *
     * @param timeout how long to wait at most
     * @return what to wait for
     */
    public Wait waitUntil(Duration timeout) {
        return Wait.of(this, timeout, null);
    }

    /** Stops the only server as abruptly as if its process had been killed. It keeps its state. */
    public void kill() {
        call("/kill", Map.of());
    }

    /** Starts the only server after {@link #kill}, with the state that it had. */
    public void restart() {
        call("/restart", Map.of());
    }

    /** Keeps the only server from sending and receiving. */
    public void pause() {
        call("/pause", Map.of());
    }

    /** Continues the only server after {@link #pause}. */
    public void resume() {
        call("/resume", Map.of());
    }

    /**
     * Cuts the network of a cluster so that only members of the same group can reach each other. A member in no group
     * can reach nobody. Clients can reach all members.
     *
     * @param groups the ids of the members in each group
     */
    @SafeVarargs
    @SuppressWarnings("varargs") // it only reads them
    public final void partition(Collection<Integer>... groups) {
        call("/partition", Map.of("groups", Arrays.asList(groups)));
    }

    /** Ends all partitions, and faults of links. */
    public void heal() {
        call("/heal", Map.of());
    }

    /**
     * Cuts the network from one member to another, in this direction only.
     *
     * @param from the id of the one that sends
     * @param to the id of the other one
     */
    public void cutLink(int from, int to) {
        call("/link", Map.of("from", from, "to", to, "cut", true));
    }

    /**
     * Makes the network from one member to another slow and lossy, in this direction only. Zeroes end that.
     *
     * @param from the id of the one that sends
     * @param to the id of the other one
     * @param delay how long everything takes
     * @param loss how much is lost, from 0 to 1
     */
    public void link(int from, int to, Duration delay, double loss) {
        call("/link", Map.of("from", from, "to", to, "delayMs", delay.toMillis(), "loss", loss));
    }

    /**
     * Makes the leader of a cluster hand over.
     *
     * @return the new leader
     */
    public Member stepDown() {
        return member((int) call("/step-down", Map.of()).number("leader"));
    }

    /**
     * Makes the clock of the only server wrong.
     *
     * @param skew how far it is ahead; zero makes it right
     */
    public void clock(Duration skew) {
        call("/clock", Map.of("skewMs", skew.toMillis()));
    }

    /**
     * Notes the present state.
     *
     * @return the state, for {@link #restore(Snapshot)}
     */
    public Snapshot snapshot() {
        return new Snapshot(this, call("/snapshot", Map.of()).number("snapshot"));
    }

    /**
     * Puts a state back: the znodes and sessions. Sessions that were opened since then end. Faults that were injected
     * since then are removed.
     *
     * @param snapshot the state
     */
    public void restore(Snapshot snapshot) {
        if (snapshot.server != this) {
            throw new IllegalArgumentException("this is the snapshot of another server");
        }
        call("/restore", Map.of("snapshot", snapshot.id));
    }

    /** Puts the state back with which the server began. */
    public void restore() {
        call("/restore", Map.of());
    }

    /**
     * Adds znodes. Those that exist get this data.
     *
     * @param text a line for each znode, as {@link State#tree} has them
     */
    public void addTree(String text) {
        call("/tree", Map.of("tree", text));
    }

    /**
     * Creates a znode with a name of its own, in which a test can work as if it were the root.
     *
     * @return the znode
     */
    public Namespace namespace() {
        return new Namespace(this, call("/namespace", Map.of()));
    }

    /**
     * Creates a znode in which a test can work as if it were the root.
     *
     * @param name its name
     * @return the znode
     */
    public Namespace namespace(String name) {
        return new Namespace(this, call("/namespace", Map.of("name", name)));
    }

    /**
     * Watches a lock from now on, for a verdict.
     *
     * @param path the znode whose children are the queue of the lock
     * @return what tells the server of writes, and gives the verdict
     */
    public Guard guard(String path) {
        Guard guard = new Guard(this, call("/guard", Map.of("path", path)).number("guard"), path);
        synchronized (this) {
            guards.add(guard);
        }
        return guard;
    }

    /**
     * Moves the server's clock for sessions, TTLs and containers forward, and returns when what is due has ended. A
     * session with a connection is treated as if its client had gone on pinging.
     *
     * @param time by how much
     * @return what has ended
     */
    public Advanced advance(Duration time) {
        return new Advanced(call("/advance", Map.of("ms", time.toMillis())));
    }

    /**
     * The same as {@link #advance(Duration)}, but sessions with a connection also run out, if their timeouts are less.
     *
     * @param time by how much
     * @return what has ended
     */
    public Advanced advanceConnected(Duration time) {
        return new Advanced(call("/advance", Map.of("ms", time.toMillis(), "connected", true)));
    }

    /**
     * Deletes TTL znodes without children, and empty containers, whatever their time.
     *
     * @return the paths of what was deleted
     */
    public List<String> endTtls() {
        return call("/end-ttls", Map.of()).texts("deleted");
    }

    /**
     * Judges what a test has done with this server: each lock that was guarded since the last check and whose verdict was
     * not asked for, and each fault that was injected since then and has not taken effect, unless it is optional. {@link
     * #close} does this, too, and the JUnit extension after each test.
     *
     * @throws AssertionError if a verdict is not ok, a fault has not taken effect, or either cannot be judged, as when the
     *     server has ended; with the {@link #report}
     */
    public void check() {
        fail(judge());
    }

    private static void fail(List<String> problems) {
        if (!problems.isEmpty()) {
            throw new AssertionError(String.join("\n\n", problems));
        }
    }

    /** Returns what is wrong, and what helps with that; nothing if nothing is wrong. */
    private List<String> judge() {
        List<Guard> unjudged = new ArrayList<>();
        List<Injection> injected;
        synchronized (this) {
            guards.stream().filter(guard -> !guard.judged()).forEach(unjudged::add);
            guards.clear();
            injected = List.copyOf(injections);
            injections.clear();
        }
        List<String> problems = new ArrayList<>();
        unjudged.forEach(guard -> problems.add(guard.problem()));
        injected.forEach(injection -> problems.add(injection.problem()));
        problems.removeIf(String::isEmpty);
        if (!problems.isEmpty()) {
            problems.add(connectString + ": " + report());
        }
        return problems;
    }

    /**
     * What helps with a test that has failed: the members, and what the test has done to them and their network, the znodes,
     * who holds and waits for which lock, the faults, and the last requests of the clients. The JUnit extension adds this to
     * the exception that failed the test.
     *
     * @return a text of several lines; if the server does not answer, why
     */
    public String report() {
        State state;
        List<Request> requests;
        try {
            state = state();
            requests = requests();
        } catch (LockkeeperException e) {
            return String.valueOf(e.getMessage());
        }
        StringBuilder text = new StringBuilder("the members: ");
        text.append(state.members().stream().map(member -> member.member() + " " + member.role()).collect(Collectors.joining(", "))).append('\n');
        synchronized (this) {
            last(disturbing).forEach(request -> text.append("the test has sent ").append(request).append('\n'));
        }
        text.append("the znodes:\n").append(state.tree().isEmpty() ? "none\n" : state.tree());
        for (State.Lock lock : state.locks()) {
            text.append("the lock ").append(lock.path()).append(": held by ").append(sessionText(lock.holder())).append(" with token ").append(lock.token())
                    .append(", queue ").append(lock.queue().stream().map(LockkeeperServer::sessionText).collect(Collectors.toList())).append('\n');
        }
        state.faults().forEach(fault -> text.append(fault).append('\n'));
        List<Request> last = last(requests);
        text.append("the last ").append(last.size()).append(" of ").append(requests.size()).append(" requests:");
        for (Request request : last) {
            text.append('\n').append(request.time()).append(' ')
                    .append(request.session() == 0 ? "-" : sessionText(request.session())).append(' ').append(request);
        }
        return text.toString();
    }

    private static <T> List<T> last(List<T> all) {
        return all.subList(Math.max(0, all.size() - SHOWN), all.size());
    }

    /**
     * Undoes what a test has done to the server: members that were killed run again, and all faults end. Then it puts a
     * state back.
     *
     * @param snapshot the state; null for the one with which the server began
     */
    public void reset(Snapshot snapshot) {
        boolean undo;
        synchronized (this) {
            undo = !disturbing.isEmpty();
        }
        if (undo) {
            calm();
        }
        for (long deadline = System.nanoTime() + RECOVERS.toNanos(); ; ) {
            try {
                if (snapshot == null) {
                    restore();
                } else {
                    restore(snapshot);
                }
                return;
            } catch (LockkeeperException e) {
                // A cluster may not have a leader yet.
                if (e.status() != 503 || System.nanoTime() > deadline) {
                    throw e;
                }
            }
            try {
                Thread.sleep(20);
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
                throw new LockkeeperException("interrupted", e);
            }
        }
    }

    /** Makes all members run, with a network, disks and clocks that are as they should be. */
    private void calm() {
        boolean cluster = size() > 1;
        if (cluster) {
            heal();
        }
        for (State.MemberState state : state().members()) {
            Member member = member(state.member());
            member.healDisk();
            if (state.role().equals("failed")) {
                member.kill();
            }
            if (state.role().equals("failed") || state.role().equals("stopped")) {
                member.restart();
            }
            member.resume();
            member.clock(Duration.ZERO);
        }
        synchronized (this) {
            disturbing.clear(); // also what this has sent
        }
    }

    /**
     * Sends a request to the test control, for what has no method here.
     *
     * @param path such as /state?member=1
     * @return the reply: maps, lists, strings, booleans, and numbers that are Long or Double
     */
    public Map<String, Object> getJson(String path) {
        return json(HttpRequest.newBuilder().GET(), path);
    }

    /**
     * Sends a request to the test control, for what has no method here.
     *
     * @param path such as /kill
     * @param body its parameters: maps, lists, strings, booleans and numbers
     * @return the reply: maps, lists, strings, booleans, and numbers that are Long or Double
     */
    public Map<String, Object> postJson(String path, Map<String, ?> body) {
        if (DISTURBING.contains(path)) {
            synchronized (this) {
                disturbing.add(path + ' ' + Json.write(body));
            }
        }
        Map<String, Object> reply = json(HttpRequest.newBuilder().POST(HttpRequest.BodyPublishers.ofString(Json.write(body))), path);
        if (path.equals("/restore")) { // it has ended faults
            List<State.FaultState> ended = new Reply(reply).objects("faults", State.FaultState::new);
            synchronized (this) {
                injections.forEach(injection -> ended.forEach(injection::ended));
            }
        }
        return reply;
    }

    Reply get(String path, Map<String, ?> query) {
        StringBuilder all = new StringBuilder(path);
        char before = '?';
        for (Map.Entry<String, ?> parameter : query.entrySet()) {
            all.append(before).append(parameter.getKey()).append('=').append(URLEncoder.encode(parameter.getValue().toString(), StandardCharsets.UTF_8));
            before = '&';
        }
        return new Reply(getJson(all.toString()));
    }

    /** Says why the server does not answer. */
    private String state(IOException e) {
        if (isClosed()) {
            return "was closed";
        }
        String ended = process.ended();
        return ended.isEmpty() ? "does not answer: " + e : ended + ", so it is of no use to this test or a later one";
    }

    Reply call(String path, Map<String, ?> body) {
        return new Reply(postJson(path, body));
    }

    private Map<String, Object> json(HttpRequest.Builder request, String path) {
        HttpResponse<String> response;
        try {
            response = HTTP.send(request.uri(URI.create(url + path)).timeout(LONGEST).build(), HttpResponse.BodyHandlers.ofString());
        } catch (IOException e) {
            throw new LockkeeperException(path + ": the server " + connectString + ' ' + state(e), e);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new LockkeeperException(path + ": interrupted", e);
        }
        Object reply;
        try {
            reply = Json.read(response.body().isBlank() ? "{}" : response.body());
        } catch (IllegalArgumentException e) { // a line of text
            reply = Map.of("error", response.body().trim());
        }
        if (response.statusCode() != 200) {
            throw LockkeeperException.of(response.statusCode(), path, new Reply(reply).text("error"));
        }
        @SuppressWarnings("unchecked") // keys of JSON objects are strings
        Map<String, Object> all = (Map<String, Object>) reply;
        return all;
    }

    /** Returns the id of a session as the test control writes it. */
    static String sessionText(long id) {
        return "0x" + Long.toHexString(id);
    }
}
