// Package overlay builds this module with edited source files, for tests that plant faults. The
// repository's files stay as they are: go build -overlay replaces them in one build.
package overlay

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// An Edit has the name of a file, from the root of the module, a text that the file has exactly
// once, and what replaces that.
type Edit [3]string

// Apply returns the texts of the files of the module at root that edits change, by name. Its
// error names every edit that does not fit, and what to do about it.
func Apply(root string, edits ...Edit) (files map[string]string, err error) {
	files = map[string]string{}
	for _, e := range edits {
		name, old, new := e[0], e[1], e[2]
		text, ok := files[name]
		if !ok {
			b, readErr := os.ReadFile(filepath.Join(root, name))
			if readErr != nil {
				err = errors.Join(err, readErr)
				continue
			}
			text = string(b)
		}
		if n := strings.Count(text, old); n != 1 {
			err = errors.Join(err, fmt.Errorf("%s has %q %d times, should be once: adapt the edit", name, old, n))
		}
		files[name] = strings.Replace(text, old, new, 1)
	}
	return files, err
}

// Write writes files, which are texts by their names from root, to dir, and a list of them. It
// returns the path of the list, for go build -overlay.
func Write(root, dir string, files map[string]string) (list string, err error) {
	var all struct{ Replace map[string]string }
	all.Replace = map[string]string{}
	for name, text := range files {
		from, err := filepath.Abs(filepath.Join(root, name))
		if err != nil {
			return "", err
		}
		to := filepath.Join(dir, strings.ReplaceAll(name, "/", "-"))
		if err := os.WriteFile(to, []byte(text), 0o600); err != nil {
			return "", err
		}
		all.Replace[from] = to
	}
	b, err := json.Marshal(all)
	if err != nil {
		return "", err
	}
	list = filepath.Join(dir, "overlay.json")
	return list, os.WriteFile(list, b, 0o600)
}
