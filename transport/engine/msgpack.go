package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// Reasons to refuse a payload whole. They are wrapped with the offset.
var (
	// ErrTruncated: the payload ends inside a value, or a length says more than
	// the bytes that are left.
	ErrTruncated = errors.New("truncated")
	// ErrSyntax: a byte that starts no msgpack value.
	ErrSyntax = errors.New("not msgpack")
	// ErrDepth: containers nested deeper than any engine's.
	ErrDepth = errors.New("nested too deeply")
	// ErrEnvelope: well-formed msgpack, but not an event batch.
	ErrEnvelope = errors.New("not an event batch")
	// ErrTooLarge: beyond a limit of the DecoderConfig.
	ErrTooLarge = errors.New("too large")
)

// maxDepth bounds nesting below one event or one ignored value. Engines use 4.
const maxDepth = 24

// msgpack type bytes that are named in code.
const (
	tagNil     = 0xc0
	tagBin8    = 0xc4
	tagBin16   = 0xc5
	tagBin32   = 0xc6
	tagFloat32 = 0xca
	tagFloat64 = 0xcb
	tagU8      = 0xcc
	tagU16     = 0xcd
	tagU32     = 0xce
	tagU64     = 0xcf
	tagI8      = 0xd0
	tagI16     = 0xd1
	tagI32     = 0xd2
	tagI64     = 0xd3
	tagStr8    = 0xd9
	tagStr16   = 0xda
	tagStr32   = 0xdb
	tagArray16 = 0xdc
	tagArray32 = 0xdd
	tagMap16   = 0xde
	tagMap32   = 0xdf
)

// fixedSize has the whole size of values whose first byte alone tells it (fixstr
// included), and 0 for containers, values with a length header, and 0xc1.
var fixedSize = func() (t [256]uint8) {
	for c := range t {
		switch {
		case c < 0x80 || c >= 0xe0:
			t[c] = 1
		case c >= 0xa0 && c < 0xc0:
			t[c] = uint8(1 + c&0x1f)
		}
	}
	for c, n := range map[int]uint8{
		tagNil: 1, 0xc2: 1, 0xc3: 1,
		tagFloat32: 5, tagFloat64: 9,
		tagU8: 2, tagU16: 3, tagU32: 5, tagU64: 9,
		tagI8: 2, tagI16: 3, tagI32: 5, tagI64: 9,
		0xd4: 3, 0xd5: 4, 0xd6: 6, 0xd7: 10, 0xd8: 18, // fixext
	} {
		t[c] = n
	}
	return t
}()

func at(err error, i int) error { return fmt.Errorf("%w at byte %d", err, i) }

// skip returns the offset behind the value at i. It is the judge of structure:
// typed readers only say "not what I expected", then skip tells whether the bytes
// are sound.
func skip(b []byte, i int) (int, error) {
	if i < len(b) {
		if n := int(fixedSize[b[i]]); n != 0 {
			if n > len(b)-i {
				return i, at(ErrTruncated, i)
			}
			return i + n, nil
		}
	}
	return skipAny(b, i)
}

func skipAny(b []byte, i int) (int, error) {
	var open [maxDepth]int // values still to come in the containers around this one
	depth, need := 0, 1
	for {
		for need == 0 {
			if depth == 0 {
				return i, nil
			}
			depth--
			need = open[depth]
		}
		if i >= len(b) {
			return i, at(ErrTruncated, i)
		}
		need--
		c := b[i]
		if n := int(fixedSize[c]); n != 0 {
			if n > len(b)-i {
				return i, at(ErrTruncated, i)
			}
			i += n
			continue
		}
		if n, next, ok := arrayHeader(b, i); ok {
			if depth == maxDepth {
				return i, at(ErrDepth, i)
			}
			open[depth] = need
			depth, need, i = depth+1, n, next
			continue
		}
		if n, next, ok := mapHeader(b, i); ok {
			if depth == maxDepth {
				return i, at(ErrDepth, i)
			}
			open[depth] = need
			depth, need, i = depth+1, 2*n, next
			continue
		}
		n, head := 0, 0
		switch c {
		case tagBin8, tagStr8, 0xc7:
			n, head = lengthHeader(b, i, 1)
		case tagBin16, tagStr16, 0xc8:
			n, head = lengthHeader(b, i, 2)
		case tagBin32, tagStr32, 0xc9:
			n, head = lengthHeader(b, i, 4)
		case 0xc1:
			return i, at(ErrSyntax, i)
		}
		if c >= 0xc7 && c <= 0xc9 {
			head++ // the type byte of an ext
		}
		if head <= 1 || n > len(b)-i-head {
			return i, at(ErrTruncated, i) // also containers longer than the rest
		}
		i += head + n
	}
}

// lengthHeader reads a big-endian length of size bytes behind the type byte at i.
// head is 0 when the bytes are not there.
func lengthHeader(b []byte, i, size int) (n, head int) {
	if len(b)-i <= size {
		return 0, 0
	}
	switch size {
	case 1:
		return int(b[i+1]), 2
	case 2:
		return int(binary.BigEndian.Uint16(b[i+1:])), 3
	}
	return int(binary.BigEndian.Uint32(b[i+1:])), 5
}

