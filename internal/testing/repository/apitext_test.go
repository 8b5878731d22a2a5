package repository

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// promised are the packages that promise compatibility.
var promised = []string{"", "admin", "conform", "lock", "lock/fence", "lockkeepertest"}

// TestAPI compares what the promised packages export with the files in the directory api, one line
// for each thing that a program can use. 'make api' writes them, for review as a diff.
//
// What a release has promised is in api/released.txt. A line that is there and is not exported any
// more breaks programs: it must also be in api/breaks.txt, which lists the breaks that were decided.
func TestAPI(t *testing.T) {
	packages := must(exported(promised))(t)
	now := map[string]bool{}
	for _, name := range promised {
		lines := apiOf(packages[path.Join(module, name)])
		if len(lines) < 5 {
			t.Errorf("package %q exports only %q", name, lines)
		}
		for _, line := range lines {
			now[line] = true
		}
		file := "api/" + cmp.Or(strings.ReplaceAll(name, "/", "-"), "lockkeeper") + ".txt"
		if flag.Lookup("rewrite").Value.String() == "true" {
			testkit.GeneratedFile(t, file, strings.Join(lines, "\n")+"\n")
			continue
		}
		was := must(apiLines(file))(t)
		removed, added := differences(was, lines)
		for _, line := range removed {
			t.Errorf("%s: removed or changed, which breaks programs if a release had it: %s", file, line)
		}
		for _, line := range added {
			t.Errorf("%s: added: %s", file, line)
		}
		if len(removed)+len(added) > 0 {
			t.Errorf("%s: 'make api' records what is meant to be so", file)
		}
	}
	released := must(apiLines("api/released.txt"))(t)
	breaks := must(apiLines("api/breaks.txt"))(t)
	for _, problem := range broken(released, breaks, now) {
		t.Error(problem)
	}
}

// broken returns what is wrong with an API: lines of a release that are gone and not among the
// breaks, and breaks that are none.
func broken(released, breaks []string, now map[string]bool) (problems []string) {
	for _, line := range released {
		if !now[line] && !slices.Contains(breaks, line) {
			problems = append(problems, "a release has promised this, and it is removed or changed: put it back, or decide to break it and add it to api/breaks.txt: "+line)
		}
	}
	for _, line := range breaks {
		if now[line] || !slices.Contains(released, line) {
			problems = append(problems, "api/breaks.txt has a line that breaks nothing: "+line)
		}
	}
	return problems
}

// TestAPIBreaks: a line that a release had is missed, unless the break was decided.
func TestAPIBreaks(t *testing.T) {
	now := map[string]bool{"kept": true, "new": true}
	for _, x := range []struct {
		released, breaks []string
		want             int
	}{
		{[]string{"kept"}, nil, 0},
		{[]string{"kept", "gone"}, nil, 1},
		{[]string{"kept", "gone"}, []string{"gone"}, 0},
		{[]string{"kept"}, []string{"kept"}, 1},
		{[]string{"kept"}, []string{"never there"}, 1},
	} {
		if got := broken(x.released, x.breaks, now); len(got) != x.want {
			t.Errorf("%+v: %q", x, got)
		}
	}
	removed, added := differences([]string{"a", "b"}, []string{"b", "c"})
	if !slices.Equal(removed, []string{"a"}) || !slices.Equal(added, []string{"c"}) {
		t.Errorf("%q, %q", removed, added)
	}
}

// apiLines returns the lines of a file, except comments. A file that does not exist has none.
func apiLines(file string) (lines []string, err error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	return lines, err
}

// differences returns the lines that only one of two lists has.
func differences(was, now []string) (removed, added []string) {
	for _, line := range was {
		if !slices.Contains(now, line) {
			removed = append(removed, line)
		}
	}
	for _, line := range now {
		if !slices.Contains(was, line) {
			added = append(added, line)
		}
	}
	return removed, added
}

// exported returns packages of this module, by import path, as programs that import them see them.
func exported(names []string) (map[string]*types.Package, error) {
	args := []string{"list", "-export", "-deps", "-json=ImportPath,Export"}
	for _, name := range names {
		args = append(args, "./"+name)
	}
	list := exec.Command("go", args...)
	var stderr bytes.Buffer
	list.Stderr = &stderr
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("%v: %w\n%s", list, err, &stderr)
	}
	files := map[string]string{}
	for from := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct{ ImportPath, Export string }
		if err := from.Decode(&p); err == io.EOF {
			break
		} else if err != nil {
			return nil, err
		}
		files[p.ImportPath] = p.Export
	}
	imports := importer.ForCompiler(token.NewFileSet(), "gc", func(name string) (io.ReadCloser, error) { return os.Open(files[name]) })
	packages := map[string]*types.Package{}
	for _, name := range names {
		at := path.Join(module, name)
		if packages[at], err = imports.Import(at); err != nil {
			return nil, err
		}
	}
	return packages, nil
}

// apiOf returns a sorted line for everything that a program can use of a package. It includes the
// types of other packages of this module that it can get at, unless these promise compatibility
// themselves.
func apiOf(p *types.Package) []string {
	w := &apiWriter{of: p, lines: map[string]bool{}, seen: map[*types.TypeName]bool{}}
	for _, name := range p.Scope().Names() {
		if o := p.Scope().Lookup(name); o.Exported() {
			w.object(o)
		}
	}
	return slices.Sorted(maps.Keys(w.lines))
}

type apiWriter struct {
	of    *types.Package
	lines map[string]bool
	seen  map[*types.TypeName]bool
}

