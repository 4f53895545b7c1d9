package engine

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// reserve takes n elements from an arena. When it is full, a new one begins and
// what was taken before stays in the old one. The elements are not cleared.
func reserve[T any](arena []T, n int) (taken, rest []T) {
	used := len(arena)
	if cap(arena)-used < n {
		arena, used = make([]T, 0, max(2*cap(arena), n, 64)), 0
	}
	rest = arena[:used+n]
	return rest[used : used+n : used+n], rest
}

// readHash reads an engine hash: an integer of any width, bit-cast to u64, or a
// digest, folded to its last 8 bytes.
func readHash(b []byte, i int) (h uint64, next int, ok bool) {
	if i < len(b) && b[i] == tagU64 && len(b)-i >= 9 {
		return binary.BigEndian.Uint64(b[i+1:]), i + 9, true
	}
	if h, _, next, ok = readInt(b, i); ok {
		return h, next, true
	}
	digest, next, ok := readBin(b, i)
	if !ok || len(digest) == 0 {
		return 0, i, false
	}
	return fold(digest), next, true
}

func fold(digest []byte) (h uint64) {
	if n := len(digest); n >= 8 {
		return binary.BigEndian.Uint64(digest[n-8:])
	}
	for _, c := range digest {
		h = h<<8 | uint64(c)
	}
	return h
}

// hashList reads a list of hashes into the arena.
func (d *Decoder) hashList(b []byte, i int) ([]uint64, int, error) {
	n, next, ok := arrayHeader(b, i)
	if !ok {
		return nil, i, errShape
	}
	if n > d.cfg.MaxHashes-len(d.hashes) {
		return nil, i, fmt.Errorf("%w: more than %d hashes", ErrTooLarge, d.cfg.MaxHashes)
	}
	dst, rest := reserve(d.hashes, n)
	i = next
	for k := 0; k < len(dst); k++ {
		if p := b[i:]; len(p) >= 9 && (p[0] == tagU64 || p[0] == tagI64) {
			dst[k] = binary.BigEndian.Uint64(p[1:9])
			i += 9
			continue
		}
		if dst[k], i, ok = readHash(b, i); !ok {
			return nil, i, errShape
		}
	}
	d.hashes = rest
	return dst, i, nil
}

// parseObjectKey reads the decimal or 0x number that names a block in a pool.
func parseObjectKey(key []byte) (h uint64, ok bool) {
	base := uint64(10)
	if len(key) > 2 && key[0] == '0' && key[1]|0x20 == 'x' {
		key, base = key[2:], 16
	}
	for _, c := range key {
		digit := uint64(c - '0')
		if l := c | 0x20; l >= 'a' && l <= 'f' {
			digit = uint64(l-'a') + 10
		} else if c < '0' || c > '9' {
			return 0, false
		}
		hi, lo := bits.Mul64(h, base)
		sum, carry := bits.Add64(lo, digit, 0)
		if digit >= base || hi != 0 || carry != 0 {
			return 0, false
		}
		h = sum
	}
	return h, len(key) > 0
}
