// Package jaas reads what ZooKeeper takes from Java's files of login configurations: users and
// their passwords for the mechanism DIGEST-MD5, or the server's principal and keytab for GSSAPI.
package jaas

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// The login modules: ZooKeeper's with users and passwords, and Java's for Kerberos.
const (
	digestModule   = "org.apache.zookeeper.server.auth.DigestLoginModule"
	kerberosModule = "com.sun.security.auth.module.Krb5LoginModule"
)

const userPrefix = "user_"

const noUTF8 = "\ufffd" // in place of bytes that are not UTF-8

// Login is what a section says: it has users, or a principal with its keytab.
type Login struct {
	Users     map[string]string // the passwords of users, by their names
	Principal string            // of the server, for Kerberos
	Keytab    string            // the file with its keys
	Ignored   []string          // what Java ignores, or nobody could use: each names the line
}

// Read returns what a section of a file says: the options user_NAME="PASSWORD" of its
// DigestLoginModule, or principal and keyTab of its Krb5LoginModule. The last value of an option counts. The whole file
// must be valid, except that Java replaces what is not UTF-8 by U+FFFD: no client would send that, so a user
// with such a name or password is left out. An error names the line, and neither it nor Ignored shows a password.
func Read(file []byte, section string) (*Login, error) {
	p := parser{rest: strings.ToValidUTF8(string(file), noUTF8), line: 1}
	p.next()
	sections := map[string]*parsed{}
	for p.err == nil && p.kind != end {
		line := p.tokenLine
		name := p.text("the name of a section")
		s := p.section()
		if p.err == nil && sections[name] != nil {
			p.fail(line, "section %q is there twice", name)
		}
		sections[name] = s
	}
	if p.err != nil {
		return nil, p.err
	}
	s := sections[section]
	switch {
	case s == nil:
		return nil, fmt.Errorf("there is no section %q", section)
	case s.err != nil:
		return nil, s.err
	case s.kerberos != nil && s.digest:
		return nil, fmt.Errorf("line %d: section %q has a login module of each kind", s.line, section)
	case s.kerberos != nil:
		login, err := kerberosLogin(s.kerberos)
		if err != nil {
			return nil, fmt.Errorf("line %d: section %q: %w", s.line, section, err)
		}
		login.Ignored = s.ignored
		return login, nil
	case len(s.users) == 0:
		return nil, fmt.Errorf("line %d: section %q has no users: user_NAME=\"PASSWORD\"", s.line, section)
	}
	return &Login{Users: s.users, Ignored: s.ignored}, nil
}

// kerberosLogin returns what the options of a Krb5LoginModule say. Java needs useKeyTab and storeKey too.
func kerberosLogin(options map[string]string) (*Login, error) {
	for _, name := range []string{"useKeyTab", "storeKey"} {
		if !strings.EqualFold(options[name], "true") {
			return nil, fmt.Errorf("a server needs %s=true", name)
		}
	}
	for _, name := range []string{"keyTab", "principal"} {
		if options[name] == "" {
			return nil, fmt.Errorf("option %q is missing", name)
		}
	}
	file := options["keyTab"]
	if kind := "FILE:"; len(file) > len(kind) && strings.EqualFold(file[:len(kind)], kind) {
		file = file[len(kind):]
	}
	return &Login{Principal: options["principal"], Keytab: file}, nil
}

// parsed is a section. Its error counts only if the section is asked for.
type parsed struct {
	line     int
	digest   bool              // it has a DigestLoginModule
	users    map[string]string // of it
	kerberos map[string]string // options of a Krb5LoginModule; nil if there is none
	ignored  []string
	err      error
}

// kerberosOptions are the options of a Krb5LoginModule that the server reads, or that say nothing to it.
var kerberosOptions = []string{
	"useKeyTab", "storeKey", "keyTab", "principal",
	"debug", "doNotPrompt", "isInitiator", "refreshKrb5Config", "renewTGT", "ticketCache", "useTicketCache",
}

type kind int

const (
	end    kind = iota // of the file
	word               // letters, digits and $ _ - * .
	quoted             // a text in double quotes
	mark               // any other character
)

// parser reads a file token by token. After an error it finds only the end of the file.
type parser struct {
	rest string
	line int // where rest begins
	err  error

	// The token that is to be read next.
	kind      kind
	value     string
	tokenLine int
	lastLine  int // of the token before
}

func (p *parser) fail(line int, why string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf("line %d: %s", line, fmt.Sprintf(why, args...))
	}
	p.kind, p.value, p.rest = end, "", ""
}

// text reads a word or a quoted text.
func (p *parser) text(what string) string {
	value := p.value
	if p.kind != word && p.kind != quoted {
		p.fail(p.lastLine, "%s is missing", what)
		return ""
	}
	p.next()
	return value
}

func (p *parser) mark(c, where string) {
	if !p.at(c) {
		p.fail(p.lastLine, "%s is missing %s", c, where)
		return
	}
	p.next()
}

