package wire

import (
	"bytes"
	"fmt"
	"strconv"
	"unicode/utf8"
)

// JSON walks a JSON text. The grammar is RFC 8259, strictly: no comments, no trailing
// commas, no numbers with leading zeros, no control characters in strings, no bytes
// that are not UTF-8, no lone surrogates. It belongs to one goroutine.
type JSON struct {
	data  []byte
	pos   int
	depth int
	key   []byte // unescaped key, when it had escapes
}

var _ Value = (*JSON)(nil)

// NewJSON returns a walker at the beginning of data, which must not change meanwhile.
func NewJSON(data []byte) *JSON { return &JSON{data: data} }

// Mark implements Value.
func (j *JSON) Mark() Mark { return Mark{j.pos, j.depth} }

// Reset implements Value.
func (j *JSON) Reset(m Mark) { j.pos, j.depth = m.pos, m.depth }

// Object implements Value.
func (j *JSON) Object(field func(key []byte) error) error {
	if err := j.expect('{', "an object"); err != nil {
		return err
	}
	if err := j.enter(); err != nil {
		return err
	}
	for first := true; ; first = false {
		c := j.peek()
		if c == '}' && first {
			break
		}
		if c != '"' {
			return j.unexpected("a key")
		}
		key, err := j.rawKey()
		if err != nil {
			return err
		}
		if j.peek() != ':' {
			return j.unexpected("`:`")
		}
		j.pos++
		if err := field(key); err != nil {
			return err
		}
		if c = j.peek(); c == ',' {
			j.pos++
			continue
		}
		if c == '}' {
			break
		}
		return j.unexpected("`,` or `}`")
	}
	j.pos++
	j.depth--
	return nil
}

// rawKey returns the key at the position, unescaped.
func (j *JSON) rawKey() ([]byte, error) {
	start := j.pos + 1
	plain, err := j.passString()
	if err != nil {
		return nil, err
	}
	raw := j.data[start : j.pos-1]
	if plain {
		return raw, nil
	}
	j.key, err = j.unescape(j.key[:0], raw, start)
	return j.key, err
}

// Null implements Value.
func (j *JSON) Null() bool {
	j.peek()
	if bytes.HasPrefix(j.data[j.pos:], []byte("null")) {
		j.pos += 4
		return true
	}
	return false
}

// String implements Value.
func (j *JSON) String() (string, error) {
	if j.peek() != '"' {
		return "", j.mistyped("a string")
	}
	start := j.pos + 1
	plain, err := j.passString()
	if err != nil {
		return "", err
	}
	raw := j.data[start : j.pos-1]
	if plain {
		return string(raw), nil
	}
	out, err := j.unescape(nil, raw, start)
	return string(out), err
}

// Uint implements Value.
func (j *JSON) Uint(limit uint64) (uint64, error) {
	want := "an integer from 0 to " + strconv.FormatUint(limit, 10)
	text, integer, err := j.number(want)
	if err != nil {
		return 0, err
	}
	v, perr := strconv.ParseUint(string(text), 10, 64)
	if !integer || perr != nil || v > limit {
		return 0, j.shape(j.pos-len(text), fmt.Sprintf("invalid value: number `%s`, expected %s", clip(text), want))
	}
	return v, nil
}

// Int implements Value.
func (j *JSON) Int() (int64, error) {
	text, integer, err := j.number("an integer")
	if err != nil {
		return 0, err
	}
	v, perr := strconv.ParseInt(string(text), 10, 64)
	if !integer || perr != nil {
		return 0, j.shape(j.pos-len(text), fmt.Sprintf("invalid value: number `%s`, expected a 64-bit integer", clip(text)))
	}
	return v, nil
}

// ID implements Value.
func (j *JSON) ID() (string, error) {
	if j.peek() == '"' {
		return j.String()
	}
	const want = "a string or an integer from 0 to 2^64-1"
	text, integer, err := j.number(want)
	if err != nil {
		return "", err
	}
	if _, perr := strconv.ParseUint(string(text), 10, 64); !integer || perr != nil {
		return "", j.shape(j.pos-len(text), fmt.Sprintf("invalid value: number `%s`, expected %s", clip(text), want))
	}
	return string(text), nil
}

