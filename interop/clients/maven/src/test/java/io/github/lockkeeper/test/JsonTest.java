package io.github.lockkeeper.test;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

class JsonTest {
    @Test
    void readsWhatItWrites() {
        Map<String, Object> value = new LinkedHashMap<>();
        value.put("text", "a\"\\\n\u0001\u00e9\ud83d\ude00/");
        value.put("numbers", List.of(0L, -1L, Long.MAX_VALUE, 0.25));
        value.put("words", Arrays.asList(true, false, null));
        value.put("empty", List.of(Map.of(), List.of(), ""));
        assertEquals(value, Json.read(Json.write(value)));
    }

    @Test
    void readsOtherWritings() {
        assertEquals(Map.of("a", List.of("\u00e9\b\f\r\t/", 1e3)), Json.read(" { \"a\" : [ \"\\u00e9\\b\\f\\r\\t\\/\" , 1e3 ] } "));
    }

    @Test
    void refusesWhatIsNotJson() {
        for (String text : List.of("", "{", "[1", "\"a", "\"\\x\"", "\"\\u12\"", "{\"a\"}", "{a:1}", "[1 2]", "nul", "1 2", "[".repeat(10_000))) {
            assertThrows(IllegalArgumentException.class, () -> Json.read(text), text);
        }
    }
}
