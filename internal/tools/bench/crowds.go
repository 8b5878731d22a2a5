package bench

import (
	"runtime"
)

// Crowds returns the workloads with very many sessions, which are measured only when they are
// named: each takes minutes, and more file descriptors than most processes may have.
func Crowds() []Workload {
	return []Workload{
		{Name: "sessions-open", Says: "opens one of very many sessions, each with a lock of its own, and holds them all", Once: true, Needs: needsCrowd, Run: sessionsOpen},
		{Name: "sessions-failover", Says: "the time without service of a session whose server, the leader of many sessions, is killed", Once: true, Needs: needsKill, Run: sessionsFailover},
		{Name: "sessions-vanish", Says: "the time until the session of a client expires that vanishes together with thousands of others", Once: true, Needs: needsCrowd, Run: sessionsVanish},
		{Name: "sessions-watch", Says: "the time until one of many sessions has an event of znodes that all of them watch and that change at once", Once: true, Needs: needsCrowd, Run: sessionsWatch},
	}
}

// needsCrowd names what is missing for a crowd on t.
func needsCrowd(t *Target) string {
	switch {
	case runtime.GOOS != "linux":
		return "Linux"
	case !t.Plain:
		return "TCP without TLS"
	}
	return ""
}

func needsKill(t *Target) string {
	if t.Kill == nil {
		return "a command that kills a server"
	}
	return needsCrowd(t)
}

// Note is a figure that only one workload has.
type Note struct {
	What  string  `json:"what"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
}

func (r *Run) note(what string, value float64, unit string) {
	r.result.Notes = append(r.result.Notes, Note{what, round(value), unit})
}
