package io.github.lockkeeper.test;

import java.util.concurrent.TimeoutException;

/**
 * What a test waited for did not happen in time. Its status is 504, and its cause is a {@link TimeoutException}, which
 * Java's own methods that wait throw.
 */
public final class LockkeeperTimeoutException extends LockkeeperException {
    private static final long serialVersionUID = 1;

    LockkeeperTimeoutException(String message) {
        super(504, message, new TimeoutException(message));
    }
}
