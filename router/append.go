package router

import (
	"strconv"
	"unicode/utf8"
)

const hexDigits = "0123456789abcdef"

// appendString appends s as a JSON string. Bytes that are not UTF-8 become U+FFFD.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= 0x20 && c != '"' && c != '\\' && c < utf8.RuneSelf {
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			r, n := utf8.DecodeRuneInString(s[i:])
			if r == utf8.RuneError && n == 1 {
				b = append(append(b, s[start:i]...), "\uFFFD"...)
				start = i + 1
			}
			i += n
			continue
		}
		b = append(b, s[start:i]...)
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, '\\', 'n')
		case '\t':
			b = append(b, '\\', 't')
		case '\r':
			b = append(b, '\\', 'r')
		default:
			b = append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
		i++
		start = i
	}
	return append(append(b, s[start:]...), '"')
}

// appendID appends an instance identity: as a number when it is the decimal form of a
// u64, as Dynamo's clients expect, else as a string.
func appendID(b []byte, id string) []byte {
	if isNumber(id) {
		return append(b, id...)
	}
	return appendString(b, id)
}

// isNumber reports whether id is the canonical decimal form of a u64.
func isNumber(id string) bool {
	if id == "" || len(id) > 1 && id[0] == '0' || id[0] == '+' {
		return false
	}
	_, err := strconv.ParseUint(id, 10, 64)
	return err == nil
}

// comma appends a comma unless b ends in an opening bracket.
func comma(b []byte) []byte {
	if last := b[len(b)-1]; last != '{' && last != '[' {
		b = append(b, ',')
	}
	return b
}

func appendKey(b []byte, key string) []byte { return append(appendString(comma(b), key), ':') }

func appendUint(b []byte, v uint64) []byte { return strconv.AppendUint(b, v, 10) }

func appendUintField(b []byte, key string, v uint64) []byte {
	return appendUint(appendKey(b, key), v)
}

func appendStringField(b []byte, key, v string) []byte { return appendString(appendKey(b, key), v) }

func appendBoolField(b []byte, key string, v bool) []byte {
	return strconv.AppendBool(appendKey(b, key), v)
}

func appendFloatField(b []byte, key string, v float64) []byte {
	return strconv.AppendFloat(appendKey(b, key), v, 'g', 4, 64)
}
