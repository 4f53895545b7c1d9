package wire

import "fmt"

// MaxDepth bounds the nesting of arrays and objects.
const MaxDepth = 128

// Value is a position in a body at which a value begins. Every method but Null, Mark
// and Reset consumes the value or returns an *Error and leaves the position undefined
// (use Reset to go on after a Shape error).
type Value interface {
	// Object calls field for every key, positioned at its value, which field must
	// consume. The key is valid during the call. Keys are compared by bytes.
	Object(field func(key []byte) error) error
	// Null consumes a null and reports whether there was one.
	Null() bool
	// String returns a text. It must be UTF-8.
	String() (string, error)
	// Uint returns an integer from 0 to limit.
	Uint(limit uint64) (uint64, error)
	// Int returns any 64-bit integer.
	Int() (int64, error)
	// Bool returns a truth value.
	Bool() (bool, error)
	// ID returns an identity given as a text or as an integer from 0 to 2^64-1, as text.
	ID() (string, error)
	// Tokens appends an array of integers from 0 to 2^32-1.
	Tokens(dst []uint32) ([]uint32, error)
	// Hashes appends an array of integers from -2^63 to 2^64-1, bit-cast to u64.
	Hashes(dst []uint64) ([]uint64, error)
	// Skip passes over any value.
	Skip() error
	// Mark returns the position, Reset goes back to it.
	Mark() Mark
	Reset(m Mark)
	// End checks that nothing follows the body's one value.
	End() error
}

// Mark is a position to go back to.
type Mark struct{ pos, depth int }

// Error says what is wrong with a body and where.
type Error struct {
	Shape bool   // well-formed, but another type or range than asked for
	Text  string // without the position
	Index int    // element of the array, -1 = not in an array
	At    string // position, for people
}

// Error returns the text with the element and the position.
func (e *Error) Error() string {
	if e.Index >= 0 {
		return fmt.Sprintf("element %d: %s at %s", e.Index, e.Text, e.At)
	}
	return e.Text + " at " + e.At
}
