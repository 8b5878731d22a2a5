// Command release builds everything that a release of lockkeeper consists of, from the commit that
// is checked out: see docs/releasing.md.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// allPlatforms are those that a release is for.
var allPlatforms = []string{"linux/amd64", "linux/arm64", "darwin/amd64", "darwin/arm64", "windows/amd64", "windows/arm64"}

func run(args []string) error {
	flags := flag.NewFlagSet("release", flag.ExitOnError)
	o := options{}
	flags.StringVar(&o.root, "root", "../..", "the checkout of lockkeeper")
	flags.StringVar(&o.out, "o", "../../dist", "write the files to this `directory`, which must be empty or not exist")
	flags.StringVar(&o.pgo, "pgo", "auto", "go build's -pgo; a release is built with auto")
	platforms := flags.String("platforms", strings.Join(allPlatforms, ","), "OS/ARCH, separated by commas")
	only := flags.String("only", "", "build only these `kinds` of files, separated by commas: "+kindNames()+" (default all)")
	if err := flags.Parse(args); err != nil {
		return err
	}
	o.platforms = strings.Split(*platforms, ",")
	if *only != "" {
		o.only = strings.Split(*only, ",")
		for _, kind := range o.only {
			if !slices.Contains(strings.Split(kindNames(), ", "), kind) {
				return fmt.Errorf("-only %s: there are only %s", kind, kindNames())
			}
		}
	}
	files, err := o.build()
	if err != nil {
		return err
	}
	for _, name := range files {
		fmt.Println(filepath.Join(o.out, name))
	}
	return nil
}

func kindNames() string {
	var names []string
	for _, k := range kinds {
		names = append(names, k.name)
	}
	return strings.Join(append(names, kindImage), ", ")
}
