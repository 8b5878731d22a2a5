package spec

// replication is the automaton of replication.pml.
type replication struct{}

func newReplication() *replication { return &replication{} }

func (*replication) name() string { return "replication" }

func (*replication) kind(*Event) string { return "" }

func (*replication) next(*Event) error { return nil }
