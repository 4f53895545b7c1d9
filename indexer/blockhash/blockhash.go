// Package blockhash computes local block hashes and namespace seeds: XXH3-64 over
// the tokens of one block, by the rule that NVIDIA Dynamo's routers use, so that
// events and queries of any engine meet at the same value.
//
// A local hash covers one block's own tokens, not its prefix. Functions are pure
// and allocate only to grow dst.
package blockhash

import (
	"encoding/binary"
	"slices"
	"unsafe"

	"github.com/zeebo/xxh3"
)

// Seed is the seed of blocks and chains in the namespace without LoRA and salt.
const Seed uint64 = 1337

// NamespaceSeed returns the seed of a namespace: Seed plus XXH3(lora, seed 0) plus
// XXH3(salt, seed 1), wrapping; an empty string counts as absent.
func NamespaceSeed(lora, salt string) uint64 {
	l, x := Namespace(lora, salt)
	return Seed + l + x
}

// Namespace returns the two hashes that make a namespace: of an absent name, 0.
func Namespace(lora, salt string) (l, s uint64) {
	if lora != "" {
		l = xxh3.HashString(lora)
	}
	if salt != "" {
		s = xxh3.HashStringSeed(salt, 1)
	}
	return l, s
}

// Content is the content of consecutive blocks, as an engine announced it.
type Content struct {
	Tokens    []uint32
	BlockSize int
	// Window is the number of tokens hashed for each block: BlockSize, or
	// BlockSize+1 for EAGLE pages, whose neighbours overlap by one token.
	Window int
	// Multimodal has the hashes of the items in a block; nil when there are none.
	Multimodal []Item
	// Locals, when set, are the local hashes themselves and the rest is not used:
	// for workloads whose tokens are not known.
	Locals []uint64
}

// Item is one multimodal item of a block.
type Item struct {
	Block int // index of the block
	Hash  uint64
}

// Len returns the number of complete blocks.
func (c Content) Len() int {
	if c.Locals != nil {
		return len(c.Locals)
	}
	if c.BlockSize <= 0 || len(c.Tokens) < c.Window {
		return 0
	}
	return (len(c.Tokens)-c.Window)/c.BlockSize + 1
}

// AppendLocals appends the local hashes of the complete blocks under a namespace seed.
func (c Content) AppendLocals(dst []uint64, seed uint64) []uint64 {
	if c.Locals != nil {
		return append(dst, c.Locals...)
	}
	n := c.Len()
	dst = slices.Grow(dst, n)
	if c.Multimodal == nil {
		for i := range n {
			t := c.Tokens[i*c.BlockSize : i*c.BlockSize+c.Window]
			dst = append(dst, xxh3.HashSeed(tokenBytes(t), seed))
		}
		return dst
	}
	var items []uint64
	for i := range n {
		items = items[:0]
		for _, it := range c.Multimodal {
			if it.Block == i {
				items = append(items, it.Hash)
			}
		}
		t := c.Tokens[i*c.BlockSize : i*c.BlockSize+c.Window]
		dst = append(dst, withItems(t, items, seed))
	}
	return dst
}

// withItems hashes the tokens followed by the item hashes as u64 little-endian in
// ascending order.
func withItems(tokens []uint32, items []uint64, seed uint64) uint64 {
	if len(items) == 0 {
		return xxh3.HashSeed(tokenBytes(tokens), seed)
	}
	slices.Sort(items)
	buf := slices.Clone(tokenBytes(tokens))
	for _, h := range items {
		buf = binary.LittleEndian.AppendUint64(buf, h)
	}
	return xxh3.HashSeed(buf, seed)
}

// AppendTokens appends the local hashes of the complete blocks of a plain prompt.
// A block size of 0 gives none.
func AppendTokens(dst []uint64, tokens []uint32, blockSize int, seed uint64) []uint64 {
	return Content{Tokens: tokens, BlockSize: blockSize, Window: blockSize}.AppendLocals(dst, seed)
}

// AppendSequence appends the rolling sequence hashes of a prefix given by its local
// hashes: s[0] = local[0], s[i] = XXH3(s[i-1] LE, local[i] LE; Seed).
func AppendSequence(dst, locals []uint64) []uint64 {
	var s uint64
	for i, l := range locals {
		s = NextSequence(s, l, i == 0)
		dst = append(dst, s)
	}
	return dst
}

// NextSequence returns the sequence hash of a block from its predecessor's.
func NextSequence(prev, local uint64, first bool) uint64 {
	if first {
		return local
	}
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:8], prev)
	binary.LittleEndian.PutUint64(b[8:], local)
	return xxh3.HashSeed(b[:], Seed)
}

// ItemHash maps a multimodal identifier to its hash: a text of 64 hex digits gives
// its first 16 digits, anything else XXH3 of the bytes.
func ItemHash(id []byte) uint64 {
	if len(id) == 64 {
		var v uint64
		hex := true
		for i, c := range id {
			var d byte
			switch {
			case c >= '0' && c <= '9':
				d = c - '0'
			case c >= 'a' && c <= 'f':
				d = c - 'a' + 10
			case c >= 'A' && c <= 'F':
				d = c - 'A' + 10
			default:
				hex = false
			}
			if i < 16 {
				v = v<<4 | uint64(d)
			}
		}
		if hex {
			return v
		}
	}
	return xxh3.Hash(id)
}

// tokenBytes views token ids as little-endian bytes. On a big-endian machine the
// bytes would be wrong; init refuses to run there.
func tokenBytes(t []uint32) []byte {
	if len(t) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&t[0])), 4*len(t))
}

func init() {
	if probe := []uint32{1}; tokenBytes(probe)[0] != 1 {
		panic("kvcluster: local hashes need a little-endian machine")
	}
}
