package main

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
)

// npmPackage is a package.json, as far as it is checked.
type npmPackage struct {
	Name                 string
	Version              string
	License              string
	OS, CPU, Libc        []string
	Dependencies         map[string]string
	OptionalDependencies map[string]string
	Scripts              map[string]string
	Exports              map[string]any
}

// npmPacked returns the files of a package for npm, and its package.json.
func npmPacked(t *testing.T, name string) (files map[string]*entry, manifest npmPackage) {
	t.Helper()
	version, found := npmVersionMade(t)
	if !found {
		t.Fatal("there is no package for npm")
	}
	files = map[string]*entry{}
	for inside, e := range unpack(t, product(t, name+"-"+version+".tgz")) {
		rest, ok := strings.CutPrefix(inside, "package/")
		if !ok {
			t.Errorf("%s: %s is not in the directory package", name, inside)
		}
		files[rest] = e
	}
	if files["package.json"] == nil {
		t.Fatal(name, "has no package.json")
	}
	check(t, json.Unmarshal(files["package.json"].data, &manifest))
	if manifest.Name != name || manifest.Version != version || manifest.Libc != nil || len(manifest.Dependencies) > 0 {
		t.Errorf("%s: the package.json is %+v", name, manifest)
	}
	// Those who install the packages may have forbidden all scripts.
	if len(manifest.Scripts) > 0 {
		t.Errorf("%s has the scripts %v", name, manifest.Scripts)
	}
	for inside, e := range files {
		want := int64(0o644)
		if strings.HasPrefix(inside, "bin/") {
			want = 0o755
		}
		if e.h.Mode != want || len(e.data) == 0 {
			t.Errorf("%s: %s has the mode %o and %d bytes", name, inside, e.h.Mode, len(e.data))
		}
	}
	for _, inside := range []string{"README.md", "LICENSE"} {
		if files[inside] == nil {
			t.Errorf("%s has no %s", name, inside)
		}
	}
	return files, manifest
}

// npmVersionMade returns the version of npm's packages in the release.
func npmVersionMade(t *testing.T) (version string, found bool) {
	t.Helper()
	files := must(built())(t)
	for _, name := range files {
		if isNPMMain(name) {
			return strings.TrimSuffix(strings.TrimPrefix(name, npmName+"-"), ".tgz"), true
		}
	}
	return "", false
}

// isNPMMain returns whether a file is the package without a program.
func isNPMMain(name string) bool {
	version, ok := strings.CutPrefix(name, npmName+"-")
	return ok && strings.HasSuffix(name, ".tgz") && version[0] >= '0' && version[0] <= '9'
}

// TestNPMPrograms: each package for a platform has a program for it, which can be started, and the
// licences of all that is in it.
func TestNPMPrograms(t *testing.T) {
	for platform := range strings.SplitSeq(*platformsFlag, ",") {
		goos, goarch, _ := strings.Cut(platform, "/")
		node := map[string]string{"linux": "linux", "darwin": "darwin", "windows": "win32", "amd64": "x64", "arm64": "arm64"}
		files, manifest := npmPacked(t, "lockkeeper-"+node[goos]+"-"+node[goarch])
		if !slices.Equal(manifest.OS, []string{node[goos]}) || !slices.Equal(manifest.CPU, []string{node[goarch]}) {
			t.Errorf("%s is for %v, %v", manifest.Name, manifest.OS, manifest.CPU)
		}
		name := "bin/lockkeeper"
		if goos == "windows" {
			name += ".exe"
		}
		if got, want := slices.Sorted(maps.Keys(files)), []string{"LICENSE", "README.md", "THIRD_PARTY_LICENSES", name, "package.json"}; !slices.Equal(got, want) {
			t.Fatalf("%s has the files %q", manifest.Name, got)
		}
		binary := files[name].data
		if got := format(binary); got != platform {
			t.Errorf("%s: the program is for %s", manifest.Name, got)
		}
		if f, err := elf.NewFile(bytes.NewReader(binary)); err == nil {
			if libraries, err := f.ImportedLibraries(); err != nil || len(libraries) > 0 {
				t.Errorf("%s: the program needs %q, %v", manifest.Name, libraries, err)
			}
		}
		for _, licence := range []string{"Apache-2.0", "BSD-3-Clause", "MIT", "MPL-2.0"} {
			if !slices.Contains(strings.Split(manifest.License, " AND "), licence) {
				t.Errorf("%s: the licence is %q, without %s", manifest.Name, manifest.License, licence)
			}
		}
		if !bytes.Contains(files["THIRD_PARTY_LICENSES"].data, []byte("\ngithub.com/hashicorp/raft v")) {
			t.Errorf("%s: no licence of raft", manifest.Name)
		}
	}
}

// TestNPMMain: the package with the JavaScript wants the programs of all platforms in its own version,
// and has all files that it exports, with types.
func TestNPMMain(t *testing.T) {
	files, manifest := npmPacked(t, npmName)
	want := map[string]string{}
	for _, platform := range []string{"linux-x64", "linux-arm64", "darwin-x64", "darwin-arm64", "win32-x64", "win32-arm64"} {
		want["lockkeeper-"+platform] = manifest.Version
	}
	if !maps.Equal(manifest.OptionalDependencies, want) {
		t.Errorf("the optional dependencies are %v", manifest.OptionalDependencies)
	}
	exported := 0
	var check func(target any)
	check = func(target any) {
		switch x := target.(type) {
		case map[string]any:
			for _, inner := range x {
				check(inner)
			}
		case string:
			if exported++; files[path.Clean(x)] == nil {
				t.Errorf("%s is exported, but missing", x)
			}
		}
	}
	check(manifest.Exports)
	if exported != 19 {
		t.Errorf("%d files are exported", exported)
	}
}
