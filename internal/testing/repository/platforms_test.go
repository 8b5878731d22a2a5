package repository

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var platformsFlag = flag.Bool("platforms", false, "TestPlatforms: check for all platforms")

// platforms are those that the command and the packages are for.
var platforms = []string{
	"linux/amd64", "linux/arm64", "linux/386", "linux/arm",
	"darwin/amd64", "darwin/arm64", "windows/amd64", "windows/arm64",
}

// TestPlatforms checks the types of all packages and their tests for each platform; the tests of .ci/release build
// the command. go vet, which would check the types too, takes about ten times as long as checkPlatform:
// it compiles everything that is imported, by tests too.
func TestPlatforms(t *testing.T) {
	if !*platformsFlag {
		t.Skip("without -platforms")
	}
	for _, p := range platforms {
		t.Run(p, func(t *testing.T) {
			began := time.Now()
			own, err := checkPlatform(p, "./...")
			if err != nil {
				t.Error(err)
			}
			if own < 50 {
				t.Errorf("only %d packages of this module", own)
			}
			t.Logf("%d packages checked in %v", own, time.Since(began).Round(time.Millisecond))
		})
	}
}

// TestPlatformError: a constant that is too large for a platform is found, also in a test, and
// only there.
func TestPlatformError(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":            "module example.org/x\n\ngo 1.26\n",
		"x.go":              "package x\n\nfunc F() int { return 1 }\n",
		"x_test.go":         "package x\n\nvar large = F() + 1<<40\n",
		"x_windows.go":      "package x\n\nvar missing = G()\n",
		"x_outside_test.go": "package x_test\n\nimport \"example.org/x\"\n\nvar _ = x.F()\n",
	} {
		check(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	t.Chdir(dir)
	for platform, want := range map[string]string{"linux/amd64": "", "linux/386": "x_test.go:3:19", "windows/amd64": "undefined: G"} {
		own, err := checkPlatform(platform, "./...")
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) || own < 2 {
			t.Errorf("%s: %d packages, %v, should be %q", platform, own, err, want)
		}
	}
}

// environment returns the environment of go for a platform, given as OS/ARCH.
func environment(platform string) []string {
	goos, goarch, _ := strings.Cut(platform, "/")
	return append(os.Environ(), "GOOS="+goos, "GOARCH="+goarch, "CGO_ENABLED=0")
}

// listed is what go list says about a package.
type listed struct {
	Dir, ImportPath string
	GoFiles         []string
	ImportMap       map[string]string // from what the source says to ImportPath
	Standard        bool
	Module          *struct {
		Main      bool
		GoVersion string
	}
}

// checkPlatform checks the types of packages and their tests for a platform.
// Of what they import, it reads only the declarations. It returns how many packages of this
// module it has checked.
func checkPlatform(platform string, packages ...string) (own int, err error) {
	_, goarch, _ := strings.Cut(platform, "/")
	list := exec.Command("go", append([]string{"list", "-deps", "-test", "-pgo=off", "-json=Dir,ImportPath,GoFiles,ImportMap,Standard,Module"}, packages...)...)
	list.Env = environment(platform)
	list.Stderr = os.Stderr
	out, err := list.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := list.Start(); err != nil {
		return 0, err
	}
	done := map[string]*types.Package{"unsafe": types.Unsafe}
	var faults []error
	for from := json.NewDecoder(out); ; { // in the order in which they import each other
		var p listed
		if err := from.Decode(&p); err == io.EOF {
			break
		} else if err != nil {
			return own, errors.Join(err, list.Wait())
		}
		main := p.Module != nil && p.Module.Main
		if p.ImportPath == "unsafe" || strings.HasSuffix(p.ImportPath, ".test") { // the second is generated
			continue
		}
		checked, err := p.check(done, main, goarch)
		done[p.ImportPath] = checked
		if main {
			own++
			faults = append(faults, err)
		}
	}
	return own, errors.Join(append(faults, list.Wait())...)
}

// check checks the types of a package, with the bodies of its functions if all is true.
func (p *listed) check(done map[string]*types.Package, all bool, goarch string) (*types.Package, error) {
	files := token.NewFileSet()
	var parsed []*ast.File
	var faults []error
	for _, name := range p.GoFiles {
		f, err := parser.ParseFile(files, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		parsed = append(parsed, f)
	}
	conf := types.Config{
		Sizes: types.SizesFor("gc", goarch), IgnoreFuncBodies: !all,
		Error: func(err error) { faults = append(faults, err) },
		Importer: importerFunc(func(path string) (*types.Package, error) {
			if at := p.ImportMap[path]; at != "" {
				path = at
			}
			if found := done[path]; found != nil {
				return found, nil
			}
			return nil, fmt.Errorf("%s is not there", path)
		}),
	}
	if p.Module != nil {
		conf.GoVersion = "go" + p.Module.GoVersion
	}
	path, _, _ := strings.Cut(p.ImportPath, " ")
	checked, err := conf.Check(path, files, parsed, nil)
	if len(faults) > 0 {
		err = errors.Join(faults...)
	}
	return checked, err
}

type importerFunc func(path string) (*types.Package, error)

func (f importerFunc) Import(path string) (*types.Package, error) { return f(path) }
