package lockkeeper_test

import (
	"fmt"
	"log"
	"os"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// These helpers take no testing.TB, since examples have none.

func temporaryDirectory() (dir string, remove func()) {
	dir, err := os.MkdirTemp("", "lockkeeper")
	if err != nil {
		log.Fatal(err)
	}
	return dir, func() { os.RemoveAll(dir) }
}

func freeAddress() (addr string, release func()) {
	port, release, err := testkit.TakePort()
	if err != nil {
		log.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", port), release
}
