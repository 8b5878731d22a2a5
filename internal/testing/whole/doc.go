// Package whole tests whole servers and clusters in this process, through package lockkeeper. It
// has no code of its own.
package whole
