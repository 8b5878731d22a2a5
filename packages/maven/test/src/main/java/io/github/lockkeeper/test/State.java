package io.github.lockkeeper.test;

import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.NoSuchElementException;

/** What a member of a server has applied. */
public final class State {
    private final Reply reply;

    State(Reply reply) {
        this.reply = reply;
    }

    /**
     * The addresses of all members, for a client.
     *
     * @return the addresses, separated by commas
     */
    public String connectString() {
        return reply.text("connect");
    }

    /**
     * All members.
     *
     * @return the members, the one with the id 1 first
     */
    public List<MemberState> members() {
        return reply.objects("members", MemberState::new);
    }

    /**
     * The id of the member that leads.
     *
     * @return the id; 1 if there is only one member, and 0 if none leads
     */
    public int leader() {
        for (MemberState member : members()) {
            if (member.role().equals("leader") || member.role().equals("standalone")) {
                return member.member();
            }
        }
        return 0;
    }

    /**
     * The member whose state this is.
     *
     * @return its id
     */
    public int shown() {
        return (int) reply.number("shown");
    }

    /**
     * The znodes, as text.
     *
     * @return a line for each znode, sorted by path
     */
    public String tree() {
        return reply.text("tree");
    }

    /**
     * The sessions.
     *
     * @return all sessions that have not ended
     */
    public List<Session> sessions() {
        return reply.objects("sessions", Session::new);
    }

    /**
     * The watches.
     *
     * @return the watches of the clients of all members
     */
    public List<Watch> watches() {
        return reply.objects("watches", Watch::new);
    }

    /**
     * The locks: znodes with children that are ephemeral and sequential.
     *
     * @return all locks that somebody holds
     */
    public List<Lock> locks() {
        return reply.objects("locks", Lock::new);
    }

    /**
     * A lock.
     *
     * @param path the znode whose children are the queue
     * @return the lock
     * @throws NoSuchElementException if nobody holds it
     */
    public Lock lock(String path) {
        for (Lock lock : locks()) {
            if (lock.path().equals(path)) {
                return lock;
            }
        }
        throw new NoSuchElementException("nobody holds " + path);
    }

    /**
     * The faults that were injected.
     *
     * @return the faults, the oldest first
     */
    public List<FaultState> faults() {
        return reply.objects("faults", FaultState::new);
    }

    @Override
    public String toString() {
        return reply.toString();
    }

    /** A member, or the only server. */
    public static final class MemberState {
        private final Reply reply;

        MemberState(Reply reply) {
            this.reply = reply;
        }

        /**
         * The member.
         *
         * @return its id
         */
        public int member() {
            return (int) reply.number("member");
        }

        /**
         * Where clients connect to it.
         *
         * @return HOST:PORT
         */
        public String address() {
            return reply.text("address");
        }

        /**
         * What it is.
         *
         * @return leader, follower, standalone, or another role of a four-letter word, or stopped
         */
        public String role() {
            return reply.text("role");
        }

        @Override
        public String toString() {
            return reply.toString();
        }
    }

    /** A session. */
    public static final class Session {
        private final Reply reply;

        Session(Reply reply) {
            this.reply = reply;
        }

        /**
         * Its id, as the client has it.
         *
         * @return the id
         */
        public long id() {
            return reply.session("id");
        }

        /**
         * Its timeout.
         *
         * @return how long its client may be silent
         */
        public Duration timeout() {
            return Duration.ofMillis(reply.number("timeoutMs"));
        }

        /**
         * Does it have a connection?
         *
         * @return whether its client is connected to any member
         */
        public boolean connected() {
            return reply.flag("connected");
        }

        /**
         * Its ephemeral znodes.
         *
         * @return their paths
         */
        public List<String> ephemerals() {
            return reply.texts("ephemerals");
        }

        @Override
        public String toString() {
            return reply.toString();
        }
    }

    /** A watch of a client. */
    public static final class Watch {
        private final Reply reply;

        Watch(Reply reply) {
            this.reply = reply;
        }

        /**
         * Whose watch it is.
         *
         * @return the id of the session
         */
        public long session() {
            return reply.session("session");
        }

        /**
         * What it watches.
         *
         * @return the path
         */
        public String path() {
            return reply.text("path");
        }

        @Override
        public String toString() {
            return reply.toString();
        }
    }

    /** A lock that somebody holds. */
    public static final class Lock {
        private final Reply reply;

        Lock(Reply reply) {
            this.reply = reply;
        }

        /**
         * The lock.
         *
         * @return the path of the znode whose children are the queue
         */
        public String path() {
            return reply.text("path");
        }

        /**
         * Who holds it.
         *
         * @return the id of the session
         */
        public long holder() {
            return reply.session("holder");
        }

        /**
         * The holder's fencing token.
         *
         * @return the czxid of the holder's znode
         */
        public long token() {
            return reply.number("token");
        }

        /**
         * Since when it has been held.
         *
         * @return the time
         */
        public Instant since() {
            return Instant.parse(reply.text("since"));
        }

        /**
         * Who waits.
         *
         * @return the ids of the sessions behind the holder
         */
        public List<Long> queue() {
            return reply.sessions("queue");
        }

        @Override
        public String toString() {
            return reply.toString();
        }
    }

    /** A fault that was injected. */
    public static final class FaultState {
        private final Reply reply;

        FaultState(Reply reply) {
            this.reply = reply;
        }

        /**
         * Its number.
         *
         * @return the number
         */
        public int id() {
            return (int) reply.number("id");
        }

        /**
         * Has it taken effect?
         *
         * @return whether it has
         */
        public boolean fired() {
            return reply.flag("fired");
        }

        /**
         * How many requests has it matched? It takes effect at the {@link Fault#nth}.
         *
         * @return their number
         */
        public int matched() {
            return (int) reply.number("matched");
        }

        @Override
        public String toString() {
            return reply.text("text");
        }
    }
}
