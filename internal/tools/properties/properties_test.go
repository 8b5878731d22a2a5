package properties

import (
	"maps"
	"testing"
)

// TestParse has lines with the values that Java reads. interop compares many more texts with
// Java itself.
func TestParse(t *testing.T) {
	for text, want := range map[string]map[string]string{
		"":                                   {},
		"a=b":                                {"a": "b"},
		"a = b \nc:d\ne f\ng":                {"a": "b ", "c": "d", "e": "f", "g": ""},
		"a==b\nc: =d\n":                      {"a": "=b", "c": "=d"},
		"# a=b\n ! c=d\\\ne=f":               {"e": "f"},
		"dataDir=/tmp/with\\ space":          {"dataDir": "/tmp/with space"},
		"superDigest=super\\:D/I\\=":         {"superDigest": "super:D/I="},
		"server.1=127.0.0.1\\:2888\\:3888":   {"server.1": "127.0.0.1:2888:3888"},
		"tickTime 2000":                      {"tickTime": "2000"},
		"a=b\\\n   c\\\r\n\td":               {"a": "bcd"},
		"a=b\\\\\nc=d":                       {"a": `b\`, "c": "d"},
		"a=b\\\n\nc=d":                       {"a": "b", "c": "d"},
		"a=b\\":                              {"a": "b"},
		"\\\n# a=b":                          {},
		"a=b\n\\":                            {"a": "b", "": ""},
		"a\\=b\\ c=d":                        {"a=b c": "d"},
		"a=\\u0041\\u00e4\\ud83d\\ude00\\n.": {"a": "A\u00e4\U0001F600\n."},
		"a=\xe4\ra=2\r\rb=\\q":               {"a": "2", "b": "q"},
		"=a":                                 {"": "a"},
	} {
		got, err := Parse([]byte(text))
		if err != nil || !maps.Equal(got, want) {
			t.Errorf("%q: %q, %v, want %q", text, got, err, want)
		}
	}
}

// TestParseError checks that an invalid escape is named with its line, and without what may be part of a password.
func TestParseError(t *testing.T) {
	for text, want := range map[string]string{
		"a=b\n\nc=\\u12g4":          `line 3: an escape \u does not have four hexadecimal digits`,
		"a=b\r\nc=d\\\r\n e\r\n\\u": `line 4: an escape \u does not have four hexadecimal digits`,
		"\\u+123=1":                 `line 1: an escape \u does not have four hexadecimal digits`,
	} {
		if _, err := Parse([]byte(text)); err == nil || err.Error() != want {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("a\\\r\n b=\\u0041"))
	f.Fuzz(func(t *testing.T, b []byte) { Parse(b) })
}
