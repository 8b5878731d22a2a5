package conform_test

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"testing"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/conform"
)

// A program checks a part of a server's behaviour, here that of a server in the same process.
func ExampleRun() {
	server, err := lockkeeper.Open(lockkeeper.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()

	report, err := conform.Run(context.Background(), conform.Options{
		Dial:   func(context.Context) (net.Conn, error) { return server.Dial("", "", 0) },
		Groups: []string{"create", "delete"},
	})
	if err != nil {
		log.Fatal(err)
	}
	if !report.OK() {
		report.WriteText(os.Stdout) // each difference, with the exchange that shows it
	}
	fmt.Println("differences:", report.Count(conform.Failed))
	// Output: differences: 0
}

// A test of a server that listens on a port. Each check is a subtest.
func ExampleTest() {
	// In a file of its own this is func TestConformance(t *testing.T).
	_ = func(t *testing.T) {
		conform.Test(t, conform.Options{
			Dial: func(ctx context.Context) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "tcp", "127.0.0.1:2181")
			},
			Super: "super:secret",
		})
	}
}
