package zkshell

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

// Interactive is like Run on a terminal: with a prompt, editing, completion of commands and
// paths by the tab key, and the earlier lines by the arrow keys. They are kept only in
// memory, since they may have passwords.
func (s *Shell) Interactive(ctx context.Context, in, out *os.File) (int, error) {
	// The terminal is raw only while a line is read, so that ^C interrupts a command.
	editor := term.NewTerminal(struct {
		io.Reader
		io.Writer
	}{in, out}, "")
	s.print(editor, editor) // which redraws the line that is being edited after an event
	defer s.print(s.cfg.Stdout, s.cfg.Stderr)
	editor.AutoCompleteCallback = func(line string, pos int, key rune) (string, int, bool) {
		if key != '\t' {
			return "", 0, false
		}
		return s.tab(ctx, editor, line, pos)
	}
	if !s.welcome(ctx) {
		return exitFailed, nil
	}
	defer s.Close(context.WithoutCancel(ctx))
	s.println("'help' lists the commands, the tab key completes them and paths.")
	exit := exitOK
	for !s.quit && ctx.Err() == nil {
		editor.SetPrompt(s.prompt())
		line, err := readLine(editor, in)
		if err == io.EOF { // ^D or ^C
			fmt.Fprintln(out)
			break
		} else if err != nil {
			return exit, err
		}
		if line != "" {
			exit = s.line(ctx, line, exit)
		}
	}
	return exit, nil
}

func readLine(editor *term.Terminal, in *os.File) (string, error) {
	fd := int(in.Fd())
	state, err := term.MakeRaw(fd)
	if err != nil {
		return "", err
	}
	defer term.Restore(fd, state)
	if width, height, err := term.GetSize(fd); err == nil && width > 0 {
		editor.SetSize(width, height)
	}
	line, err := editor.ReadLine()
	if err == term.ErrPasteIndicator { // the line was pasted
		err = nil
	}
	return line, err
}

// prompt returns the prompt, which is that of zkCli.
func (s *Shell) prompt() string {
	state := s.client.current()
	c := green
	if !state.connected() {
		c = red
	}
	return fmt.Sprintf("[zk: %s(%s) %d] ", s.servers, s.color(c, string(state)), len(s.history))
}

// completing is how long the tab key may wait for a server.
const completing = 2 * time.Second

// tab completes the word before the cursor. If there are several ways to do so, it completes
// what they have in common, and otherwise lists them.
func (s *Shell) tab(ctx context.Context, w io.Writer, line string, pos int) (string, int, bool) {
	ctx, cancel := context.WithTimeout(ctx, completing)
	defer cancel()
	before := line[:pos]
	start := strings.LastIndexByte(before, ' ') + 1
	options := s.complete(ctx, strings.TrimSpace(before[:start]) == "", before[start:])
	if len(options) == 0 {
		return line, pos, true
	}
	common := options[0]
	for _, o := range options[1:] {
		for !strings.HasPrefix(o, common) {
			common = common[:len(common)-1]
		}
	}
	if len(options) == 1 && (common[0] != '/' || common == before[start:]) {
		common += " "
	} else if common == before[start:] {
		fmt.Fprintln(w, strings.Join(options, "  "))
	}
	return before[:start] + common + line[pos:], start + len(common), true
}

// complete returns how a word can be completed: as a command if it is the first one, or as
// a path if it begins with a slash. The shell must be connected.
func (s *Shell) complete(ctx context.Context, first bool, word string) (options []string) {
	if first {
		for _, c := range sorted() {
			if strings.HasPrefix(c.name, word) {
				options = append(options, c.name)
			}
		}
		return options
	}
	i := strings.LastIndexByte(word, '/')
	if !strings.HasPrefix(word, "/") || s.client == nil {
		return nil
	}
	dir := max(i, 1)
	names, err := s.children(ctx, word[:dir])
	if err != nil {
		return nil
	}
	for _, name := range names {
		if strings.HasPrefix(name, word[i+1:]) {
			options = append(options, below(word[:dir], name))
		}
	}
	return options // in order, as the names are
}
