// Package properties reads files of Java properties, as java.util.Properties.load does.
//
// magiconair/properties differs from Java in lines that end with CR LF and continue, in a
// backslash at the end of a file, and in characters outside the first plane of Unicode, so this
// package does not use it.
package properties

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf16"
)

const white = " \t\f"

var keyValue = regexp.MustCompile(`^((?:[^\\=: \t\f]|\\.)*)[ \t\f]*[=:]?[ \t\f]*(.*)$`)

// Parse returns the keys and values of a file in ISO 8859-1, the encoding that Java expects.
// The last of several values for a key counts. As in Java, nearly every text is valid: the
// error is about an escape \u without four hexadecimal digits, and names the line.
func Parse(file []byte) (map[string]string, error) {
	latin := make([]rune, len(file))
	for i, b := range file {
		latin[i] = rune(b)
	}
	all := map[string]string{}
	text := strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(string(latin))
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for i := 0; i < len(lines); i++ {
		first, text := i+1, strings.TrimLeft(lines[i], white)
		for continues(text) && !comment(text) {
			if text = text[:len(text)-1]; i+1 == len(lines) {
				if text == "" && !bytes.HasSuffix(file, []byte("\r\n")) { // an empty line, not a blank one
					all[""] = ""
				}
				break
			}
			i++
			text += strings.TrimLeft(lines[i], white)
		}
		if text == "" || comment(text) {
			continue
		}
		part := keyValue.FindStringSubmatch(text)
		key, err := unescape(part[1])
		if err == nil {
			all[key], err = unescape(part[2])
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", first, err)
		}
	}
	return all, nil
}

func comment(line string) bool { return strings.HasPrefix(line, "#") || strings.HasPrefix(line, "!") }

// continues reports whether a line ends with an odd number of backslashes, and so continues on the next one, without
// the white space at the beginning of that.
func continues(line string) bool {
	return (len(line)-len(strings.TrimRight(line, `\`)))%2 == 1
}

var escapes = map[rune]uint16{'t': '\t', 'n': '\n', 'r': '\r', 'f': '\f'}

// unescape decodes the escapes in a key or a value.
func unescape(text string) (string, error) {
	var units []uint16
	for text := []rune(text); len(text) > 0; text = text[1:] {
		if text[0] != '\\' || len(text) == 1 {
			units = append(units, uint16(text[0]))
			continue
		}
		text = text[1:]
		if to, ok := escapes[text[0]]; ok {
			units = append(units, to)
		} else if text[0] != 'u' {
			units = append(units, uint16(text[0]))
		} else {
			digits := string(text[1:min(5, len(text))])
			u, err := strconv.ParseUint(digits, 16, 16)
			if err != nil || len(digits) < 4 {
				return "", errors.New(`an escape \u does not have four hexadecimal digits`)
			}
			units = append(units, uint16(u))
			text = text[4:]
		}
	}
	return string(utf16.Decode(units)), nil
}
