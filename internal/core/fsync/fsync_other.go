//go:build !linux

package fsync

// fileSystem is not able to do it here.
func fileSystem(string) (able bool, err error) { return false, nil }
