package io.github.lockkeeper.junit5;

import io.github.lockkeeper.test.LockkeeperServer;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Optional;
import java.util.function.Predicate;
import org.junit.jupiter.api.TestInstance;
import org.junit.jupiter.api.extension.AfterAllCallback;
import org.junit.jupiter.api.extension.AfterEachCallback;
import org.junit.jupiter.api.extension.BeforeAllCallback;
import org.junit.jupiter.api.extension.BeforeEachCallback;
import org.junit.jupiter.api.extension.ExtensionConfigurationException;
import org.junit.jupiter.api.extension.ExtensionContext;
import org.junit.jupiter.api.extension.ParameterContext;
import org.junit.jupiter.api.extension.ParameterResolver;
import org.junit.platform.commons.support.AnnotationSupport;
import org.junit.platform.commons.support.HierarchyTraversalMode;
import org.junit.platform.commons.support.ReflectionSupport;
import org.opentest4j.TestAbortedException;

/** The JUnit extension of {@link Lockkeeper}, which registers it. */
public final class LockkeeperExtension
        implements ParameterResolver, BeforeAllCallback, BeforeEachCallback, AfterEachCallback, AfterAllCallback {
    private static final ExtensionContext.Namespace HERE = ExtensionContext.Namespace.create(LockkeeperExtension.class);

    /** JUnit makes an extension by this constructor. */
    public LockkeeperExtension() {}

    @Override
    public void beforeAll(ExtensionContext context) throws Exception {
        setFields(context.getRequiredTestClass(), null, context);
    }

    @Override
    public void beforeEach(ExtensionContext context) throws Exception {
        // One object of the class for all tests: they may run in parallel, and share its fields.
        boolean shared = context.getTestInstanceLifecycle().equals(Optional.of(TestInstance.Lifecycle.PER_CLASS));
        ExtensionContext owner = shared ? context.getParent().orElseThrow() : context;
        try {
            for (Object instance : context.getRequiredTestInstances().getAllInstances()) {
                setFields(instance.getClass(), instance, owner);
            }
        } finally { // JUnit calls afterEach in any case
            List<AssertionError> failures = new ArrayList<>();
            ancestors(context).forEach(leases -> leases.enter(failures));
            fail(failures);
        }
    }

    @Override
    public void afterEach(ExtensionContext context) {
        context.getExecutionException().filter(failure -> !(failure instanceof TestAbortedException)).ifPresent(failure -> {
            leases(context).describe(failure);
            ancestors(context).forEach(leases -> leases.describe(failure));
        });
        List<AssertionError> failures = new ArrayList<>();
        leases(context).end(failures);
        for (Leases leases : ancestors(context)) {
            leases.leave(failures);
        }
        fail(failures);
    }

    @Override
    public void afterAll(ExtensionContext context) {
        List<AssertionError> failures = new ArrayList<>();
        leases(context).end(failures);
        fail(failures);
    }

    static void fail(List<AssertionError> failures) {
        if (!failures.isEmpty()) {
            AssertionError first = failures.get(0);
            failures.subList(1, failures.size()).forEach(first::addSuppressed);
            throw first;
        }
    }

    private static void setFields(Class<?> type, Object instance, ExtensionContext context) throws IllegalAccessException {
        Predicate<Field> ours = field -> AnnotationSupport.isAnnotated(field, Lockkeeper.class) && Modifier.isStatic(field.getModifiers()) == (instance == null);
        for (Field field : ReflectionSupport.findFields(type, ours, HierarchyTraversalMode.TOP_DOWN)) {
            if (field.getType() != LockkeeperServer.class || Modifier.isFinal(field.getModifiers())) {
                throw new ExtensionConfigurationException(field + " has @Lockkeeper, so it must be a LockkeeperServer and not final");
            }
            field.setAccessible(true);
            field.set(instance, server(context, AnnotationSupport.findAnnotation(field, Lockkeeper.class).orElseThrow()));
        }
    }

    @Override
    public boolean supportsParameter(ParameterContext parameter, ExtensionContext context) {
        return parameter.getParameter().getType() == LockkeeperServer.class;
    }

    @Override
    public Object resolveParameter(ParameterContext parameter, ExtensionContext context) {
        Lockkeeper settings = parameter.findAnnotation(Lockkeeper.class).or(() -> ofClass(context)).orElseThrow(
                () -> new ExtensionConfigurationException("add @Lockkeeper to the parameter " + parameter.getParameter() + ", or to the class"));
        return server(context, settings);
    }

    private static Optional<Lockkeeper> ofClass(ExtensionContext context) {
        for (Class<?> type = context.getRequiredTestClass(); type != null; type = type.getEnclosingClass()) {
            Optional<Lockkeeper> found = AnnotationSupport.findAnnotation(type, Lockkeeper.class);
            if (found.isPresent()) {
                return found;
            }
        }
        return Optional.empty();
    }

    /** Returns the server with these settings of a test or a class, or of a class around it. */
    private static LockkeeperServer server(ExtensionContext context, Lockkeeper settings) {
        Settings wanted = new Settings(settings);
        for (Leases leases : ancestors(context)) {
            LockkeeperServer found = leases.find(wanted);
            if (found != null) {
                return found;
            }
        }
        return leases(context).take(wanted);
    }

    private static Leases leases(ExtensionContext context) {
        Pool pool = context.getRoot().getStore(HERE).getOrComputeIfAbsent(Pool.class, key -> new Pool(), Pool.class);
        String key = context.getUniqueId(); // a store shows what is in those of its parents, too
        return context.getStore(HERE).getOrComputeIfAbsent(key, id -> new Leases(pool), Leases.class);
    }

    /** Returns the leases of the classes around a test or a class, the innermost first. */
    private static List<Leases> ancestors(ExtensionContext context) {
        List<Leases> all = new ArrayList<>();
        Optional<ExtensionContext> at = context.getParent();
        while (at.isPresent() && at.get().getTestClass().isPresent()) {
            all.add(leases(at.get()));
            at = at.get().getParent();
        }
        return Collections.unmodifiableList(all);
    }
}
