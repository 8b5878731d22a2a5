// Package properties reads files of Java properties, as java.util.Properties.load does.
//
// magiconair/properties differs from Java in lines that end with CR LF and continue, in a
// backslash at the end of a file, and in characters outside the first plane of Unicode, so this
// package does not use it.
package properties

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
)

// Parse returns the keys and values of a file in ISO 8859-1, the encoding that Java expects.
// The last of several values for a key counts. As in Java, nearly every text is valid: the
// error is about an escape \u without four hexadecimal digits, and names the line.
func Parse(file []byte) (map[string]string, error) {
	all := map[string]string{}
	for rest, line := file, 1; len(rest) > 0; {
		text, length := logicalLine(rest)
		if text != nil {
			key, value := split(text)
			k, err := unescape(key)
			if err != nil {
				return nil, fmt.Errorf("line %d: %w", line, err)
			}
			if all[k], err = unescape(value); err != nil {
				return nil, fmt.Errorf("line %d: %w", line, err)
			}
		}
		line += newlines(rest[:length])
		rest = rest[length:]
	}
	return all, nil
}

// logicalLine returns the first logical line of a file and the number of bytes that it takes
// there. It is nil for a comment and for a blank line. A line that ends with an odd number of
// backslashes continues on the next one, without the white space at the beginning of that.
func logicalLine(file []byte) (text []byte, length int) {
	comment := false
	skip := true // white space at the beginning of a line
	for i := 0; i < len(file); i++ {
		c := file[i]
		switch {
		case skip && white(c):
		case c == '\n' || c == '\r':
			more := i+1 < len(file)
			if more && c == '\r' && file[i+1] == '\n' {
				i++
			}
			if more && continues(text) {
				text, skip = text[:len(text)-1], true
				continue
			}
			return lastLine(text), i + 1
		case !comment && len(text) == 0 && (c == '#' || c == '!'):
			comment, skip = true, false
		case !comment:
			text, skip = append(text, c), false
		}
	}
	return lastLine(text), len(file)
}

// lastLine returns a line that does not continue: a backslash at the end of a file is no part
// of its line. A file that ends with only a backslash has an empty line, not a blank one.
func lastLine(text []byte) []byte {
	switch {
	case continues(text):
		return text[:len(text)-1]
	case len(text) == 0:
		return nil
	}
	return text
}

// continues reports whether a line ends with an odd number of backslashes.
func continues(line []byte) bool {
	return (len(line)-len(strings.TrimRight(string(line), `\`)))%2 == 1
}

// newlines counts the ends of lines in a text.
func newlines(text []byte) (n int) {
	for i, c := range text {
		if c == '\n' || c == '\r' && (i+1 == len(text) || text[i+1] != '\n') {
			n++
		}
	}
	return n
}

// split splits a logical line into a key and a value, both still with their escapes. Between
// them are an equals sign, a colon, or only white space.
func split(line []byte) (key, value []byte) {
	end := 0
	for end < len(line) && line[end] != '=' && line[end] != ':' && !white(line[end]) {
		if line[end] == '\\' {
			end++
		}
		end++
	}
	end = min(end, len(line))
	key, value = line[:end], trimLeft(line[end:])
	if len(value) > 0 && (value[0] == '=' || value[0] == ':') {
		value = trimLeft(value[1:])
	}
	return key, value
}

func trimLeft(text []byte) []byte {
	for len(text) > 0 && white(text[0]) {
		text = text[1:]
	}
	return text
}

func white(c byte) bool { return c == ' ' || c == '\t' || c == '\f' }

// unescape decodes the escapes in a key or a value.
func unescape(text []byte) (string, error) {
	var units []uint16
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c != '\\' || i+1 == len(text) {
			units = append(units, uint16(c))
			continue
		}
		i++
		switch c = text[i]; c {
		case 'u':
			digits := string(text[i+1 : min(i+5, len(text))])
			u, err := strconv.ParseUint(digits, 16, 16)
			if err != nil || len(digits) < 4 {
				return "", errors.New(`an escape \u does not have four hexadecimal digits`)
			}
			units = append(units, uint16(u))
			i += 4
		case 't':
			units = append(units, '\t')
		case 'n':
			units = append(units, '\n')
		case 'r':
			units = append(units, '\r')
		case 'f':
			units = append(units, '\f')
		default:
			units = append(units, uint16(c))
		}
	}
	return string(utf16.Decode(units)), nil
}
