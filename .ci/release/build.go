package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"
)

type options struct {
	root      string // the checkout
	out       string // where the files go
	platforms []string
	only      []string // the kinds of files to build; all if empty
	pgo       string
}

type release struct {
	options
	src string // a clone of the commit
	// gitConfig replaces the user's: it lets git read a checkout of another user, as in CI.
	gitConfig string
	version   string // 0.1.0, or 0.1.0-dev.COMMIT for a commit without a tag
	commit    string
	time      time.Time // of the commit; every file in every archive has it
	common    []file    // what every archive has, beside the program and the licences; the first one is LICENSE
	made      []string  // names of the files in out
}

// program is lockkeeper for one platform.
type program struct {
	os, arch string
	binary   []byte
	modules  []module // that are linked into it, sorted by path; the first one is Go
	licences []byte   // of all modules
}

// file is a file, or a directory if its name ends with a slash, in an archive.
type file struct {
	name string
	mode int64
	data []byte
	uid  int // and gid
}

// kinds are the files that are built for each platform, or only for Linux.
var kinds = []struct {
	name  string
	linux bool
	build func(*release, *program) error
}{
	{"archive", false, (*release).archive},
	{"deb", true, (*release).deb},
	{"rpm", true, (*release).rpm},
	{"npm", false, (*release).npmProgram},
	{"wheel", false, (*release).wheel},
}

// kindImage is built once, from the programs for Linux.
const kindImage = "image"

// wants returns whether files of a kind are to be built.
func (o *options) wants(kind string) bool { return len(o.only) == 0 || slices.Contains(o.only, kind) }

func (o options) build() (names []string, err error) {
	if o.root, err = filepath.Abs(o.root); err != nil {
		return nil, err
	}
	if there, err := os.ReadDir(o.out); err == nil && len(there) > 0 {
		return nil, fmt.Errorf("%s is not empty", o.out)
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return nil, err
	}
	work, err := os.MkdirTemp("", "lockkeeper-release-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(work)
	r := &release{options: o, src: filepath.Join(work, "src"), gitConfig: filepath.Join(work, "gitconfig")}
	if err := os.WriteFile(r.gitConfig, []byte("[safe]\n\tdirectory = *\n"), 0o600); err != nil {
		return nil, err
	}
	if err := r.checkout(); err != nil {
		return nil, err
	}
	host := runtime.GOOS + "/" + runtime.GOARCH
	o.say("%s: the program for this machine", r.version)
	hostBinary := filepath.Join(work, "host")
	if err := r.compile(host, hostBinary); err != nil {
		return nil, err
	}
	if err := r.texts(hostBinary); err != nil {
		return nil, err
	}
	var linux []*program
	for i, platform := range o.platforms {
		o.say("%s, %d of %d", platform, i+1, len(o.platforms))
		path := hostBinary
		if platform != host {
			path = filepath.Join(work, strings.ReplaceAll(platform, "/", "-"))
			if err := r.compile(platform, path); err != nil {
				return nil, err
			}
		}
		p, err := r.program(platform, path)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", platform, err)
		}
		for _, k := range kinds {
			if r.wants(k.name) && (p.os == "linux" || !k.linux) {
				if err := k.build(r, p); err != nil {
					return nil, fmt.Errorf("%s for %s: %w", k.name, platform, err)
				}
			}
		}
		if p.os == "linux" {
			linux = append(linux, p)
		}
	}
	if r.wants("npm") {
		if err := r.npmMain(); err != nil {
			return nil, err
		}
	}
	if len(linux) > 0 && r.wants(kindImage) {
		if err := r.image(linux); err != nil {
			return nil, err
		}
	}
	return r.made, r.sums()
}

// say tells how far the build is.
func (o *options) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "release: "+format+"\n", args...)
}

// checkout clones the commit, so that what is not committed has no part in a release, and finds out
// its version.
func (r *release) checkout() error {
	commit, err := r.git(r.root, "rev-parse", "HEAD")
	if err != nil {
		return err
	}
	if changed, err := r.git(r.root, "status", "--porcelain"); err != nil {
		return err
	} else if changed != "" {
		fmt.Fprintf(os.Stderr, "release: what is not committed is not part of it:\n%s\n", changed)
	}
	if _, err := r.git(".", "clone", "--quiet", "--no-checkout", r.root, r.src); err != nil {
		return err
	}
	if _, err := r.git(r.src, "checkout", "--quiet", "--detach", commit); err != nil {
		return err
	}
	at, err := r.git(r.src, "show", "-s", "--format=%cI", "HEAD")
	if err != nil {
		return err
	}
	if r.time, err = time.Parse(time.RFC3339, at); err != nil {
		return err
	}
	r.time = r.time.UTC()
	tags, err := r.git(r.src, "tag", "--points-at", "HEAD", "v*")
	if err != nil {
		return err
	}
	source, err := os.ReadFile(filepath.Join(r.src, "lockkeeper.go"))
	if err != nil {
		return err
	}
	r.commit = commit
	r.version, err = versionOf(source, strings.Fields(tags), commit)
	return err
}

var versionConst = regexp.MustCompile(`(?m)^const Version = "(.+)"$`)

// versionOf returns the version of a commit, whose source names one. If the commit has tags, one of
// them must be for that version.
func versionOf(source []byte, tags []string, commit string) (string, error) {
	m := versionConst.FindSubmatch(source)
	if m == nil {
		return "", errors.New("lockkeeper.go has no constant Version")
	}
	version := string(m[1])
	switch {
	case len(tags) == 0:
		return version + "-dev." + commit[:12], nil
	case !slices.Contains(tags, "v"+version):
		return "", fmt.Errorf("the commit has the tag %s, but its constant Version is %s", strings.Join(tags, ", "), version)
	}
	return version, nil
}

