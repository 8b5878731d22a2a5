package znode

import (
	"encoding/hex"
	"slices"
	"strings"
)

// dnKeywords are the attribute names that Java accepts in a distinguished name.
var dnKeywords = []string{
	"CN", "C", "L", "S", "ST", "O", "OU", "T", "IP", "STREET", "DC", "DNQUALIFIER", "DNQ", "SURNAME", "GIVENNAME",
	"INITIALS", "GENERATION", "EMAIL", "EMAILADDRESS", "UID", "SERIALNUMBER",
}

// validDN reports whether Java accepts s as a distinguished name (X500Principal):
// KEYWORD=value or OID=value, separated by commas, semicolons or plus signs. The empty
// string is valid.
func validDN(s string) bool {
	for s != "" {
		key, rest, ok := strings.Cut(s, "=")
		if !ok || !validAttribute(key) {
			return false
		}
		var more bool
		if s, more, ok = skipDNValue(rest); !ok || more && s == "" {
			return false
		}
	}
	return true
}

func validAttribute(key string) bool {
	key = strings.ToUpper(strings.Trim(key, " \n"))
	if slices.Contains(dnKeywords, key) {
		return true
	}
	arcs := strings.Split(strings.TrimPrefix(key, "OID."), ".")
	for i, arc := range arcs {
		if arc == "" || strings.Trim(arc, "0123456789") != "" {
			return false
		}
		arcs[i] = strings.TrimLeft(arc, "0")
	}
	if len(arcs) < 2 {
		return false
	}
	// An OID is encoded with its first two numbers as one, 40 times the first plus the
	// second. So the second must be less than 40 unless the first is 2.
	small := len(arcs[1]) < 2 || len(arcs[1]) == 2 && arcs[1] < "40"
	return arcs[0] == "2" || small && (arcs[0] == "" || arcs[0] == "1")
}

// skipDNValue skips an attribute's value. more reports whether a separator follows it, which
// is skipped too.
func skipDNValue(s string) (rest string, more, ok bool) {
	s = strings.TrimLeft(s, " \n")
	switch {
	case strings.HasPrefix(s, "#"):
		i := strings.IndexAny(s, ",;+")
		if i < 0 {
			return "", false, validHexDER(s[1:])
		}
		return s[i+1:], true, validHexDER(s[1:i])
	case strings.HasPrefix(s, `"`):
		s = s[1:]
		for s != "" && s[0] != '"' {
			if s, ok = skipDNChar(s, ""); !ok {
				return "", false, false
			}
		}
		if s == "" {
			return "", false, false
		}
		if s = strings.TrimLeft(s[1:], " \n"); s == "" {
			return "", false, true
		}
		return s[1:], true, strings.IndexByte(",;+", s[0]) >= 0
	}
	for s != "" {
		switch s[0] {
		case ',', ';', '+':
			return s[1:], true, true
		case '<', '>', '"':
			return "", false, false
		}
		if s, ok = skipDNChar(s, " \n"); !ok {
			return "", false, false
		}
	}
	return "", false, true
}

// skipDNChar skips a byte or an escape sequence. white has the white space that may be
// escaped.
func skipDNChar(s, white string) (rest string, ok bool) {
	if s[0] != '\\' {
		return s[1:], true
	}
	switch {
	case len(s) >= 3 && isHex(s[1]) && isHex(s[2]):
		return s[3:], true
	case len(s) >= 2 && strings.IndexByte(",=+<>#;\"\\"+white, s[1]) >= 0:
		return s[2:], true
	}
	return "", false
}

func isHex(c byte) bool { return strings.IndexByte("0123456789abcdefABCDEF", c) >= 0 }

// validHexDER reports whether s is one DER value in hexadecimal.
func validHexDER(s string) bool {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) < 2 {
		return false
	}
	length, b := int(b[1]), b[2:]
	if length >= 0x80 { // the low bits are the number of bytes of the length
		n := length & 0x7f
		if n == 0 || n > 4 || n > len(b) || b[0] == 0 {
			return false
		}
		length = 0
		for _, x := range b[:n] {
			length = length<<8 | int(x)
		}
		if b = b[n:]; length < 0x80 {
			return false
		}
	}
	return length == len(b)
}
