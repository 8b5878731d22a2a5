package repository

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// documents returns the text of every document, by path.
func documents(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	check(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || d.Name() == "node_modules" || strings.HasPrefix(d.Name(), ".") && path != "."):
			return fs.SkipDir
		case strings.HasSuffix(path, ".md"):
			b, err := os.ReadFile(path)
			texts[filepath.ToSlash(path)] = string(b)
			return err
		}
		return nil
	}))
	return texts
}

var headings = regexp.MustCompile(`(?m)^#+ (.+)$`)

// anchors returns the names that GitHub gives to the headings of a document.
func anchors(text string) map[string]bool {
	names := map[string]bool{}
	for _, h := range headings.FindAllStringSubmatch(text, -1) {
		title := regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`).ReplaceAllString(h[1], "$1")
		name := strings.ReplaceAll(strings.ToLower(regexp.MustCompile(`[^\pL\pN _-]`).ReplaceAllString(title, "")), " ", "-")
		for n, base := 1, name; names[name]; n++ {
			name = fmt.Sprintf("%s-%d", base, n)
		}
		names[name] = true
	}
	return names
}

// TestDocLinks checks that the links in documents lead to files and headings that exist.
func TestDocLinks(t *testing.T) {
	texts := documents(t)
	links := regexp.MustCompile(`(?s)\]\(([^)\s]+)\)|(?:src|href)="([^"]+)"`)
	for from, text := range texts {
		for _, l := range links.FindAllStringSubmatch(text, -1) {
			to := l[1] + l[2]
			if strings.Contains(to, "://") || strings.HasPrefix(to, "/") {
				continue
			}
			file, anchor, _ := strings.Cut(to, "#")
			path := from
			if file != "" {
				path = filepath.ToSlash(filepath.Join(filepath.Dir(from), file))
			}
			if _, err := os.Stat(path); err != nil {
				t.Errorf("%s: the link to %s leads nowhere", from, to)
			} else if there, ok := texts[path]; anchor != "" && ok && !anchors(there)[anchor] {
				t.Errorf("%s: %s has no heading %s", from, path, anchor)
			}
		}
	}
}

// TestDocReadme checks that the README is short, that it begins with its status and with how
// to start, and that a lock comes before the table of figures, which has four rows.
func TestDocReadme(t *testing.T) {
	b := must(os.ReadFile("README.md"))(t)
	lines := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
	if len(lines) > 130 {
		t.Errorf("README.md has %d lines, more than 130", len(lines))
	}
	first := strings.Join(lines[:min(len(lines), 20)], "\n")
	for _, text := range []string{"**Status:**", "go run ./cmd/lockkeeper serve", "go test ./...", "go get github.com/lockkeeper/lockkeeper"} {
		if !strings.Contains(first, text) {
			t.Errorf("the first lines of README.md do not have %q", text)
		}
	}
	before, rest, _ := strings.Cut(string(b), "<!-- performance -->\n")
	table, _, _ := strings.Cut(rest, "<!-- end of performance -->")
	if rows := strings.Count(table, "\n| "); rows != 4 || !strings.Contains(before, "lockkeeper lock run ") {
		t.Errorf("the table of README.md has %d rows, and a lock must come before it", rows)
	}
}

