package io.github.lockkeeper.junit5;

import io.github.lockkeeper.test.LockkeeperServer;
import java.lang.annotation.Documented;
import java.lang.annotation.ElementType;
import java.lang.annotation.Inherited;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.annotation.Target;
import org.junit.jupiter.api.extension.ExtendWith;

/**
 * Gives tests a ZooKeeper: a {@link LockkeeperServer}.
 *
 * <p>At a field, the server is set before each test, or before all tests if the field is static. At a parameter of a
 * test, or of a method with {@code @BeforeEach} or {@code @BeforeAll}, it is passed. At a class, the annotation has the
 * settings for all fields and parameters with this type in it, which then need none.
 *
 * <pre>{@code
 * class LockTest {
 *     @Test
 *     void expiry(@Lockkeeper LockkeeperServer zookeeper) { ... }
 * }
 * }</pre>
 *
 * <p>The tests of a run share servers, but not at the same time: each test has its own until it ends, also if tests run
 * in parallel. Then the verdicts on the locks that it guarded must be ok, and the faults that it injected must have taken
 * effect, or else the test fails ({@link LockkeeperServer#check}). To what failed a test, the znodes and the last requests
 * are added as a suppressed exception ({@link LockkeeperServer#report}). After that, all faults end and the server gets back the
 * state with which it began.
 *
 * <p>A server of a static field, of {@code @BeforeAll} or of a constructor is shared by the tests of the class, and gets
 * back the state that it had before the first of them. If tests of the class run in parallel, this happens when none runs.
 */
@Documented
@Inherited
@Retention(RetentionPolicy.RUNTIME)
@Target({ElementType.TYPE, ElementType.FIELD, ElementType.PARAMETER, ElementType.ANNOTATION_TYPE})
@ExtendWith(LockkeeperExtension.class)
public @interface Lockkeeper {
    /**
     * Distinguishes servers with the same settings in one test.
     *
     * @return a name
     */
    String value() default "";

    /**
     * How many members the server has, as a cluster.
     *
     * @return the number, or 0 for a single server
     */
    int cluster() default 0;

    /**
     * How long the leader of a cluster may be silent before the others elect a new one.
     *
     * @return the time in milliseconds, at least 100
     */
    int electionTimeoutMs() default 500;

    /**
     * The znodes with which the server begins.
     *
     * @return lines as {@code /config/limit = "10"}
     */
    String[] tree() default {};

    /**
     * Answer as an older release line of ZooKeeper.
     *
     * @return 3.4, 3.5, 3.6, 3.7, 3.8 or 3.9; by default 3.9
     */
    String behaveAs() default "";

    /**
     * More flags of {@code lockkeeper serve}.
     *
     * @return the flags, such as --tick-time=500ms
     */
    String[] flags() default {};
}
