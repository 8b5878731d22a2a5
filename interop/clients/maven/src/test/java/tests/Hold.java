package tests;

import io.github.lockkeeper.test.LockkeeperServer;

/** Starts a server, prints the id of its process, and waits to be killed. */
public final class Hold {
    private Hold() {}

    public static void main(String[] args) throws Exception {
        LockkeeperServer server = LockkeeperServer.start();
        System.out.println(server.pid());
        Thread.sleep(600_000);
    }
}