// Bool implements Value.
func (j *JSON) Bool() (bool, error) {
	switch j.peek() {
	case 't':
		return true, j.literal("true")
	case 'f':
		return false, j.literal("false")
	}
	return false, j.mistyped("a boolean")
}

// End implements Value.
func (j *JSON) End() error {
	if j.peek(); j.pos < len(j.data) {
		return j.syntax(j.pos, "trailing characters")
	}
	return nil
}

// number passes over a number and returns its text; integer means without fraction
// and exponent.
func (j *JSON) number(want string) (text []byte, integer bool, err error) {
	c := j.peek()
	if c != '-' && (c < '0' || c > '9') {
		return nil, false, j.mistyped(want)
	}
	start := j.pos
	if c == '-' {
		j.pos++
	}
	digits := j.digits()
	if digits == 0 || digits > 1 && j.data[j.pos-digits] == '0' {
		return nil, false, j.syntax(start, "invalid number")
	}
	integer = true
	if j.at(j.pos) == '.' {
		integer = false
		j.pos++
		if j.digits() == 0 {
			return nil, false, j.syntax(start, "invalid number")
		}
	}
	if c := j.at(j.pos); c == 'e' || c == 'E' {
		integer = false
		j.pos++
		if c := j.at(j.pos); c == '+' || c == '-' {
			j.pos++
		}
		if j.digits() == 0 {
			return nil, false, j.syntax(start, "invalid number")
		}
	}
	return j.data[start:j.pos], integer, nil
}

func (j *JSON) digits() int {
	start := j.pos
	for j.pos < len(j.data) && j.data[j.pos]-'0' <= 9 {
		j.pos++
	}
	return j.pos - start
}

// at returns a byte, or 0 behind the end (0 is never valid outside strings).
func (j *JSON) at(i int) byte {
	if i < len(j.data) {
		return j.data[i]
	}
	return 0
}

// peek skips white space and returns the byte there, or 0 at the end.
func (j *JSON) peek() byte {
	for j.pos < len(j.data) {
		switch c := j.data[j.pos]; c {
		case ' ', '\t', '\n', '\r':
			j.pos++
		default:
			return c
		}
	}
	return 0
}

func (j *JSON) expect(open byte, want string) error {
	if j.peek() != open {
		return j.mistyped(want)
	}
	j.pos++
	return nil
}

func (j *JSON) enter() error {
	if j.depth++; j.depth > MaxDepth {
		return j.syntax(j.pos, "recursion limit exceeded")
	}
	return nil
}

// mistyped is the error for a value of another type: Shape when some value begins
// here, else Syntax.
func (j *JSON) mistyped(want string) error {
	got := ""
	switch c := j.at(j.pos); {
	case c == '"':
		got = "string"
	case c == '{':
		got = "map"
	case c == '[':
		got = "sequence"
	case c == '-' || c >= '0' && c <= '9':
		got = "number"
	case c == 't' || c == 'f':
		got = "boolean"
	case c == 'n':
		got = "null"
	}
	mark := j.pos
	if got == "" {
		return j.unexpected("a value")
	}
	if got == "boolean" || got == "null" || got == "number" {
		if err := j.Skip(); err != nil {
			return err
		}
	}
	return j.shape(mark, fmt.Sprintf("invalid type: %s, expected %s", got, want))
}

func (j *JSON) unexpected(want string) error {
	if j.pos >= len(j.data) {
		return j.syntax(j.pos, "unexpected end of the text, expected "+want)
	}
	r, _ := utf8.DecodeRune(j.data[j.pos:])
	return j.syntax(j.pos, fmt.Sprintf("unexpected %q, expected %s", r, want))
}

func (j *JSON) syntax(pos int, text string) *Error {
	return &Error{Text: text, Index: -1, At: j.where(pos)}
}

func (j *JSON) shape(pos int, text string) *Error {
	return &Error{Shape: true, Text: text, Index: -1, At: j.where(pos)}
}

func (j *JSON) where(pos int) string {
	before := j.data[:min(pos, len(j.data))]
	line := 1 + bytes.Count(before, []byte{'\n'})
	col := pos - (bytes.LastIndexByte(before, '\n') + 1) + 1
	return fmt.Sprintf("line %d column %d", line, col)
}

// clip keeps error texts short.
func clip(b []byte) string {
	if len(b) > 40 {
		return string(b[:40]) + "..."
	}
	return string(b)
}
