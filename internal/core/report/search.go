package report

// Search says what [Server.Search] looks for.
type Search struct {
	Text string // in any part of the path; upper and lower case are the same
	Most int    // how many paths to return, at least 1
	// MostBytes is how many bytes the paths may have, except for the first; 0 is no limit.
	MostBytes int
	// Continue is called before the first znode, and then after every 256, with how many were
	// looked at. If it returns false, the search ends. The state is locked, so it must not block.
	Continue func(looked int) bool
}

// Found is what a search has found. Changes are applied while it searches: a znode that was there all
// the time is found, and may be counted twice, unless a multi has deleted it and then failed. When a
// snapshot replaces the state, the search ends.
type Found struct {
	Paths    []string // the first ones, in the order of their bytes
	Matching int      // also those that are not in Paths
	Looked   int      // znodes that were looked at
	Znodes   int      // that there were when the search began
	Complete bool     // all were looked at
}
