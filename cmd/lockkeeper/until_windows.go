package main

import "os"

// awaitEnd returns when a process has ended.
func awaitEnd(pid int) {
	if p, err := os.FindProcess(pid); err == nil { // otherwise there is none
		p.Wait()
	}
}
