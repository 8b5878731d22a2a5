package golden

import (
	"encoding/binary"
	"fmt"
)

// bindings holds the values of a scenario's symbols in this replay.
type bindings struct {
	base   int64 // last zxid before the scenario
	based  bool  // base is known
	values map[string][]byte
	times  map[int64]int64 // by the number in "T+N", ms since the epoch
}

func newBindings() *bindings {
	return &bindings{values: map[string][]byte{}, times: map[int64]int64{}}
}

func (b *bindings) request(st *Step) ([]byte, error) {
	out := append([]byte(nil), st.Bytes...)
	for i := range st.Fields {
		f := &st.Fields[i]
		if f.old() && f.Kind != Zxid {
			continue
		}
		v, ok := b.value(f)
		if !ok {
			return nil, fmt.Errorf("%s has no value yet", f.Symbol)
		}
		copy(out[f.Offset:], v)
	}
	return out, nil
}

// value returns the value of a field's symbol, and false if it has none yet.
func (b *bindings) value(f *Field) ([]byte, bool) {
	switch {
	case f.old(): // in a request: the last zxid before the scenario, or 0
		return binary.BigEndian.AppendUint64(nil, uint64(b.base)), true
	case f.Kind == Zxid:
		return binary.BigEndian.AppendUint64(nil, uint64(b.base+f.n)), b.based
	case f.Kind == Time:
		ms, ok := b.times[f.n]
		return binary.BigEndian.AppendUint64(nil, uint64(ms)), ok
	}
	v, ok := b.values[f.Symbol]
	return v, ok
}

// reply compares a received frame with the recorded one. It binds symbols that have no
// value yet to the received values. It returns nil if the frames match.
func (b *bindings) reply(st *Step, got []byte, eventZxid bool) *Diff {
	d := &Diff{Step: st, Got: got, Want: append([]byte(nil), st.Bytes...), Offset: -1}
	eventZxid = eventZxid && event(st.Bytes) && event(got)
	for i := range st.Fields {
		f := &st.Fields[i]
		if eventZxid && f.Offset == zxidAt {
			continue
		}
		end := f.Offset + f.Length
		var came []byte
		if end <= len(got) {
			came = got[f.Offset:end]
		}
		v, bound := b.value(f)
		switch {
		case f.old():
			v = came
		case !bound && came != nil:
			v = came
			if why := b.bind(f, came); why != "" && d.Offset < 0 {
				d.Offset = f.Offset
				d.Why = fmt.Sprintf("%s: %s", f.Name, why)
			}
		case !bound:
			continue // got is too short, which is a difference already
		}
		copy(d.Want[f.Offset:], v)
	}
	if eventZxid {
		if z := int64(binary.BigEndian.Uint64(got[zxidAt:])); z == -1 || z > 0 {
			copy(d.Want[zxidAt:zxidAt+8], got[zxidAt:])
		}
	}
	at := firstDiff(d.Want, got)
	if at >= 0 && (d.Offset < 0 || at < d.Offset) {
		d.Offset = at
		d.Why = b.describe(st, d.Want, got, at)
	}
	if d.Offset < 0 {
		return nil
	}
	return d
}

// bind binds a field's symbol to a value. It returns why the value is impossible, or "".
func (b *bindings) bind(f *Field, v []byte) string {
	switch f.Kind {
	case Zxid:
		b.base = int64(binary.BigEndian.Uint64(v)) - f.n
		b.based = true
		if b.base < 0 {
			return fmt.Sprintf("zxid %d is too small for %s", b.base+f.n, f.Symbol)
		}
	case Time:
		ms := int64(binary.BigEndian.Uint64(v))
		for n, other := range b.times {
			if n < f.n && other > ms || n > f.n && other < ms {
				return fmt.Sprintf("time %d of %s and %d of T+%d are in the wrong order", ms, f.Symbol, other, n)
			}
		}
		b.times[f.n] = ms
	case Sid, Nonce:
		for symbol, other := range b.values {
			if symbol[0] == f.Symbol[0] && string(other) == string(v) {
				return fmt.Sprintf("%s has the value of %s", f.Symbol, symbol)
			}
		}
		fallthrough
	default:
		b.values[f.Symbol] = append([]byte(nil), v...)
	}
	return ""
}

func (b *bindings) describe(st *Step, want, got []byte, at int) string {
	if len(want) != len(got) {
		return fmt.Sprintf("a frame of %d bytes where %d were recorded", len(got), len(want))
	}
	for i := range st.Fields {
		f := &st.Fields[i]
		if at < f.Offset || at >= f.Offset+f.Length {
			continue
		}
		if f.Kind == Zxid {
			came := int64(binary.BigEndian.Uint64(got[f.Offset:]))
			return fmt.Sprintf("%s is base+%d where %s was recorded", f.Name, came-b.base, f.Symbol)
		}
		return fmt.Sprintf("%s is not %s", f.Name, f.Symbol)
	}
	return fmt.Sprintf("byte %d is %02x where %02x was recorded", at, got[at], want[at])
}
