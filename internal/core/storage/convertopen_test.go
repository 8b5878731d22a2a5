package storage

import (
	"errors"
	"os"
	"testing"

	"github.com/hashicorp/go-hclog"
)

// TestOpenWhileConverted: a server that is started, or a check, while its directory is being
// converted, is told that it is in use or has been converted, and not that it is damaged: what
// it says to do then is to move the directory away.
func TestOpenWhileConverted(t *testing.T) {
	for _, what := range []string{"open", "check"} {
		for _, from := range LogStores {
			t.Run(what+" "+string(from), func(t *testing.T) {
				disk := testedDisk{diskStore: must(from.disk(hclog.NewNullLogger()))(t)}
				dir, _ := sample(t, disk)
				for round := range 10 {
					kind := must(Check(dir))(t).LogStore
					done := make(chan error)
					go func() {
						_, err := Convert(dir, other(kind))
						done <- err
					}()
					for over := false; !over; {
						var err error
						if what == "open" {
							var s *Storage
							if s, err = openAs(dir, ""); err == nil {
								s.Close()
							}
						} else {
							_, err = Check(dir)
						}
						if errors.Is(err, ErrDamaged) || errors.Is(err, os.ErrNotExist) {
							t.Fatalf("round %d, from %s: %v", round, kind, err)
						}
						select {
						case <-done:
							over = true
						default:
						}
					}
				}
			})
		}
	}
}
