package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// inGroup is the annotation of a flag that help lists below a title.
const inGroup = "group"

// group defines flags that help lists below a title.
func group(flags *pflag.FlagSet, title string, define func(f *pflag.FlagSet)) {
	f := pflag.NewFlagSet(title, pflag.ContinueOnError)
	f.SortFlags = false
	define(f)
	f.VisitAll(func(f *pflag.Flag) { annotate(f, inGroup, title) })
	flags.AddFlagSet(f)
}

// groupsOfFlags returns c's flags by group, in the order of their definition.
// The name of each set is its title.
func groupsOfFlags(c *cobra.Command) (groups []*flagGroup) {
	add := func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		title := "Flags"
		if t := f.Annotations[inGroup]; t != nil {
			title = t[0]
		}
		for _, g := range groups {
			if g.title == title {
				g.AddFlag(f)
				return
			}
		}
		g := &flagGroup{title, pflag.NewFlagSet(title, pflag.ContinueOnError)}
		g.SortFlags = false
		g.AddFlag(f)
		groups = append(groups, g)
	}
	c.LocalFlags().VisitAll(add)
	for p := c.Parent(); p != nil; p = p.Parent() {
		p.PersistentFlags().VisitAll(add) // InheritedFlags would have another order
	}
	return groups
}

type flagGroup struct {
	title string
	*pflag.FlagSet
}

// writeHelp writes what -h prints.
func writeHelp(w io.Writer, c *cobra.Command) {
	fmt.Fprintf(w, "Usage: %s\n\n%s\n", c.UseLine(), description(c))
	if c.Example != "" {
		fmt.Fprintf(w, "\nExamples:\n%s\n", c.Example)
	}
	if subs := subcommands(c); len(subs) > 0 {
		fmt.Fprint(w, "\nCommands:\n")
		for _, sub := range subs {
			fmt.Fprintf(w, "  %-11s %s\n", sub.Name(), sub.Short)
		}
	}
	for _, g := range groupsOfFlags(c) {
		fmt.Fprintf(w, "\n%s:\n%s", g.title, g.FlagUsagesWrapped(80))
	}
	fmt.Fprintf(w, "\n%s\n", footer(c))
}

func description(c *cobra.Command) string {
	if c.Long != "" {
		return strings.TrimSpace(c.Long)
	}
	return c.Short + "."
}

func subcommands(c *cobra.Command) (subs []*cobra.Command) {
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			subs = append(subs, sub)
		}
	}
	return subs
}

// footer says which environment variables c reads, or where to read on.
func footer(c *cobra.Command) string {
	if !c.HasParent() {
		return "'lockkeeper help COMMAND' explains a command and lists its flags."
	}
	example := ""
	for _, g := range groupsOfFlags(c) {
		g.VisitAll(func(f *pflag.Flag) {
			if !slices.Contains(shared, f.Name) || example == "" {
				example = cmp.Or(example, fmt.Sprintf("--%s is %s", f.Name, variable(c, f)))
			}
		})
	}
	if example == "" {
		return "'lockkeeper help' lists the other commands."
	}
	return "An environment variable can stand in for each flag, which wins over it.\nFor example, " + example + "."
}

// Completions of the shell for flags: the names of files, and fixed words.

func completeFiles(c *cobra.Command, flags ...string) {
	for _, name := range flags {
		must(c.MarkFlagFilename(name))
	}
}

func completeWith(c *cobra.Command, flag string, words ...string) {
	must(c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)))
}

// must is for errors that only a mistake in this program can cause.
func must(err error) {
	if err != nil {
		panic(err)
	}
}
