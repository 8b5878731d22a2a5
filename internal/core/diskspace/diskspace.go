// Package diskspace finds out how much room a file system has.
package diskspace
