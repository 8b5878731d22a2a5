package zkshell

import "context"

// version prints the version of lockkeeper, where zkCli prints that of ZooKeeper.
func version(s *Shell, _ context.Context, _ *parsed) (fields, error) {
	s.println("lockkeeper CLI version: " + s.cfg.Version)
	return fields{"version": s.cfg.Version}, nil
}
