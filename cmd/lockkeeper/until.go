package main

import (
	"context"
	"io"

	"github.com/spf13/pflag"
)

type untilFlags struct {
	stdinCloses bool
	parent      int
}

func (u *untilFlags) define(f *pflag.FlagSet) {
	f.BoolVar(&u.stdinCloses, "until-stdin-closes", false, "shut down, as on SIGTERM, at the end of standard input. A program that starts the server with a pipe there, and never writes to it, leaves no server behind, however it ends")
	f.IntVar(&u.parent, "parent-pid", 0, "shut down, as on SIGTERM, when the process with this `PID` ends")
}

func (u *untilFlags) check(flags *pflag.FlagSet) error {
	if by, _ := sourceOf(flags.Lookup("parent-pid")); by != byDefault && u.parent <= 0 {
		return badFlag(flags, "parent-pid", "%d is not the id of a process", u.parent)
	}
	return nil
}

// context returns a context that ends when the server is to end. After that a signal ends the
// process at once. The goroutines, which wait for something outside of the process, last as long
// as the process.
func (u *untilFlags) context(stdin io.Reader) (ctx context.Context, cancel func()) {
	ctx, cancel = interruptible()
	if u.stdinCloses {
		go func() {
			io.Copy(io.Discard, stdin) // an error, too, means that nobody is at the other end
			cancel()
		}()
	}
	if u.parent != 0 {
		go func() {
			awaitEnd(u.parent)
			cancel()
		}()
	}
	return ctx, cancel
}
