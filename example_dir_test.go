package lockkeeper_test

import (
	"log"
	"os"
)

// temporaryDirectory is for examples, which have no test to ask for one.
func temporaryDirectory() (dir string, remove func()) {
	dir, err := os.MkdirTemp("", "lockkeeper")
	if err != nil {
		log.Fatal(err)
	}
	return dir, func() { os.RemoveAll(dir) }
}
