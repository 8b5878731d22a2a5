package io.github.lockkeeper.test;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * JSON as maps, lists, strings, booleans, null, and numbers that are Long, or Double if they have a fraction. It reads
 * what the server writes, and writes what the server reads.
 */
final class Json {
    private static final int DEEPEST = 100;

    private final String text;
    private int at;
    private int depth;

    private Json(String text) {
        this.text = text;
    }

    static Object read(String text) {
        Json json = new Json(text);
        Object value = json.value();
        json.space();
        if (json.at < text.length()) {
            throw json.wrong();
        }
        return value;
    }

    private IllegalArgumentException wrong() {
        return new IllegalArgumentException("not JSON at character " + at + ": " + text);
    }

    private void space() {
        while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
    }

    /** Skips a character, if it is the next one. */
    private boolean skip(char c) {
        space();
        if (at == text.length() || text.charAt(at) != c) {
            return false;
        }
        at++;
        return true;
    }

    private void expect(char c) {
        if (!skip(c)) {
            throw wrong();
        }
    }

    private Object value() {
        if (++depth > DEEPEST) {
            throw wrong();
        }
        try {
            if (skip('{')) {
                return object();
            } else if (skip('[')) {
                return array();
            } else if (skip('"')) {
                return string();
            }
            return word();
        } finally {
            depth--;
        }
    }

    private Map<String, Object> object() {
        Map<String, Object> all = new LinkedHashMap<>();
        if (skip('}')) {
            return all;
        }
        do {
            expect('"');
            String name = string();
            expect(':');
            all.put(name, value());
        } while (skip(','));
        expect('}');
        return all;
    }

    private List<Object> array() {
        List<Object> all = new ArrayList<>();
        if (skip(']')) {
            return all;
        }
        do {
            all.add(value());
        } while (skip(','));
        expect(']');
        return all;
    }

    /** Reads a string, whose first quote has been read. */
    private String string() {
        StringBuilder all = new StringBuilder();
        while (at < text.length()) {
            char c = text.charAt(at++);
            if (c == '"') {
                return all.toString();
            }
            all.append(c == '\\' ? escaped() : c);
        }
        throw wrong();
    }

    private char escaped() {
        if (at == text.length()) {
            throw wrong();
        }
        char c = text.charAt(at++);
        switch (c) {
            case 'b': return '\b';
            case 'f': return '\f';
            case 'n': return '\n';
            case 'r': return '\r';
            case 't': return '\t';
            case '"': case '\\': case '/': return c;
            case 'u':
                if (at + 4 <= text.length()) {
                    at += 4;
                    return (char) Integer.parseInt(text.substring(at - 4, at), 16);
                }
                throw wrong();
            default: throw wrong();
        }
    }

    private Object word() {
        space();
        int from = at;
        while (at < text.length() && ",]} \t\r\n".indexOf(text.charAt(at)) < 0) {
            at++;
        }
        String word = text.substring(from, at);
        switch (word) {
            case "true": return true;
            case "false": return false;
            case "null": return null;
            default:
        }
        try {
            return word.matches("-?[0-9]+") ? (Object) Long.valueOf(word) : (Object) Double.valueOf(word);
        } catch (NumberFormatException e) {
            at = from;
            throw wrong();
        }
    }

    static String write(Object value) {
        StringBuilder out = new StringBuilder();
        write(out, value);
        return out.toString();
    }

    private static void write(StringBuilder out, Object value) {
        if (value instanceof Map) {
            String comma = "{";
            for (Map.Entry<?, ?> entry : ((Map<?, ?>) value).entrySet()) {
                out.append(comma);
                write(out, entry.getKey());
                out.append(':');
                write(out, entry.getValue());
                comma = ",";
            }
            out.append(comma.equals("{") ? "{}" : "}");
        } else if (value instanceof Iterable) {
            String comma = "[";
            for (Object element : (Iterable<?>) value) {
                out.append(comma);
                write(out, element);
                comma = ",";
            }
            out.append(comma.equals("[") ? "[]" : "]");
        } else if (value instanceof String) {
            quote(out, (String) value);
        } else if (value == null || value instanceof Number || value instanceof Boolean) {
            out.append(value);
        } else {
            throw new IllegalArgumentException("JSON has no " + value.getClass());
        }
    }

    private static void quote(StringBuilder out, String text) {
        out.append('"');
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < ' ') {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        out.append('"');
    }
}
