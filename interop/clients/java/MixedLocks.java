import java.nio.file.Files;
import java.nio.file.Path;
import java.util.UUID;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.retry.RetryOneTime;

/**
 * Takes a lock of Curator in turn with clients of other kinds: MixedLocks SERVER PATH DIR KIND
 * TURNS. Whoever is inside has a file in DIR, and looks at the files of the others.
 */
final class MixedLocks {
    /** How many may be inside a semaphore. */
    private static final int SLOTS = 2;

    private MixedLocks() {
    }

    public static void main(String[] args) throws Exception {
        String path = args[1];
        Path dir = Path.of(args[2]);
        String kind = args[3];
        try (CuratorFramework client = CuratorFrameworkFactory.newClient(args[0], 10_000, 10_000, new RetryOneTime(100))) {
            client.start();
            InterProcessSemaphoreV2 semaphore = new InterProcessSemaphoreV2(client, path, SLOTS);
            for (int i = Integer.parseInt(args[4]); i > 0; i--) {
                if (kind.equals("slot")) {
                    try (Lease lease = semaphore.acquire()) {
                        inside(dir, kind);
                    }
                    continue;
                }
                InterProcessLock lock = switch (kind) {
                    case "mutex" -> new InterProcessMutex(client, path);
                    case "write" -> new InterProcessReadWriteLock(client, path).writeLock();
                    case "read" -> new InterProcessReadWriteLock(client, path).readLock();
                    default -> throw new IllegalArgumentException(kind);
                };
                if (!lock.acquire(1, TimeUnit.MINUTES)) {
                    throw new AssertionError("never got " + kind);
                }
                try {
                    inside(dir, kind);
                } finally {
                    lock.release();
                }
            }
        }
        System.out.println("ok done");
        System.exit(0);
    }

    private static void inside(Path dir, String kind) throws Exception {
        String me = kind + "-" + UUID.randomUUID();
        Path mine = Files.createFile(dir.resolve(me));
        int slots = 0;
        try (Stream<Path> all = Files.list(dir)) {
            for (Path other : all.toList()) {
                String name = other.getFileName().toString();
                slots++;
                if (!name.equals(me) && !(kind.equals("read") && name.startsWith("read-")) && !kind.equals("slot")) {
                    throw new AssertionError(me + " is inside together with " + name);
                }
            }
        }
        if (kind.equals("slot") && slots > SLOTS) {
            throw new AssertionError(slots + " are inside");
        }
        Thread.sleep(5);
        Files.delete(mine);
    }
}
