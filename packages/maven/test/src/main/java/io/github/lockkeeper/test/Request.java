package io.github.lockkeeper.test;

import java.time.Instant;

/** A request that a client has sent. */
public final class Request {
    private final Reply reply;

    Request(Reply reply) {
        this.reply = reply;
    }

    /**
     * When it came.
     *
     * @return the time
     */
    public Instant time() {
        return Instant.parse(reply.text("time"));
    }

    /**
     * Who sent it.
     *
     * @return the id of the session, or 0 for the handshake of a new one
     */
    public long session() {
        return reply.session("session");
    }

    /**
     * What it asks for.
     *
     * @return ZooKeeper's name of the operation, such as create
     */
    public String op() {
        return reply.text("op");
    }

    /**
     * Its first path.
     *
     * @return the path, or ""
     */
    public String path() {
        return reply.text("path");
    }

    /** All of its fields, as {@code lockkeeper wire} prints them. */
    @Override
    public String toString() {
        return reply.text("text");
    }
}
