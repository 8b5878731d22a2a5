package golden

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"
)

// Load parses the named file of fsys and sets the scenario's name.
func Load(fsys fs.FS, name string) (*Scenario, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	s, err := Parse(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	s.Name = strings.TrimSuffix(path.Base(name), ".txt")
	return s, nil
}

// LoadAll loads every scenario (*.txt) at the top of fsys, in the order of their names,
// in which they were recorded.
func LoadAll(fsys fs.FS) ([]*Scenario, error) {
	names, err := fs.Glob(fsys, "*.txt")
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, errors.New("no golden files found")
	}
	all := make([]*Scenario, 0, len(names))
	for _, name := range names {
		s, err := Load(fsys, name)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}

// Parse reads one scenario and checks that it can be played: connections are
// opened before use, frames have the length they claim, and varying fields
// lie inside their frame.
func Parse(r io.Reader) (*Scenario, error) {
	p := &parser{open: map[string]bool{}}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 2*maxFrame+1<<10) // in hex
	next := p.header
	for lines.Scan() {
		p.line++
		text := lines.Text()
		if text == "" && p.line > 1 {
			next = p.step
			continue
		}
		if err := next(text); err != nil {
			return nil, fmt.Errorf("line %d: %w", p.line, err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("line %d: %w", p.line+1, err)
	}
	if err := p.finish(); err != nil {
		return nil, fmt.Errorf("line %d: %w", p.line, err)
	}
	return &p.s, nil
}

type parser struct {
	s    Scenario
	line int
	open map[string]bool // the connections that are open at this line

	asked  bool // the last step is a Word or HTTP without its "<" line yet
	answer bool // "  | " lines belong to the last step
	begun  bool // the answer has its first line
}

func (p *parser) header(text string) error {
	if p.line == 1 {
		if text != "zk-golden 1" {
			return fmt.Errorf("not a golden file: %q", text)
		}
		return nil
	}
	key, value, ok := strings.Cut(text, ": ")
	if !ok {
		return fmt.Errorf("not a header line: %q", text)
	}
	switch key {
	case "title":
		p.s.Title = value
	case "server":
		p.s.Server = value
		if _, config, ok := strings.Cut(value, "config "); ok {
			p.s.Config = config
		}
	case "note":
		p.s.Notes = append(p.s.Notes, value)
	default:
		return fmt.Errorf("unknown header %q", key)
	}
	return nil
}

// finish checks what can be checked only at the end of the file.
func (p *parser) finish() error {
	switch {
	case p.line == 0:
		return errors.New("empty file")
	case p.s.Title == "" || p.s.Config == "":
		return errors.New("title or server config missing")
	case p.asked:
		return errors.New("request without an answer")
	}
	return nil
}

// last returns the step that indented lines belong to, or nil.
func (p *parser) last() *Step {
	if len(p.s.Steps) == 0 {
		return nil
	}
	return &p.s.Steps[len(p.s.Steps)-1]
}

func (p *parser) step(text string) error {
	if strings.HasPrefix(text, "  ") {
		return p.detail(text[2:])
	}
	if p.asked && !strings.HasSuffix(text, "<") {
		return errors.New("request without an answer")
	}
	p.answer = false
	who, rest, _ := strings.Cut(text, " ")
	verb, arg, _ := strings.Cut(rest, " ")
	st := Step{Line: p.line, Conn: who}
	var err error
	switch {
	case who == "wait":
		st.Kind, st.Conn = Wait, ""
		st.Pause, err = millis(rest)
	case who == "4LW" || who == "HTTP":
		return p.talk(who, verb, arg)
	case len(who) > 1 && who[0] == 'C':
		err = p.connStep(&st, verb, arg)
	default:
		err = fmt.Errorf("not a step: %q", text)
	}
	if err != nil {
		return err
	}
	p.s.Steps = append(p.s.Steps, st)
	return nil
}

// connStep parses what follows the name of a connection.
func (p *parser) connStep(st *Step, verb, arg string) (err error) {
	if verb == "open" {
		if p.open[st.Conn] {
			return fmt.Errorf("%s is already open", st.Conn)
		}
		p.open[st.Conn] = true
		st.Kind = Open
		return nil
	}
	if !p.open[st.Conn] {
		return fmt.Errorf("%s is not open", st.Conn)
	}
	switch verb {
	case "<":
		st.Kind = Receive
		if st.Bytes, err = hex.DecodeString(arg); err != nil {
			return err
		}
		if n := len(st.Bytes) - 4; n < 0 || binary.BigEndian.Uint32(st.Bytes) != uint32(n) {
			return errors.New("the frame's length prefix is not its length")
		}
	case ">":
		st.Kind = Send
		st.Bytes, err = hex.DecodeString(arg)
	case "close":
		st.Kind = Close
		delete(p.open, st.Conn)
	case "closed":
		st.Kind = Closed
		delete(p.open, st.Conn)
	case "silence":
		st.Kind = Silence
		st.Pause, err = millis(arg)
	default:
		err = fmt.Errorf("unknown step %q", verb)
	}
	return err
}

// talk parses the two lines of a request on a connection of its own.
func (p *parser) talk(who, verb, arg string) error {
	kind := Word
	if who == "HTTP" {
		kind = HTTP
	}
	switch {
	case verb == ">" && arg != "":
		p.s.Steps = append(p.s.Steps, Step{Line: p.line, Kind: kind, Request: arg})
		p.asked = true
	case verb == "<" && p.asked && p.last().Kind == kind:
		p.asked, p.answer, p.begun = false, true, false
	default:
		return fmt.Errorf("misplaced %s %s", who, verb)
	}
	return nil
}

// detail parses an indented line: a comment, a varying field, or a line of a text
// answer.
func (p *parser) detail(text string) error {
	st := p.last()
	if st == nil {
		return errors.New("there is no step that this line could belong to")
	}
	framed := st.Kind == Send || st.Kind == Receive
	sign, rest, _ := strings.Cut(text, " ")
	switch {
	case sign == "#" && framed:
		st.Comment = rest
	case sign == "@" && framed:
		f, err := parseField(rest)
		if err != nil {
			return err
		}
		if f.Offset < 0 || f.Offset > len(st.Bytes)-f.Length {
			return fmt.Errorf("field %s lies outside the frame", f.Symbol)
		}
		st.Fields = append(st.Fields, f)
	case sign == "|" && p.answer:
		if p.begun {
			st.Text += "\n"
		}
		st.Text += rest
		p.begun = true
	default:
		return fmt.Errorf("misplaced line %q", text)
	}
	return nil
}

// parseField parses "OFF LEN KIND SYM  name".
func parseField(text string) (Field, error) {
	w := strings.Fields(text)
	if len(w) != 5 {
		return Field{}, fmt.Errorf("not a field: %q", text)
	}
	f := Field{Kind: FieldKind(w[2]), Symbol: w[3], Name: w[4]}
	var err1, err2 error
	f.Offset, err1 = strconv.Atoi(w[0])
	f.Length, err2 = strconv.Atoi(w[1])
	if err := errors.Join(err1, err2); err != nil {
		return Field{}, err
	}
	if f.Length != f.Kind.size() {
		return Field{}, fmt.Errorf("unknown field kind or wrong length: %q", text)
	}
	prefix := map[FieldKind]string{Zxid: "base+", Sid: "S", Passwd: "P", Time: "T+", Nonce: "N"}[f.Kind]
	if f.old() {
		return f, nil
	}
	digits, ok := strings.CutPrefix(f.Symbol, prefix)
	n, err := strconv.ParseUint(digits, 10, 31)
	if !ok || err != nil {
		return Field{}, fmt.Errorf("bad symbol %q for a %s", f.Symbol, f.Kind)
	}
	f.n = int64(n)
	return f, nil
}

func millis(text string) (time.Duration, error) {
	n, err := strconv.ParseUint(text, 10, 31)
	return time.Duration(n) * time.Millisecond, err
}
