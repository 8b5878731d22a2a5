//go:build !linux

package storage

import "errors"

func exchange(string, string) error { return errors.ErrUnsupported }
