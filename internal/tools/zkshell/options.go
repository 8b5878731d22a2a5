package zkshell

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// option is an option of a command: a dash and a name.
type option struct {
	name string
	arg  bool   // takes an argument
	help string // what it does; ZooKeeper's words where ZooKeeper prints them
}

// parsed is a command line: what DefaultParser of Apache Commons CLI 1.5 makes of it.
type parsed struct {
	args   []string // without the command's name
	values map[string]string
}

func (p *parsed) has(option string) bool { _, ok := p.values[option]; return ok }

// arg returns an argument, or other if there are not so many.
func (p *parsed) arg(n int, other string) string {
	if n < len(p.args) {
		return p.args[n]
	}
	return other
}

// negative matches the arguments that may begin with a dash.
var negative = regexp.MustCompile(`^-(\d+|\d*\.\d+|\d+\.)$`)

// parse parses the arguments of a command. Like DefaultParser it accepts options anywhere
// before "--", several letters after one dash, and an option's argument in the same word.
func (c *command) parse(args []string) (*parsed, error) {
	p := &parsed{values: map[string]string{}}
	var wants *option // the last option, which still needs its argument
	var chosen string // of a group of options that exclude each other
	choose := func(o *option) error {
		if wants != nil {
			return missing(wants)
		}
		if c.exclusive {
			if chosen != "" && chosen != o.name {
				return fmt.Errorf("The option '%s' was specified but an option from this group has already been selected: '%s'", o.name, chosen) //lint:ignore ST1005 ZooKeeper's words
			}
			chosen = o.name
		}
		if o.arg {
			wants = o
		} else {
			p.values[o.name] = ""
		}
		return nil
	}
	give := func(value string) {
		if !p.has(wants.name) { // of several, the first one counts
			p.values[wants.name] = unquote(value)
		}
		wants = nil
	}
	for i, token := range args {
		switch {
		case token == "--":
			if wants != nil {
				return nil, missing(wants)
			}
			p.args = append(p.args, args[i+1:]...)
			return c.complete(p, chosen)
		case wants != nil && (!c.isOption(token) || negative.MatchString(token)):
			give(token)
			continue
		case len(token) < 2 || token[0] != '-':
			p.args = append(p.args, token)
			continue
		}
		name, value, equals := strings.Cut(strings.TrimLeft(token, "-"), "=")
		o := c.option(name)
		if strings.HasPrefix(token, "--") || equals && (o == nil || !o.arg || len(name) != 1) {
			o = nil
		} else if o == nil && !equals { // -sw is -s -w, and -v2 is -v 2
			for j, letter := range name {
				o := c.option(string(letter))
				if o == nil {
					return nil, unrecognized(token)
				}
				if err := choose(o); err != nil {
					return nil, err
				}
				if rest := name[j+len(string(letter)):]; o.arg && rest != "" {
					give(rest)
					break
				}
			}
			continue
		}
		if o == nil {
			return nil, unrecognized(token)
		}
		if err := choose(o); err != nil {
			return nil, err
		}
		if equals {
			give(value)
		}
	}
	if wants != nil {
		return nil, missing(wants)
	}
	return c.complete(p, chosen)
}

// complete returns p unless an option that the command needs is missing.
func (c *command) complete(p *parsed, chosen string) (*parsed, error) {
	if c.needsOption && chosen == "" {
		var all []string
		for _, o := range c.options {
			all = append(all, "-"+o.name+" "+o.help)
		}
		return nil, fmt.Errorf("Missing required option: [%s]", strings.Join(all, ", ")) //lint:ignore ST1005 ZooKeeper's words
	}
	return p, nil
}

func missing(o *option) error {
	return fmt.Errorf("Missing argument for option: %s", o.name) //lint:ignore ST1005 ZooKeeper's words
}

func unrecognized(token string) error {
	return fmt.Errorf("Unrecognized option: %s", token) //lint:ignore ST1005 ZooKeeper's words
}

func (c *command) option(name string) *option {
	i := slices.IndexFunc(c.options, func(o option) bool { return o.name == name })
	if i < 0 {
		return nil
	}
	return &c.options[i]
}

// isOption reports whether a word looks like one of the command's options.
func (c *command) isOption(token string) bool {
	if len(token) < 2 || token[0] != '-' {
		return false
	}
	name, _, _ := strings.Cut(token[1:], "=")
	return name != "" && (c.option(name) != nil || c.option(name[:1]) != nil)
}

// unquote removes double quotes around an option's argument.
func unquote(s string) string {
	if len(s) > 1 && s[0] == '"' && s[len(s)-1] == '"' && !strings.Contains(s[1:len(s)-1], `"`) {
		return s[1 : len(s)-1]
	}
	return s
}

// usageText is what zkCli prints if the arguments are wrong. Only for some commands does it
// describe the options.
func (c *command) usageText() string {
	text := c.name + " " + c.usage
	if !c.describes {
		return text
	}
	left, width := []string{}, 0
	for _, o := range c.options {
		l := " -" + o.name
		if o.arg {
			l += " <arg>"
		}
		left = append(left, l)
		width = max(width, len(l))
	}
	var lines []string
	for i, o := range c.options {
		lines = append(lines, fmt.Sprintf("%-*s   %s", width, left[i], o.help))
	}
	slices.Sort(lines)
	return text + "\n" + strings.Join(lines, "\n") + "\n"
}

// word matches a word of a command line, which may be in quotes (ZooKeeperMain).
var word = regexp.MustCompile(`\s*([^"']\S*|"[^"]*"|'[^']*')\s*`)

// split splits a command line into words. A quote within a word has no meaning, and one
// that is not closed is skipped.
func split(line string) (words []string) {
	for _, m := range word.FindAllStringSubmatch(line, -1) {
		w := m[1]
		if n := len(w); n > 1 && (w[0] == '"' || w[0] == '\'') && w[n-1] == w[0] {
			w = w[1 : n-1]
		}
		words = append(words, w)
	}
	return words
}
