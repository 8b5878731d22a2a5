package admin

import (
	"bytes"
	"encoding/json"
	"strings"
)

type field struct {
	name  string
	value any
}

// object is an object in JSON. Its members are written in this order.
type object []field

func (o *object) add(name string, value any) { *o = append(*o, field{name, value}) }

// list is an array in JSON.
type list []any

// appendJSON appends a value as ZooKeeper's AdminServer prints it (JsonOutputter, with
// Jackson's default layout), for scripts that search the text for something like
// "is_leader" : true. Values that are not objects or lists are those of encoding/json.
func appendJSON(b []byte, value any, indent int) []byte {
	newline := func(b []byte, indent int) []byte {
		return append(append(b, '\n'), strings.Repeat("  ", indent)...)
	}
	switch v := value.(type) {
	case object:
		if len(v) == 0 {
			return append(b, "{ }"...)
		}
		b = append(b, '{')
		for i, f := range v {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(appendScalar(newline(b, indent+1), f.name), " : "...)
			b = appendJSON(b, f.value, indent+1)
		}
		return append(newline(b, indent), '}')
	case list:
		b = append(b, '[')
		for i, item := range v {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendJSON(append(b, ' '), item, indent)
		}
		return append(b, " ]"...)
	}
	return appendScalar(b, value)
}

func appendScalar(b []byte, value any) []byte {
	var buf bytes.Buffer
	e := json.NewEncoder(&buf)
	e.SetEscapeHTML(false)
	if err := e.Encode(value); err != nil {
		panic(err) // a value that JSON does not have: a bug
	}
	return append(b, bytes.TrimSuffix(buf.Bytes(), []byte("\n"))...)
}

// number returns a number as a value in JSON, or the text itself if it is not one.
func number(text string) any {
	if json.Valid([]byte(text)) && text != "" && strings.ContainsAny(text[:1], "-0123456789") {
		return json.Number(text)
	}
	return text
}
