//go:build !linux

package bench

import "errors"

func sessionsOpen(*Run) error     { return errors.ErrUnsupported }
func sessionsFailover(*Run) error { return errors.ErrUnsupported }
func sessionsVanish(*Run) error   { return errors.ErrUnsupported }
func sessionsWatch(*Run) error    { return errors.ErrUnsupported }
