package enginehash

import (
	"crypto/sha256"
	"encoding/binary"
)

// Digest is the full hash of a block.
type Digest = [sha256.Size]byte

// DefaultSeed is the seed of newer vLLM builds without PYTHONHASHSEED.
const DefaultSeed = "vllm-none-hash"

// Key is one of the extra keys that a vLLM block hash covers, in this order: LoRA
// name, multimodal items, cache salt (first block of a request), embedding digest.
type Key struct {
	Text      string
	Bytes     []byte // a byte string instead of Text
	HasOffset bool   // the pair [Text, Offset]: a multimodal item
	Offset    int64
}

// VLLM computes the hashes of a vLLM engine that runs with sha256_cbor. It keeps a
// buffer: one goroutine at a time.
type VLLM struct {
	root Digest
	buf  []byte
}

// NewVLLM returns a hasher for the given PYTHONHASHSEED.
func NewVLLM(seed string) *VLLM {
	return &VLLM{root: sha256.Sum256(appendText(nil, seed))}
}

// Root is the parent of every first block (NONE_HASH).
func (v *VLLM) Root() Digest { return v.root }

// Block returns the digest of one block below parent.
func (v *VLLM) Block(parent *Digest, tokens []uint32, keys []Key) Digest {
	b := append(v.buf[:0], cborArray|3)
	b = appendBytes(b, parent[:])
	b = appendHead(b, cborArray, uint64(len(tokens)))
	for _, t := range tokens {
		b = appendHead(b, cborUint, uint64(t))
	}
	if len(keys) == 0 {
		b = append(b, cborNull)
	} else {
		b = appendHead(b, cborArray, uint64(len(keys)))
		for _, k := range keys {
			if k.HasOffset {
				b = append(b, cborArray|2)
			}
			if k.Bytes != nil {
				b = appendBytes(b, k.Bytes)
			} else {
				b = appendText(b, k.Text)
			}
			if k.HasOffset {
				b = appendInt(b, k.Offset)
			}
		}
	}
	v.buf = b
	return sha256.Sum256(b)
}

// Append appends the hashes, as integers on the wire, of the complete blocks of
// tokens below parent, and returns the last digest (parent when there is none).
// keys has the extra keys of every block; nil means none.
func (v *VLLM) Append(dst []uint64, parent Digest, tokens []uint32, blockSize int, keys [][]Key) ([]uint64, Digest) {
	for i := 0; blockSize > 0 && (i+1)*blockSize <= len(tokens); i++ {
		var k []Key
		if i < len(keys) {
			k = keys[i]
		}
		parent = v.Block(&parent, tokens[i*blockSize:(i+1)*blockSize], k)
		dst = append(dst, FoldVLLM(parent))
	}
	return dst, parent
}

// FoldVLLM is the integer that vLLM sends for a digest: its last 8 bytes.
func FoldVLLM(d Digest) uint64 { return binary.BigEndian.Uint64(d[len(d)-8:]) }
