package repository

import (
	"encoding/binary"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/tools/golden"
	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

// house lists the layers of packages, one per line, the lowest first. A package may import
// only packages of lower layers. The list may name packages that do not exist yet.
// Packages below internal that are not named here belong to one of two wings: internal/tools
// has what the commands are made of, and internal/testing what the tests need. What is in
// internal/core is part of the server, and must be in this list.
const house = `
	jute internal/core/timing
	proto
	znode session watch internal/core/locks internal/core/logqueue internal/core/stopwatch internal/core/wake internal/core/fdlimit internal/core/either internal/core/diskspace internal/core/fsync internal/core/persona internal/core/sasl
	fsm
	internal/core/report
	internal/core/storage internal/core/election
	internal/core/peer internal/core/lifecycle
	internal/core/raftlog internal/core/request internal/core/raftwire
	internal/core/engine internal/core/alive
	internal/core/membership internal/core/propose
	server cluster
	internal/core/testhooks spec
	lockkeeper
	lock/fence
	admin conform internal/tools/bench internal/tools/zkshell lock lockkeepertest
	cmd/*
`

const module = "github.com/lockkeeper/lockkeeper"

// whyNot forbids imports, with reasons. Some of them would otherwise be allowed.
var whyNot = map[string]string{
	"server>cluster":                    "they are connected by the interface Proposer, so that the client port runs without Raft",
	"cluster>server":                    "they are connected by the interface Proposer, so that Raft runs without a client port",
	"server>internal/core/storage":      "the client port stores everything through Proposer",
	"znode>session":                     "the tree knows owners only by number; fsm connects the two",
	"znode>watch":                       "watch events follow from the changes that a command returns",
	"session>znode":                     "the session table does not know znodes; fsm connects the two",
	"watch>znode":                       "events depend only on changes",
	"fsm>server":                        "Apply is a function of state and entry; it must not depend on the client",
	"fsm>cluster":                       "Apply is a function of state and entry; it must not depend on how the entry was replicated",
	"jute>proto":                        "the serialization does not know the records",
	"lockkeepertest>lock":               "a test double does not depend on one of its clients",
	"lock>lockkeepertest":               "a client must not contain a server",
	"lock>lockkeeper":                   anyServer,
	"lock>server":                       anyServer,
	"lock>cluster":                      anyServer,
	"lock>fsm":                          anyServer,
	"conform>lockkeeper":                anyServer,
	"conform>server":                    anyServer,
	"conform>cluster":                   anyServer,
	"conform>fsm":                       anyServer,
	"internal/tools/bench>lockkeeper":   anyServer,
	"internal/tools/bench>server":       anyServer,
	"internal/tools/bench>cluster":      anyServer,
	"internal/tools/bench>fsm":          anyServer,
	"internal/tools/zkshell>lockkeeper": anyServer,
	"internal/tools/zkshell>server":     anyServer,
	"internal/tools/zkshell>cluster":    anyServer,
	"internal/tools/zkshell>fsm":        anyServer,
	"admin>server":                      throughRoot,
	"admin>cluster":                     throughRoot,
	"admin>fsm":                         throughRoot,
	"admin>internal/core/storage":       throughRoot,
	"lockkeeper>conform":                "programs that embed a server must not contain the suite",
}

// hooked are the packages that may import internal/core/testhooks, apart from tests. Package
// lockkeeper only embeds what leads there.
var hooked = []string{"lockkeeper", "lockkeepertest", "internal/testing/sim"}

// traced is the file of a build for tests.
const traced = "cmd/lockkeeper/trace.go"

// reported are the packages that may import internal/core/report, apart from tests.
var reported = []string{"lockkeeper", "server", "cluster", "internal/core/membership", "internal/core/request", "admin"}

// keyStores read keys and certificates in forms that the standard library does not know.
var keyStores = []string{"github.com/pavlo-v-chernykh/keystore-go/v4", "github.com/youmark/pkcs8", "software.sslmate.com/src/go-pkcs12"}

const throughRoot = "it serves any embedded server through the public API and internal/core/report, which show what operators need"

const anyServer = "it works with any ZooKeeper server, so it must not depend on this one"

// layers maps each package of the house to the number of its layer.
func layers() map[string]int {
	layer := map[string]int{}
	for i, line := range strings.Split(strings.TrimSpace(house), "\n") {
		for _, name := range strings.Fields(line) {
			layer[name] = i
		}
	}
	return layer
}

// source is one Go file.
type source struct {
	dir, name string // dir is "." for the root
	test      bool
	file      *ast.File
	fset      *token.FileSet
}

func (s *source) imports() (paths []string) {
	for _, i := range s.file.Imports {
		p, _ := strconv.Unquote(i.Path.Value)
		paths = append(paths, p)
	}
	return paths
}

// sources parses all Go files of the module.
func sources(t *testing.T) (all []*source) {
	t.Helper()
	fset := token.NewFileSet()
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && p != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if d.IsDir() || path.Ext(p) != ".go" {
			return nil
		}
		f, err := parser.ParseFile(fset, p, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		p = filepath.ToSlash(p)
		all = append(all, &source{path.Dir(p), path.Base(p), strings.HasSuffix(p, "_test.go"), f, fset})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 40 {
		t.Fatalf("found only %d Go files", len(all))
	}
	return all
}

// houseName returns the name in house of the package in dir.
func houseName(dir string) string {
	switch {
	case dir == ".":
		return "lockkeeper"
	case dir == "internal/core/server":
		return "server"
	case strings.HasPrefix(dir, "cmd/"):
		return "cmd/*"
	}
	return dir
}

// ownName returns the name in house of an import path. It reports false for packages of
// other modules.
func ownName(importPath string) (string, bool) {
	if importPath == module {
		return "lockkeeper", true
	}
	dir, own := strings.CutPrefix(importPath, module+"/")
	return houseName(dir), own
}

// TestImports checks that packages import only packages of lower layers.
func TestImports(t *testing.T) {
	layer := layers()
	for _, s := range sources(t) {
		from := houseName(s.dir)
		fromLayer, known := layer[from]
		helper := !known && (strings.HasPrefix(from, "internal/tools/") || strings.HasPrefix(from, "internal/testing/")) || from == "interop"
		if !known && !helper {
			t.Errorf("%s is not in the list of layers: add it in house_test.go", s.dir)
			continue
		}
		if s.test || s.dir+"/"+s.name == traced {
			continue // tests may import anything
		}
		for _, p := range s.imports() {
			bad := func(why string) { t.Errorf("%s/%s: %s must not import %s: %s", s.dir, s.name, from, p, why) }
			to, own := ownName(p)
			_, inHouse := layer[to]
			switch {
			case !own && strings.HasPrefix(p, "github.com/go-zookeeper/") && known && fromLayer <= layer["lockkeeper"]:
				bad("the server does not depend on a client; only lockkeepertest, lock and packages that use them may")
			case to == "internal/core/testhooks":
				if !slices.Contains(hooked, from) {
					bad("it is for tests; users have lockkeepertest")
				}
			case to == "internal/core/report" && !slices.Contains(reported, from):
				bad("it is how admin sees a server; others have the public API")
			case strings.HasPrefix(p, "github.com/prometheus/") && from != "admin":
				bad("metrics belong to admin; a program that embeds a server must not need them")
			case slices.Contains(keyStores, p) && from != "internal/tools/tlsfiles":
				bad("a program that embeds a server gives it a *tls.Config, and must not need key stores")
			case strings.HasPrefix(p, "github.com/spf13/") && from != "cmd/*":
				bad("flags and help belong to the command; a program that embeds a server must not need them")
			case strings.HasPrefix(from, "internal/tools/") && strings.HasPrefix(to, "internal/testing/"):
				bad("commands do not contain what only tests need")
			case !own || helper:
			case !inHouse && strings.HasPrefix(to, "internal/"):
				if fromLayer <= layer["lockkeeper"] {
					bad("the server consists of the packages in the list of layers; the rest of internal is for tests and tools")
				}
			case whyNot[from+">"+to] != "":
				bad(whyNot[from+">"+to])
			case layer[to] == fromLayer:
				bad("packages of one layer must not import each other")
			case layer[to] > fromLayer:
				bad("imports point down only")
			}
		}
	}
}

// impure lists what the pure packages must not import, with all packages below it.
var impure = map[string]string{
	"time":        "time is an input: an entry has its time, and durations are int64 milliseconds",
	"sync":        "locking is up to whoever owns a value",
	"os":          "it does no I/O",
	"net":         "it does no I/O",
	"syscall":     "it does no I/O",
	"log":         "it returns what happened as changes",
	"math/rand":   "the same input gives the same result on every server",
	"crypto/rand": "random bytes come with the command",
	"runtime":     "the same input gives the same result on every server",
	"context":     "nothing in it waits",
	"io":          "it does no I/O",
	"bufio":       "it does no I/O",
	"unsafe":      "any input must give a value or an error",
}

// pureAllowed lists exceptions by file, or for all files.
var pureAllowed = map[string][]string{
	"":                {"net/netip"}, // arithmetic of addresses
	"jute/frame.go":   {"io"},        // reads from a Reader that it is given
	"fsm/snapshot.go": {"io", "bufio"},
}

// engineOnly are the packages that may know Raft's library and its stores, apart from tests and what is for tests. Package fsm implements
// an interface of the library, in one file.
var engineOnly = []string{"internal/core/engine", "internal/core/raftwire", "internal/core/raftlog", "internal/core/storage"}

// TestRaftBehindWall checks that all others go through package engine.
func TestRaftBehindWall(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range sources(t) {
		name := s.dir + "/" + s.name
		if s.test || name == "fsm/raft.go" || s.dir == "spec" || strings.HasPrefix(s.dir, "internal/testing/") {
			continue
		}
		for _, p := range s.imports() {
			if !strings.HasPrefix(p, "github.com/hashicorp/") {
				continue
			}
			if seen[s.dir] = true; !slices.Contains(engineOnly, s.dir) {
				t.Errorf("%s imports %s, which only these packages may know: %v", name, p, engineOnly)
			}
		}
	}
	if len(seen) < len(engineOnly) {
		t.Errorf("Raft's library is imported only by %v", seen)
	}
}

// rooms are what a member consists of. Each is to fit in a head.
var rooms = []string{"cluster", "internal/core/alive", "internal/core/election", "internal/core/engine", "internal/core/raftwire", "internal/core/lifecycle", "internal/core/membership", "internal/core/peer", "internal/core/propose", "internal/core/raftlog", "internal/core/request", "internal/core/wake"}

// TestRooms checks that no room has more than 2,500 lines without tests.
func TestRooms(t *testing.T) {
	lines := map[string]int{}
	for _, s := range sources(t) {
		if !s.test && slices.Contains(rooms, s.dir) {
			lines[s.dir] += s.fset.Position(s.file.FileEnd).Line
		}
	}
	for _, room := range rooms {
		if n := lines[room]; n == 0 || n > 2500 {
			t.Errorf("%s has %d lines", room, n)
		}
	}
}

// TestDecisions checks that the packages that decide start no goroutine and read no clock: the time is an input.
func TestDecisions(t *testing.T) {
	clocks := []string{"Now", "Since", "Until", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick", "Sleep"}
	seen := 0
	for _, s := range sources(t) {
		if s.test || s.dir != "internal/core/election" && s.dir != "internal/core/alive" {
			continue
		}
		seen++
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s: a decision must not start a goroutine", s.fset.Position(n.Pos()))
			case *ast.SelectorExpr:
				if of, ok := n.X.(*ast.Ident); ok && of.Name == "time" && slices.Contains(clocks, n.Sel.Name) {
					t.Errorf("%s: a decision must not read a clock, nor wait", s.fset.Position(n.Pos()))
				}
			}
			return true
		})
	}
	if seen < 3 {
		t.Errorf("only %d files decide", seen)
	}
}

