// Package spec states what a cluster may do, as models and as automata.
//
// The models are the files with the ending .pml, in Promela; SPIN goes through all of their states (go test
// -spec, or make spec). Each property is checked once more for each guard of the model, without that guard: it must fail
// then.
//
// The automata are parallel to the models, in Go: each follows the [Event]s of all members of a cluster, in their order,
// and stops at the first one that its model does not allow. The simulation follows all of its members
// (see [Follow]), and so do the tests that kill real processes.
//
//	formation.pml    formation.go    which cluster a member belongs to
//	membership.pml   formation.go    who votes while disks are lost and members change
//	replication.pml  replication.go  what is stored where, and when it may be seen
//	sessions.pml     sessions.go     who may rely on a session, and when it expires
//
// This package promises no compatibility: any version of lockkeeper may change it.
package spec
