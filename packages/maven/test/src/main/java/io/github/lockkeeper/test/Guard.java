package io.github.lockkeeper.test;

import java.util.Map;

/**
 * Watches a lock for a verdict: did it protect what it should protect? A test tells it what the holders write, and with
 * which token. The verdict is not ok if two holders overlapped in what they wrote, if a stale token was accepted, if a
 * write was accepted from somebody who did not hold the lock then or earlier, or if a lock znode is left behind.
 */
public final class Guard {
    private final LockkeeperServer server;
    private final long id;
    private final String path;
    private Verdict verdict; // null until it was asked for

    Guard(LockkeeperServer server, long id, String path) {
        this.server = server;
        this.id = id;
        this.path = path;
    }

    /**
     * Writes to what the lock protects, which refuses stale tokens.
     *
     * @param token the czxid of the writer's znode in the queue of the lock
     * @return whether the write was accepted
     */
    public Write write(long token) {
        return write(token, "");
    }

    /**
     * Writes to one of several things that the lock protects. Each refuses stale tokens of its own.
     *
     * @param token the czxid of the writer's znode in the queue of the lock
     * @param resource its name
     * @return whether the write was accepted
     */
    public Write write(long token, String resource) {
        return new Write(server.call("/guard/write", Map.of("guard", id, "token", token, "resource", resource)));
    }

    /**
     * Writes to something that ignores tokens, and accepts every write.
     *
     * @param token the czxid of the writer's znode in the queue of the lock
     * @param resource its name
     */
    public void writeUnchecked(long token, String resource) {
        server.call("/guard/write", Map.of("guard", id, "token", token, "resource", resource, "unchecked", true));
    }

    /**
     * Ends the guard. Ask before you close the clients: their znodes go with their sessions, and a znode of the lock that
     * is left counts only if it is there now, and its client is gone or does not know of it.
     *
     * @return the verdict, the same one each time
     */
    public synchronized Verdict verdict() {
        if (verdict == null) {
            verdict = new Verdict(path, server.call("/guard/verdict", Map.of("guard", id)));
        }
        return verdict;
    }

    /** Returns what is wrong with the lock, or "". */
    String problem() {
        try {
            return verdict().ok() ? "" : verdict().toString();
        } catch (LockkeeperException e) {
            return "the test fails, since its lock " + path + " cannot be judged: " + e.getMessage();
        }
    }

    synchronized boolean judged() {
        return verdict != null;
    }

    /** Whether what a lock protects has accepted a write. */
    public static final class Write {
        private final Reply reply;

        Write(Reply reply) {
            this.reply = reply;
        }

        /**
         * Was it accepted?
         *
         * @return whether it was
         */
        public boolean accepted() {
            return reply.flag("accepted");
        }

        /**
         * Why it was refused.
         *
         * @return the reason, or ""
         */
        public String reason() {
            return reply.text("reason");
        }

        @Override
        public String toString() {
            return accepted() ? "accepted" : "refused: " + reason();
        }
    }
}
