import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.List;
import java.util.Properties;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.zookeeper.server.quorum.QuorumPeerConfig;

/** Prints a line for each zoo.cfg in a directory: what ZooKeeper reads in it, or "refused". */
public class Config {
    public static void main(String[] args) throws Exception {
        List<Path> files;
        try (Stream<Path> all = Files.list(Paths.get(args[0]))) {
            files = all.sorted().collect(Collectors.toList());
        }
        for (Path file : files) {
            Properties before = (Properties) System.getProperties().clone();
            QuorumPeerConfig.setStandaloneEnabled(true);
            QuorumPeerConfig.setReconfigEnabled(false);
            try {
                QuorumPeerConfig c = new QuorumPeerConfig();
                c.parse(file.toString());
                System.out.printf("tickTime=%d maxClientCnxns=%d minSessionTimeout=%d maxSessionTimeout=%d%n",
                    c.getTickTime(), Math.max(0, c.getMaxClientCnxns()), c.getMinSessionTimeout(), c.getMaxSessionTimeout());
            } catch (QuorumPeerConfig.ConfigException e) {
                System.out.println("refused");
            }
            System.setProperties(before);
        }
    }
}
