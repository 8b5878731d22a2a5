package io.github.lockkeeper.junit5;

import io.github.lockkeeper.test.LockkeeperServer;
import org.junit.platform.engine.TestExecutionResult;
import org.junit.platform.launcher.TestExecutionListener;
import org.junit.platform.launcher.TestIdentifier;

/**
 * Says what to add to a parameter that JUnit cannot resolve, since without any {@link Lockkeeper} in a class it does not
 * know of the extension. JUnit finds this listener by itself.
 */
public final class Unannotated implements TestExecutionListener {
    /** JUnit makes a listener by this constructor. */
    public Unannotated() {}

    @Override
    public void executionFinished(TestIdentifier test, TestExecutionResult result) {
        result.getThrowable().map(Throwable::getMessage).filter(why -> why.contains("No ParameterResolver registered for parameter [" + LockkeeperServer.class.getName()))
                .ifPresent(why -> System.err.println("lockkeeper: " + test.getDisplayName() + ": add @Lockkeeper to the parameter, or to the class"));
    }
}
