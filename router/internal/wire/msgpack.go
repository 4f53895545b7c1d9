package wire

import (
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"
)

// Msgpack walks a msgpack body. Texts may be str or bin; extension types are passed
// over. It belongs to one goroutine.
type Msgpack struct {
	data  []byte
	pos   int
	depth int
}

var _ Value = (*Msgpack)(nil)

// NewMsgpack returns a walker at the beginning of data, which must not change meanwhile.
func NewMsgpack(data []byte) *Msgpack { return &Msgpack{data: data} }

// kind is what a head announces.
type kind uint8

const (
	kindNil kind = iota
	kindBool
	kindInt   // value in head.int
	kindUint  // value above the int64 range in head.uint
	kindFloat // 4 or 8 bytes follow
	kindStr   // length bytes follow
	kindBin   // length bytes follow
	kindExt   // length bytes follow, type included
	kindArray // length values follow
	kindMap   // length pairs follow
)

var kindNames = [...]string{"nil", "boolean", "integer", "integer", "float", "string", "binary", "extension", "array", "map"}

type head struct {
	kind   kind
	int    int64
	uint   uint64
	length int
}

// Mark implements Value.
func (m *Msgpack) Mark() Mark { return Mark{m.pos, m.depth} }

// Reset implements Value.
func (m *Msgpack) Reset(k Mark) { m.pos, m.depth = k.pos, k.depth }

// Object implements Value.
func (m *Msgpack) Object(field func(key []byte) error) error {
	start := m.pos
	h, err := m.head()
	if err != nil {
		return err
	}
	if h.kind != kindMap {
		return m.mistyped(start, h, "a map")
	}
	if err := m.enter(); err != nil {
		return err
	}
	for range h.length {
		start = m.pos
		k, err := m.head()
		if err != nil {
			return err
		}
		if k.kind != kindStr && k.kind != kindBin {
			return m.mistyped(start, k, "a string as key")
		}
		key := m.data[m.pos : m.pos+k.length]
		m.pos += k.length
		if err := field(key); err != nil {
			return err
		}
	}
	m.depth--
	return nil
}

// Null implements Value.
func (m *Msgpack) Null() bool {
	if m.pos < len(m.data) && m.data[m.pos] == 0xc0 {
		m.pos++
		return true
	}
	return false
}

// String implements Value.
func (m *Msgpack) String() (string, error) {
	start := m.pos
	h, err := m.head()
	if err != nil {
		return "", err
	}
	if h.kind != kindStr && h.kind != kindBin {
		return "", m.mistyped(start, h, "a string")
	}
	b := m.data[m.pos : m.pos+h.length]
	if !utf8.Valid(b) {
		return "", m.syntax(start, "string is not UTF-8")
	}
	m.pos += h.length
	return string(b), nil
}

// Uint implements Value.
func (m *Msgpack) Uint(limit uint64) (uint64, error) {
	start := m.pos
	h, err := m.head()
	if err != nil {
		return 0, err
	}
	v, ok := h.unsigned()
	if !ok || v > limit {
		return 0, m.mistyped(start, h, "an integer from 0 to "+strconv.FormatUint(limit, 10))
	}
	return v, nil
}

// Int implements Value.
func (m *Msgpack) Int() (int64, error) {
	start := m.pos
	h, err := m.head()
	if err != nil {
		return 0, err
	}
	if h.kind != kindInt {
		return 0, m.mistyped(start, h, "a 64-bit integer")
	}
	return h.int, nil
}

// Bool implements Value.
func (m *Msgpack) Bool() (bool, error) {
	start := m.pos
	h, err := m.head()
	if err != nil {
		return false, err
	}
	if h.kind != kindBool {
		return false, m.mistyped(start, h, "a boolean")
	}
	return m.data[start] == 0xc3, nil
}

// ID implements Value.
func (m *Msgpack) ID() (string, error) {
	start := m.pos
	h, err := m.head()
	if err != nil {
		return "", err
	}
	if v, ok := h.unsigned(); ok {
		return strconv.FormatUint(v, 10), nil
	}
	if h.kind != kindStr && h.kind != kindBin {
		return "", m.mistyped(start, h, "a string or an integer from 0 to 2^64-1")
	}
	m.pos = start
	return m.String()
}

// Tokens implements Value. A bin holds little-endian 32-bit integers, which must not be
// negative.
func (m *Msgpack) Tokens(dst []uint32) ([]uint32, error) {
	start := m.pos
	h, err := m.head()
	if err != nil {
		return dst, err
	}
	if h.kind == kindBin {
		b := m.data[m.pos : m.pos+h.length]
		if len(b)%4 != 0 {
			return dst, m.shape(start, fmt.Sprintf("binary of %d bytes is not a whole number of 32-bit integers", len(b)))
		}
		for i := 0; i < len(b); i += 4 {
			v := binary.LittleEndian.Uint32(b[i:])
			if v > math.MaxInt32 {
				return dst, m.element(start, i/4, fmt.Sprintf("invalid value: %d, expected an integer from 0 to 2147483647", int32(v)))
			}
			dst = append(dst, v)
		}
		m.pos += h.length
		return dst, nil
	}
	err = m.integers(start, h, func(i int, e head) error {
		v, ok := e.unsigned()
		if !ok || v > math.MaxUint32 {
			return m.element(start, i, "invalid value: "+e.String()+", expected an integer from 0 to 4294967295")
		}
		dst = append(dst, uint32(v))
		return nil
	})
	return dst, err
}

// Hashes implements Value.
func (m *Msgpack) Hashes(dst []uint64) ([]uint64, error) {
	start := m.pos
	h, err := m.head()
	if err != nil {
		return dst, err
	}
	err = m.integers(start, h, func(i int, e head) error {
		switch e.kind {
		case kindInt:
			dst = append(dst, uint64(e.int))
		case kindUint:
			dst = append(dst, e.uint)
		default:
			return m.element(start, i, "invalid value: "+e.String()+", expected an integer from -2^63 to 2^64-1")
		}
		return nil
	})
	return dst, err
}

func (m *Msgpack) integers(start int, h head, each func(i int, e head) error) error {
	if h.kind != kindArray {
		return m.mistyped(start, h, "an array of integers")
	}
	for i := range h.length {
		e, err := m.head()
		if err != nil {
			return err
		}
		if err := each(i, e); err != nil {
			return err
		}
	}
	return nil
}

// Skip implements Value.
func (m *Msgpack) Skip() error {
	h, err := m.head()
	if err != nil {
		return err
	}
	n := h.length
	switch h.kind {
	case kindStr, kindBin, kindExt, kindFloat:
		m.pos += n
		return nil
	case kindMap:
		n *= 2
	case kindArray:
	default:
		return nil
	}
	if err := m.enter(); err != nil {
		return err
	}
	for range n {
		if err := m.Skip(); err != nil {
			return err
		}
	}
	m.depth--
	return nil
}

// End implements Value.
func (m *Msgpack) End() error {
	if m.pos < len(m.data) {
		return m.syntax(m.pos, "trailing bytes")
	}
	return nil
}
