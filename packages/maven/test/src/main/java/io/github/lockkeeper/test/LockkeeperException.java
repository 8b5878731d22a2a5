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
        super(message);
        this.status = status;
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
