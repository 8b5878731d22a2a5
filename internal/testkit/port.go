package testkit

import "testing"

// Port is like TakePort, and releases the port at the end of the test.
func Port(t testing.TB) int {
	t.Helper()
	port, release, err := TakePort()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	return port
}
