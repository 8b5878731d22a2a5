package io.github.lockkeeper.junit5;

import io.github.lockkeeper.test.LockkeeperServer;
import java.time.Duration;
import java.util.List;

/** The settings of a server; those that are equal can share one. */
final class Settings {
    private final List<Object> all;
    private final Lockkeeper annotation;

    Settings(Lockkeeper annotation) {
        this.annotation = annotation;
        all = List.of(annotation.value(), annotation.cluster(), annotation.electionTimeoutMs(), List.of(annotation.tree()), annotation.behaveAs(), List.of(annotation.flags()));
    }

    LockkeeperServer start() {
        LockkeeperServer.Builder builder = LockkeeperServer.builder()
                .cluster(annotation.cluster()).electionTimeout(Duration.ofMillis(annotation.electionTimeoutMs())).flags(annotation.flags());
        if (annotation.tree().length > 0) {
            builder.tree(String.join("\n", annotation.tree()) + '\n');
        }
        if (!annotation.behaveAs().isEmpty()) {
            builder.behaveAs(annotation.behaveAs());
        }
        return builder.start();
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof Settings && all.equals(((Settings) other).all);
    }

    @Override
    public int hashCode() {
        return all.hashCode();
    }
}
