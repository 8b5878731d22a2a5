package admin

import (
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/tools/properties"
)

// TestMasked: no form of a line that is valid in a file of Java properties shows a password.
func TestMasked(t *testing.T) {
	const key = "ssl.keyStore.password"
	for _, line := range []string{"=hush", " = hush", ":hush", " hush", "\thush", "\f=hush", "=hu\\\n  hush", "=hu\\\r\n  hush", " hu\\\\\\\nhush", "\\\n=hush"} {
		text := "tickTime=500\n" + key + line + "\ndataDir=/d\n"
		keys, err := properties.Parse([]byte(text))
		if err != nil || !strings.HasPrefix(keys[key], "hu") {
			t.Fatalf("%q: %q, %v", text, keys, err)
		}
		shown := masked(text)
		if strings.Contains(shown, "hu") || !strings.Contains(shown, key) {
			t.Errorf("%q is shown as %q", text, shown)
		}
		for _, rest := range []string{"tickTime=500\n", "\ndataDir=/d\n"} {
			if !strings.Contains(shown, rest) {
				t.Errorf("%q is shown as %q, without %q", text, shown, rest)
			}
		}
	}
	for _, text := range []string{"ssl.keyStore.passwordPath=/p\n", "ssl.keyStore.passwordPath /p\n", "dataDir=/d\n"} {
		if shown := masked(text); shown != text {
			t.Errorf("%q is shown as %q", text, shown)
		}
	}
}
