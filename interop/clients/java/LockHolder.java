import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.retry.RetryOneTime;

/** Holds each kind of Curator's locks on the server in the argument until its input ends. */
public class LockHolder {
    private interface Task {
        void run() throws Exception;
    }

    private static void start(Task task) {
        Thread thread = new Thread(() -> {
            try {
                task.run();
            } catch (Exception e) {
                e.printStackTrace();
            }
        });
        thread.setDaemon(true);
        thread.start();
    }

    private static CuratorFramework client(String address) {
        CuratorFramework client = CuratorFrameworkFactory.newClient(address, 30_000, 30_000, new RetryOneTime(1000));
        client.start();
        return client;
    }

    public static void main(String[] args) throws Exception {
        CuratorFramework first = client(args[0]);
        CuratorFramework second = client(args[0]);
        new InterProcessMutex(first, "/curator/mutex").acquire();
        start(() -> new InterProcessMutex(second, "/curator/mutex").acquire());
        new InterProcessReadWriteLock(first, "/curator/rw").readLock().acquire();
        new InterProcessReadWriteLock(second, "/curator/rw").readLock().acquire();
        CuratorFramework third = client(args[0]);
        start(() -> new InterProcessReadWriteLock(third, "/curator/rw").writeLock().acquire());
        new InterProcessSemaphoreV2(first, "/curator/semaphore", 2).acquire();
        new InterProcessSemaphoreV2(second, "/curator/semaphore", 2).acquire();
        start(() -> new InterProcessSemaphoreV2(third, "/curator/semaphore", 2).acquire());
        LeaderLatch latch = new LeaderLatch(first, "/curator/latch");
        latch.start();
        latch.await();
        new LeaderLatch(second, "/curator/latch").start();
        System.out.println("held");
        while (System.in.read() >= 0) { }
        System.exit(0);
    }
}
