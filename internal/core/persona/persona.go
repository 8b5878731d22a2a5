// Package persona knows what older release lines of ZooKeeper do differently from the newest
// one, which lockkeeper follows: the operations, codes and four-letter words that they lack,
// and how they answer otherwise. A server with a persona answers its clients as that line
// does, so that a client library can test what it does with an older server.
//
// All of it is in two lists, [Table] and [Kept]. The server, the differential run and
// docs/compatibility.md follow from them.
//
// A persona belongs to the member that serves a client. The log, the state and the other
// members know nothing of it. Where an older line does something else with a write, the member
// proposes another request instead, one to which the newest line does that.
package persona

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lockkeeper/lockkeeper/proto"
)

// Line is a release line of ZooKeeper, by its minor version: 5 is 3.5.
type Line int

// String returns the line as a person writes it.
func (l Line) String() string { return fmt.Sprintf("3.%d", int(l)) }

// Oldest and Newest are the ends of the range of lines.
const (
	Oldest Line = 4
	Newest Line = 9
)

// releases are the releases that stand for their lines: the newest of each.
var releases = map[Line]string{4: "3.4.14", 5: "3.5.10", 6: "3.6.4", 7: "3.7.2", 8: "3.8.6", 9: "3.9.5"}

// Release returns the release that stands for the line.
func (l Line) Release() string { return releases[l] }

// Names returns the names of all lines, the oldest first.
func Names() (all []string) {
	for l := Oldest; l <= Newest; l++ {
		all = append(all, l.String())
	}
	return all
}

// Persona is an older line that a server behaves as. The nil Persona is the newest line: it
// knows and does everything.
type Persona struct{ line Line }

// Of returns the persona of a line by its name. An empty name is the newest line.
func Of(name string) (p *Persona, ok bool) {
	i := slices.Index(Names(), name)
	if i < 0 {
		return nil, name == ""
	}
	return For(Oldest + Line(i)), true
}

// For returns the persona of a line.
func For(line Line) *Persona {
	if line >= Newest {
		return nil
	}
	return &Persona{line}
}

// lacks reports whether the line has not learned something yet, which a row of Table has if is says so.
func (p *Persona) lacks(is func(r Row) bool) bool {
	return p != nil && slices.ContainsFunc(Table, func(r Row) bool { return p.line >= r.From && p.line < r.Since && is(r) })
}

// Line returns the persona's line.
func (p *Persona) Line() Line {
	if p == nil {
		return Newest
	}
	return p.line
}

// Does reports whether the line behaves in this respect as the newest one does.
func (p *Persona) Does(t Trait) bool { return !p.lacks(func(r Row) bool { return r.Trait == t }) }

// KnowsOp reports whether the line has an operation.
func (p *Persona) KnowsOp(op proto.OpCode) bool {
	return !p.lacks(func(r Row) bool { return slices.Contains(r.Ops, op) })
}

// KnowsCode reports whether the line has an error code.
func (p *Persona) KnowsCode(code proto.Code) bool {
	return !p.lacks(func(r Row) bool { return slices.Contains(r.Codes, code) })
}

// KnowsWord reports whether the line has a four-letter word.
func (p *Persona) KnowsWord(word string) bool {
	return !p.lacks(func(r Row) bool { return slices.Contains(r.Words, word) })
}

// KnowsCommand reports whether the line has a command of the AdminServer, by its first name.
func (p *Persona) KnowsCommand(name string) bool {
	return !p.lacks(func(r Row) bool { return slices.Contains(r.Commands, name) })
}

// MonitorKey returns the name that the line has for a line of the word mntr, without the prefix
// zk_. It returns false if the line does not show it.
func (p *Persona) MonitorKey(key string) (string, bool) {
	if key == "learners" && !p.Does(Learners) {
		return "followers", true
	}
	known := key
	if strings.HasSuffix(key, quotaKeys[1:]) {
		known = quotaKeys
	}
	return key, !p.lacks(func(r Row) bool { return slices.Contains(r.Monitor, known) })
}

// DateLayout returns the layout of the date at which a server was built, as the line's
// four-letter words show it.
func (p *Persona) DateLayout() string {
	if p.Does(ISODates) {
		return "2006-01-02 15:04 UTC"
	}
	return "01/02/2006 15:04 GMT"
}
