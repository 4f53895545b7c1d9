package wire

import (
	"unicode/utf16"
	"unicode/utf8"
)

// passString passes over the string at the position and checks it; plain means that
// it has no escapes.
func (j *JSON) passString() (plain bool, err error) {
	start := j.pos
	plain, ascii := true, true
	i := start + 1
	for ; i < len(j.data); i++ {
		switch c := j.data[i]; {
		case c == '"':
			j.pos = i + 1
			if !ascii && !utf8.Valid(j.data[start+1:i]) {
				return false, j.syntax(start, "string is not UTF-8")
			}
			if !plain { // the escapes must be right even where nobody looks
				_, err = j.unescape(nil, j.data[start+1:i], start+1)
			}
			return plain, err
		case c == '\\':
			plain = false
			i++
		case c < 0x20:
			return false, j.syntax(i, "control character in a string")
		case c >= utf8.RuneSelf:
			ascii = false
		}
	}
	return false, j.syntax(len(j.data), "unexpected end of the text in a string")
}

// unescape appends raw, the inside of a string that begins at pos, with its escapes
// resolved.
func (j *JSON) unescape(dst, raw []byte, pos int) ([]byte, error) {
	for i := 0; i < len(raw); i++ {
		c := raw[i]
		if c != '\\' {
			dst = append(dst, c)
			continue
		}
		if i++; i >= len(raw) {
			return nil, j.syntax(pos+i, "invalid escape")
		}
		switch c := raw[i]; c {
		case '"', '\\', '/':
			dst = append(dst, c)
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		case 'u':
			r, n := hexRune(raw[i+1:])
			if n == 0 {
				return nil, j.syntax(pos+i, "invalid \\u escape or lone surrogate")
			}
			i += n
			dst = utf8.AppendRune(dst, r)
		default:
			return nil, j.syntax(pos+i, "invalid escape")
		}
	}
	return dst, nil
}

// hexRune reads the four digits behind \u, and a second escape when they are a high
// surrogate. n is the number of bytes read, 0 on an error.
func hexRune(b []byte) (r rune, n int) {
	hi, ok := hex4(b)
	if !ok {
		return 0, 0
	}
	if !utf16.IsSurrogate(hi) {
		return hi, 4
	}
	if len(b) < 10 || b[4] != '\\' || b[5] != 'u' {
		return 0, 0
	}
	lo, ok := hex4(b[6:])
	if r = utf16.DecodeRune(hi, lo); !ok || r == utf8.RuneError {
		return 0, 0
	}
	return r, 10
}

func hex4(b []byte) (v rune, ok bool) {
	if len(b) < 4 {
		return 0, false
	}
	for _, c := range b[:4] {
		v <<= 4
		switch {
		case c >= '0' && c <= '9':
			v |= rune(c - '0')
		case c >= 'a' && c <= 'f':
			v |= rune(c - 'a' + 10)
		case c >= 'A' && c <= 'F':
			v |= rune(c - 'A' + 10)
		default:
			return 0, false
		}
	}
	return v, true
}
