package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// The distribution is called pytest-lockkeeper, since lockkeeper on PyPI is something else.
const (
	wheelName   = "pytest_lockkeeper" // also the name to import
	wheelSource = "packages/python"
	minPython   = "3.10"
)

// wheelTags are the platforms, in Python's names, on which the program of a release runs. It is
// static on Linux, so neither glibc nor musl matters; Go needs macOS 12.
var wheelTags = map[string][]string{
	"linux/amd64":   {"manylinux_2_17_x86_64", "manylinux2014_x86_64", "musllinux_1_1_x86_64"},
	"linux/arm64":   {"manylinux_2_17_aarch64", "manylinux2014_aarch64", "musllinux_1_1_aarch64"},
	"darwin/amd64":  {"macosx_12_0_x86_64"},
	"darwin/arm64":  {"macosx_12_0_arm64"},
	"windows/amd64": {"win_amd64"},
	"windows/arm64": {"win_arm64"},
}

// wheel writes the package for Python programs, with the program in it (docs/packages.md).
func (r *release) wheel(p *program) error {
	tags := wheelTags[p.os+"/"+p.arch]
	if tags == nil {
		return fmt.Errorf("there is no name for %s/%s in Python", p.os, p.arch)
	}
	version, err := pythonVersion(r.version)
	if err != nil {
		return err
	}
	files, err := r.sources(wheelSource + "/src")
	if err != nil {
		return err
	}
	program := wheelName + "/bin/lockkeeper"
	if p.os == "windows" {
		program += ".exe"
	}
	files = append(files, file{name: program, mode: 0o755, data: p.binary})
	readme, err := os.ReadFile(filepath.Join(r.src, wheelSource, "README.md"))
	if err != nil {
		return err
	}
	info := wheelName + "-" + version + ".dist-info/"
	for _, f := range []file{
		{name: "METADATA", data: wheelMetadata(p, version, readme)},
		{name: "WHEEL", data: []byte("Wheel-Version: 1.0\nGenerator: lockkeeper-release (" + version + ")\nRoot-Is-Purelib: false\nTag: py3-none-" + strings.Join(tags, "\nTag: py3-none-") + "\n")},
		{name: "entry_points.txt", data: []byte("[pytest11]\nlockkeeper = " + wheelName + ".plugin\n")},
		{name: "licenses/LICENSE", data: r.common[0].data},
		{name: "licenses/THIRD_PARTY_LICENSES", data: p.licences},
	} {
		f.name, f.mode = info+f.name, 0o644
		files = append(files, f)
	}
	files = append(files, file{name: info + "RECORD", mode: 0o644, data: wheelRecord(files, info+"RECORD")})
	data, err := zipOf(files, r.time)
	if err != nil {
		return err
	}
	return r.write(fmt.Sprintf("%s-%s-py3-none-%s.whl", wheelName, version, strings.Join(tags, ".")), data, p)
}

// wheelMetadata returns what pip and PyPI show. The licence is that of all that is in the wheel.
func wheelMetadata(p *program, version string, readme []byte) []byte {
	return []byte(strings.Join([]string{
		"Metadata-Version: 2.4",
		"Name: pytest-lockkeeper",
		"Version: " + version,
		"Summary: A ZooKeeper for tests, without Java: starts in milliseconds, ends sessions, injects faults, judges locks",
		"Keywords: zookeeper,kazoo,pytest,lock,testing",
		"License-Expression: " + p.allLicences(),
		"License-File: LICENSE",
		"License-File: THIRD_PARTY_LICENSES",
		"Classifier: Framework :: Pytest",
		"Classifier: Programming Language :: Python :: 3 :: Only",
		"Classifier: Topic :: Software Development :: Testing",
		"Classifier: Typing :: Typed",
		"Project-URL: Homepage, " + homepage,
		"Requires-Python: >=" + minPython,
		"Requires-Dist: pytest>=7.4",
		"Description-Content-Type: text/markdown",
		"",
		string(readme),
	}, "\n"))
}

// wheelRecord lists the files with their checksums, and itself without.
func wheelRecord(files []file, self string) []byte {
	var b bytes.Buffer
	for _, f := range files {
		sum := sha256.Sum256(f.data)
		fmt.Fprintf(&b, "%s,sha256=%s,%d\n", f.name, base64.RawURLEncoding.EncodeToString(sum[:]), len(f.data))
	}
	b.WriteString(self + ",,\n")
	return b.Bytes()
}

var wheelVersion = regexp.MustCompile(`^(\d+\.\d+\.\d+)(?:-dev\.([0-9a-f]+))?$`)

// pythonVersion returns a version in Python's form, in which a commit before the release is older
// than it.
func pythonVersion(version string) (string, error) {
	m := wheelVersion.FindStringSubmatch(version)
	switch {
	case m == nil:
		return "", fmt.Errorf("%s has no form that Python knows", version)
	case m[2] == "":
		return m[1], nil
	}
	return m[1] + ".dev0+g" + m[2], nil
}
