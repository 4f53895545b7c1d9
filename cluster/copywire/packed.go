package copywire

import (
	"fmt"
	"math/bits"

	"github.com/kvcluster/kvcluster/indexer"
)

// A packed frame has the words of a frame without their zero bytes, except for the columns
// of hashes, which have none to speak of and stand as they are:
//
//	packed word   which bytes are not 0: 8 bits, low first | those bytes
//
//	frame         6 words of the header, then each operation:
//	  store       3 words | locals and engine hashes: 2n x 8 bytes | 2 words of a note, if any
//	  claim, drop 1 + n words
//	  other       1 word
//
// So about 35 bytes stand for the 72 of a header and a store. What is no valid frame but
// has a place for each of its words is packed like any other, and what has not goes as it
// is.

// AppendPacked appends a message that says the same as that of AppendFrame, in fewer
// bytes; for all but senseless frames no more than FrameOverhead and the frame.
func AppendPacked(dst []byte, f indexer.Frame) []byte {
	at := len(dst)
	if out, ok := appendPacked(append(dst, byte(kindPacked)), f); ok {
		return out
	}
	return AppendFrame(dst[:at], f)
}

// columns is how many words of hashes stand behind the packed words of an operation, and
// packed how many words follow its head that are packed, before and behind the columns.
func columns(head uint64) (before, hashes, behind int) {
	n := int(head >> 32)
	switch indexer.OpKind(head) {
	case indexer.OpStore:
		if head>>24&noteMark != 0 {
			behind = 2
		}
		return 2, 2 * n, behind
	case indexer.OpClaim, indexer.OpDrop:
		return n, 0, 0
	}
	return 0, 0, 0
}

// noteMark is the bit of a store's mark that says that a note follows, see indexer.Frame.
const noteMark = 2

func appendPacked(dst []byte, f indexer.Frame) ([]byte, bool) {
	if len(f) < frameHeader || int(uint32(f[0])) != len(f) {
		return dst, false
	}
	dst = packWords(dst, f[:frameHeader])
	for f = f[frameHeader:]; len(f) > 0; {
		before, hashes, behind := columns(f[0])
		before++
		if len(f) < before+hashes+behind {
			return dst, false
		}
		dst = packWords(dst, f[:before])
		dst = appendWords(dst, f[before:before+hashes])
		dst = packWords(dst, f[before+hashes:before+hashes+behind])
		f = f[before+hashes+behind:]
	}
	return dst, true
}

func packWords(dst []byte, list []uint64) []byte {
	for _, w := range list {
		at, mask := len(dst), byte(0)
		dst = append(dst, 0)
		for w := w; w != 0; {
			i := bits.TrailingZeros64(w) / 8
			mask |= 1 << i
			dst = append(dst, byte(w>>(8*i)))
			w &^= 0xff << (8 * i)
		}
		dst[at] = mask
	}
	return dst
}

// Decoder decodes messages in memory that it reuses: a message that came packed is valid
// until the next call. The zero value is ready; one goroutine may use it.
type Decoder struct{ buf []uint64 }

// keepWords is how much memory a Decoder keeps.
const keepWords = 64 << 10

// unpack restores a frame. Its header says how long that is, and every word has taken at
// least a byte, so no more memory is taken than eight times what came.
func (d *Decoder) unpack(b []byte) (indexer.Frame, error) {
	r := unpacker{b: b}
	size := int(uint32(r.peek()))
	if size < frameHeader || size > len(b) || size > indexer.MaxFrameWords {
		return nil, fmt.Errorf("%w: packed frame of %d words in %d bytes", ErrMessage, size, len(b))
	}
	f := d.buf[:0]
	if size > cap(f) {
		f = make([]uint64, 0, size)
	}
	f = r.words(f, frameHeader)
	for !r.bad && len(f) < size {
		if f = r.words(f, 1); r.bad {
			break
		}
		before, hashes, behind := columns(f[len(f)-1])
		if len(f)+before+hashes+behind > size {
			r.bad = true
			break
		}
		f = r.words(f, before)
		f = r.hashes(f, hashes)
		f = r.words(f, behind)
	}
	if cap(f) <= keepWords {
		d.buf = f
	}
	if r.bad || len(r.b) > 0 {
		return nil, fmt.Errorf("%w: packed frame of %d words breaks off at %d, or has bytes behind it", ErrMessage, size, len(f))
	}
	return f, nil
}

// unpacker takes a packed frame apart. After a short read it stays bad.
type unpacker struct {
	b   []byte
	bad bool
}

func (r *unpacker) word() (w uint64) {
	if len(r.b) == 0 {
		r.bad = true
		return 0
	}
	mask := r.b[0]
	n := 1 + bits.OnesCount8(mask)
	if len(r.b) < n {
		r.bad, r.b = true, nil
		return 0
	}
	for _, c := range r.b[1:n] {
		r.bad = r.bad || c == 0 // AppendPacked leaves it out
		w |= uint64(c) << (8 * bits.TrailingZeros8(mask))
		mask &= mask - 1
	}
	r.b = r.b[n:]
	return w
}

func (r *unpacker) peek() uint64 {
	ahead := *r
	return ahead.word()
}

func (r *unpacker) words(dst []uint64, n int) []uint64 {
	for ; n > 0 && !r.bad; n-- {
		dst = append(dst, r.word())
	}
	return dst
}

func (r *unpacker) hashes(dst []uint64, n int) []uint64 {
	if len(r.b) < n*word {
		r.bad, r.b = true, nil
		return dst
	}
	for i := range n {
		dst = append(dst, le.Uint64(r.b[word*i:]))
	}
	r.b = r.b[n*word:]
	return dst
}
