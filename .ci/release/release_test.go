package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/buildinfo"
	"debug/elf"
	"debug/macho"
	"debug/pe"
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
)

var platformsFlag = flag.String("release.platforms", strings.Join(allPlatforms, ","), "build for these OS/ARCH; this machine's must be among them")

var host = runtime.GOOS + "/" + runtime.GOARCH

// dist is the directory in which TestMain's builds are.
var dist string

func TestMain(m *testing.M) {
	flag.Parse()
	dir, err := os.MkdirTemp("", "lockkeeper-release-test-")
	if err != nil {
		panic(err)
	}
	dist = dir
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		check(t, err)
		return v
	}
}

// built builds a release once. It is compiled without a profile, which takes a third of the time;
// interop tests the program with it.
var built = sync.OnceValues(func() ([]string, error) {
	o := options{root: "../..", out: filepath.Join(dist, "dist"), platforms: strings.Split(*platformsFlag, ","), pgo: "off"}
	return o.build()
})

// product returns the contents of the only file of the release whose name ends so.
func product(t *testing.T, suffix string) []byte {
	t.Helper()
	return must(os.ReadFile(productPath(t, suffix)))(t)
}

func productPath(t *testing.T, suffix string) string {
	t.Helper()
	files := must(built())(t)
	var found []string
	for _, name := range files {
		if strings.HasSuffix(name, suffix) {
			found = append(found, name)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%q end with %s, of %q", found, suffix, files)
	}
	return filepath.Join(dist, "dist", found[0])
}

// unpack returns the files of a tar. Names of directories end with a slash.
func unpack(t *testing.T, data []byte) map[string]*entry {
	t.Helper()
	if bytes.HasPrefix(data, []byte{0x1f, 0x8b}) {
		z := must(gzip.NewReader(bytes.NewReader(data)))(t)
		data = must(io.ReadAll(z))(t)
	}
	all := map[string]*entry{}
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := r.Next()
		if err == io.EOF {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		e := &entry{h: h}
		e.data = must(io.ReadAll(r))(t)
		all[h.Name] = e
	}
}

type entry struct {
	h    *tar.Header
	data []byte
}

// lay writes the entries into a directory.
func lay(t *testing.T, entries map[string]*entry, dir string) {
	t.Helper()
	for name, e := range entries {
		to := filepath.Join(dir, name)
		check(t, os.MkdirAll(filepath.Dir(to), 0o755))
		var err error
		if e.h.Typeflag == tar.TypeDir {
			if err = os.MkdirAll(to, 0o755); err == nil {
				err = os.Chmod(to, e.h.FileInfo().Mode())
			}
		} else {
			err = os.WriteFile(to, e.data, e.h.FileInfo().Mode())
		}
		if err == nil && os.Getuid() == 0 {
			err = os.Chown(to, e.h.Uid, e.h.Gid)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// archived returns the files of the archive for a platform, without the directory that has them all.
func archived(t *testing.T, platform string) map[string][]byte {
	t.Helper()
	name := strings.ReplaceAll(platform, "/", "_")
	files := map[string][]byte{}
	add := func(name string, data []byte) {
		top, rest, ok := strings.Cut(name, "/")
		if !ok || !strings.HasPrefix(top, "lockkeeper_") {
			t.Errorf("%s is not in a directory of its own", name)
		}
		files[rest] = data
	}
	if !strings.HasPrefix(platform, "windows/") {
		for name, e := range unpack(t, product(t, name+".tar.gz")) {
			add(name, e.data)
		}
		return files
	}
	data := product(t, name+".zip")
	z := must(zip.NewReader(bytes.NewReader(data), int64(len(data))))(t)
	for _, f := range z.File {
		r := must(f.Open())(t)
		data := must(io.ReadAll(r))(t)
		add(f.Name, data)
	}
	return files
}

// format returns for which platform a binary is, according to its header.
func format(binary []byte) string {
	r := bytes.NewReader(binary)
	if f, err := elf.NewFile(r); err == nil {
		return "linux/" + map[elf.Machine]string{elf.EM_X86_64: "amd64", elf.EM_AARCH64: "arm64"}[f.Machine]
	}
	if f, err := macho.NewFile(r); err == nil {
		return "darwin/" + map[macho.Cpu]string{macho.CpuAmd64: "amd64", macho.CpuArm64: "arm64"}[f.Cpu]
	}
	if f, err := pe.NewFile(r); err == nil {
		return "windows/" + map[uint16]string{pe.IMAGE_FILE_MACHINE_AMD64: "amd64", pe.IMAGE_FILE_MACHINE_ARM64: "arm64"}[f.Machine]
	}
	return "nothing known"
}

// TestArchives: each archive has a program for its platform, the documents, and the licence of every
// module that is linked.
func TestArchives(t *testing.T) {
	for platform := range strings.SplitSeq(*platformsFlag, ",") {
		files := archived(t, platform)
		name := "lockkeeper"
		if strings.HasPrefix(platform, "windows/") {
			name += ".exe"
		}
		binary := files[name]
		if got := format(binary); got != platform {
			t.Errorf("%s: the program is for %s", platform, got)
		}
		if f, err := elf.NewFile(bytes.NewReader(binary)); err == nil {
			if libraries, err := f.ImportedLibraries(); err != nil || len(libraries) > 0 {
				t.Errorf("%s: the program needs %q, %v", platform, libraries, err)
			}
		}
		info := must(buildinfo.Read(bytes.NewReader(binary)))(t)
		if len(info.Deps) < 15 {
			t.Errorf("%s: only %d modules are linked", platform, len(info.Deps))
		}
		for _, d := range info.Deps {
			if !bytes.Contains(files["THIRD_PARTY_LICENSES"], []byte("\n"+d.Path+" "+d.Version+"\n\n--- ")) {
				t.Errorf("%s: no licence of %s", platform, d.Path)
			}
		}
		for _, want := range []string{"LICENSE", "README.md", "man/lockkeeper.1", "man/lockkeeper-serve.1",
			"completions/lockkeeper.bash", "completions/_lockkeeper", "completions/lockkeeper.fish", "completions/lockkeeper.ps1"} {
			if len(files[want]) < 500 {
				t.Errorf("%s: %s has %d bytes", platform, want, len(files[want]))
			}
		}
		here := must(filepath.Abs("../.."))(t)
		if bytes.Contains(binary, []byte(here)) || bytes.Contains(binary, []byte("lockkeeper-release-")) {
			t.Errorf("%s: the program has paths of this machine", platform)
		}
	}
}

// TestSums: the checksums are those of all files.
func TestSums(t *testing.T) {
	lines := strings.Split(strings.TrimSpace(string(product(t, "SHA256SUMS"))), "\n")
	files, _ := built()
	if len(lines) != len(files)-1 {
		t.Errorf("%d sums, %d files", len(lines), len(files))
	}
	for _, line := range lines {
		sum, name, _ := strings.Cut(line, "  ")
		if got := fmt.Sprintf("%x", sha256.Sum256(product(t, name))); got != sum && !strings.HasSuffix(name, "json") {
			t.Errorf("%s has %s, not %s", name, got, sum)
		}
	}
}

// TestBOM: each file has a document that lists the modules, with licences.
func TestBOM(t *testing.T) {
	files := must(built())(t)
	documents := 0
	for _, name := range files {
		if strings.HasSuffix(name, ".cdx.json") || name == "SHA256SUMS" || isNPMMain(name) {
			continue
		}
		data := must(os.ReadFile(filepath.Join(dist, "dist", name)))(t)
		text := must(os.ReadFile(filepath.Join(dist, "dist", name+".cdx.json")))(t)
		type component struct {
			Name, Version string
			Hashes        []struct{ Content string }
			Licenses      []struct{ License struct{ ID string } }
			Properties    []struct{ Value string }
		}
		var b struct {
			BOMFormat    string
			Metadata     struct{ Component component }
			Components   []component
			Dependencies []struct{ DependsOn []string }
		}
		check(t, json.Unmarshal(text, &b))
		documents++
		if got, want := b.Metadata.Component.Hashes[0].Content, fmt.Sprintf("%x", sha256.Sum256(data)); got != want || b.BOMFormat != "CycloneDX" {
			t.Errorf("%s: the document is about %s, not %s", name, got, want)
		}
		raft := func(c component) bool {
			return c.Name == "github.com/hashicorp/raft" && len(c.Licenses) == 1 && c.Licenses[0].License.ID == "MPL-2.0" && strings.HasPrefix(c.Properties[0].Value, "h1:")
		}
		golang := func(c component) bool { return c.Name == "stdlib" && "go"+c.Version == runtime.Version() }
		if !slices.ContainsFunc(b.Components, raft) || !slices.ContainsFunc(b.Components, golang) || len(b.Dependencies[0].DependsOn) != len(b.Components) {
			t.Errorf("%s: %+v", name, b)
		}
	}
	if want := 3*(strings.Count(*platformsFlag, ",")+1) + 2*strings.Count(*platformsFlag, "linux") + 1; documents != want {
		t.Errorf("%d documents, should be %d", documents, want)
	}
}

// blob is a reference to a file in an image.
type blob struct {
	Digest   string
	Size     int
	Platform struct{ OS, Architecture string }
}

// imageConfig is the part of an image's configuration that the tests look at.
type imageConfig struct {
	OS, Architecture string
	Config           struct {
		User, WorkingDir     string
		Env, Entrypoint, Cmd []string
		ExposedPorts         map[string]any
	}
	RootFS struct {
		DiffIDs []string `json:"diff_ids"`
	}
}

// images returns the configuration and the layer for each architecture. The image must be what an OCI layout is:
// every blob has its digest, and is reached from the index.
func images(t *testing.T) (configs map[string]imageConfig, layers map[string][]byte) {
	t.Helper()
	files := unpack(t, product(t, "_oci.tar"))
	used := map[string]bool{"oci-layout": true, "index.json": true}
	read := func(b blob) []byte {
		name := "blobs/sha256/" + strings.TrimPrefix(b.Digest, "sha256:")
		used[name] = true
		if files[name] == nil {
			t.Fatalf("there is no %s", name)
		}
		data := files[name].data
		if fmt.Sprintf("sha256:%x", sha256.Sum256(data)) != b.Digest || len(data) != b.Size {
			t.Errorf("%s has another digest or size", name)
		}
		return data
	}
	decode := func(data []byte, into any) {
		check(t, json.Unmarshal(data, into))
	}
	var top, all struct{ Manifests []blob }
	decode(files["index.json"].data, &top)
	decode(read(top.Manifests[0]), &all)
	configs, layers = map[string]imageConfig{}, map[string][]byte{}
	for _, m := range all.Manifests {
		var manifest struct {
			Config blob
			Layers []blob
		}
		decode(read(m), &manifest)
		var config imageConfig
		decode(read(manifest.Config), &config)
		if config.OS != m.Platform.OS || config.Architecture != m.Platform.Architecture {
			t.Errorf("an image for %v in the place of one for %v", config, m.Platform)
		}
		configs[config.Architecture], layers[config.Architecture] = config, read(manifest.Layers[0])
	}
	for name := range files {
		if !used[name] {
			t.Errorf("nothing refers to %s", name)
		}
	}
	return configs, layers
}

// TestImageContents: each image has the program for its platform, and a directory for data that its user may write.
func TestImageContents(t *testing.T) {
	configs, layers := images(t)
	for arch, config := range configs {
		entries := unpack(t, layers[arch])
		if got := format(entries["bin/lockkeeper"].data); got != "linux/"+arch {
			t.Errorf("%s: the program is for %s", arch, got)
		}
		z := must(gzip.NewReader(bytes.NewReader(layers[arch])))(t)
		h := sha256.New()
		must(io.Copy(h, z))(t)
		if want := fmt.Sprintf("sha256:%x", h.Sum(nil)); !slices.Equal(config.RootFS.DiffIDs, []string{want}) {
			t.Errorf("%s: the layer is %s, not %q", arch, want, config.RootFS.DiffIDs)
		}
		_, exposed := config.Config.ExposedPorts["2181/tcp"]
		if data := entries["data/"]; data.h.Uid != nobody || data.h.Gid != nobody || data.h.Mode != 0o700 || config.Config.User != "65534:65534" || !exposed {
			t.Errorf("%s: %+v, %+v", arch, data.h, config.Config)
		}
	}
	if want := strings.Count(*platformsFlag, "linux"); len(configs) != want {
		t.Errorf("%d images, not %d", len(configs), want)
	}
}

// TestReproducible: a second build, elsewhere and with an empty cache, gives the same bytes. This
// test does it for one platform; 'make release' for all.
func TestReproducible(t *testing.T) {
	files := must(built())(t)
	t.Setenv("GOCACHE", filepath.Join(t.TempDir(), "cache"))
	second := options{root: "../..", out: t.TempDir(), platforms: []string{host}, pgo: "off"}
	again := must(second.build())(t)
	compared := 0
	for _, name := range again {
		if name == "SHA256SUMS" || strings.Contains(name, "_oci.tar") || !slices.Contains(files, name) {
			continue // of one platform only
		}
		a := must(os.ReadFile(filepath.Join(dist, "dist", name)))(t)
		b := must(os.ReadFile(filepath.Join(second.out, name)))(t)
		if compared++; !bytes.Equal(a, b) {
			t.Errorf("%s differs", name)
		}
	}
	if want := 11; compared != want && runtime.GOOS == "linux" { // archive, deb, rpm, npm, wheel, and their documents; npm without a program
		t.Errorf("compared %d files, should be %d: %q, %q", compared, want, files, again)
	}
}

// TestVersionOf: a tag must be the one that the source names.
func TestVersionOf(t *testing.T) {
	const commit = "0123456789abcdef"
	for _, x := range []struct {
		source string
		tags   []string
		want   string // "" for an error
	}{
		{`const Version = "0.2.0"`, nil, "0.2.0-dev.0123456789ab"},
		{`const Version = "0.2.0"`, []string{"v0.2.0"}, "0.2.0"},
		{`const Version = "0.2.0"`, []string{"v0.3.0"}, ""},
		{`var Version = "0.2.0"`, nil, ""},
	} {
		got, err := versionOf([]byte("package lockkeeper\n\n"+x.source+"\n"), x.tags, commit)
		if got != x.want || (err != nil) != (x.want == "") {
			t.Errorf("%+v: %q, %v", x, got, err)
		}
	}
}

// TestSPDX: licences are told apart, and an unknown one is not taken for another.
func TestSPDX(t *testing.T) {
	const bsd = "Redistribution and use in source and binary forms, with or\nwithout modification"
	for text, want := range map[string]string{
		"Apache License\n Version 2.0, January 2004":        "Apache-2.0",
		"Permission is hereby granted, free of\ncharge, to": "MIT",
		bsd:                                 "BSD-2-Clause",
		bsd + " Neither the name of Google": "BSD-3-Clause",
		"All rights reserved.":              "",
	} {
		if got := spdx(text); got != want {
			t.Errorf("%q: %q, not %q", text, got, want)
		}
	}
}

// TestWheels: each wheel is for its platform, by the program's own header, and for no other; its
// RECORD lists all files; and it has the licences of all that is in it.
func TestWheels(t *testing.T) {
	names := must(built())(t)
	wheels := map[string]bool{}
	for _, name := range names {
		if !strings.HasSuffix(name, ".whl") {
			continue
		}
		data := product(t, name)
		files := map[string][]byte{}
		z := must(zip.NewReader(bytes.NewReader(data), int64(len(data))))(t)
		var binary []byte
		for _, f := range z.File {
			r := must(f.Open())(t)
			files[f.Name] = must(io.ReadAll(r))(t)
			want := os.FileMode(0o644)
			if strings.HasPrefix(f.Name, wheelName+"/bin/lockkeeper") {
				binary, want = files[f.Name], 0o755
			}
			if f.Mode() != want {
				t.Errorf("%s: %s has mode %v", name, f.Name, f.Mode())
			}
			if f.Modified.Unix() != z.File[0].Modified.Unix() || f.Modified.Year() < 2020 {
				t.Errorf("%s: %s is of %v", name, f.Name, f.Modified)
			}
		}
		parts := strings.Split(strings.TrimSuffix(name, ".whl"), "-")
		if len(parts) != 5 || parts[0] != wheelName || parts[2] != "py3" || parts[3] != "none" {
			t.Errorf("%s is not the name of a wheel", name)
			continue
		}
		info := parts[0] + "-" + parts[1] + ".dist-info/"
		text := func(name string) string { return string(files[info+name]) }
		var tags []string
		for tag := range strings.SplitSeq(parts[4], ".") {
			tags = append(tags, tag)
			if !strings.Contains(text("WHEEL"), "\nTag: py3-none-"+tag+"\n") {
				t.Errorf("%s: WHEEL has no tag %s:\n%s", name, tag, text("WHEEL"))
			}
		}
		if strings.Count(text("WHEEL"), "\nTag: ") != len(tags) {
			t.Errorf("%s: WHEEL has other tags, too:\n%s", name, text("WHEEL"))
		}
		if runs := runsOn(t, binary); !slices.Equal(tags, runs) {
			t.Errorf("%s: the program runs on %q", name, runs)
		}
		wheels[format(binary)] = true
		lines := strings.Split(strings.TrimSuffix(text("RECORD"), "\n"), "\n")
		if len(lines) != len(files) {
			t.Errorf("%s: RECORD has %d lines for %d files", name, len(lines), len(files))
		}
		for _, line := range lines {
			fields := strings.Split(line, ",")
			sum := sha256.Sum256(files[fields[0]])
			want := fmt.Sprintf("%s,sha256=%s,%d", fields[0], base64.RawURLEncoding.EncodeToString(sum[:]), len(files[fields[0]]))
			if files[fields[0]] == nil || line != want && line != info+"RECORD,," {
				t.Errorf("%s: RECORD has %s", name, line)
			}
		}
		for _, want := range []string{"Name: pytest-lockkeeper\n", "\nVersion: " + parts[1] + "\n", "License-Expression: Apache-2.0 AND BSD-3-Clause AND MIT AND MPL-2.0\n", "Requires-Python: >=", "\nRequires-Dist: pytest>=7.4\n", "\n# pytest-lockkeeper\n"} {
			if !strings.Contains(text("METADATA"), want) {
				t.Errorf("%s: METADATA has no %q", name, want)
			}
		}
		if strings.Count(text("METADATA"), "Requires-Dist") != 1 {
			t.Errorf("%s needs other packages", name)
		}
		if !strings.Contains(text("licenses/THIRD_PARTY_LICENSES"), "\ngithub.com/hashicorp/raft v") || !strings.Contains(text("licenses/LICENSE"), "Apache License") {
			t.Errorf("%s has no licences", name)
		}
		if files[wheelName+"/__init__.py"] == nil || files[wheelName+"/py.typed"] == nil || text("entry_points.txt") != "[pytest11]\nlockkeeper = pytest_lockkeeper.plugin\n" {
			t.Errorf("%s: the package is not whole", name)
		}
	}
	for platform := range strings.SplitSeq(*platformsFlag, ",") {
		if !wheels[platform] {
			t.Errorf("there is no wheel for %s", platform)
		}
	}
}

// runsOn returns the tags of the platforms on which a program runs, by its header.
func runsOn(t *testing.T, binary []byte) []string {
	t.Helper()
	r := bytes.NewReader(binary)
	if f, err := elf.NewFile(r); err == nil {
		libraries, err := f.ImportedLibraries()
		if err != nil || len(libraries) > 0 || slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
			t.Errorf("the program is not static: %q, %v", libraries, err)
		}
		machine := map[elf.Machine]string{elf.EM_X86_64: "x86_64", elf.EM_AARCH64: "aarch64"}[f.Machine]
		return []string{"manylinux_2_17_" + machine, "manylinux2014_" + machine, "musllinux_1_1_" + machine}
	}
	if f, err := macho.NewFile(r); err == nil {
		for _, l := range f.Loads {
			const buildVersion = 0x32 // LC_BUILD_VERSION: command, size, platform, oldest version
			if raw := l.Raw(); f.ByteOrder.Uint32(raw) == buildVersion {
				oldest := f.ByteOrder.Uint32(raw[12:])
				return []string{fmt.Sprintf("macosx_%d_%d_%s", oldest>>16, oldest>>8&0xff, map[macho.Cpu]string{macho.CpuAmd64: "x86_64", macho.CpuArm64: "arm64"}[f.Cpu])}
			}
		}
		t.Error("the program does not say which macOS it needs")
		return nil
	}
	if f, err := pe.NewFile(r); err == nil {
		return []string{map[uint16]string{pe.IMAGE_FILE_MACHINE_AMD64: "win_amd64", pe.IMAGE_FILE_MACHINE_ARM64: "win_arm64"}[f.Machine]}
	}
	return nil
}

// TestPythonVersion: a commit before a release has an older version in Python's order, and what has
// no form that Python knows is refused.
func TestPythonVersion(t *testing.T) {
	for version, want := range map[string]string{"0.1.0": "0.1.0", "0.1.0-dev.0123456789ab": "0.1.0.dev0+g0123456789ab", "0.1.0-odd": ""} {
		if got, err := pythonVersion(version); got != want || (err != nil) != (want == "") {
			t.Errorf("%s: %q, %v", version, got, err)
		}
	}
}
