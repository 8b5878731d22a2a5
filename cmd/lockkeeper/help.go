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

// inGroup is the annotation that holds the title below which help lists a flag.
const inGroup = "group"

// group defines flags that help lists below a common title.
func group(flags *pflag.FlagSet, title string, define func(f *pflag.FlagSet)) {
	f := pflag.NewFlagSet(title, pflag.ContinueOnError)
	f.SortFlags = false
	define(f)
	f.VisitAll(func(f *pflag.Flag) { annotate(f, inGroup, title) })
	flags.AddFlagSet(f)
}

// groupsOfFlags returns c's flags by group, in the order of their definition.
func groupsOfFlags(c *cobra.Command) (groups []*flagGroup) {
	add := func(f *pflag.Flag) {
		if f.Hidden || isHelp(f) {
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
		p.PersistentFlags().VisitAll(add) // InheritedFlags would change the order
	}
	return groups
}

type flagGroup struct {
	title string
	*pflag.FlagSet
}

// helpAll is the flag for all of a command's help. Commands have it whose help would not fit on a screen.
const helpAll = "help-all"

// onFirst is the annotation of the flags that help without --help-all lists.
const onFirst = "first"

// firstExamples is how many examples help without --help-all has.
const firstExamples = 5

// firstScreen makes the help of c short: the first paragraph, the first examples, and these flags, each with the first
// sentence about it. --help-all shows the rest.
func firstScreen(c *cobra.Command, flags ...string) {
	c.Flags().Bool(helpAll, false, "help with all flags")
	for _, name := range flags {
		annotate(c.Flags().Lookup(name), onFirst, "")
	}
}

func isHelp(f *pflag.Flag) bool { return f.Name == "help" || f.Name == helpAll }

// asksForAll reports whether the command line has --help-all.
func asksForAll(c *cobra.Command) bool {
	f := c.Flags().Lookup(helpAll)
	return f != nil && f.Changed
}

func writeHelp(w io.Writer, c *cobra.Command) {
	about, examples, groups, end := strings.TrimSpace(c.Long), c.Example, groupsOfFlags(c), footer(c)
	if c.Flags().Lookup(helpAll) != nil && !asksForAll(c) {
		about, _, _ = strings.Cut(about, "\n\n")
		all := strings.Split(examples, "\n\n")
		examples = strings.Join(all[:min(firstExamples, len(all))], "\n\n")
		first, number := &flagGroup{"Flags", pflag.NewFlagSet("", pflag.ContinueOnError)}, 0
		first.SortFlags = false
		for _, g := range groups {
			g.VisitAll(func(f *pflag.Flag) {
				if number++; f.Annotations[onFirst] != nil {
					short := *f
					short.Usage, _, _ = strings.Cut(f.Usage, ". ")
					first.AddFlag(&short)
				}
			})
		}
		groups = []*flagGroup{first}
		end = fmt.Sprintf("'%s --%s' explains all %d flags, and has more examples.\n%s", c.CommandPath(), helpAll, number, end)
	}
	fmt.Fprintf(w, "Usage: %s\n\n%s\n", c.UseLine(), about)
	if examples != "" {
		fmt.Fprintf(w, "\nExamples:\n%s\n", examples)
	}
	if subs := subcommands(c); len(subs) > 0 {
		fmt.Fprint(w, "\nCommands:\n")
		for _, sub := range subs {
			fmt.Fprintf(w, "  %-11s %s\n", sub.Name(), sub.Short)
		}
	}
	for _, g := range groups {
		fmt.Fprintf(w, "\n%s:\n%s", g.title, g.FlagUsagesWrapped(80))
	}
	fmt.Fprintf(w, "\n%s\n", end)
}

func subcommands(c *cobra.Command) (subs []*cobra.Command) {
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			subs = append(subs, sub)
		}
	}
	return subs
}

// footer returns the last lines of c's help: its environment variables, or where to find more help.
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
	return "Each flag can also be set by an environment variable; the flag takes precedence.\nFor example, " + example + "."
}

// finish gives c, and the commands below it, what all have: help lists flags as they were defined, and shells complete the
// names of files and directories where help speaks of FILE and DIR.
func finish(c *cobra.Command) {
	for _, flags := range []*pflag.FlagSet{c.Flags(), c.PersistentFlags()} {
		flags.SortFlags = false
		flags.VisitAll(func(f *pflag.Flag) {
			switch value, _ := pflag.UnquoteUsage(f); value {
			case "FILE":
				must(cobra.MarkFlagFilename(flags, f.Name))
			case "DIR":
				must(cobra.MarkFlagDirname(flags, f.Name))
			}
		})
	}
	switch file, dir := strings.Contains(c.Use, "FILE"), strings.Contains(c.Use, "DIR"); {
	case c.ValidArgsFunction != nil, file, strings.Contains(c.Use, "CMD"):
	case dir:
		c.ValidArgsFunction = cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs)
	default:
		c.ValidArgsFunction = cobra.NoFileCompletions
	}
	for _, sub := range c.Commands() {
		finish(sub)
	}
}

// completeWith makes shells complete the value of a flag with fixed words.
func completeWith(c *cobra.Command, flag string, words ...string) {
	must(c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)))
}

// must panics if there is an error. It is for errors that only a bug can cause.
func must(err error) {
	if err != nil {
		panic(err)
	}
}
