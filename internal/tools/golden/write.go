package golden

import (
	"encoding/hex"
	"fmt"
	"strings"
)

// AppendHeader appends the lines of a file before its steps.
func (s *Scenario) AppendHeader(b []byte) []byte {
	b = fmt.Appendf(b, "zk-golden 1\ntitle: %s\nserver: %s\n", s.Title, s.Server)
	for _, note := range s.Notes {
		b = fmt.Appendf(b, "note: %s\n", note)
	}
	return append(b, '\n')
}

// Append appends the lines of one step.
func (st *Step) Append(b []byte) []byte {
	switch st.Kind {
	case Wait:
		return fmt.Appendf(b, "wait %d\n", st.Pause.Milliseconds())
	case Word, HTTP:
		b = fmt.Appendf(b, "%s > %s\n%s <\n", st.Kind, st.Request, st.Kind)
		for line := range strings.SplitSeq(st.Text, "\n") {
			b = fmt.Appendf(b, "  | %s\n", line)
		}
		return b
	case Silence:
		return fmt.Appendf(b, "%s silence %d\n", st.Conn, st.Pause.Milliseconds())
	case Send, Receive:
		b = fmt.Appendf(b, "%s %s ", st.Conn, st.Kind)
		b = append(hex.AppendEncode(b, st.Bytes), '\n')
		if st.Comment != "" {
			b = fmt.Appendf(b, "  # %s\n", st.Comment)
		}
		for _, f := range st.Fields {
			b = fmt.Appendf(b, "  @ %d %d %s %s  %s\n", f.Offset, f.Length, f.Kind, f.Symbol, f.Name)
		}
		return b
	}
	return fmt.Appendf(b, "%s %s\n", st.Conn, st.Kind)
}
