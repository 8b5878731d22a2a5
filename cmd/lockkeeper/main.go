// Command lockkeeper is a ZooKeeper-compatible lock coordinator in one binary.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/storage"
)

// Exit codes.
const (
	exitOK    = 0
	exitFault = 1
	exitUsage = 2
)

const usage = `usage: lockkeeper COMMAND [FLAGS]

  serve       serve ZooKeeper clients
  cluster     show or change the members of a cluster
  check DIR   verify the data directory of a server that is not running
  conform     compare a server's behaviour with ZooKeeper's, or with another's
  wire        a proxy that tells, and records, what clients and a server say
  wire replay FILE|DIR HOST:PORT
              play recordings against an endpoint and report what differs
  version     print the version

'lockkeeper COMMAND -h' lists a command's flags. Every flag is also an
environment variable: --tick-time of serve is LOCKKEEPER_TICK_TIME, and --listen
of wire is LOCKKEEPER_WIRE_LISTEN. --server, --json and --peer-tls-... mean the
same everywhere: LOCKKEEPER_SERVER and so on hold for every command.
`

func main() { os.Exit(run(os.Args[1:], os.Getenv, os.Stdout, os.Stderr)) }

// run is the whole program: its arguments and environment in, its exit code out.
func run(args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return exitUsage
	}
	var err error
	switch command, args := args[0], args[1:]; command {
	case "serve":
		err = serve(args, getenv, stdout, stderr)
	case "check":
		err = check(args, getenv, stdout)
	case "cluster":
		err = clusterCommand(args, getenv, stdout)
	case "conform":
		err = conformance(args, getenv, stdout, stderr)
	case "wire":
		err = wire(args, getenv, stdout, stderr)
	case "version":
		fmt.Fprintf(stdout, "lockkeeper %s %s %s/%s\n", lockkeeper.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	case "help", "-h", "-help", "--help":
		fmt.Fprint(stdout, usage)
	default:
		err = usageError{fmt.Errorf("unknown command %q; try 'lockkeeper help'", command)}
	}
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return exitOK
	}
	fmt.Fprintf(stderr, "lockkeeper: %s\n", oneLine(err))
	if errors.As(err, &usageError{}) {
		return exitUsage
	}
	return exitFault
}

// usageError is a mistake in the arguments.
type usageError struct{ error }

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// source says where the value of a flag comes from. The higher one wins.
type source int

const (
	byDefault source = iota
	byEnvironment
	byFlag
)

// parse reads a command's flags, and the environment for those that are not
// among the arguments. It returns where each flag's value comes from.
func parse(command string, f *flag.FlagSet, args []string, getenv func(string) string, stdout io.Writer) (given map[string]source, err error) {
	f.SetOutput(io.Discard)
	f.Usage = func() {}
	if err := parseMixed(f, args); errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(stdout, "usage: lockkeeper %s\n", f.Name())
		f.SetOutput(stdout)
		f.PrintDefaults()
		return nil, err
	} else if err != nil {
		return nil, usageError{err}
	}
	given = map[string]source{}
	f.Visit(func(fl *flag.Flag) { given[fl.Name] = byFlag })
	f.VisitAll(func(fl *flag.Flag) {
		name := variable(command, fl.Name)
		if v := getenv(name); v != "" && given[fl.Name] == byDefault && err == nil {
			if e := fl.Value.Set(v); e != nil {
				err = usageError{fmt.Errorf("invalid value %q for %s: %w", v, name, e)}
			}
			given[fl.Name] = byEnvironment
		}
	})
	return given, err
}

// shared are the flags that mean the same to every command that has them. Their
// variables hold for all of these.
var shared = []string{"server", "json", "peer-tls-cert", "peer-tls-key", "peer-tls-ca"}

// variable is the environment variable for a flag: LOCKKEEPER_TICK_TIME for
// --tick-time of serve, and LOCKKEEPER_WIRE_LISTEN for --listen of wire.
func variable(command, flag string) string {
	if command != "serve" && !slices.Contains(shared, flag) {
		flag = command + "_" + flag
	}
	return "LOCKKEEPER_" + strings.ToUpper(strings.NewReplacer("-", "_", " ", "_").Replace(flag))
}

// parseMixed parses flags wherever they stand among the other arguments, up to
// a "--". f.Args then are the others alone.
func parseMixed(f *flag.FlagSet, args []string) error {
	var others []string
	for {
		if err := f.Parse(args); err != nil {
			return err
		}
		parsed := len(args) - f.NArg()
		if f.NArg() == 0 || parsed > 0 && args[parsed-1] == "--" {
			others = append(others, f.Args()...)
			break
		}
		others = append(others, f.Arg(0))
		args = f.Args()[1:]
	}
	return f.Parse(append([]string{"--"}, others...))
}

func check(args []string, getenv func(string) string, stdout io.Writer) error {
	f := flag.NewFlagSet("check [FLAGS] DIR", flag.ContinueOnError)
	asJSON := f.Bool("json", false, "print JSON")
	if _, err := parse("check", f, args, getenv, stdout); err != nil {
		return err
	}
	if f.NArg() != 1 {
		return usageError{errors.New("check takes one directory")}
	}
	r, err := storage.Check(f.Arg(0))
	if err != nil {
		return err
	}
	if *asJSON {
		return json.NewEncoder(stdout).Encode(r)
	}
	fmt.Fprintf(stdout, "%s is good: server %d, zxid 0x%x, %d znodes, %d sessions, log entries %d to %d after a snapshot at %d, digest %s\n",
		f.Arg(0), r.ServerID, r.Zxid, r.Znodes, r.Sessions, r.FirstIndex, r.LastIndex, r.SnapshotIndex, r.Digest)
	if r.Exposed != "" {
		fmt.Fprintf(stdout, "warning: other users may read %s, which has passwords of sessions and ACLs: chmod -R go= %s\n", r.Exposed, f.Arg(0))
	}
	return nil
}
