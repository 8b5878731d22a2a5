package znode

import (
	"encoding/hex"
	"slices"
	"strings"
)

// dnKeywords are the names of attributes that Java knows in a distinguished name.
var dnKeywords = []string{
	"CN", "C", "L", "S", "ST", "O", "OU", "T", "IP", "STREET", "DC", "DNQUALIFIER", "DNQ", "SURNAME", "GIVENNAME",
	"INITIALS", "GENERATION", "EMAIL", "EMAILADDRESS", "UID", "SERIALNUMBER",
}

// validDN reports whether Java reads s as a distinguished name (X500Principal):
// KEYWORD=value or OID=value, separated by commas, semicolons or plus signs. An
// empty one is valid.
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
	// Of the first two numbers an encoding makes one: 40 times the first plus the second.
	small := len(arcs[1]) < 2 || len(arcs[1]) == 2 && arcs[1] < "40"
	return arcs[0] == "2" || small && (arcs[0] == "" || arcs[0] == "1")
}

// skipDNValue skips an attribute's value, and reports whether a separator came behind it.
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

// skipDNChar skips a byte, or what a backslash escapes: white only where it may.
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

// validHexDER reports whether s is the hexadecimal form of one DER value.
func validHexDER(s string) bool {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) < 2 {
		return false
	}
	length, b := int(b[1]), b[2:]
	if length >= 0x80 { // the length of the length
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
