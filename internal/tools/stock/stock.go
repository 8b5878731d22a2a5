// Package stock has what those share who run go-zookeeper, the stock Go client.
package stock

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-zookeeper/zk"
)

// Quiet is a [zk.Logger] that writes nothing.
type Quiet struct{}

// Printf does nothing.
func (Quiet) Printf(string, ...any) {}

// Await waits until the client with these events has a session, or ctx ends.
func Await(ctx context.Context, events <-chan zk.Event) error {
	for {
		select {
		case e, open := <-events:
			switch {
			case !open:
				return errors.New("the stock client was closed")
			case e.State == zk.StateHasSession:
				return nil
			}
		case <-ctx.Done():
			return fmt.Errorf("the stock client gets no session: %w", context.Cause(ctx))
		}
	}
}
