package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// TestDocs checks that docs/cli.md matches the commands, and that docs/test-control.md
// matches the endpoints. With -rewrite it updates them.
func TestDocs(t *testing.T) {
	testkit.Generated(t, "../../docs/cli.md", "commands", cliMarkdown())
	testkit.Generated(t, "../../docs/test-control.md", "endpoints", endpointsMarkdown())
	testkit.Generated(t, "../../docs/test-control.md", "actions", actionsMarkdown())
}

var manDir = flag.String("man", "", "the folder that TestManPages writes manual pages to")

// TestManPages checks that each command has a manual page in well-formed roff. With -man it writes the pages to a folder,
// as .ci/release does.
func TestManPages(t *testing.T) {
	request := regexp.MustCompile(`^\.(TH|SH|SS|PP|TP|nf|fi|\\")( |$)`)
	for _, c := range documented() {
		page, name := manPage(c), strings.ReplaceAll(c.CommandPath(), " ", "-")+".1"
		for line := range strings.Lines(page) {
			if strings.HasPrefix(line, ".") && !request.MatchString(strings.TrimSpace(line)) {
				t.Errorf("%s: %q is no request", name, line)
			}
		}
		if *manDir != "" {
			check1(t, os.WriteFile(filepath.Join(*manDir, name), []byte(page), 0o644))
		}
	}
}

// documented returns the commands in the order of help, each before its subcommands. It
// omits the subcommands of completion, which cobra documents.
func documented() (all []*cobra.Command) {
	var add func(c *cobra.Command)
	add = func(c *cobra.Command) {
		all = append(all, c)
		for _, sub := range subcommands(c) {
			if c.Name() != "completion" {
				add(sub)
			}
		}
	}
	add(newRoot(io.Discard, io.Discard))
	return all
}

// cliMarkdown returns the text of docs/cli.md, with a section for each command.
func cliMarkdown() string {
	var b strings.Builder
	for _, c := range documented() {
		text := codeBlocks(strings.TrimSpace(c.Long))
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n    %s\n", c.CommandPath(), text, c.UseLine())
		if c.Example != "" {
			fmt.Fprintf(&b, "\nExamples:\n\n%s\n", indent(c.Example, "  "))
		}
		for _, sub := range subcommands(c) {
			if sub == subcommands(c)[0] {
				fmt.Fprint(&b, "\n| command | |\n|---|---|\n")
			}
			fmt.Fprintf(&b, "| `%s` | %s |\n", sub.Name(), sub.Short)
		}
		for _, g := range groupsOfFlags(c) {
			fmt.Fprintf(&b, "\n%s:\n\n%s", g.title, g.FlagUsagesWrapped(84))
		}
	}
	return b.String()
}

// codeBlocks makes the indented lines of a help text code blocks of Markdown.
func codeBlocks(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "  ") {
			b.WriteString("  ")
		}
		b.WriteString(line)
	}
	return b.String()
}

// marked marks text as code. Empty text stays empty.
func marked(text string) string {
	if text == "" {
		return ""
	}
	return "`" + text + "`"
}

// endpointsMarkdown returns the table of the endpoints of --test-control.
func endpointsMarkdown() string {
	var b strings.Builder
	fmt.Fprint(&b, "\n| request | with, for example | |\n|---|---|---|\n")
	for _, e := range endpoints {
		fmt.Fprintf(&b, "| %s `%s` | %s | %s |\n", e.method, e.path, marked(e.example), e.does)
	}
	return b.String() + "\n"
}

// actionsMarkdown returns the table of what faults can do.
func actionsMarkdown() string {
	var b strings.Builder
	fmt.Fprint(&b, "\n| `do` | with | |\n|---|---|---|\n")
	for _, a := range actions {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", a.name, marked(a.arg), a.does)
	}
	return b.String() + "\n"
}

// indent inserts a prefix before each line that is not blank.
func indent(text, by string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) != "" {
			b.WriteString(by)
		}
		b.WriteString(line)
	}
	return b.String()
}

// manPage returns the man page of a command.
func manPage(c *cobra.Command) string {
	var b strings.Builder
	name := strings.ReplaceAll(c.CommandPath(), " ", "-")
	fmt.Fprintf(&b, ".\\\" Made by: go test ./cmd/lockkeeper -run ManPages -man DIR\n.TH %s 1 \"\" lockkeeper \"lockkeeper manual\"\n", roff(strings.ToUpper(name)))
	short := c.Short
	if short == "" {
		short = "a lock coordinator that speaks ZooKeeper's protocol"
	}
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n.SH SYNOPSIS\n.nf\n%s\n.fi\n.SH DESCRIPTION\n", roff(name), roff(short), roff(c.UseLine()))
	for i, paragraph := range strings.Split(strings.TrimSpace(c.Long), "\n\n") {
		switch {
		case strings.HasPrefix(paragraph, "  "):
			fmt.Fprintf(&b, ".PP\n.nf\n%s\n.fi\n", roff(paragraph))
		case i == 0:
			fmt.Fprintf(&b, "%s\n", roff(paragraph))
		default:
			fmt.Fprintf(&b, ".PP\n%s\n", roff(paragraph))
		}
	}
	groups := groupsOfFlags(c)
	if len(groups) > 0 {
		fmt.Fprint(&b, ".SH OPTIONS\n")
	}
	for _, g := range groups {
		if len(groups) > 1 {
			fmt.Fprintf(&b, ".SS %s\n", roff(g.title))
		}
		g.VisitAll(func(f *pflag.Flag) {
			value, usage := pflag.UnquoteUsage(f)
			if value != "" {
				value = " \\fI" + roff(value) + "\\fR"
			}
			if _, isDefault := map[string]bool{"": true, "0": true, "0s": true, "false": true, "[]": true}[f.DefValue]; !isDefault {
				usage += fmt.Sprintf(" (default %s)", f.DefValue)
			}
			fmt.Fprintf(&b, ".TP\n\\fB%s\\fR%s\n%s\n", roff("--"+f.Name), value, roff(usage))
		})
	}
	if len(groups) > 0 {
		fmt.Fprint(&b, ".SH ENVIRONMENT\nEach flag can also be set by an environment variable; the flag takes precedence.\n.PP\n.nf\n")
		for _, g := range groups {
			g.VisitAll(func(f *pflag.Flag) { fmt.Fprintf(&b, "%s\n", roff(variable(c, f))) })
		}
		fmt.Fprint(&b, ".fi\n")
	}
	if c.Example != "" {
		fmt.Fprintf(&b, ".SH EXAMPLES\n.nf\n%s\n.fi\n", roff(c.Example))
	}
	var also []string
	if c.HasParent() {
		also = append(also, c.Parent().CommandPath())
	}
	for _, sub := range subcommands(c) {
		if c.Name() != "completion" {
			also = append(also, sub.CommandPath())
		}
	}
	for i, path := range also {
		also[i] = fmt.Sprintf("\\fB%s\\fR(1)", roff(strings.ReplaceAll(path, " ", "-")))
	}
	fmt.Fprintf(&b, ".SH SEE ALSO\n%s\n", strings.Join(also, ",\n"))
	return b.String()
}

// roff quotes text for roff, the format of man pages.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`).Replace(text)
	var b strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, ".") {
			b.WriteString(`\&`)
		}
		b.WriteString(line)
	}
	return b.String()
}
