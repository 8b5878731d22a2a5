import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.util.Objects;
import java.util.concurrent.Callable;

/** What the programs share: one line for each case, and waits that end. */
final class Cases {
    interface Body {
        void run() throws Exception;
    }

    /** How long anything may take that happens at all. */
    static final long PATIENCE_MS = 60_000;

    private static final BufferedReader IN = new BufferedReader(new InputStreamReader(System.in));

    private Cases() {
    }

    /** Runs a case and prints "ok NAME" or "FAIL NAME: why". */
    static void run(String name, Body body) {
        try {
            body.run();
            System.out.println("ok " + name);
        } catch (Throwable e) {
            System.out.println("FAIL " + name + ": " + String.valueOf(e).replaceAll("\\s+", " "));
            StringWriter trace = new StringWriter();
            e.printStackTrace(new PrintWriter(trace));
            System.err.println(name + ": " + trace);
        }
    }

    /** Asks the test to do something with the server, and waits until it is done. */
    static synchronized void ask(String what) throws Exception {
        System.out.println("do " + what);
        equal("done", IN.readLine(), what);
    }

    static void check(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    static void equal(Object want, Object got, String what) {
        if (!Objects.deepEquals(want, got)) {
            throw new AssertionError(what + " is " + got + ", not " + want);
        }
    }

    /** Waits until a condition holds. */
    static void await(String what, Callable<Boolean> condition) throws Exception {
        for (long end = System.nanoTime() + PATIENCE_MS * 1_000_000; System.nanoTime() < end; Thread.sleep(5)) {
            if (condition.call()) {
                return;
            }
        }
        throw new AssertionError("never: " + what);
    }

    /** Runs a body that must fail with this exception, and returns it. */
    static <E extends Throwable> E fails(Class<E> kind, String what, Body body) {
        try {
            body.run();
        } catch (Throwable e) {
            if (kind.isInstance(e)) {
                return kind.cast(e);
            }
            throw new AssertionError(what + " fails with " + e + ", not " + kind.getSimpleName(), e);
        }
        throw new AssertionError(what + " does not fail with " + kind.getSimpleName());
    }
}
