// Package interop holds the tests that need foreign programs: real ZooKeeper
// servers and the clients of other languages. They are built with the tag
// interop; without it the package is empty.
package interop