// TestDocDecisions checks that each decision has a number, a title, a date and a status, that one
// which replaces or amends another is named there, and that the index has them all.
func TestDocDecisions(t *testing.T) {
	files := must(filepath.Glob("docs/decisions/[0-9]*.md"))(t)
	index := must(os.ReadFile("docs/decisions/README.md"))(t)
	head := regexp.MustCompile(`^# (\d+)\. (.+)\n\n(\d{4}-\d{2}-\d{2})\. (Accepted|Superseded by \[\d+\]\([^)]+\))((?:; (?:amended by|amends|supersedes) \[\d+\]\([^)]+\))*)\.\n`)
	relation := regexp.MustCompile(`(?i)(superseded by|amended by|amends|supersedes) \[(\d+)\]\(([^)]+)\)`)
	inverse := map[string]string{"superseded by": "supersedes", "supersedes": "superseded by", "amended by": "amends", "amends": "amended by"}
	var rows []string
	said := map[string]bool{}
	for i, file := range files {
		b := must(os.ReadFile(file))(t)
		h := head.FindStringSubmatch(string(b))
		if h == nil {
			t.Errorf(`%s does not begin with "# N. Title", and "DATE. Accepted." or "DATE. Superseded by [N](file)."`, file)
			continue
		}
		name := filepath.Base(file)
		if want := fmt.Sprintf("%03d-", i+1); h[1] != fmt.Sprint(i+1) || !strings.HasPrefix(name, want) {
			t.Errorf("%s has the number %s, and is decision %d", file, h[1], i+1)
		}
		if _, err := time.Parse(time.DateOnly, h[3]); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		for _, r := range relation.FindAllStringSubmatch(h[4]+h[5], -1) {
			said[h[1]+" "+strings.ToLower(r[1])+" "+r[2]] = true
			if to := fmt.Sprintf("%03s-", r[2]); !strings.HasPrefix(r[3], strings.ReplaceAll(to, " ", "0")) {
				t.Errorf("%s: the link to decision %s leads to %s", file, r[2], r[3])
			}
		}
		rows = append(rows, fmt.Sprintf("| %s | [%s](%s) | %s | %s%s |", h[1], h[2], name, h[3], strings.ToLower(h[4][:1])+h[4][1:], h[5]))
	}
	for s := range said {
		from, rest, _ := strings.Cut(s, " ")
		word, to := rest[:strings.LastIndex(rest, " ")], rest[strings.LastIndex(rest, " ")+1:]
		if !said[to+" "+inverse[word]+" "+from] {
			t.Errorf("decision %s says that it is %s decision %s, which does not say %q of it", from, word, to, inverse[word])
		}
	}
	listed := regexp.MustCompile(`(?m)^\| \d.*$`).FindAllString(string(index), -1)
	if !slices.Equal(listed, rows) {
		t.Errorf("docs/decisions/README.md should list\n%s", strings.Join(rows, "\n"))
	}
}

// TestDocArchitecture checks that the table below the picture of the packages in
// docs/architecture.md has every name in the picture, and that each is a package or a directory
// of packages.
func TestDocArchitecture(t *testing.T) {
	b := must(os.ReadFile("docs/architecture.md"))(t)
	_, part, _ := strings.Cut(string(b), "<!-- picture -->\n```\n")
	picture, table, _ := strings.Cut(part, "```\n")
	table, _, ok := strings.Cut(table, "<!-- end of picture -->")
	names := regexp.MustCompile(`[a-z][a-z/]+`).FindAllString(picture, -1)
	if !ok || len(names) == 0 {
		t.Fatal("there is no picture")
	}
	var rows []string
	for _, r := range regexp.MustCompile(`(?m)^\| \[([a-z/]+)\]\(([^)]+)\) \| .+ \|$`).FindAllStringSubmatch(table, -1) {
		rows = append(rows, r[1])
		if want := filepath.ToSlash(filepath.Join("..", r[1])); r[2] != want && r[1] != "lockkeeper" {
			t.Errorf("%s leads to %s", r[1], r[2])
		}
	}
	if !slices.Equal(rows, names) {
		t.Errorf("the table has %q, the picture %q", rows, names)
	}
}

