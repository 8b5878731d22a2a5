package io.github.lockkeeper.test;

import java.util.Map;

/** A fault in a server, from {@link LockkeeperServer#inject}. */
public final class Injection implements AutoCloseable {
    private final LockkeeperServer server;
    private final long id;
    private final Fault fault;

    Injection(LockkeeperServer server, long id, Fault fault) {
        this.server = server;
        this.id = id;
        this.fault = fault;
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
        if (fault.isOptional()) {
            return "";
        }
        State state;
        try {
            state = server.state();
        } catch (LockkeeperException e) {
            return "the test fails, since nobody can tell whether a request has met its fault " + fault + ": " + e.getMessage();
        }
        for (State.FaultState seen : state.faults()) {
            if (seen.id() == id) {
                return seen.fired() ? "" : unmet(seen);
            }
        }
        return "the test fails, since the server no longer knows its fault " + fault;
    }

    private String unmet(State.FaultState seen) {
        String matched = seen.toString().replaceFirst(".*; ", ""); // how many
        return "the test fails, since its fault " + fault + " has had no effect (" + matched + "). If that is as it should be, add .optional()";
    }
}
