import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.HexFormat;
import java.util.List;
import java.util.Properties;
import java.util.TreeSet;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/** Prints a line for each file of properties in a directory: its keys and values in hexadecimal. */
public class Read {
    static String hex(String s) {
        return HexFormat.of().formatHex(s.getBytes(StandardCharsets.UTF_16BE));
    }

    public static void main(String[] args) throws Exception {
        List<Path> files;
        try (Stream<Path> all = Files.list(Paths.get(args[0]))) {
            files = all.sorted().collect(Collectors.toList());
        }
        StringBuilder out = new StringBuilder();
        for (Path file : files) {
            Properties p = new Properties();
            try (InputStream in = Files.newInputStream(file)) {
                p.load(in);
                TreeSet<String> pairs = new TreeSet<>();
                for (String key : p.stringPropertyNames()) {
                    pairs.add(" " + hex(key) + "=" + hex(p.getProperty(key)));
                }
                out.append(String.join("", pairs));
            } catch (IllegalArgumentException e) {
                out.append("invalid");
            }
            out.append('\n');
        }
        System.out.print(out);
    }
}
