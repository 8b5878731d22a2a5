package main

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"strings"
)

// jsonLines is standard error with --log-format json: what else would be a line of text there becomes one of the log,
// whatever --log-level says. Each Write must have whole lines.
type jsonLines struct{ log *slog.Logger }

func (j jsonLines) Write(text []byte) (int, error) {
	for line := range bytes.Lines(text) {
		j.log.Info(string(bytes.TrimRight(line, "\r\n")))
	}
	return len(text), nil
}

// sayError writes an error to standard error, as one line.
func sayError(stderr io.Writer, err error) {
	text := "lockkeeper: " + strings.TrimPrefix(oneLine(err), "lockkeeper: ")
	if j, ok := stderr.(jsonLines); ok {
		j.log.Error(text)
		return
	}
	fmt.Fprintln(stderr, text)
}