// short names a package in the lines.
func short(p *types.Package) string {
	if p == nil {
		return ""
	}
	if rest, ok := strings.CutPrefix(p.Path(), module+"/"); ok {
		return rest
	}
	return cmp.Or(strings.TrimPrefix(p.Path(), path.Dir(module)+"/"), p.Path())
}

func (w *apiWriter) line(p *types.Package, format string, args ...any) {
	w.lines[short(p)+": "+fmt.Sprintf(format, args...)] = true
}

// text returns a type as it is written, and visits the named types in it.
func (w *apiWriter) text(t types.Type) string {
	w.visit(t)
	return types.TypeString(t, short)
}

// signature returns a function's parameters and results as they are written.
func (w *apiWriter) signature(t types.Type) string {
	return strings.TrimPrefix(w.text(t), "func")
}

func (w *apiWriter) object(o types.Object) {
	switch o := o.(type) {
	case *types.Const:
		w.line(o.Pkg(), "const %s %s", o.Name(), w.text(o.Type()))
		if o.Name() != "Version" { // which each release changes
			w.line(o.Pkg(), "const %s = %s", o.Name(), o.Val().ExactString())
		}
	case *types.Var:
		w.line(o.Pkg(), "var %s %s", o.Name(), w.text(o.Type()))
	case *types.Func:
		w.line(o.Pkg(), "func %s%s", o.Name(), w.signature(o.Type()))
	case *types.TypeName:
		w.typeName(o)
	}
}

func (w *apiWriter) typeName(o *types.TypeName) {
	if w.seen[o] {
		return
	}
	w.seen[o] = true
	if alias, ok := o.Type().(*types.Alias); ok {
		w.line(o.Pkg(), "type %s = %s", o.Name(), w.text(alias.Rhs()))
		return
	}
	named, ok := o.Type().(*types.Named)
	if !ok {
		return
	}
	name := o.Name()
	if n := named.TypeParams().Len(); n > 0 {
		var parameters []string
		for i := range n {
			p := named.TypeParams().At(i)
			parameters = append(parameters, p.Obj().Name()+" "+w.text(p.Constraint()))
		}
		name += "[" + strings.Join(parameters, ", ") + "]"
	}
	switch u := named.Underlying().(type) {
	case *types.Struct:
		w.line(o.Pkg(), "type %s struct", name)
		for f := range u.Fields() {
			switch {
			case f.Embedded() && f.Exported():
				w.line(o.Pkg(), "type %s struct, embeds %s", name, w.text(f.Type()))
			case f.Exported():
				w.line(o.Pkg(), "type %s struct, %s %s", name, f.Name(), w.text(f.Type()))
			}
		}
		if !types.Comparable(named) {
			w.line(o.Pkg(), "type %s struct, cannot be compared", name)
		}
	case *types.Interface:
		w.line(o.Pkg(), "type %s interface", name)
		for m := range u.Methods() {
			if m.Exported() {
				w.line(o.Pkg(), "type %s interface, %s%s", name, m.Name(), w.signature(m.Type()))
			} else {
				w.line(o.Pkg(), "type %s interface, methods that are not exported", name)
			}
		}
		for e := range u.EmbeddedTypes() {
			if _, union := e.(*types.Union); union {
				w.line(o.Pkg(), "type %s interface, %s", name, w.text(e))
			}
		}
		return // its methods are above
	default:
		w.line(o.Pkg(), "type %s %s", name, w.text(u))
	}
	value := types.NewMethodSet(named)
	for s := range types.NewMethodSet(types.NewPointer(named)).Methods() {
		if !s.Obj().Exported() {
			continue
		}
		star := "*"
		if value.Lookup(s.Obj().Pkg(), s.Obj().Name()) != nil {
			star = ""
		}
		w.line(o.Pkg(), "method (%s%s) %s%s", star, types.TypeString(named, short), s.Obj().Name(), w.signature(s.Type()))
	}
}

// visit writes the named types of this module that t has, if no other promised package does.
func (w *apiWriter) visit(t types.Type) {
	switch t := t.(type) {
	case *types.Alias:
		w.foreign(t.Obj())
		w.visit(t.Rhs())
	case *types.Named:
		w.foreign(t.Obj())
		for a := range t.TypeArgs().Types() {
			w.visit(a)
		}
	case *types.Pointer:
		w.visit(t.Elem())
	case *types.Slice:
		w.visit(t.Elem())
	case *types.Array:
		w.visit(t.Elem())
	case *types.Chan:
		w.visit(t.Elem())
	case *types.Map:
		w.visit(t.Key())
		w.visit(t.Elem())
	case *types.Signature:
		w.visit(t.Params())
		w.visit(t.Results())
	case *types.Tuple:
		for v := range t.Variables() {
			w.visit(v.Type())
		}
	case *types.Struct:
		for f := range t.Fields() {
			if f.Exported() {
				w.visit(f.Type())
			}
		}
	case *types.Interface:
		for m := range t.Methods() {
			w.visit(m.Type())
		}
	}
}

func (w *apiWriter) foreign(o *types.TypeName) {
	if o.Pkg() == nil || !o.Exported() && o.Pkg() != w.of {
		return
	}
	own := w.of.Path()
	if strings.HasPrefix(own, module) {
		own = module
	}
	if o.Pkg() != w.of && (!strings.HasPrefix(o.Pkg().Path(), own) || slices.Contains(promised, strings.TrimPrefix(strings.TrimPrefix(o.Pkg().Path(), module), "/"))) {
		return
	}
	w.typeName(o)
}
