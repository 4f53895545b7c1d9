package engine

import (
	"encoding/binary"
	"fmt"
	"math"
)

// tokenList reads token ids, flat or in pairs, into the arena.
func (d *Decoder) tokenList(b []byte, i int) (tokens []uint32, pairs bool, next int, err error) {
	n, next, ok := arrayHeader(b, i)
	if !ok {
		return nil, false, i, errShape
	}
	i = next
	if n == 0 {
		return nil, false, i, nil
	}
	if _, _, ok := arrayHeader(b, i); ok {
		pairs = true
		n++
	}
	if n > d.cfg.MaxTokens-len(d.tokens) {
		return nil, false, i, fmt.Errorf("%w: more than %d tokens", ErrTooLarge, d.cfg.MaxTokens)
	}
	dst, rest := reserve(d.tokens, n)
	if pairs {
		i, ok = decodePairs(dst, b, i)
	} else {
		i, ok = decodeTokens(dst, b, i)
	}
	if !ok {
		return nil, false, i, errShape
	}
	d.tokens = rest
	return dst, pairs, i, nil
}

// tokenStretch is the number of tokens after which the way of reading is chosen anew.
const tokenStretch = 64

// decodeTokens fills dst with the integers from i on.
//
// Where each token begins depends on the width of the one before. There are two
// ways through that chain: to let the branch predictor guess the width, which is
// the fastest when nearly all are alike (1.2-1.5 ns each) and the slowest when not
// (3-5 ns), or to compute the next offset without a branch (2.6 ns always). Ids of
// text are mixed: three bytes mostly, one and five every fourth time. So a stretch
// is computed unless the one before was all of one width.
func decodeTokens(dst []uint32, b []byte, i int) (next int, ok bool) {
	alike := false
	for len(dst) > tokenStretch {
		from := i
		if alike {
			i, ok = guessTokens(dst[:tokenStretch], b, i)
		} else {
			i, ok = computeTokens(dst[:tokenStretch], b, i)
		}
		if !ok {
			return i, false
		}
		alike = (i-from)%tokenStretch == 0
		dst = dst[tokenStretch:]
	}
	if alike {
		return guessTokens(dst, b, i)
	}
	return computeTokens(dst, b, i)
}

// width of an unsigned integer by its first byte: where its value lies in the
// eight bytes that begin there.
type width struct {
	mask  uint32
	shift uint8
	other bool // no token, or one that needs a closer look
}

var widths = func() (t [256]width) {
	for c := range t {
		switch {
		case c < 0x80:
			t[c] = width{mask: 0x7f, shift: 56}
		case c == tagU8:
			t[c] = width{mask: math.MaxUint8, shift: 48}
		case c == tagU16:
			t[c] = width{mask: math.MaxUint16, shift: 40}
		case c == tagU32:
			t[c] = width{mask: math.MaxUint32, shift: 24}
		default:
			t[c] = width{other: true}
		}
	}
	return t
}()

// computeTokens has no branch that depends on widths.
func computeTokens(dst []uint32, b []byte, i int) (next int, ok bool) {
	for k := range dst {
		if uint(i)+8 > uint(len(b)) {
			return guessTokens(dst[k:], b, i)
		}
		c := b[i]
		w := &widths[c]
		if w.other {
			return guessTokens(dst[k:], b, i)
		}
		dst[k] = uint32(binary.BigEndian.Uint64(b[i:i+8])>>(w.shift&63)) & w.mask
		// 1 for a fixint; 2, 3, 5 for u8, u16, u32 (0xcc, 0xcd, 0xce). Arithmetic
		// takes fewer cycles than a table, and the loop is as slow as this chain.
		i += 1 + int(c>>7)<<(c&3)
	}
	return i, true
}

// guessTokens branches on the width.
func guessTokens(dst []uint32, b []byte, i int) (next int, ok bool) {
	for k := range dst {
		if i >= len(b) {
			return i, false
		}
		p := b[i:]
		switch c := p[0]; {
		case c < 0x80:
			dst[k] = uint32(c)
			i++
		case c == tagU16 && len(p) >= 3:
			dst[k] = uint32(binary.BigEndian.Uint16(p[1:3]))
			i += 3
		case c == tagU32 && len(p) >= 5:
			dst[k] = binary.BigEndian.Uint32(p[1:5])
			i += 5
		default:
			if dst[k], i, ok = readToken(b, i); !ok {
				return i, false
			}
		}
	}
	return i, true
}

func readToken(b []byte, i int) (uint32, int, bool) {
	v, neg, next, ok := readInt(b, i)
	if !ok || neg || v > math.MaxUint32 {
		return 0, i, false
	}
	return uint32(v), next, true
}

// decodePairs folds len(dst)-1 pairs (t0,t1)(t1,t2).. to t0 t1 t2 .. . Pairs that do
// not continue each other cannot be folded.
func decodePairs(dst []uint32, b []byte, i int) (next int, ok bool) {
	var first, second uint32
	for k := range len(dst) - 1 {
		n, body, isArray := arrayHeader(b, i)
		if !isArray || n != 2 {
			return i, false
		}
		if first, i, ok = readToken(b, body); !ok {
			return i, false
		}
		if k > 0 && first != second {
			return i, false
		}
		if second, i, ok = readToken(b, i); !ok {
			return i, false
		}
		dst[k] = first
	}
	dst[len(dst)-1] = second
	return i, true
}
