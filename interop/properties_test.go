//go:build interop

package interop

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/lockkeeper/lockkeeper/internal/tools/properties"
)

// TestProperties reads odd files and random ones as Java's own Properties does, which reads
// ZooKeeper's configuration files.
func TestProperties(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	dir := t.TempDir()
	texts := []string{
		"dataDir=/tmp/with\\ space\n", "superDigest=super\\:D/InI\\=\n", "a=\\u0041\n", "server.1=127.0.0.1\\:31321\\:31421\n",
		"tickTime 2000\n", "a=1\\\n  2\n", "a=1\\\r\n  2\r\nb=3", "a=\\ud83d\\ude00\\ud83d\n", "a=\\u12g4", "a=\xff\xe4", "a\\", "\\\n#\n", "\\\n\n# b\n", "# a\\\nb=1",
	}
	parts := []string{"a", "b", "=", ":", " ", "\t", "\f", "\\", "\\\\", "\n", "\r", "\r\n", "#", "!", "\\u00", "4", "1", "\\u00e4", "\\n", "\xe4", "\x00", "\\\n", "\\\r\n"}
	for range 5000 {
		var b strings.Builder
		for range 1 + r.IntN(12) {
			b.WriteString(parts[r.IntN(len(parts))])
		}
		texts = append(texts, b.String())
	}
	for i, text := range texts {
		check(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%05d", i)), []byte(text), 0o644))
	}
	java := javaCommand("clients/properties/Read.java", dir)
	java.Stderr = os.Stderr
	out, err := java.Output()
	check(t, err)
	lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if len(lines) != len(texts) {
		t.Fatalf("Java has read %d of %d files", len(lines), len(texts))
	}
	for i, text := range texts {
		all, err := properties.Parse([]byte(text))
		got := "invalid"
		if err == nil {
			var pairs []string
			for k, v := range all {
				pairs = append(pairs, " "+inHex(k)+"="+inHex(v))
			}
			slices.Sort(pairs)
			got = strings.Join(pairs, "")
		}
		if got != lines[i] {
			t.Errorf("%q: lockkeeper reads%s, Java%s", text, cmp.Or(got, " nothing"), cmp.Or(lines[i], " nothing"))
		}
	}
}

// inHex shows a text as Java keeps it.
func inHex(text string) string {
	var b []byte
	for _, u := range utf16.Encode([]rune(text)) {
		b = append(b, byte(u>>8), byte(u))
	}
	return hex.EncodeToString(b)
}