// TestPurity checks that the pure packages have no goroutines, clocks, I/O, randomness or
// locks.
func TestPurity(t *testing.T) {
	pure := []string{"jute", "proto", "znode", "session", "watch", "fsm", "internal/core/locks"}
	notPure := []string{"fsm/raft.go", "fsm/replica.go"} // Raft's methods, and the lock
	seen := map[string]bool{}
	for _, s := range sources(t) {
		name := s.dir + "/" + s.name
		if s.test || !slices.Contains(pure, s.dir) {
			continue
		}
		seen[s.dir] = true
		if slices.Contains(notPure, name) {
			seen[name] = true
			continue
		}
		for _, p := range s.imports() {
			if slices.Contains(pureAllowed[""], p) || slices.Contains(pureAllowed[name], p) {
				continue
			}
			if _, own := ownName(p); !own && strings.Contains(strings.Split(p, "/")[0], ".") {
				t.Errorf("%s: %s must not import %s: the pure packages use only the standard library", name, s.dir, p)
			}
			for top, why := range impure {
				if p == top || strings.HasPrefix(p, top+"/") {
					t.Errorf("%s: %s must not import %s: %s", name, s.dir, p, why)
				}
			}
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s: a pure package must not start a goroutine: the order would depend on the scheduler", s.fset.Position(n.Pos()))
			case *ast.SelectStmt, *ast.ChanType:
				t.Errorf("%s: a pure package must not wait: the order would depend on the scheduler", s.fset.Position(n.Pos()))
			}
			return true
		})
	}
	for _, want := range append(pure, notPure...) {
		if !seen[want] {
			t.Errorf("%s does not exist any more: adapt this test", want)
		}
	}
}

