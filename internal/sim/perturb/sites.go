package perturb

// sites names the places of the points, by number. A build with points has
// another file in the place of this one.
var sites []string
