//go:build unix && !linux

package procgroup

func (g *Group) reap() {} // a container runs Linux

func onlyZombies(int) bool { return false } // the whole grace passes, which does no harm
