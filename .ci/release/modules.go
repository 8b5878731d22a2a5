package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// module is a module that is linked into a program.
type module struct {
	path, version, sum string
	licences           []string // SPDX identifiers
}

var licenceName = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)([.-].*)?$`)

// link finds the modules that are linked into a program, and their licences. It fails if it does
// not know one of them.
func (r *release) link(p *program, info *buildinfo.BuildInfo) error {
	env := r.goEnv(p.os + "/" + p.arch)
	goroot, err := output(r.src, env, "go", "env", "GOROOT")
	if err != nil {
		return err
	}
	// The licences of a module are those that lie at its root, and those on the way from there to a
	// package that is linked.
	list, err := output(r.src, env, "go", "list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}}\t{{.Dir}}\t{{$.Dir}}{{end}}{{end}}", "./cmd/lockkeeper")
	if err != nil {
		return err
	}
	dirs := map[string]string{}               // of modules
	files := map[string]map[string]struct{}{} // names of files with licences, by module
	for line := range strings.Lines(list) {
		of := strings.Split(strings.TrimSpace(line), "\t") // module, its directory, that of a package
		dirs[of[0]] = of[1]
		if files[of[0]] == nil {
			files[of[0]] = map[string]struct{}{}
		}
		for dir := of[2]; ; dir = filepath.Dir(dir) {
			entries, err := os.ReadDir(dir)
			if err != nil {
				return err
			}
			for _, e := range entries {
				if licenceName.MatchString(e.Name()) && !e.IsDir() {
					files[of[0]][filepath.Join(dir, e.Name())] = struct{}{}
				}
			}
			if len(dir) <= len(of[1]) {
				break
			}
		}
	}
	var text bytes.Buffer
	text.WriteString("The program lockkeeper contains the following, under these licences.\n")
	add := func(m module, dir string, names []string) error {
		fmt.Fprintf(&text, "\n%s\n%s %s\n", strings.Repeat("=", 80), m.path, m.version)
		for _, name := range names {
			b, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			inside, err := filepath.Rel(dir, name)
			if err != nil {
				return err
			}
			fmt.Fprintf(&text, "\n--- %s\n\n%s\n", filepath.ToSlash(inside), bytes.TrimSpace(b))
			if id := spdx(string(b)); id != "" && !slices.Contains(m.licences, id) {
				m.licences = append(m.licences, id)
			}
		}
		if len(m.licences) == 0 {
			return fmt.Errorf("%s %s has no licence that this program knows, in %q", m.path, m.version, names)
		}
		p.modules = append(p.modules, m)
		return nil
	}
	if err := add(module{path: "stdlib", version: strings.TrimPrefix(info.GoVersion, "go")}, goroot, []string{filepath.Join(goroot, "LICENSE")}); err != nil {
		return err
	}
	for _, d := range info.Deps {
		if d.Replace != nil {
			return fmt.Errorf("%s is replaced", d.Path)
		}
		if dirs[d.Path] == "" {
			return fmt.Errorf("no package of %s is linked, but it is in the program", d.Path)
		}
		if err := add(module{path: d.Path, version: d.Version, sum: d.Sum}, dirs[d.Path], slices.Sorted(maps.Keys(files[d.Path]))); err != nil {
			return err
		}
	}
	p.licences = text.Bytes()
	return nil
}

// allLicences returns the licences of all that is in a package with the program, as npm and Python want them.
func (p *program) allLicences() string {
	licences := []string{"Apache-2.0"}
	for _, m := range p.modules {
		licences = append(licences, m.licences...)
	}
	slices.Sort(licences)
	return strings.Join(slices.Compact(licences), " AND ")
}

// spdx returns the SPDX identifier of a licence, or "".
func spdx(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	has := func(part string) bool { return strings.Contains(text, part) }
	switch {
	case has("Apache License") && has("Version 2.0"):
		return "Apache-2.0"
	case has("Mozilla Public License") && has("2.0"):
		return "MPL-2.0"
	case has("Permission is hereby granted, free of charge"):
		return "MIT"
	case has("Redistribution and use in source and binary forms") && (has("endorse or promote") || has("Neither the name")):
		return "BSD-3-Clause"
	case has("Redistribution and use in source and binary forms"):
		return "BSD-2-Clause"
	}
	return ""
}

type object map[string]any

func bomLicences(ids ...string) (all []object) {
	for _, id := range ids {
		all = append(all, object{"license": object{"id": id}})
	}
	return all
}

// bom returns the CycloneDX document (version 1.5) about a file, which contains programs.
func (r *release) bom(name string, data []byte, contains []*program) ([]byte, error) {
	if len(contains) == 0 {
		return nil, errors.New(name + " contains nothing")
	}
	sum := sha256.Sum256(data)
	uuid := sha256.Sum256([]byte(name + string(sum[:])))
	uuid[6], uuid[8] = uuid[6]&0x0f|0x80, uuid[8]&0x3f|0x80 // version 8: made by a rule of one's own
	about := object{
		"bom-ref": name, "type": "application", "name": "lockkeeper", "version": r.version, "purl": "pkg:golang/github.com/lockkeeper/lockkeeper@v" + r.version,
		"hashes": []object{{"alg": "SHA-256", "content": fmt.Sprintf("%x", sum)}}, "licenses": bomLicences("Apache-2.0"),
		"properties": []object{{"name": "lockkeeper:file", "value": name}, {"name": "lockkeeper:commit", "value": r.commit}},
	}
	refs, components := []string{}, []object{}
	for _, p := range contains {
		for _, m := range p.modules {
			purl := "pkg:golang/" + m.path + "@" + strings.ReplaceAll(m.version, "+", "%2B")
			if slices.Contains(refs, purl) {
				continue
			}
			refs = append(refs, purl)
			c := object{"bom-ref": purl, "type": "library", "name": m.path, "version": m.version, "purl": purl, "licenses": bomLicences(m.licences...)}
			if m.sum != "" {
				c["properties"] = []object{{"name": "go:sum", "value": m.sum}}
			}
			components = append(components, c)
		}
	}
	text, err := json.MarshalIndent(object{
		"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
		"serialNumber": fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", uuid[:4], uuid[4:6], uuid[6:8], uuid[8:10], uuid[10:16]),
		"metadata":     object{"timestamp": r.time.Format(time.RFC3339), "component": about},
		"components":   components,
		"dependencies": []object{{"ref": name, "dependsOn": refs}},
	}, "", "  ")
	return append(text, '\n'), err
}
