//go:build interop

package interop

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"slices"
	"sync"

	"github.com/lockkeeper/lockkeeper/spec"
)

var builtFollowed = sync.OnceValues(func() (string, error) { return build("lockkeeper-followed", "-tags", "trace") })

// followed has the servers write down what they do, for judge. It must be called before they are started.
func (e *ensemble) followed() *ensemble {
	e.t.Helper()
	path, err := builtFollowed()
	if err != nil {
		e.t.Fatal(err)
	}
	for i := range e.runs {
		e.runs[i] = path
	}
	return e
}

// judge has the automata of package spec follow what the servers did, which must have ended. All of them have the clock of
// this machine.
func (e *ensemble) judge() {
	e.t.Helper()
	var steps []spec.Event
	for i := range e.procs {
		f, err := os.Open(e.data(i) + ".trace")
		if errors.Is(err, fs.ErrNotExist) { // not traced
			return
		}
		if err != nil {
			e.t.Fatal(err)
		}
		defer f.Close()
		lines := bufio.NewReader(f)
		for {
			line, err := lines.ReadBytes('\n')
			if err != nil {
				break
			}
			var s spec.Event
			if json.Unmarshal(line, &s) == nil { // not what was being written when the process was killed
				steps = append(steps, s)
			}
		}
	}
	slices.SortStableFunc(steps, func(a, b spec.Event) int { return cmp.Compare(a.At, b.At) })
	world := spec.NewWorld()
	for i := range steps {
		if err := world.Next(&steps[i]); err != nil {
			for _, s := range steps[max(0, i-50) : i+1] {
				e.t.Log(s)
			}
			e.t.Errorf("no model allows the last step: %v", err)
			return
		}
	}
	e.t.Logf("the models allow all %d steps", len(steps))
}
