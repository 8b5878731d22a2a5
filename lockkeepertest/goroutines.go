package lockkeepertest

import (
	"fmt"
	"runtime/pprof"
	"strings"
	"time"
)

// checkGoroutines fails the test if the stopped server has left a goroutine behind.
func (s *Server) checkGoroutines() {
	s.t.Helper()
	label := fmt.Sprintf("%q:%q", labelKey, s.label) // as a profile has it
	var profile string
	wait := 100 * time.Microsecond
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(wait) {
		var b strings.Builder
		if err := pprof.Lookup("goroutine").WriteTo(&b, 1); err != nil {
			s.t.Errorf("lockkeepertest: %v", err)
			return
		}
		if profile = b.String(); !strings.Contains(profile, label) {
			return
		}
		wait = min(2*wait, 100*time.Millisecond)
	}
	s.t.Errorf("lockkeepertest: the server left goroutines behind:\n%s", profile)
}
