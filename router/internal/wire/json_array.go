package wire

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"strconv"
)

// Tokens implements Value. The fast path reads up to seven digits with one eight-byte
// load; whatever it does not know (longer numbers, odd white space, the last bytes of
// the text, anything wrong) goes to element, which knows the whole grammar.
func (j *JSON) Tokens(dst []uint32) ([]uint32, error) {
	if done, err := j.beginArray(); done || err != nil {
		return dst, err
	}
	base := len(dst)
	data, pos := j.data, j.pos
	for {
		if pos+9 <= len(data) {
			v, n := leadingDigits(binary.LittleEndian.Uint64(data[pos:]))
			// n is 1..7 and not a leading zero: one number of this length, if a
			// separator follows.
			if uint(n-1) < 7 && (n == 1 || data[pos] != '0') {
				next := data[pos+n]
				if next == ',' {
					dst = append(dst, v)
					pos += n + 1
					if data[pos] == ' ' { // pos+9 <= len held, n <= 7: in range
						pos++
					}
					continue
				}
				if next == ']' {
					j.pos = pos + n
					dst = append(dst, v)
					return dst, j.endArray()
				}
			}
		}
		j.pos = pos
		v, err := j.element(math.MaxUint32, false, len(dst)-base)
		if err != nil {
			return dst, err
		}
		dst = append(dst, uint32(v))
		more, err := j.nextElement()
		if !more {
			return dst, err
		}
		pos = j.pos
	}
}

// leadingDigits reads the decimal digits at the beginning of eight bytes of text (the
// first byte is the lowest): their value, and how many they are. The value is right
// for n < 8 only.
func leadingDigits(text uint64) (value uint32, n int) {
	x := text ^ 0x3030303030303030 // digits become 0..9
	other := ((x + 0x7676767676767676) | x) & 0x8080808080808080
	n = bits.TrailingZeros64(other) / 8
	if n == 0 || n == 8 {
		return 0, n
	}
	x <<= (8 - n) * 8 // zeros in front of the first digit, and the rest of the text is gone
	x = (x*10 + x>>8) & 0x00ff00ff00ff00ff
	x = (x*100 + x>>16) & 0x0000ffff0000ffff
	x = x*10000 + x>>32
	return uint32(x), n
}

// Hashes implements Value.
func (j *JSON) Hashes(dst []uint64) ([]uint64, error) {
	if done, err := j.beginArray(); done || err != nil {
		return dst, err
	}
	for i := 0; ; i++ {
		v, err := j.element(math.MaxUint64, true, i)
		if err != nil {
			return dst, err
		}
		dst = append(dst, v)
		if more, err := j.nextElement(); !more {
			return dst, err
		}
	}
}

// element reads element i of an integer array. signed allows negative values down to
// -2^63, bit-cast.
func (j *JSON) element(limit uint64, signed bool, i int) (uint64, error) {
	if j.peek() == 0 && j.pos >= len(j.data) {
		return 0, j.unexpected("a value")
	}
	start := j.pos
	text, integer, err := j.number("an integer")
	if err != nil {
		err.(*Error).Index = i
		return 0, err
	}
	if integer {
		if v, perr := strconv.ParseUint(string(text), 10, 64); perr == nil && v <= limit {
			return v, nil
		}
		if v, perr := strconv.ParseInt(string(text), 10, 64); perr == nil && signed && string(text) != "-0" {
			return uint64(v), nil
		}
	}
	want := "an integer from 0 to " + strconv.FormatUint(limit, 10)
	if signed {
		want = "an integer from -2^63 to 2^64-1"
	}
	e := j.shape(start, fmt.Sprintf("invalid value: number `%s`, expected %s", clip(text), want))
	e.Index = i
	return 0, e
}

// beginArray passes over the bracket; done means that the array is empty and behind.
func (j *JSON) beginArray() (done bool, err error) {
	if err := j.expect('[', "an array of integers"); err != nil {
		return false, err
	}
	if err := j.enter(); err != nil {
		return false, err
	}
	if j.peek() == ']' {
		return true, j.endArray()
	}
	return false, nil
}

func (j *JSON) endArray() error {
	j.pos++
	j.depth--
	return nil
}

// nextElement passes over what follows an element; more is false at the end of the
// array or on an error.
func (j *JSON) nextElement() (more bool, err error) {
	switch j.peek() {
	case ',':
		j.pos++
		j.peek()
		return true, nil
	case ']':
		return false, j.endArray()
	}
	return false, j.unexpected("`,` or `]`")
}

// Skip implements Value.
func (j *JSON) Skip() error {
	switch c := j.peek(); {
	case c == '"':
		_, err := j.passString()
		return err
	case c == '{':
		return j.Object(func([]byte) error { return j.Skip() })
	case c == '[':
		return j.skipArray()
	case c == '-' || c >= '0' && c <= '9':
		_, _, err := j.number("")
		return err
	case c == 't':
		return j.literal("true")
	case c == 'f':
		return j.literal("false")
	case c == 'n':
		return j.literal("null")
	}
	return j.unexpected("a value")
}

func (j *JSON) skipArray() error {
	if done, err := j.beginArray(); done || err != nil {
		return err
	}
	for {
		if err := j.Skip(); err != nil {
			return err
		}
		if more, err := j.nextElement(); !more {
			return err
		}
	}
}

func (j *JSON) literal(word string) error {
	if len(j.data)-j.pos < len(word) || string(j.data[j.pos:j.pos+len(word)]) != word {
		return j.unexpected("`" + word + "`")
	}
	j.pos += len(word)
	return nil
}