// packageVersion is the version for Debian's and RPM's order: ~ comes before the release.
func (r *release) packageVersion() string { return strings.Replace(r.version, "-", "~", 1) }

func (r *release) git(dir string, args ...string) (string, error) {
	return output(dir, []string{"GIT_CONFIG_GLOBAL=" + r.gitConfig}, "git", args...)
}

// output runs a command and returns what it prints.
func output(dir string, env []string, name string, args ...string) (string, error) {
	c := exec.Command(name, args...)
	var stderr bytes.Buffer
	c.Dir, c.Stderr = dir, &stderr
	c.Env = slices.Concat(os.Environ(), env)
	out, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, &stderr)
	}
	return strings.TrimSpace(string(out)), nil
}

// goEnv is the environment of go for a platform. Nothing that it inherits changes what is built.
func (r *release) goEnv(platform string) []string {
	goos, goarch, _ := strings.Cut(platform, "/")
	return []string{"GOOS=" + goos, "GOARCH=" + goarch, "CGO_ENABLED=0", "GOAMD64=v1", "GOARM64=v8.0", "GOFLAGS=-mod=readonly", "GOWORK=off", "GOEXPERIMENT=", "GODEBUG=", "GIT_CONFIG_GLOBAL=" + r.gitConfig}
}

func (r *release) compile(platform, path string) error {
	_, err := output(r.src, r.goEnv(platform), "go", "build", "-trimpath", "-buildvcs=true", "-ldflags=-s -w", "-pgo="+r.pgo, "-o", path, "./cmd/lockkeeper")
	return err
}

// texts collects what is the same on all platforms.
func (r *release) texts(binary string) error {
	for _, name := range []string{"LICENSE", "README.md", "CHANGELOG.md"} {
		data, err := os.ReadFile(filepath.Join(r.src, name))
		if err != nil {
			return err
		}
		r.common = append(r.common, file{name: name, mode: 0o644, data: data})
	}
	man, err := os.MkdirTemp(filepath.Dir(r.src), "man")
	if err != nil {
		return err
	}
	// With the flags of compile, Go finds what that has compiled.
	if _, err := output(r.src, r.goEnv(runtime.GOOS+"/"+runtime.GOARCH), "go", "test", "-trimpath", "-pgo="+r.pgo, "-vet=off", "./cmd/lockkeeper", "-run", "^TestManPages$", "-man", man); err != nil {
		return err
	}
	pages, err := os.ReadDir(man)
	if err != nil {
		return err
	}
	for _, page := range pages {
		data, e := os.ReadFile(filepath.Join(man, page.Name()))
		r.common = append(r.common, file{name: "man/" + page.Name(), mode: 0o644, data: data})
		err = errors.Join(err, e)
	}
	for _, x := range [][2]string{{"bash", "lockkeeper.bash"}, {"zsh", "_lockkeeper"}, {"fish", "lockkeeper.fish"}, {"powershell", "lockkeeper.ps1"}} {
		text, e := output(r.src, nil, binary, "completion", x[0])
		r.common = append(r.common, file{name: "completions/" + x[1], mode: 0o644, data: []byte(text + "\n")})
		err = errors.Join(err, e)
	}
	return err
}

// program reads a binary, and what is linked into it.
func (r *release) program(platform, path string) (*program, error) {
	p := &program{}
	p.os, p.arch, _ = strings.Cut(platform, "/")
	var err error
	if p.binary, err = os.ReadFile(path); err != nil {
		return nil, err
	}
	info, err := buildinfo.Read(bytes.NewReader(p.binary))
	if err != nil {
		return nil, err
	}
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	if settings["vcs.revision"] != r.commit || settings["vcs.modified"] != "false" || settings["GOOS"] != p.os || settings["GOARCH"] != p.arch {
		return nil, fmt.Errorf("the program was built from something else: %v", settings)
	}
	return p, r.link(p, info)
}

// base is the name of a file for a platform, without what follows the last dot.
func (r *release) base(p *program) string {
	return fmt.Sprintf("lockkeeper_%s_%s_%s", r.version, p.os, p.arch)
}

// write writes a file of the release, and what it contains.
func (r *release) write(name string, data []byte, contains ...*program) error {
	bom, err := r.bom(name, data, contains)
	if err != nil {
		return err
	}
	for _, f := range []file{{name: name, data: data}, {name: name + ".cdx.json", data: bom}} {
		if err := os.WriteFile(filepath.Join(r.out, f.name), f.data, 0o644); err != nil {
			return err
		}
		r.made = append(r.made, f.name)
	}
	return nil
}

// sums writes the checksums of all files.
func (r *release) sums() error {
	slices.Sort(r.made)
	var b strings.Builder
	for _, name := range r.made {
		data, err := os.ReadFile(filepath.Join(r.out, name))
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%x  %s\n", sha256.Sum256(data), name)
	}
	r.made = append(r.made, "SHA256SUMS")
	return os.WriteFile(filepath.Join(r.out, "SHA256SUMS"), []byte(b.String()), 0o644)
}

// sources returns the files of a directory of the commit, sorted, with names from there.
func (r *release) sources(dir string) (files []file, err error) {
	root := os.DirFS(filepath.Join(r.src, dir))
	err = fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := fs.ReadFile(root, name)
		files = append(files, file{name: name, mode: 0o644, data: data})
		return err
	})
	return files, err
}
