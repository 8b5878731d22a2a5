package spec

// sessions is the automaton of sessions.pml.
type sessions struct{}

func newSessions() *sessions { return &sessions{} }

func (*sessions) name() string { return "sessions" }

func (*sessions) kind(*Event) string { return "" }

func (*sessions) next(*Event) error { return nil }
