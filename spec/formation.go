package spec

// formation is the automaton of formation.pml.
type formation struct{}

func newFormation() *formation { return &formation{} }

func (*formation) name() string { return "formation" }

func (*formation) kind(*Event) string { return "" }

func (*formation) next(*Event) error { return nil }
