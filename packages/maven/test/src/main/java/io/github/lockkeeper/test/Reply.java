package io.github.lockkeeper.test;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.function.Function;

/** A JSON object of the server. What is missing is 0, false, "" or empty. */
final class Reply {
    private final Map<?, ?> all;

    Reply(Object json) {
        all = (Map<?, ?>) json;
    }

    String text(String name) {
        Object value = all.get(name);
        return value == null ? "" : value.toString();
    }

    long number(String name) {
        Object value = all.get(name);
        return value == null ? 0 : ((Number) value).longValue();
    }

    boolean flag(String name) {
        return Boolean.TRUE.equals(all.get(name));
    }

    long session(String name) {
        return sessionOf(all.get(name));
    }

    /** The id of a session, 0 for null: the server writes "0x1000a01c3e20000". */
    private static long sessionOf(Object value) {
        return value == null ? 0 : Long.parseUnsignedLong(value.toString().substring(2), 16);
    }

    private <T> List<T> list(String name, Function<Object, T> make) {
        List<T> made = new ArrayList<>();
        Object value = all.get(name);
        if (value != null) {
            ((List<?>) value).forEach(element -> made.add(make.apply(element)));
        }
        return List.copyOf(made);
    }

    <T> List<T> objects(String name, Function<Reply, T> make) {
        return list(name, element -> make.apply(new Reply(element)));
    }

    List<String> texts(String name) {
        return list(name, Object::toString);
    }

    List<Long> sessions(String name) {
        return list(name, Reply::sessionOf);
    }

    Reply object(String name) {
        Object value = all.get(name);
        return new Reply(value == null ? Map.of() : value);
    }

    @Override
    public String toString() {
        return Json.write(all);
    }
}
