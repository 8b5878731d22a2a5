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

// Ports is like Port for n ports with consecutive numbers. It returns the first one.
func Ports(t testing.TB, n int) int {
	t.Helper()
again:
	for {
		first := Port(t)
		for i := 1; i < n; i++ {
			_, release, err := takePort(first + i)
			if err != nil {
				continue again // the other ports stay reserved until the end of the test
			}
			t.Cleanup(release)
		}
		return first
	}
}
