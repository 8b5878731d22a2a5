package io.github.lockkeeper.test;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.concurrent.TimeUnit;

/** A process of {@code lockkeeper serve}. It ends when this JVM ends, whatever ends it. */
final class ServerProcess {
    private static final int PATIENCE = 60; // seconds, in which a server ends on any machine
    private static final int NOTICED = 1; // seconds, in which the end of a process whose connections are closed is noticed
    private static final int KEPT = 20; // lines
    private static final int BUSY = 50; // attempts to start a program that is busy, 20 ms apart

    private final Process process;
    private final BufferedReader said;
    private final Deque<String> last = new ArrayDeque<>(); // what it said last, for the message if it does not start
    private final Thread reader;
    private volatile boolean wasEnded; // by end
    final String url;
    final String connectString;

    ServerProcess(Path program, List<String> flags) {
        List<String> command = new ArrayList<>();
        command.add(program.toString());
        command.addAll(List.of("serve", "--memory", "--log-level", "error", "--test-control", "127.0.0.1:0", "--until-stdin-closes"));
        command.addAll(flags);
        process = start(command);
        said = new BufferedReader(new InputStreamReader(process.getErrorStream(), StandardCharsets.UTF_8));
        try {
            url = address("test control on ");
            connectString = address("serving ZooKeeper clients on ");
        } catch (IOException | RuntimeException e) {
            process.destroyForcibly();
            throw e instanceof RuntimeException ? (RuntimeException) e : new UncheckedIOException((IOException) e);
        }
        reader = new Thread(this::pass, "lockkeeper " + url);
        reader.setDaemon(true);
        reader.start();
    }

    private static Process start(List<String> command) {
        // Its standard input is a pipe that is never written to. However this JVM ends, the system closes it.
        ProcessBuilder builder = new ProcessBuilder(command).redirectOutput(ProcessBuilder.Redirect.DISCARD);
        builder.environment().keySet().removeIf(name -> name.startsWith("LOCKKEEPER_")); // they are flags
        for (int attempt = 1; ; attempt++) {
            try {
                return builder.start();
            } catch (IOException e) {
                // A process that another thread starts at the same time may for a moment have the file open that
                // this JVM has just written; Linux then refuses to run it with ETXTBSY, 26.
                if (attempt == BUSY || !String.valueOf(e.getMessage()).contains("error=26,")) {
                    throw new LockkeeperException("cannot start " + command.get(0)
                            + "; the property lockkeeper.binary or the variable LOCKKEEPER_BINARY can name another program: " + e.getMessage(), e);
                }
                sleep();
            }
        }
    }

    private static void sleep() {
        try {
            Thread.sleep(20);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new LockkeeperException("interrupted", e);
        }
    }

    /** Returns the address in the next line that tells one; lines of the log may come first. */
    private String address(String what) throws IOException {
        String start = "lockkeeper: " + what;
        for (String line = said.readLine(); line != null; line = said.readLine()) {
            int at = line.indexOf(start);
            if (at >= 0) { // with --log-format json it is in a line of JSON
                return line.substring(at + start.length()).split("\"")[0].trim();
            }
            last.add(line);
            if (last.size() > KEPT) {
                last.remove();
            }
        }
        throw new LockkeeperException(0, "lockkeeper has ended instead of serving clients:\n" + String.join("\n", last));
    }

    /** Passes on what the server says later: its errors. */
    private void pass() {
        try (BufferedReader lines = said) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                System.err.println(line);
            }
        } catch (IOException e) {
            // it has ended
        }
    }

    long pid() {
        return process.pid();
    }

    /** Says how the process has ended, or "" if it has not. The system may take a moment to tell that a process was killed. */
    String ended() {
        try {
            return process.waitFor(NOTICED, TimeUnit.SECONDS) ? "has ended with exit code " + process.exitValue() : "";
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            return "";
        }
    }

    /** Was {@link #end} called while the process ran? */
    boolean wasEnded() {
        return wasEnded;
    }

    /** Ends the process as on SIGTERM. Returns how it has ended, if something else has ended it, or "". */
    String end() {
        wasEnded = process.isAlive();
        try {
            process.getOutputStream().close();
        } catch (IOException e) {
            // it has ended
        }
        try {
            if (!process.waitFor(PATIENCE, TimeUnit.SECONDS)) {
                process.destroyForcibly();
                throw new LockkeeperException(0, "lockkeeper did not end within " + PATIENCE + " s, and was killed");
            }
            reader.join();
        } catch (InterruptedException e) {
            process.destroyForcibly();
            Thread.currentThread().interrupt();
            return "";
        }
        wasEnded &= process.exitValue() == 0; // the system may have told late that it was killed
        return wasEnded ? "" : ended();
    }
}
