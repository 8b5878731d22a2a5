package mutants

import (
	"go/format"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// root is the module's directory.
const root = "../../.."

var packages = []string{"cluster", "fsm", "internal/core/server", "internal/core/storage", "session", "watch", "znode"}

// all returns every mutant, and the text of the files by name.
func all(t *testing.T) (made []*Mutant, texts map[string]string) {
	t.Helper()
	texts = map[string]string{}
	for _, p := range packages {
		files, err := filepath.Glob(filepath.Join(root, p, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if strings.HasSuffix(f, "_test.go") {
				continue
			}
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			name := p + "/" + filepath.Base(f)
			ms, err := Make(name, string(b))
			if err != nil {
				t.Fatal(err)
			}
			made, texts[name] = append(made, ms...), string(b)
		}
	}
	return made, texts
}

// TestMake checks which mutants are made of a file, and their names.
func TestMake(t *testing.T) {
	const src = `package p

const limit = 8

func (t *table) f(ok bool) (int, error) {
	if !ok && t.n < limit {
		t.n++
		t.cfg.Log.Info("n", "is", t.n+1)
	}
	for _, x := range make([]int, 0, 16) {
		if x == t.n {
			continue
		}
		go func() bool { return x >= 0 }()
	}
	time.Sleep(5 * time.Second)
	return t.n, nil
}
`
	want := `p/f.go:limit:const:1: 8 => 9
p/f.go:table.f:negate:1: !ok && t.n < limit => !(!ok && t.n < limit)
p/f.go:table.f:logic:1: !ok && t.n < limit => ((!ok) || (t.n < limit))
p/f.go:table.f:bound:1: t.n < limit => t.n <= limit
p/f.go:table.f:drop:1: t.n++ => nothing
p/f.go:table.f:const:1: 0 => 1
p/f.go:table.f:equal:1: x == t.n => x != t.n
p/f.go:table.f:drop:2: continue => nothing
p/f.go:table.f:drop:3: go func() bool { return x >= 0 }() => nothing
p/f.go:table.f:zero:1: return x >= 0 => return false
p/f.go:table.f:bound:2: x >= 0 => x > 0
p/f.go:table.f:const:2: 0 => 1
p/f.go:table.f:drop:4: time.Sleep(5 * time.Second) => nothing
p/f.go:table.f:zero:2: return t.n, nil => return 0, nil
`
	made, err := Make("p/f.go", src)
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for _, m := range made {
		got.WriteString(m.Name() + ": " + m.Change() + "\n")
		if _, err := format.Source([]byte(m.Apply(src))); err != nil {
			t.Errorf("%s: %v", m.Name(), err)
		}
	}
	if got.String() != want {
		t.Errorf("got\n%swant\n%s", got.String(), want)
	}
	if got, want := made[4].Diff(src), "p/f.go:7\n-\t\tt.n++\n+\t\t\n"; got != want {
		t.Errorf("diff %q, want %q", got, want)
	}

	// A new function does not change the names of the others' mutants.
	more, err := Make("p/f.go", strings.Replace(src, "func", "func g() { x++ }\n\nfunc", 1))
	if err != nil || len(more) != len(made)+1 {
		t.Fatalf("%d mutants, %v", len(more), err)
	}
	for _, m := range made {
		if !slices.ContainsFunc(more, func(o *Mutant) bool { return o.Name() == m.Name() && o.Change() == m.Change() }) {
			t.Errorf("%s: its name has changed", m.Name())
		}
	}
}

// TestNames checks that no two mutants have the same name, and that each one changes
// its file.
func TestNames(t *testing.T) {
	made, texts := all(t)
	seen := map[string]bool{}
	for _, m := range made {
		if seen[m.Name()] {
			t.Errorf("two mutants are named %s", m.Name())
		}
		seen[m.Name()] = true
		src := texts[m.File]
		if src[m.Start:m.Start+len(m.Old)] != m.Old || m.Apply(src) == src {
			t.Errorf("%s does not change its file", m.Name())
		}
	}
	if len(made) < 1000 {
		t.Errorf("only %d mutants", len(made))
	}
}

// listed is a line of a list of mutants.
type listed struct{ name, change, rest string }

// readList reads a list of mutants. The test fails if one of them does not exist, or
// makes another change than the one in the list.
func readList(t *testing.T, file string, made []*Mutant) (list []listed) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]*Mutant{}
	for _, m := range made {
		byName[m.Name()] = m
	}
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		parts := strings.Split(line, "\t")
		if len(parts) != 3 || parts[2] == "" {
			t.Errorf("%s: %q does not have three fields separated by tabs", file, line)
			continue
		}
		l := listed{parts[0], parts[1], parts[2]}
		switch m := byName[l.name]; {
		case m == nil:
			t.Errorf("%s: mutant %s does not exist", file, l.name)
		case m.Change() != l.change:
			t.Errorf("%s: %s is now %q, not %q", file, l.name, m.Change(), l.change)
		}
		list = append(list, l)
	}
	return list
}

const (
	equivalentFile = "testdata/equivalent.txt"
	sampleFile     = "testdata/sample.txt"
)

// TestLists checks that all mutants in the lists exist, and that none is listed twice.
func TestLists(t *testing.T) {
	made, _ := all(t)
	seen := map[string]bool{}
	for _, l := range append(readList(t, equivalentFile, made), readList(t, sampleFile, made)...) {
		if seen[l.name] {
			t.Errorf("%s is listed twice", l.name)
		}
		seen[l.name] = true
	}
}
