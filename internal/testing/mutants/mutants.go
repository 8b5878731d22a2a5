// Package mutants makes mutants of Go source: copies with one small fault each. Its
// tests check which kind of test finds them; see make mutants.
package mutants

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Kinds of mutants.
const (
	Negate = "negate" // a condition negated
	Bound  = "bound"  // < and <= exchanged, or > and >=
	Equal  = "equal"  // == and != exchanged
	Logic  = "logic"  // && and || exchanged
	Drop   = "drop"   // a statement removed
	Const  = "const"  // an integer increased by one
	Zero   = "zero"   // zero values returned
)

// Mutant is one file with one fault.
type Mutant struct {
	File     string // relative to the root of the module, with slashes
	Func     string // the function, variable or constant that has the fault
	Kind     string
	Ordinal  int    // its number among the mutants of its kind in this function, from 1
	Old, New string // the text at Start in the file, and its replacement
	Start    int
	Line     int
}

// Name identifies a mutant. Changes of other functions do not change it.
func (m *Mutant) Name() string {
	return fmt.Sprintf("%s:%s:%s:%d", m.File, m.Func, m.Kind, m.Ordinal)
}

// Package is the directory of the mutant's package.
func (m *Mutant) Package() string { return path.Dir(m.File) }

// Change describes the fault in one line. Lists of mutants contain it beside the name,
// to notice when the function itself has changed.
func (m *Mutant) Change() string { return oneLine(m.Old) + " => " + oneLine(m.New) }

func oneLine(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > 60 {
		s = string(r[:59]) + "…"
	}
	return cmp.Or(s, "nothing")
}

// Apply returns the file's text with the fault.
func (m *Mutant) Apply(src string) string {
	return src[:m.Start] + m.New + src[m.Start+len(m.Old):]
}

// Diff returns the lines that differ, with their place.
func (m *Mutant) Diff(src string) string {
	end := m.Start + len(m.Old)
	from := strings.LastIndexByte(src[:m.Start], '\n') + 1
	to := len(src)
	if n := strings.IndexByte(src[end:], '\n'); n >= 0 {
		to = end + n
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s:%d\n", m.File, m.Line)
	for line := range strings.Lines(src[from:to]) {
		b.WriteString("-" + strings.TrimSuffix(line, "\n") + "\n")
	}
	for line := range strings.Lines(src[from:m.Start] + m.New + src[end:to]) {
		b.WriteString("+" + strings.TrimSuffix(line, "\n") + "\n")
	}
	return b.String()
}

// Make returns the mutants of a file, in the order of their places in it. It leaves out
// faults that no test could or should find: in calls that log and their arguments, in
// panics, in capacities, and durations longer by one unit. Some mutants do not compile.
func Make(file, src string) ([]*Mutant, error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, file, src, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	g := &generator{file: file, src: src, fset: fset}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Body != nil {
				g.scope = d.Name.Name
				if d.Recv != nil {
					g.scope = receiver(d.Recv.List[0].Type) + "." + g.scope
				}
				g.body(d.Type, d.Body)
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if v, ok := s.(*ast.ValueSpec); ok {
					g.scope = v.Names[0].Name
					g.walk(v)
				}
			}
		}
	}
	slices.SortStableFunc(g.made, func(a, b *Mutant) int { return cmp.Compare(a.Start, b.Start) })
	ordinals := map[string]int{}
	for _, m := range g.made {
		key := m.Func + ":" + m.Kind
		ordinals[key]++
		m.Ordinal = ordinals[key]
	}
	return g.made, nil
}

func receiver(t ast.Expr) string {
	switch t := t.(type) {
	case *ast.StarExpr:
		return receiver(t.X)
	case *ast.IndexExpr:
		return receiver(t.X)
	case *ast.Ident:
		return t.Name
	}
	return "?"
}

type generator struct {
	file, src string
	fset      *token.FileSet
	scope     string
	results   []string // zero values of the enclosing function's results; nil if not known
	made      []*Mutant
}

func (g *generator) text(n ast.Node) string {
	return g.src[g.offset(n.Pos()):g.offset(n.End())]
}

func (g *generator) offset(p token.Pos) int { return g.fset.Position(p).Offset }

func (g *generator) add(kind string, n ast.Node, replacement string) {
	g.made = append(g.made, &Mutant{
		File: g.file, Func: g.scope, Kind: kind, Old: g.text(n), New: replacement,
		Start: g.offset(n.Pos()), Line: g.fset.Position(n.Pos()).Line,
	})
}

// body walks the body of a function.
func (g *generator) body(t *ast.FuncType, b *ast.BlockStmt) {
	outer := g.results
	defer func() { g.results = outer }()
	g.results = nil
	if t.Results != nil {
		for _, field := range t.Results.List {
			zero := zeroOf(field.Type)
			if zero == "" {
				g.results = nil
				break
			}
			for range max(1, len(field.Names)) {
				g.results = append(g.results, zero)
			}
		}
	}
	g.walk(b)
}

// zeroOf returns the zero value of a type, or "" if it cannot tell from the text.
func zeroOf(t ast.Expr) string {
	switch t := t.(type) {
	case *ast.StarExpr, *ast.MapType, *ast.ChanType, *ast.FuncType, *ast.InterfaceType:
		return "nil"
	case *ast.ArrayType:
		if t.Len == nil {
			return "nil"
		}
	case *ast.Ident:
		switch t.Name {
		case "bool":
			return "false"
		case "string":
			return `""`
		case "error", "any":
			return "nil"
		case "int", "int8", "int16", "int32", "int64", "uint", "uint8", "uint16", "uint32", "uint64", "byte":
			return "0"
		}
	case *ast.SelectorExpr:
		if isTime(t) && t.Sel.Name == "Duration" {
			return "0"
		}
	}
	return ""
}