func (p *parser) at(c string) bool { return p.kind == mark && p.value == c }

// flags are what a login module can be.
var flags = []string{"required", "requisite", "sufficient", "optional"}

func (p *parser) section() *parsed {
	s := &parsed{line: p.lastLine, users: map[string]string{}}
	p.mark("{", "after the name of a section")
	for p.err == nil && !p.at("}") {
		p.module(s)
	}
	p.mark("}", "at the end of a section")
	p.mark(";", "after the } of a section")
	return s
}

func (p *parser) module(s *parsed) {
	line := p.tokenLine
	class := p.text("the class of a login module, or }")
	if flag := p.text("required or another flag after the class of a login module"); p.err == nil && !slices.Contains(flags, strings.ToLower(flag)) {
		p.fail(p.lastLine, "after the class of a login module there must be one of %s", strings.Join(flags, ", "))
	}
	switch {
	case class == digestModule:
		s.digest = true
	case class == kerberosModule && s.kerberos == nil:
		s.kerberos = map[string]string{}
	case s.err != nil:
	case class == kerberosModule:
		s.err = fmt.Errorf("line %d: login module %q is there twice", line, class)
	default:
		s.err = fmt.Errorf("line %d: the only login modules that are supported are %s and %s", line, digestModule, kerberosModule)
	}
	for p.err == nil && !p.at(";") {
		p.option(s, class)
	}
	p.mark(";", "after the options of a login module")
}

func (p *parser) option(s *parsed, class string) {
	line := p.tokenLine
	key := p.text("the name of an option, or ;")
	user, is := strings.CutPrefix(key, userPrefix)
	other := slices.Contains([]string{"username", "password", "debug"}, key) // which a server does not need
	shown := "an option"
	if is || other || class == kerberosModule { // anything else may be part of a password without quotes
		shown = fmt.Sprintf("option %q", key)
	}
	p.mark("=", "after the name of "+shown)
	value := p.text("the value of " + shown)
	ignore := func(why string, args ...any) {
		s.ignored = append(s.ignored, fmt.Sprintf("line %d: %s", line, fmt.Sprintf(why, args...)))
	}
	switch {
	case p.err != nil:
	case strings.Contains(value, "${"): // Java puts the value of a property there
		p.fail(line, "%s has a property, ${…}, which is not supported", shown)
	case class == kerberosModule:
		if !slices.Contains(kerberosOptions, key) {
			ignore("option %q of Kerberos has no effect", key)
		}
		s.kerberos[key] = value
	case is && strings.Contains(user+value, noUTF8):
		delete(s.users, user)
		ignore("a user whose name or password is not in UTF-8 cannot authenticate, in ZooKeeper neither")
	case is:
		if _, twice := s.users[user]; twice {
			ignore("user %q is there twice, and the last password counts", user)
		}
		s.users[user] = value
	case !other && class == digestModule:
		ignore("an option that is not %sNAME has no effect", userPrefix)
	}
}

// token is white space and comments (of a line, after / or //, or between /* and */), and behind them a comment without
// an end, a quoted text, a word or any other character.
var token = regexp.MustCompile(`(?s)^((?:[\x00- ]|/\*.*?\*/|/[^*\r\n][^\r\n]*|/[\r\n]|/\z)*)` +
	`(?:(/\*)|"((?:[^"\\\r\n]|\\[^\r\n])*)"|([\w$*.\x{a0}-\x{10ffff}-]+)|(.?))`)

func (p *parser) next() {
	p.lastLine = max(p.tokenLine, 1)
	m := token.FindStringSubmatch(p.rest)
	skipped, unclosed, text, name, other := m[1], m[2], m[3], m[4], m[5]
	p.tokenLine = p.line + strings.Count(skipped, "\n")
	p.line, p.rest = p.tokenLine, p.rest[len(m[0]):]
	switch {
	case unclosed != "":
		p.fail(p.line, "the comment has no end")
	case other == `"`:
		p.fail(p.line, "a text in double quotes does not end on its line")
	case name != "" && strings.Contains("0123456789.-", name[:1]): // Java reads a number
		p.fail(p.line, "a name or value that begins with a digit, a dot or a minus sign must be in double quotes")
	case name != "":
		p.kind, p.value = word, name
	case other != "":
		p.kind, p.value = mark, other
	case m[0] == skipped:
		p.kind, p.value = end, ""
	default:
		p.kind, p.value = quoted, escape.ReplaceAllStringFunc(text, unescape)
	}
}

// escape is one in a quoted text. An octal one has at most three digits, and two if the first is above 3.
var escape = regexp.MustCompile(`\\(?:[0-3][0-7]{0,2}|[4-7][0-7]?|.)`)

func unescape(escape string) string {
	what := escape[1:]
	if code, err := strconv.ParseUint(what, 8, 8); err == nil {
		return string(rune(code))
	}
	if i := strings.Index("abfnrtv", what); i >= 0 {
		return "\a\b\f\n\r\t\v"[i : i+1]
	}
	return what
}
