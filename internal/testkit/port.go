package testkit

import "testing"

// Port is TakePort for as long as a test runs.
func Port(t testing.TB) int {
	t.Helper()
	port, release, err := TakePort()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	return port
}
