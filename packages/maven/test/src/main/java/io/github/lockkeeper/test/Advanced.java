package io.github.lockkeeper.test;

import java.util.List;

/** What has ended because a server's clock went forward. */
public final class Advanced {
    private final Reply reply;

    Advanced(Reply reply) {
        this.reply = reply;
    }

    /**
     * The sessions that have ended.
     *
     * @return their ids
     */
    public List<Long> expired() {
        return reply.sessions("expired");
    }

    /**
     * The TTL znodes and containers that were deleted.
     *
     * @return their paths
     */
    public List<String> deleted() {
        return reply.texts("deleted");
    }

    @Override
    public String toString() {
        return reply.toString();
    }
}
