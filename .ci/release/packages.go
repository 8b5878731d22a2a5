package main

import (
	"bytes"
	"cmp"
	"crypto/md5"
	"embed"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/google/rpmpack"
)

// packaged are files of the packages for Debian and RPM.
//
//go:embed files
var packaged embed.FS

const (
	configPath  = "etc/lockkeeper/zoo.cfg"
	summary     = "lock coordinator that speaks ZooKeeper's protocol"
	description = "Lockkeeper serves unmodified ZooKeeper clients and their lock recipes, alone or\nas a cluster, without Java. The service is not started by itself: see\n/etc/lockkeeper/zoo.cfg, then run 'systemctl enable --now lockkeeper'; for\na new cluster, with --no-block on each machine."
	homepage    = "https://github.com/lockkeeper/lockkeeper"
	authors     = "The lockkeeper authors <noreply@github.com>"
)

// installs returns the files that a package installs, with names from the root, sorted. zsh is the
// directory for completions, and doc that for licences, which depend on the distribution.
func (r *release) installs(p *program, zsh, licences string) (files []file) {
	add := func(name string, mode int64, data []byte) {
		files = append(files, file{name: name, mode: mode, data: data})
	}
	add("usr/bin/lockkeeper", 0o755, p.binary)
	add(configPath, 0o644, installed("zoo.cfg"))
	add("usr/lib/systemd/system/lockkeeper.service", 0o644, installed("lockkeeper.service"))
	add("usr/lib/sysusers.d/lockkeeper.conf", 0o644, installed("sysusers.conf"))
	add(licences+"/THIRD_PARTY_LICENSES", 0o644, p.licences)
	for _, f := range r.common {
		switch base := path.Base(f.name); {
		case strings.HasPrefix(f.name, "man/"):
			add("usr/share/man/man1/"+base+".gz", 0o644, gz(f.data))
		case base == "lockkeeper.bash":
			add("usr/share/bash-completion/completions/lockkeeper", 0o644, f.data)
		case base == "_lockkeeper":
			add(zsh+"/"+base, 0o644, f.data)
		case base == "lockkeeper.fish":
			add("usr/share/fish/vendor_completions.d/"+base, 0o644, f.data)
		case f.name == "LICENSE":
			name := base
			if strings.HasPrefix(licences, "usr/share/doc/") {
				name = "copyright" // where Debian's users look for it
			}
			add(licences+"/"+name, 0o644, f.data)
		case f.name == "README.md" || f.name == "CHANGELOG.md":
			add("usr/share/doc/lockkeeper/"+base, 0o644, f.data)
		}
	}
	slices.SortFunc(files, func(a, b file) int { return cmp.Compare(a.name, b.name) })
	return files
}

// installed returns a file of a package, or a script that it runs.
func installed(name string) []byte {
	data, err := packaged.ReadFile("files/" + name)
	if err != nil {
		panic(err) // it is embedded
	}
	return data
}

// deb writes a package for Debian: an ar archive of two tar.gz.
func (r *release) deb(p *program) error {
	files := r.installs(p, "usr/share/zsh/vendor-completions", "usr/share/doc/lockkeeper")
	var sums bytes.Buffer
	size := 0
	for _, f := range files {
		fmt.Fprintf(&sums, "%x  %s\n", md5.Sum(f.data), f.name)
		size += len(f.data)
	}
	// A description's further lines begin with a space.
	control := fmt.Sprintf("Package: lockkeeper\nVersion: %s\nArchitecture: %s\nMaintainer: %s\nInstalled-Size: %d\nSection: net\nPriority: optional\nHomepage: %s\nDescription: %s\n %s\n",
		r.packageVersion(), p.arch, authors, (size+1023)/1024, homepage, summary, strings.ReplaceAll(description, "\n", "\n "))
	controlTar, err := tarGz([]file{
		{name: "./", mode: 0o755},
		{name: "./conffiles", mode: 0o644, data: []byte("/" + configPath + "\n")},
		{name: "./control", mode: 0o644, data: []byte(control)},
		{name: "./md5sums", mode: 0o644, data: sums.Bytes()},
		{name: "./postinst", mode: 0o755, data: installed("deb.postinst")},
		{name: "./postrm", mode: 0o755, data: installed("deb.postrm")},
		{name: "./prerm", mode: 0o755, data: installed("deb.prerm")},
	}, r.time)
	if err != nil {
		return err
	}
	dataTar, err := tarGz(withDirectories(files), r.time)
	if err != nil {
		return err
	}
	var ar bytes.Buffer
	ar.WriteString("!<arch>\n")
	for _, f := range []file{{name: "debian-binary", data: []byte("2.0\n")}, {name: "control.tar.gz", data: controlTar}, {name: "data.tar.gz", data: dataTar}} {
		fmt.Fprintf(&ar, "%-16s%-12d%-6d%-6d%-8s%-10d`\n", f.name, r.time.Unix(), 0, 0, "100644", len(f.data))
		ar.Write(f.data)
		if ar.Len()%2 == 1 {
			ar.WriteByte('\n')
		}
	}
	return r.write(fmt.Sprintf("lockkeeper_%s_%s.deb", r.packageVersion(), p.arch), ar.Bytes(), p)
}

// withDirectories returns sorted files with their directories before them, all below "./".
func withDirectories(files []file) (all []file) {
	seen := map[string]bool{}
	for _, f := range files {
		parts := strings.SplitAfter("./"+f.name, "/")
		for i := 1; i < len(parts); i++ {
			if dir := strings.Join(parts[:i], ""); !seen[dir] {
				seen[dir] = true
				all = append(all, file{name: dir, mode: 0o755})
			}
		}
		f.name = "./" + f.name
		all = append(all, f)
	}
	return all
}

// rpm writes a package for RPM.
func (r *release) rpm(p *program) error {
	arch := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[p.arch]
	pack, err := rpmpack.NewRPM(rpmpack.RPMMetaData{
		Name: "lockkeeper", Summary: summary, Description: description, Version: r.packageVersion(), Release: "1", Arch: arch,
		URL: homepage, Packager: authors, Licence: "Apache-2.0", BuildHost: "localhost", Compressor: "gzip", Epoch: rpmpack.NoEpoch, BuildTime: r.time,
	})
	if err != nil {
		return err
	}
	for _, f := range r.installs(p, "usr/share/zsh/site-functions", "usr/share/licenses/lockkeeper") {
		kind := rpmpack.GenericFile
		switch {
		case f.name == configPath:
			kind = rpmpack.ConfigFile | rpmpack.NoReplaceFile
		case strings.HasPrefix(f.name, "usr/share/licenses/"):
			kind = rpmpack.LicenceFile
		case strings.HasPrefix(f.name, "usr/share/doc/"), strings.HasPrefix(f.name, "usr/share/man/"):
			kind = rpmpack.DocFile
		}
		pack.AddFile(rpmpack.RPMFile{Name: "/" + f.name, Body: f.data, Mode: uint(0o100000 | f.mode), Owner: "root", Group: "root", MTime: uint32(r.time.Unix()), Type: kind})
	}
	pack.AddPostin(string(installed("rpm.postin")))
	pack.AddPreun(string(installed("rpm.preun")))
	pack.AddPostun(string(installed("rpm.postun")))
	var b bytes.Buffer
	if err := pack.Write(&b); err != nil {
		return err
	}
	return r.write(fmt.Sprintf("lockkeeper-%s-1.%s.rpm", r.packageVersion(), arch), b.Bytes(), p)
}