// mostFields is how many fields a struct may have. An embedded struct counts as one.
const mostFields = 20

// large are the structs that may have more.
var large = []string{
	"lockkeeper.Config", // 20 fields for users, and the hooks of tests
}

// TestFields checks that no struct has too many fields: those that belong together, such as
// what a mutex guards, are a struct of their own.
func TestFields(t *testing.T) {
	found := map[string]bool{}
	for _, s := range sources(t) {
		names := map[ast.Node]string{}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.TypeSpec:
				names[n.Type] = houseName(s.dir) + "." + n.Name.Name
			case *ast.StructType:
				fields := 0
				for _, f := range n.Fields.List {
					fields += max(1, len(f.Names))
				}
				switch name := names[n]; {
				case fields <= mostFields:
				case slices.Contains(large, name):
					found[name] = true
				default:
					t.Errorf("%s: a struct has %d fields, should have at most %d: make a struct of those that belong together", s.fset.Position(n.Pos()), fields, mostFields)
				}
			}
			return true
		})
	}
	for _, name := range large {
		if !found[name] {
			t.Errorf("%s does not have too many fields any more: remove it from this test", name)
		}
	}
}

// TestPackageComments checks that every package has one doc comment.
func TestPackageComments(t *testing.T) {
	comments := map[string][]string{}
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		if _, ok := comments[s.dir]; !ok {
			comments[s.dir] = nil
		}
		if s.file.Doc == nil {
			continue
		}
		comments[s.dir] = append(comments[s.dir], s.name)
		want := "Package " + s.file.Name.Name + " "
		if s.file.Name.Name == "main" {
			want = "Command " + path.Base(s.dir) + " "
		}
		if text := s.file.Doc.Text(); !strings.HasPrefix(text, want) {
			t.Errorf("%s/%s: the package's comment must begin with %q, not %.40q", s.dir, s.name, want, text)
		}
	}
	for dir, files := range comments {
		if len(files) != 1 {
			t.Errorf("%s: has %d package comments %v, should have one", dir, len(files), files)
		}
	}
}

