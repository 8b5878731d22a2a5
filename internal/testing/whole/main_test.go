package whole

import (
	"log"
	"os"
	"testing"
)

// TestMain runs the tests in the root of the repository, where the recordings are.
func TestMain(m *testing.M) {
	if err := os.Chdir("../../.."); err != nil {
		log.Fatal(err)
	}
	os.Exit(m.Run())
}
