package sim

import (
	"sync"

	"github.com/lockkeeper/lockkeeper/spec"
)

// someSteps is how many steps a history keeps, at least.
const someSteps = 20_000

// steps passes what the members do to the automata of package spec.
type steps struct {
	h     *History
	mu    sync.Mutex
	world *spec.World
	stuck bool // a step was not allowed
	n     int  // how many steps there were
}

// take takes a step. What follows a step that is not allowed is not looked at.
func (s *steps) take(e spec.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stuck {
		return
	}
	e.At = s.h.now()
	s.n++
	if len(s.h.Steps) == 2*someSteps {
		s.h.Steps = append(s.h.Steps[:0], s.h.Steps[someSteps:]...)
	}
	s.h.Steps = append(s.h.Steps, e)
	if err := s.world.Next(&e); err != nil {
		s.stuck = true
		s.h.violate("spec", "%v: %v", e, err)
	}
}
