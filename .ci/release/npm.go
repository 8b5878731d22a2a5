package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// The packages for npm (docs/packages.md): npmName with the JavaScript, and one for each platform
// with the program.
const (
	npmName      = "lockkeeper"
	npmSource    = "packages/npm"
	npmNoVersion = `"version": "0.0.0",` // in npmSource's package.json, and replaced
)

// npmOS and npmCPU are Node's names for Go's platforms.
var (
	npmOS  = map[string]string{"linux": "linux", "darwin": "darwin", "windows": "win32"}
	npmCPU = map[string]string{"amd64": "x64", "arm64": "arm64"}
)

// npmPlatform returns the name of the package for a platform of Go.
func npmPlatform(platform string) string {
	goos, goarch, _ := strings.Cut(platform, "/")
	return fmt.Sprintf("%s-%s-%s", npmName, npmOS[goos], npmCPU[goarch])
}

// npmVersion is the version in a form that SemVer allows for each commit: a part may not be a number
// that begins with 0.
func (r *release) npmVersion() string { return strings.Replace(r.version, "-dev.", "-dev.g", 1) }

// npmProgram writes the package with the program for a platform. It is static on Linux, so there
// is one package for all C libraries.
func (r *release) npmProgram(p *program) error {
	name := npmPlatform(p.os + "/" + p.arch)
	manifest, err := json.MarshalIndent(object{
		"name": name, "version": r.npmVersion(), "description": "The program of the package " + npmName + " for " + npmOS[p.os] + " on " + npmCPU[p.arch],
		"license":    p.allLicences(),
		"repository": object{"type": "git", "url": "git+" + homepage + ".git"},
		"os":         []string{npmOS[p.os]}, "cpu": []string{npmCPU[p.arch]},
		"preferUnplugged": true, // Yarn shall not leave it in a zip file, where it cannot be started
	}, "", "  ")
	if err != nil {
		return err
	}
	binary := "bin/lockkeeper"
	if p.os == "windows" {
		binary += ".exe"
	}
	data, err := r.npmTar([]file{
		{name: "package.json", data: append(manifest, '\n')},
		{name: binary, mode: 0o755, data: p.binary},
		{name: "README.md", data: fmt.Appendf(nil, "The program of the package [%[1]s](https://www.npmjs.com/package/%[1]s) for %s on %s. Install %[1]s, which chooses this package.\n", npmName, npmOS[p.os], npmCPU[p.arch])},
		{name: "THIRD_PARTY_LICENSES", data: p.licences},
	})
	if err != nil {
		return err
	}
	return r.write(name+"-"+r.npmVersion()+".tgz", data, p)
}

// npmMain writes the package with the JavaScript. Those with the program depend on the platform, so
// they are optional.
func (r *release) npmMain() error {
	files, err := r.sources(npmSource)
	if err != nil {
		return err
	}
	for i := range files {
		if files[i].name == "package.json" {
			if files[i].data, err = r.npmComplete(files[i].data); err != nil {
				return err
			}
		}
	}
	data, err := r.npmTar(files)
	if err != nil {
		return err
	}
	// It contains no program, so there is no list of what is linked.
	name := npmName + "-" + r.npmVersion() + ".tgz"
	r.made = append(r.made, name)
	return os.WriteFile(filepath.Join(r.out, name), data, 0o644)
}

// npmComplete puts the version and the packages with the program into a package.json. It changes the
// text, since the order of "exports" matters.
func (r *release) npmComplete(manifest []byte) ([]byte, error) {
	if bytes.Count(manifest, []byte(npmNoVersion)) != 1 {
		return nil, fmt.Errorf("%s/package.json must have the line %s once", npmSource, npmNoVersion)
	}
	var lines []string
	for _, platform := range allPlatforms {
		lines = append(lines, fmt.Sprintf("    %q: %q", npmPlatform(platform), r.npmVersion()))
	}
	full := fmt.Sprintf("\"version\": %q,\n  \"optionalDependencies\": {\n%s\n  },", r.npmVersion(), strings.Join(lines, ",\n"))
	return bytes.Replace(manifest, []byte(npmNoVersion), []byte(full), 1), nil
}

// npmTar returns what npm calls a tarball: its files are in the directory package.
func (r *release) npmTar(files []file) ([]byte, error) {
	files = append(files, file{name: "LICENSE", data: r.common[0].data})
	for i := range files {
		files[i].name = "package/" + files[i].name
		if files[i].mode == 0 {
			files[i].mode = 0o644
		}
	}
	return tarGz(files, r.time)
}
