package repository

import (
	"log"
	"os"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// TestMain runs the tests in the root of the repository.
func TestMain(m *testing.M) {
	if err := os.Chdir("../../.."); err != nil {
		log.Fatal(err)
	}
	os.Exit(m.Run())
}

func must[T any](v T, err error) func(t testing.TB) T { return testkit.Must(v, err) }

var check = testkit.Check
