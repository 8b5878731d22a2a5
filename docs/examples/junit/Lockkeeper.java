import java.io.BufferedReader;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.extension.AfterEachCallback;
import org.junit.jupiter.api.extension.BeforeEachCallback;
import org.junit.jupiter.api.extension.ExtensionContext;

/** A ZooKeeper for each test, which starts in milliseconds: lockkeeper, with its test control. */
public final class Lockkeeper implements BeforeEachCallback, AfterEachCallback {
    private final HttpClient http = HttpClient.newHttpClient();
    private final List<String> command = new ArrayList<>();
    private Process process;
    private String url;
    private String hosts;

    public Lockkeeper(String... flags) {
        command.add(System.getenv().getOrDefault("LOCKKEEPER_BINARY", "lockkeeper"));
        command.addAll(List.of("serve", "--memory", "--log-level", "error"));
        command.addAll(List.of("--listen", "127.0.0.1:0", "--test-control", "127.0.0.1:0"));
        command.addAll(List.of(flags));
    }

    @Override
    public void beforeEach(ExtensionContext context) throws IOException {
        process = null;
        try {
            process = new ProcessBuilder(command).start();
        } catch (IOException e) {
            throw new IllegalStateException("cannot start " + command.get(0) + "; LOCKKEEPER_BINARY is the path of the program", e);
        }
        BufferedReader said = process.errorReader();
        url = address(said);
        hosts = address(said);
        Thread log = new Thread(() -> said.lines().forEach(System.err::println));
        log.setDaemon(true);
        log.start();
    }

    /** The address in the next line that tells one; lines of the log may come first. */
    private static String address(BufferedReader said) throws IOException {
        String line = said.readLine();
        while (line != null && !line.startsWith("lockkeeper: ")) {
            line = said.readLine();
        }
        if (line == null || !line.contains(" on ")) {
            throw new IllegalStateException(line);
        }
        return line.substring(line.lastIndexOf(' ') + 1);
    }

    @Override
    public void afterEach(ExtensionContext context) throws InterruptedException {
        if (process == null) { // it could not be started
            return;
        }
        process.toHandle().destroy(); // process.destroy() would close the stream that the server writes to
        if (process.waitFor() != 0) {
            throw new IllegalStateException("lockkeeper has ended with exit code " + process.exitValue());
        }
    }

    /** The servers' addresses for a client. */
    public String connectString() {
        return hosts;
    }

    /** What docs/test-control.md says about a path, as JSON. */
    public String get(String path) throws Exception {
        return send(path, HttpRequest.newBuilder().GET());
    }

    public String post(String path, String json) throws Exception {
        return send(path, HttpRequest.newBuilder().POST(BodyPublishers.ofString(json)));
    }

    private String send(String path, HttpRequest.Builder request) throws Exception {
        HttpResponse<String> reply = http.send(request.uri(URI.create(url + path)).build(), HttpResponse.BodyHandlers.ofString());
        if (reply.statusCode() != 200) {
            throw new AssertionError(path + ": " + reply.body());
        }
        return reply.body();
    }
}
