package io.github.lockkeeper.test;

import java.util.List;

/** The verdict of a {@link Guard}. */
public final class Verdict {
    private final String path;
    private final Reply reply;

    Verdict(String path, Reply reply) {
        this.path = path;
        this.reply = reply;
    }

    /**
     * Did the lock protect what it should protect?
     *
     * @return whether there is no violation
     */
    public boolean ok() {
        return reply.flag("ok");
    }

    /**
     * What went wrong.
     *
     * @return a text for each violation
     */
    public List<String> violations() {
        return reply.texts("violations");
    }

    /**
     * What happened to the lock.
     *
     * @return a text, with a line for each event
     */
    public String timeline() {
        return reply.text("timeline");
    }

    /**
     * Fails the test if the verdict is not ok.
     *
     * @throws AssertionError with the violations and the timeline
     */
    public void assertOk() {
        if (!ok()) {
            throw new AssertionError(toString());
        }
    }

    @Override
    public String toString() {
        return ok() ? "ok" : "the lock " + path + ": " + String.join("\n", violations()) + "\n" + timeline();
    }
}
