package wire

import (
	"encoding/binary"
	"fmt"
	"math"
)

// unsigned returns the value of a non-negative integer.
func (h head) unsigned() (uint64, bool) {
	switch {
	case h.kind == kindUint:
		return h.uint, true
	case h.kind == kindInt && h.int >= 0:
		return uint64(h.int), true
	}
	return 0, false
}

// String describes a head in an error.
func (h head) String() string {
	switch h.kind {
	case kindInt:
		return fmt.Sprintf("integer %d", h.int)
	case kindUint:
		return fmt.Sprintf("integer %d", h.uint)
	}
	return kindNames[h.kind]
}

// head reads the head at the position. The bytes that it announces are there: a length
// is never believed before it was compared with what is left, so callers may slice and
// loop by it. (A pair of a map has at least two bytes, an element of an array one.)
func (m *Msgpack) head() (head, error) {
	if m.pos >= len(m.data) {
		return head{}, m.syntax(m.pos, "unexpected end of the body")
	}
	c := m.data[m.pos]
	m.pos++
	switch {
	case c <= 0x7f:
		return head{kind: kindInt, int: int64(c)}, nil
	case c >= 0xe0:
		return head{kind: kindInt, int: int64(int8(c))}, nil
	case c <= 0x8f:
		return m.sized(kindMap, int(c&15))
	case c <= 0x9f:
		return m.sized(kindArray, int(c&15))
	case c <= 0xbf:
		return m.sized(kindStr, int(c&31))
	}
	switch c {
	case 0xc0:
		return head{kind: kindNil}, nil
	case 0xc2, 0xc3:
		return head{kind: kindBool}, nil
	case 0xc4, 0xc5, 0xc6:
		return m.lengthPrefixed(kindBin, 1<<(c-0xc4))
	case 0xc7, 0xc8, 0xc9:
		return m.lengthPrefixed(kindExt, 1<<(c-0xc7))
	case 0xca:
		return m.sized(kindFloat, 4)
	case 0xcb:
		return m.sized(kindFloat, 8)
	case 0xcc, 0xcd, 0xce, 0xcf:
		v, err := m.bigEndian(1 << (c - 0xcc))
		if v > math.MaxInt64 {
			return head{kind: kindUint, uint: v}, err
		}
		return head{kind: kindInt, int: int64(v)}, err
	case 0xd0, 0xd1, 0xd2, 0xd3:
		size := 1 << (c - 0xd0)
		v, err := m.bigEndian(size)
		shift := 64 - 8*size
		return head{kind: kindInt, int: int64(v<<shift) >> shift}, err
	case 0xd4, 0xd5, 0xd6, 0xd7, 0xd8:
		return m.sized(kindExt, 1+1<<(c-0xd4))
	case 0xd9, 0xda, 0xdb:
		return m.lengthPrefixed(kindStr, 1<<(c-0xd9))
	case 0xdc, 0xdd:
		return m.lengthPrefixed(kindArray, 2<<(c-0xdc))
	case 0xde, 0xdf:
		return m.lengthPrefixed(kindMap, 2<<(c-0xde))
	}
	return head{}, m.syntax(m.pos-1, fmt.Sprintf("byte 0x%02x begins no value", c))
}

func (m *Msgpack) lengthPrefixed(k kind, size int) (head, error) {
	n, err := m.bigEndian(size)
	if err != nil {
		return head{}, err
	}
	if k == kindExt {
		n++ // its type
	}
	return m.sized(k, int(n))
}

// sized checks that n bytes, elements or pairs can be in what is left of the body.
func (m *Msgpack) sized(k kind, n int) (head, error) {
	least := n
	if k == kindMap {
		least = 2 * n
	}
	if least > len(m.data)-m.pos {
		return head{}, m.syntax(m.pos, fmt.Sprintf("%s of length %d in %d bytes", kindNames[k], n, len(m.data)-m.pos))
	}
	return head{kind: k, length: n}, nil
}

func (m *Msgpack) bigEndian(size int) (uint64, error) {
	if size > len(m.data)-m.pos {
		return 0, m.syntax(m.pos, "unexpected end of the body")
	}
	b := m.data[m.pos : m.pos+size]
	m.pos += size
	switch size {
	case 1:
		return uint64(b[0]), nil
	case 2:
		return uint64(binary.BigEndian.Uint16(b)), nil
	case 4:
		return uint64(binary.BigEndian.Uint32(b)), nil
	}
	return binary.BigEndian.Uint64(b), nil
}

func (m *Msgpack) enter() error {
	if m.depth++; m.depth > MaxDepth {
		return m.syntax(m.pos, "recursion limit exceeded")
	}
	return nil
}

func (m *Msgpack) mistyped(pos int, h head, want string) error {
	return m.shape(pos, fmt.Sprintf("invalid type: %s, expected %s", h, want))
}

func (m *Msgpack) element(pos, i int, text string) *Error {
	e := m.shape(pos, text)
	e.Index = i
	return e
}

func (m *Msgpack) syntax(pos int, text string) *Error {
	return &Error{Text: text, Index: -1, At: fmt.Sprintf("byte %d", pos)}
}

func (m *Msgpack) shape(pos int, text string) *Error {
	e := m.syntax(pos, text)
	e.Shape = true
	return e
}
