package io.github.lockkeeper.test;

import java.util.Map;

/** A fault in a server, from {@link LockkeeperServer#inject}. */
public final class Injection implements AutoCloseable {
    private final LockkeeperServer server;
    private final long id;
    private final Fault fault;
    private boolean removed; // by the test, which has seen whether it has taken effect
    private State.FaultState last; // when something else has ended it; null before

    Injection(LockkeeperServer server, long id, Fault fault) {
        this.server = server;
        this.id = id;
        this.fault = fault;
    }

    /** Waits until the fault takes effect for the first time, for 60 s at most. */
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
     * Ends the fault, and releases what waits because of it. {@link LockkeeperServer#check} leaves it to the caller whether
     * it had to take effect.
     *
     * @return whether it has taken effect
     */
    public boolean remove() {
        boolean fired = server.call("/remove", Map.of("id", id)).flag("fired");
        synchronized (this) {
            removed = true;
        }
        return fired;
    }

    /** Ends the fault. {@link LockkeeperServer#check} fails if it has not taken effect, and is not optional. */
    @Override
    public void close() {
        ended(new State.FaultState(server.call("/remove", Map.of("id", id))));
    }

    /** Something has ended the fault, which was then in this state. */
    synchronized void ended(State.FaultState seen) {
        if (seen.id() == id) {
            last = seen;
        }
    }

    /** Returns what is wrong: a fault that is not optional has not taken effect. Otherwise "". */
    synchronized String problem() {
        if (fault.isOptional() || removed) {
            return "";
        }
        String why = "the server no longer knows it";
        if (last == null) {
            try {
                server.state().faults().forEach(this::ended);
            } catch (LockkeeperException e) {
                why = e.getMessage();
            }
        }
        if (last == null) {
            return wrong(" cannot be judged: " + why);
        }
        return last.fired() ? "" : wrong(" has had no effect (requests that it matched: " + last.matched() + ")");
    }

    private String wrong(String what) {
        return "the test fails, since its fault " + fault + what + ". If it need not meet a request, add .optional()";
    }
}
