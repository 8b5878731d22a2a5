//go:build !linux

package procgroup

// KeepIgnoring does nothing here: what the runtime does for HUP and INT must do.
func KeepIgnoring() {}
