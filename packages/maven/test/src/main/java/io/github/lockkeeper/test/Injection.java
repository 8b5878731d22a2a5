package io.github.lockkeeper.test;

import java.util.Map;

/** A fault in a server, from {@link LockkeeperServer#inject}. */
public final class Injection implements AutoCloseable {
    private final LockkeeperServer server;
    private final long id;
    private final boolean optional;

    Injection(LockkeeperServer server, long id, boolean optional) {
        this.server = server;
        this.id = id;
        this.optional = optional;
    }

    /** Waits until the fault takes effect for the first time. */
    public void awaitFired() {
        server.call("/wait/fired", Map.of("id", id));
    }

    /**
     * Has the fault taken effect?
     *
     * @return whether it has
     */
    public boolean fired() {
        return server.state().faults().stream().anyMatch(fault -> fault.id() == id && fault.fired());
    }

    /**
     * Ends the fault, and releases what waits because of it.
     *
     * @return whether it has taken effect
     */
    public boolean remove() {
        return server.call("/remove", Map.of("id", id)).flag("fired");
    }

    /** Ends the fault. */
    @Override
    public void close() {
        remove();
    }

    /** Returns what is wrong: a fault that is not optional has not taken effect. Otherwise "". */
    String problem() {
        if (optional) {
            return "";
        }
        for (State.FaultState fault : server.state().faults()) {
            if (fault.id() == id && !fault.fired()) {
                return fault.toString();
            }
        }
        return "";
    }
}
