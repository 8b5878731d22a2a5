package lockkeeper;

import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/** A process of the program in the property lockkeeper.binary, for the tests of other projects. */
public final class Server {
    private static final long PATIENCE = 60;

    private final Process process;
    private final CompletableFuture<Integer> serves = new CompletableFuture<>();

    /** Starts a server with a zoo.cfg of these keys, and with flags of {@code serve}. */
    public Server(Properties keys, String... flags) throws IOException {
        File file = File.createTempFile("zoo", ".cfg");
        try (OutputStream out = Files.newOutputStream(file.toPath())) {
            keys.store(out, null);
        }
        List<String> command = new ArrayList<>(List.of(System.getProperty("lockkeeper.binary"), "serve", "--config", file.getPath()));
        command.addAll(List.of(flags));
        process = new ProcessBuilder(command).start();
        Runtime.getRuntime().addShutdownHook(new Thread(process::destroyForcibly));
        process.getOutputStream().close();
        Thread reader = new Thread(() -> {
            try (BufferedReader said = process.errorReader()) {
                for (String line = said.readLine(); line != null; line = said.readLine()) {
                    System.err.println(line);
                    if (line.startsWith("lockkeeper: serving ZooKeeper clients on ")) {
                        serves.complete(Integer.valueOf(line.substring(line.lastIndexOf(':') + 1)));
                    }
                }
            } catch (IOException e) {
                // it has ended
            }
            serves.completeExceptionally(new IllegalStateException("lockkeeper has ended"));
            file.delete();
        });
        reader.setDaemon(true);
        reader.start();
    }

    /** Waits until it serves clients, and returns the port where it does. */
    public int port() throws Exception {
        return serves.get(PATIENCE, TimeUnit.SECONDS);
    }

    /** Sends the process a signal: STOP or CONT. */
    public void signal(String name) throws IOException, InterruptedException {
        Process kill = new ProcessBuilder("kill", "-" + name, Long.toString(process.pid())).inheritIO().start();
        if (kill.waitFor() != 0) {
            throw new IllegalStateException("kill -" + name + " failed");
        }
    }

    /** Ends the process: abruptly, as if it had crashed, or in order. */
    public void end(boolean abruptly) {
        if (abruptly) {
            process.destroyForcibly();
        } else {
            process.toHandle().destroy();
        }
        try {
            if (!process.waitFor(PATIENCE, TimeUnit.SECONDS)) {
                process.destroyForcibly();
                throw new IllegalStateException("lockkeeper does not end");
            }
        } catch (InterruptedException e) {
            process.destroyForcibly();
            Thread.currentThread().interrupt();
        }
    }
}