// arrayHeader reads the head of an array. ok is false when the value is no array,
// or when it claims more elements than there are bytes left.
func arrayHeader(b []byte, i int) (n, next int, ok bool) {
	if i >= len(b) {
		return 0, i, false
	}
	head := 1
	switch c := b[i]; {
	case c&0xf0 == 0x90:
		n = int(c & 0x0f)
	case c == tagArray16:
		n, head = lengthHeader(b, i, 2)
	case c == tagArray32:
		n, head = lengthHeader(b, i, 4)
	default:
		return 0, i, false
	}
	next = i + head
	return n, next, head != 0 && n <= len(b)-next
}

// mapHeader is arrayHeader for maps; n counts pairs.
func mapHeader(b []byte, i int) (n, next int, ok bool) {
	if i >= len(b) {
		return 0, i, false
	}
	head := 1
	switch c := b[i]; {
	case c&0xf0 == 0x80:
		n = int(c & 0x0f)
	case c == tagMap16:
		n, head = lengthHeader(b, i, 2)
	case c == tagMap32:
		n, head = lengthHeader(b, i, 4)
	default:
		return 0, i, false
	}
	next = i + head
	return n, next, head != 0 && n <= (len(b)-next)/2
}

// readStr reads a str. text aliases b.
func readStr(b []byte, i int) (text []byte, next int, ok bool) {
	if i >= len(b) {
		return nil, i, false
	}
	n, head := 0, 1
	switch c := b[i]; {
	case c&0xe0 == 0xa0:
		n = int(c & 0x1f)
	case c == tagStr8:
		n, head = lengthHeader(b, i, 1)
	case c == tagStr16:
		n, head = lengthHeader(b, i, 2)
	case c == tagStr32:
		n, head = lengthHeader(b, i, 4)
	default:
		return nil, i, false
	}
	return span(b, i, n, head)
}

// readBin reads a bin. data aliases b.
func readBin(b []byte, i int) (data []byte, next int, ok bool) {
	if i >= len(b) {
		return nil, i, false
	}
	n, head := 0, 0
	switch b[i] {
	case tagBin8:
		n, head = lengthHeader(b, i, 1)
	case tagBin16:
		n, head = lengthHeader(b, i, 2)
	case tagBin32:
		n, head = lengthHeader(b, i, 4)
	default:
		return nil, i, false
	}
	return span(b, i, n, head)
}

func span(b []byte, i, n, head int) ([]byte, int, bool) {
	from := i + head
	if head == 0 || n > len(b)-from {
		return nil, i, false
	}
	return b[from : from+n : from+n], from + n, true
}

// readInt reads an integer of any width. A negative one comes as its two's
// complement with neg set.
func readInt(b []byte, i int) (v uint64, neg bool, next int, ok bool) {
	if i >= len(b) {
		return 0, false, i, false
	}
	c := b[i]
	if c < 0x80 {
		return uint64(c), false, i + 1, true
	}
	if c >= 0xe0 {
		return uint64(int64(int8(c))), true, i + 1, true
	}
	if c < tagU8 || c > tagI64 {
		return 0, false, i, false
	}
	next = i + int(fixedSize[c])
	if next > len(b) {
		return 0, false, i, false
	}
	p := b[i+1 : next]
	switch c {
	case tagU8:
		v = uint64(p[0])
	case tagU16:
		v = uint64(binary.BigEndian.Uint16(p))
	case tagU32:
		v = uint64(binary.BigEndian.Uint32(p))
	case tagU64:
		v = binary.BigEndian.Uint64(p)
	case tagI8:
		v = uint64(int64(int8(p[0])))
	case tagI16:
		v = uint64(int64(int16(binary.BigEndian.Uint16(p))))
	case tagI32:
		v = uint64(int64(int32(binary.BigEndian.Uint32(p))))
	case tagI64:
		v = binary.BigEndian.Uint64(p)
	}
	return v, c >= tagI8 && int64(v) < 0, next, true
}

// readNumber reads any number as a float.
func readNumber(b []byte, i int) (f float64, next int, ok bool) {
	if v, neg, next, ok := readInt(b, i); ok {
		if neg {
			return float64(int64(v)), next, true
		}
		return float64(v), next, true
	}
	switch {
	case i < len(b) && b[i] == tagFloat64 && len(b)-i >= 9:
		return math.Float64frombits(binary.BigEndian.Uint64(b[i+1:])), i + 9, true
	case i < len(b) && b[i] == tagFloat32 && len(b)-i >= 5:
		return float64(math.Float32frombits(binary.BigEndian.Uint32(b[i+1:]))), i + 5, true
	}
	return 0, i, false
}

func isNil(b []byte, i int) bool { return i < len(b) && b[i] == tagNil }