func isTime(e ast.Expr) bool {
	s, ok := e.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	x, ok := s.X.(*ast.Ident)
	return ok && x.Name == "time"
}

func (g *generator) walk(root ast.Node) {
	ast.Inspect(root, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			g.body(n.Type, n.Body)
			return false
		case *ast.BlockStmt:
			g.statements(n.List)
		case *ast.CommClause:
			g.statements(n.Body)
		case *ast.CaseClause:
			g.statements(n.Body)
		case *ast.IfStmt:
			g.negate(n.Cond)
		case *ast.ForStmt:
			if n.Cond != nil {
				g.negate(n.Cond)
			}
		case *ast.SwitchStmt:
			if n.Tag == nil {
				for _, s := range n.Body.List {
					for _, e := range s.(*ast.CaseClause).List {
						g.negate(e)
					}
				}
			}
		case *ast.ReturnStmt:
			if zero := strings.Join(g.results, ", "); len(n.Results) > 0 && zero != "" && g.text(n) != "return "+zero {
				g.add(Zero, n, "return "+zero)
			}
		case *ast.BinaryExpr:
			g.binary(n)
			if (n.Op == token.MUL || n.Op == token.QUO) && (isTime(n.X) || isTime(n.Y)) {
				return false
			}
		case *ast.BasicLit:
			if v, err := strconv.ParseUint(n.Value, 0, 63); n.Kind == token.INT && err == nil {
				g.add(Const, n, strconv.FormatUint(v+1, 10))
			}
		case *ast.CallExpr:
			return g.call(n)
		}
		return true
	})
}

// call reports whether to look for mutants within a call.
func (g *generator) call(c *ast.CallExpr) bool {
	if logs(c) {
		return false
	}
	if f, ok := c.Fun.(*ast.Ident); ok {
		switch f.Name {
		case "panic":
			return false
		case "make":
			// The length of a slice counts; other sizes are capacities.
			_, slice := c.Args[0].(*ast.ArrayType)
			if slice && len(c.Args) == 2 {
				g.walk(c.Args[1])
			} else if slice && len(c.Args) == 3 {
				g.walk(c.Args[1])
			}
			return false
		}
	}
	return true
}

// logs reports whether a call writes to a log, judging by the names of the method and
// its receiver.
func logs(c *ast.CallExpr) bool {
	f, ok := c.Fun.(*ast.SelectorExpr)
	if !ok || !slices.Contains([]string{"Debug", "Info", "Warn", "Error", "Log"}, f.Sel.Name) {
		return false
	}
	name := ""
	switch x := f.X.(type) {
	case *ast.Ident:
		name = x.Name
	case *ast.SelectorExpr:
		name = x.Sel.Name
	}
	return strings.EqualFold(name, "log") || strings.EqualFold(name, "logger")
}

func (g *generator) statements(list []ast.Stmt) {
	for _, s := range list {
		if l, ok := s.(*ast.LabeledStmt); ok {
			s = l.Stmt
		}
		switch s := s.(type) {
		case *ast.ExprStmt:
			c, ok := s.X.(*ast.CallExpr)
			if ok && logs(c) {
				continue
			}
			if ok {
				if f, ok := c.Fun.(*ast.Ident); ok && f.Name == "panic" {
					continue
				}
			}
		case *ast.AssignStmt:
			if s.Tok == token.DEFINE {
				continue
			}
		case *ast.ReturnStmt:
			if len(s.Results) > 0 {
				continue
			}
		case *ast.IncDecStmt, *ast.SendStmt, *ast.GoStmt, *ast.DeferStmt, *ast.BranchStmt:
		default:
			continue
		}
		g.add(Drop, s, "")
	}
}

// negate negates a condition. It leaves out comparisons by == and !=, because binary
// makes the same mutants of them.
func (g *generator) negate(e ast.Expr) {
	switch x := e.(type) {
	case *ast.BinaryExpr:
		if x.Op == token.EQL || x.Op == token.NEQ {
			return
		}
	case *ast.UnaryExpr:
		if x.Op == token.NOT {
			g.add(Negate, e, g.text(x.X))
			return
		}
	}
	g.add(Negate, e, "!("+g.text(e)+")")
}

func (g *generator) binary(e *ast.BinaryExpr) {
	exchanged := map[token.Token]struct {
		kind, op string
	}{
		token.LSS: {Bound, "<="}, token.LEQ: {Bound, "<"}, token.GTR: {Bound, ">="}, token.GEQ: {Bound, ">"},
		token.EQL: {Equal, "!="}, token.NEQ: {Equal, "=="},
		token.LAND: {Logic, "||"}, token.LOR: {Logic, "&&"},
	}
	x, ok := exchanged[e.Op]
	if !ok {
		return
	}
	left, right := g.text(e.X), g.text(e.Y)
	if x.kind == Logic { // && binds more tightly than ||
		g.add(x.kind, e, "(("+left+") "+x.op+" ("+right+"))")
		return
	}
	g.add(x.kind, e, left+" "+x.op+" "+right)
}