// TestCompatibility checks that the comment of every package that users can import says
// whether the package promises compatibility.
func TestCompatibility(t *testing.T) {
	const none = "This package promises no compatibility: any version of lockkeeper may change it."
	const asRoot = "This package promises compatibility, as package lockkeeper explains."
	const less = "This package promises less compatibility than others, as package lockkeeper explains."
	promises := map[string]string{
		"lockkeeper":     "This package, lockkeepertest, lock and lock/fence promise compatibility:",
		"lockkeepertest": asRoot,
		"conform":        less,
		"lock":           asRoot,
		"fence":          asRoot,
		"admin":          less,
	}
	for _, s := range sources(t) {
		if s.test || s.file.Doc == nil || s.file.Name.Name == "main" || s.dir == "interop" || strings.HasPrefix(s.dir, "internal/") {
			continue
		}
		name := s.file.Name.Name
		want, ok := promises[name]
		if !ok {
			want = none
		}
		if text := strings.Join(strings.Fields(s.file.Doc.Text()), " "); !strings.Contains(text, want) {
			t.Errorf("%s/%s: the package's comment does not say %q", s.dir, s.name, want)
		}
		delete(promises, name)
	}
	for name := range promises {
		t.Errorf("package %s has no comment", name)
	}
}

// TestOpsAreCaptured checks that testdata/golden has a request of every operation and a
// reply that reports success.
func TestOpsAreCaptured(t *testing.T) {
	scenarios := must(golden.LoadAll(os.DirFS("testdata/golden")))(t)
	requested, answered := map[proto.OpCode]bool{}, map[proto.OpCode]bool{}
	note := func(seen map[proto.OpCode]bool, op proto.OpCode, body []byte) {
		seen[op] = true
		if op == proto.OpMulti { // its operations count too
			var q proto.MultiRequest
			d := jute.NewDecoder(body)
			q.Decode(&d)
			for _, part := range q.Ops {
				seen[part.Op] = true
			}
		}
	}
	for _, s := range scenarios {
		for _, f := range s.Frames() {
			switch {
			case f.Handshake || f.Op == 0:
			case f.FromClient:
				note(requested, proto.OpCode(f.Op), f.Bytes[12:])
			case binary.BigEndian.Uint32(f.Bytes[16:]) == 0:
				answered[proto.OpCode(f.Op)] = true
			}
		}
	}
	for i := range proto.Ops {
		op := &proto.Ops[i]
		if !requested[op.Code] {
			t.Errorf("%s (%d): no captured request in testdata/golden", op.Name, op.Code)
		}
		refused := op.Code == proto.OpReconfig // by every server that was captured
		if !answered[op.Code] && op.Class != proto.Part && !refused {
			t.Errorf("%s (%d): no captured reply of success in testdata/golden", op.Name, op.Code)
		}
	}
}

// TestDocsListOps compares the row of operations in docs/compatibility.md with the table of
// operations.
func TestDocsListOps(t *testing.T) {
	text := must(os.ReadFile("docs/compatibility.md"))(t)
	_, row, _ := strings.Cut(string(text), "\n| operations | ")
	row, _, _ = strings.Cut(row, " |")
	row = regexp.MustCompile(` \([^)]*\)`).ReplaceAllString(row, "") // remarks
	listed := strings.Split(row, ", ")
	for i := range proto.Ops {
		if name := proto.Ops[i].Name; !slices.Contains(listed, name) {
			t.Errorf("docs/compatibility.md does not list the operation %s", name)
		}
	}
	if len(listed) != len(proto.Ops) {
		t.Errorf("docs/compatibility.md lists %d operations, the table has %d", len(listed), len(proto.Ops))
	}
}
