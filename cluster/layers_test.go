package cluster

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// arrow says that a file uses what another one declares.
type arrow struct{ from, to string }

// arrows parses the files of this package, apart from tests, and returns their names in order, without
// .go, and what each of them uses of the others. Of the imported packages it knows nothing, so an
// identifier is missed whose meaning depends on the type of what such a package returns.
func arrows(t *testing.T) (files []string, uses map[arrow][]string) {
	t.Helper()
	fset := token.NewFileSet()
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var parsed []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") || name == "tcp_other.go" { // which is tcp_linux.go elsewhere
			continue
		}
		f, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		parsed, files = append(parsed, f), append(files, strings.TrimSuffix(name, ".go"))
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	conf := types.Config{Importer: emptyImporter{}, Error: func(error) {}}
	pkg, _ := conf.Check("cluster", fset, parsed, info)
	file := func(at token.Pos) string { return strings.TrimSuffix(fset.Position(at).Filename, ".go") }
	uses = map[arrow][]string{}
	for id, is := range info.Uses {
		a := arrow{file(id.Pos()), file(is.Pos())}
		if is.Pkg() == pkg && a.from != a.to && !slices.Contains(uses[a], is.Name()) {
			uses[a] = append(uses[a], is.Name())
		}
	}
	return files, uses
}

// emptyImporter imports packages that declare nothing.
type emptyImporter struct{}

func (emptyImporter) Import(path string) (*types.Package, error) {
	p := types.NewPackage(path, path[strings.LastIndex(path, "/")+1:])
	p.MarkComplete()
	return p, nil
}

// layer is one of the lists of files in the package's comment.
type layer struct {
	title string
	lines [][]string // the files of each line
}

// layers reads the lists of files in the package's comment, the lowest first, and which arrows it says
// point up.
func layers(t *testing.T) (all []layer, up []arrow) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "doc.go", nil, parser.ParseComments|parser.PackageClauseOnly)
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(f.Doc.Text(), "\n# Layers\n")
	text, _, _ = strings.Cut(text, "\n# ")
	title := ""
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "\t") {
			if line = strings.TrimSpace(line); line != "" {
				title = line
			}
			continue
		}
		names, what, ok := strings.Cut(strings.TrimSpace(line), "  ")
		files := strings.Fields(names)
		switch {
		case !ok || strings.TrimSpace(what) == "":
			t.Errorf("doc.go does not say what is in %s", names)
		case strings.HasPrefix(title, "What still points up"):
			up = append(up, arrow{files[0], files[len(files)-1]})
		case len(all) == 0 || all[len(all)-1].title != title:
			all = append(all, layer{title, [][]string{files}})
		default:
			last := &all[len(all)-1]
			last.lines = append(last.lines, files)
		}
	}
	return all, up
}

// TestLayers checks that a file uses only what files before it declare, in the order of the package's
// comment, except where that says why not.
func TestLayers(t *testing.T) {
	files, uses := arrows(t)
	if len(uses) < 40 {
		t.Fatalf("only %d arrows were found", len(uses))
	}
	lists, up := layers(t)
	place := map[string]int{}
	for _, l := range lists {
		for _, name := range slices.Concat(l.lines...) {
			if _, twice := place[name]; twice || !slices.Contains(files, name) {
				t.Errorf("doc.go lists %s, which is no file, or twice", name)
			}
			place[name] = len(place)
		}
	}
	for _, name := range files {
		if _, listed := place[name]; !listed && name != "doc" {
			t.Errorf("%s.go is in no layer: add it to the list in doc.go", name)
		}
	}
	for a, names := range uses {
		if place[a.to] > place[a.from] && !slices.Contains(up, a) {
			slices.Sort(names)
			t.Errorf("%s.go is below %s.go, but uses its %s: move one of them, or say in doc.go why", a.from, a.to, strings.Join(names, ", "))
		}
	}
	for _, a := range up {
		if uses[a] == nil || place[a.to] < place[a.from] {
			t.Errorf("doc.go says that %s points up to %s, which is not so any more", a.from, a.to)
		}
	}
}
