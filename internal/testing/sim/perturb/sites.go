package perturb

// sites has the file and line of each point, by number. A build with points replaces
// this file.
var sites []string
