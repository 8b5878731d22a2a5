package spec

import "time"

// World follows the members of one cluster from before their first start. It is not safe for concurrent use.
type World struct {
	Reached map[Pair]time.Duration // when each was reached first
	parts   []automaton
}

// Pair is what an automaton tells apart: a kind of state, and a step that was taken in it.
type Pair struct {
	Automaton, State string
	Step             Step
}

// automaton is the counterpart of a model.
type automaton interface {
	name() string
	// next takes a step, or returns why the model does not allow it.
	next(e *Event) error
	// kind describes the state of the member of e and of the cluster, before e, in a few words: the states of a long run have
	// some hundred kinds at most.
	kind(e *Event) string
}

// NewWorld returns a world in which nothing has happened.
func NewWorld() *World {
	return &World{map[Pair]time.Duration{}, []automaton{newReplication(), newFormation(), newSessions()}}
}

// Next takes a step. After an error, which says what no model allows, the world must not be used any more.
func (w *World) Next(e *Event) error {
	for _, a := range w.parts {
		if p := (Pair{a.name(), a.kind(e), e.Step}); w.Reached[p] == 0 {
			w.Reached[p] = e.At
		}
		if err := a.next(e); err != nil {
			return err
		}
	}
	return nil
}