// TestDocModules checks that SECURITY.md explains each module that a program gets which imports package lockkeeper, and no
// other, and what the other packages add.
func TestDocModules(t *testing.T) {
	modules := func(pkg string) []string {
		out := must(exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", pkg).Output())(t)
		all := slices.DeleteFunc(strings.Fields(string(out)), func(m string) bool { return m == module })
		slices.Sort(all)
		return slices.Compact(all)
	}
	b := must(os.ReadFile("SECURITY.md"))(t)
	_, part, _ := strings.Cut(string(b), "\n## Modules\n")
	var listed []string
	for _, row := range regexp.MustCompile(`(?m)^\| ([^|]+\.[^|]+) \| .+ \|$`).FindAllStringSubmatch(part, -1) {
		listed = append(listed, strings.Split(row[1], ", ")...)
	}
	slices.Sort(listed)
	root := modules(".")
	if !slices.Equal(listed, root) {
		t.Errorf("SECURITY.md explains the modules %q, and an embedder gets %q", listed, root)
	}
	if zk := []string{"github.com/go-zookeeper/zk"}; !slices.Equal(modules("./lock"), zk) {
		t.Errorf("lock needs %q", modules("./lock"))
	} else if want := append(zk, root...); len(modules("./lockkeepertest")) != len(want) {
		t.Errorf("lockkeepertest needs %q", modules("./lockkeepertest"))
	}
	for _, m := range modules("./admin") {
		if !slices.Contains(root, m) && !regexp.MustCompile(`/(prometheus|klauspost|beorn7|cespare|munnerz)/|/protobuf$`).MatchString(m) {
			t.Errorf("admin adds %s", m)
		}
	}
}

// declared returns the names of what Go files below the directories declare: of functions, types, constants, variables, fields and methods,
// alone and with the type or the package that they belong to; and those of the files and packages.
func declared(t *testing.T, dirs ...string) map[string]bool {
	names := map[string]bool{}
	for _, dir := range dirs {
		check(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && d.Name() == "node_modules":
				return fs.SkipDir
			case !strings.HasSuffix(path, ".go"):
				return nil
			}
			f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return nil // testdata
			}
			add := func(of string, all ...*ast.Ident) {
				for _, x := range all {
					for _, name := range []string{x.Name, of + "." + x.Name, f.Name.Name + "." + of + "." + x.Name} {
						names[name] = true
					}
				}
			}
			names[d.Name()], names[f.Name.Name] = true, true
			ast.Inspect(f, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.FuncDecl:
					of := f.Name.Name
					if n.Recv != nil {
						of, _, _ = strings.Cut(strings.TrimPrefix(types.ExprString(n.Recv.List[0].Type), "*"), "[")
					}
					add(of, n.Name)
				case *ast.ValueSpec:
					add(f.Name.Name, n.Names...)
				case *ast.TypeSpec:
					add(f.Name.Name, n.Name)
					var fields *ast.FieldList
					switch x := n.Type.(type) {
					case *ast.StructType:
						fields = x.Fields
					case *ast.InterfaceType:
						fields = x.Methods
					default:
						return true
					}
					for _, x := range fields.List {
						add(n.Name.Name, x.Names...)
					}
				}
				return true
			})
			return nil
		}))
	}
	return names
}

// TestDocNames checks that the documents which lead through the code and the comments of the models name what exists, and that each of the
// six questions is answered in four files at most.
func TestDocNames(t *testing.T) {
	raft := strings.TrimSpace(string(must(exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/hashicorp/raft").Output())(t)))
	names, files := declared(t, ".", raft), regexp.MustCompile(`[\w/]+\.go\b`)
	for _, doc := range []string{"docs/architecture.md", "docs/raft.md"} {
		text := string(must(os.ReadFile(doc))(t))
		for _, name := range regexp.MustCompile("`([A-Za-z_][\\w.]*)`").FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(name[1]); err != nil && !names[name[1]] && !slices.Contains([]string{"true", "false", "core", "tools", "testing", "console.js"}, name[1]) {
				t.Errorf("%s names %s, which does not exist", doc, name[1])
			}
		}
	}
	for _, model := range must(filepath.Glob("spec/*.pml"))(t) {
		for _, line := range strings.Split(string(must(os.ReadFile(model))(t)), "\n") {
			_, comment, _ := strings.Cut(line, "//")
			for _, name := range regexp.MustCompile(`\b[A-Za-z]+\.[A-Za-z]+\b|\b[A-Za-z][a-z]+[A-Z]\w*\b`).FindAllString(comment, -1) {
				_, notDoc := os.Stat("docs/" + name)
				_, notModel := os.Stat("spec/" + name)
				if notDoc != nil && notModel != nil && !names[name] {
					t.Errorf("%s names %s, which does not exist", model, name)
				}
			}
		}
	}
	_, part, _ := strings.Cut(string(must(os.ReadFile("docs/architecture.md"))(t)), "\n## Six questions\n")
	part, _, _ = strings.Cut(part, "\n## ")
	rows := regexp.MustCompile(`(?m)^\| .+\? \| .+$`).FindAllString(part, -1)
	for _, row := range rows {
		if read := files.FindAllString(row, -1); len(read) > 4 {
			t.Errorf("the answer is in %q: %s", read, row)
		}
	}
	if len(rows) != 6 {
		t.Errorf("there are %d questions", len(rows))
	}
}
