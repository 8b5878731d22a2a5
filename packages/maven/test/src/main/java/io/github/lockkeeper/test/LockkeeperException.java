package io.github.lockkeeper.test;

/** The server could not be started, or it refused what a test asked for. */
public class LockkeeperException extends RuntimeException {
    private static final long serialVersionUID = 1;

    /** The HTTP status, or 0. */
    private final int status;

    LockkeeperException(String message, Throwable cause) {
        super(message, cause);
        status = 0;
    }

    LockkeeperException(int status, String message) {
        this(status, message, null);
    }

    LockkeeperException(int status, String message, Throwable cause) {
        super(message, cause);
        this.status = status;
    }

    /** What a test has to add to have a cluster. */
    private static final String CLUSTER = ": only a cluster can do this, also one of a single member: @Lockkeeper(cluster = 3), or LockkeeperServer.startCluster(3)";

    static LockkeeperException of(int status, String path, String error) {
        if (status == 504) {
            return new LockkeeperTimeoutException(path + ": " + error);
        }
        return new LockkeeperException(status, path + (error.contains("needs a cluster") ? CLUSTER : ": " + error));
    }

    /**
     * The HTTP status of a refusal, or 0 if the server did not answer: 400 for a wrong request, 404 for a session, znode
     * or fault that does not exist, 409 for a member that is not in the state that the request needs, 503 for a cluster
     * without a leader, and 504 if what a test waited for did not happen.
     *
     * @return the status
     */
    public int status() {
        return status;
    }
}
