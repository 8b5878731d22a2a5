package golden

import (
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
	b, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	p := &parser{lines: strings.Split(strings.TrimSuffix(string(b), "\n"), "\n"), open: map[string]bool{}}
	err = p.header()
	for err == nil && p.at < len(p.lines) {
		if text := p.next(); text != "" {
			err = p.step(text)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("line %d: %w", p.at, err)
	}
	return &p.s, nil
}

type parser struct {
	s     Scenario
	lines []string
	at    int             // how many lines were taken
	open  map[string]bool // the connections that are open at this line
}

func (p *parser) next() string {
	p.at++
	return p.lines[p.at-1]
}

// detail returns the next line without its indentation, if it is indented.
func (p *parser) detail() (text string, ok bool) {
	if p.at < len(p.lines) {
		if text, ok = strings.CutPrefix(p.lines[p.at], "  "); ok {
			p.at++
		}
	}
	return text, ok
}

func (p *parser) header() error {
	if text := p.next(); text != "zk-golden 1" {
		return fmt.Errorf("not a golden file: %q", text)
	}
	for p.at < len(p.lines) {
		text := p.next()
		if text == "" {
			break
		}
		key, value, _ := strings.Cut(text, ": ")
		switch key {
		case "title":
			p.s.Title = value
		case "server":
			p.s.Server = value
			_, p.s.Config, _ = strings.Cut(value, "config ")
		case "note":
			p.s.Notes = append(p.s.Notes, value)
		default:
			return fmt.Errorf("unknown header %q", text)
		}
	}
	if p.s.Title == "" || p.s.Config == "" {
		return errors.New("title or server config missing")
	}
	return nil
}

// step parses a step, which begins with this line, and the indented lines after it.
func (p *parser) step(text string) error {
	who, rest, _ := strings.Cut(text, " ")
	verb, arg, _ := strings.Cut(rest, " ")
	st := Step{Line: p.at}
	var err error
	switch {
	case who == "wait":
		st.Kind = Wait
		st.Pause, err = millis(rest)
	case (who == "4LW" || who == "HTTP") && verb == ">" && arg != "":
		if st.Kind = Word; who == "HTTP" {
			st.Kind = HTTP
		}
		st.Request = arg
		if p.at == len(p.lines) || p.next() != who+" <" {
			return errors.New("request without an answer")
		}
		var lines []string
		for line, ok := p.detail(); ok; line, ok = p.detail() {
			if !strings.HasPrefix(line, "|") {
				return fmt.Errorf("misplaced line %q", line)
			}
			lines = append(lines, strings.TrimPrefix(line[1:], " "))
		}
		st.Text = strings.Join(lines, "\n")
	case len(who) > 1 && who[0] == 'C':
		st.Conn = who
		err = p.connStep(&st, verb, arg)
	default:
		err = fmt.Errorf("not a step: %q", text)
	}
	p.s.Steps = append(p.s.Steps, st)
	return err
}

// connStep parses what follows the name of a connection.
func (p *parser) connStep(st *Step, verb, arg string) (err error) {
	if p.open[st.Conn] == (verb == "open") {
		return fmt.Errorf("%s is not open, or already open", st.Conn)
	}
	switch verb {
	case "open":
		p.open[st.Conn] = true
		st.Kind = Open
	case "<", ">":
		if st.Kind = Receive; verb == ">" {
			st.Kind = Send
		}
		if st.Bytes, err = hex.DecodeString(arg); err != nil {
			return err
		}
		if n := len(st.Bytes) - 4; verb == "<" && (n < 0 || binary.BigEndian.Uint32(st.Bytes) != uint32(n)) {
			return errors.New("the frame's length prefix is not its length")
		}
		return p.frame(st)
	case "close", "closed":
		if st.Kind = Close; verb == "closed" {
			st.Kind = Closed
		}
		delete(p.open, st.Conn)
	case "silence":
		st.Kind = Silence
		st.Pause, err = millis(arg)
	default:
		err = fmt.Errorf("unknown step %q", verb)
	}
	return err
}

// frame parses the comment and the varying fields of a frame.
func (p *parser) frame(st *Step) error {
	for text, ok := p.detail(); ok; text, ok = p.detail() {
		sign, rest, _ := strings.Cut(text, " ")
		switch sign {
		case "#":
			st.Comment = rest
		case "@":
			f, err := parseField(rest)
			if err != nil {
				return err
			}
			if f.Offset < 0 || f.Offset > len(st.Bytes)-f.Length {
				return fmt.Errorf("field %s lies outside the frame", f.Symbol)
			}
			st.Fields = append(st.Fields, f)
		default:
			return fmt.Errorf("misplaced line %q", text)
		}
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
