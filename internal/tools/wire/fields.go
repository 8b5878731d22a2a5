package wire

import (
	"encoding/binary"
	"fmt"
	"reflect"
	"strings"
	"unicode/utf8"

	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

// Field is one elementary value of a frame.
type Field struct {
	Name   string // with the names of the enclosing records: "stat.czxid", "ops[1].path"
	Offset int    // in Payload
	Length int
	Value  any // a bool, number, string, []byte, or one of proto's types for them
}

// Text formats the field's value.
func (f *Field) Text() string { return named(f.Value, f.Base()) }

// Base returns the name without the enclosing records: "czxid".
func (f *Field) Base() string { return f.Name[strings.LastIndexByte(f.Name, '.')+1:] }

// Fields returns the fields of a frame in order, those of the header first. A body that
// could not be decoded has no fields.
func (f *Frame) Fields() []Field {
	w := walker{payload: f.Payload}
	switch f.Kind {
	case Request:
		w.leaf("xid", 4, f.Xid)
		w.leaf("op", 4, f.Op)
	case Reply, Event:
		w.leaf("xid", 4, f.Xid)
		w.leaf("zxid", 8, f.Zxid)
		w.leaf("code", 4, f.Code)
	}
	if f.Body != nil {
		w.value("", reflect.ValueOf(f.Body))
	}
	return w.fields
}

// walker goes through a record in the order of its encoding.
type walker struct {
	fields  []Field
	payload []byte
	at      int
}

func (w *walker) leaf(name string, size int, v any) {
	w.fields = append(w.fields, Field{name, w.at, size, v})
	w.at += size
}

// sized adds a leaf that starts with its length. It reads the length from the
// payload, because text that is not valid UTF-8 changes its length when decoded.
func (w *walker) sized(name string, v any) {
	size := 4
	if rest := w.payload[min(w.at, len(w.payload)):]; len(rest) >= 4 {
		size += max(0, min(int(int32(binary.BigEndian.Uint32(rest))), len(rest)-4))
	}
	w.leaf(name, size, v)
}

func join(outer, inner string) string {
	if outer == "" {
		return inner
	}
	return outer + "." + inner
}

func (w *walker) value(name string, v reflect.Value) {
	switch x := v.Interface().(type) {
	case *proto.Path:
		w.sized(join(name, "path"), *x)
		return
	case proto.Path, []byte:
		w.sized(name, x)
		return
	case proto.MultiOp: // type, done, err, and the record
		w.leaf(join(name, "op"), 4, x.Op)
		w.at += 5
		w.value(name, reflect.ValueOf(x.Request))
		return
	case proto.MultiResult:
		w.leaf(join(name, "op"), 4, x.Op)
		w.at++
		w.leaf(join(name, "code"), 4, x.Code)
		if x.Op == proto.OpError {
			w.at += 4 // the code again
		} else if x.Reply != nil {
			w.value(name, reflect.ValueOf(x.Reply))
		}
		return
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		w.value(name, v.Elem())
	case reflect.Struct:
		readOnly := v.FieldByName("HasReadOnly") // false in a handshake without the byte readOnly
		for field, x := range members(v) {
			if field != "hasReadOnly" && (field != "readOnly" || readOnly.Bool()) {
				w.value(join(name, field), x)
			}
		}
	case reflect.Slice:
		multi := v.Type().Elem() == reflect.TypeFor[proto.MultiOp]() || v.Type().Elem() == reflect.TypeFor[proto.MultiResult]()
		if !multi {
			w.leaf("len("+name+")", 4, v.Len())
		}
		for i := range v.Len() {
			w.value(fmt.Sprintf("%s[%d]", name, i), v.Index(i))
		}
		if multi {
			w.leaf("end("+name+")", 9, v.Len())
		}
	case reflect.String:
		w.sized(name, v.Interface())
	case reflect.Bool:
		w.leaf(name, 1, v.Interface())
	default:
		w.leaf(name, int(v.Type().Size()), v.Interface())
	}
}

// Plain converts a record to values that JSON can represent: objects with the same
// names as in Text, lists, strings, numbers and null. Ids of 64 bits become strings in
// hex, because readers of JSON may round large numbers. Bytes that are not text become
// {"hex": …}.
func Plain(r any) any { return plain(reflect.ValueOf(r), "") }

func plain(v reflect.Value, name string) any {
	switch x := v.Interface().(type) {
	case proto.Path:
		if x.Path == jute.Null {
			return nil
		}
		return x.Path
	case proto.MultiOp:
		return map[string]any{"op": OpName(x.Op), "request": Plain(x.Request)}
	case proto.MultiResult:
		m := map[string]any{"op": OpName(x.Op), "code": x.Code.String()}
		if x.Op == proto.OpError {
			delete(m, "op")
		}
		if x.Reply != nil {
			m["reply"] = Plain(x.Reply)
		}
		return m
	case proto.OpCode:
		return OpName(x)
	case fmt.Stringer:
		return x.String()
	case []byte:
		switch {
		case x == nil:
			return nil
		case utf8.Valid(x):
			return string(x)
		}
		return map[string]any{"hex": fmt.Sprintf("%x", x)}
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if p, ok := v.Interface().(*proto.Path); ok {
			return map[string]any{"path": plain(reflect.ValueOf(*p), "")}
		}
		return plain(v.Elem(), name)
	case reflect.Struct:
		m := map[string]any{}
		for field, x := range members(v) {
			m[field] = plain(x, field)
		}
		return m
	case reflect.Slice:
		list := make([]any, v.Len())
		for i := range list {
			list[i] = plain(v.Index(i), "")
		}
		return list
	case reflect.Int64:
		switch {
		case isZxid(name):
			return Zxid(v.Int())
		case isSession(name):
			return fmt.Sprintf("%#x", uint64(v.Int()))
		}
	}
	return v.Interface()
}
