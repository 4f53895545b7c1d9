package model

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

// Kind is what an event says.
type Kind uint8

// The kinds of event.
const (
	Stored  Kind = 1 + iota
	Removed      // named blocks in one tier
	Cleared      // everything of the holder, in one tier or in all
)

// Tiers, in the order of the walk. They are numbers of their own so that this
// package depends on nothing that it judges; they equal those of the index.
const (
	Device = iota
	Host
	Disk
	External
	NumTiers = 4
	AllTiers = 0xff // of Cleared only
)

// Event is one event of one holder.
type Event struct {
	Kind    Kind
	Tier    int
	Engines []uint64 // hashes stored or removed

	// Stored only.

	HasParent bool
	Parent    uint64
	// Locals are the local hashes of the blocks. If nil they are computed from
	// Tokens, BlockSize of them for each block, under the namespace of the event.
	Locals    []uint64
	Tokens    []uint32
	BlockSize int
	// Lora and Salt name the namespace; empty means the parent's, or none at a root.
	Lora, Salt string
	// Placeholder: the hashes alone. It gives a further tier to those that are
	// claimed already or wait for their parent.
	Placeholder bool
}

// namespace is what a block's tokens are hashed with.
type namespace struct{ lora, salt string }

// under returns the namespace of a block whose event names n below a parent in p.
func (n namespace) under(p namespace) namespace {
	if n.lora == "" {
		n.lora = p.lora
	}
	if n.salt == "" {
		n.salt = p.salt
	}
	return n
}

// seed is 1337 + XXH3(lora, 0) + XXH3(salt, 1), an empty name counting as absent.
func (n namespace) seed() uint64 {
	seed := uint64(1337)
	if n.lora != "" {
		seed += xxh3.HashStringSeed(n.lora, 0)
	}
	if n.salt != "" {
		seed += xxh3.HashStringSeed(n.salt, 1)
	}
	return seed
}

// LocalHashes returns the local hashes of the complete blocks of a prompt: XXH3 of
// each block's tokens as little-endian u32, with the namespace's seed.
func LocalHashes(tokens []uint32, blockSize int, lora, salt string) []uint64 {
	if blockSize <= 0 {
		return nil
	}
	seed := namespace{lora, salt}.seed()
	var out []uint64
	for ; len(tokens) >= blockSize; tokens = tokens[blockSize:] {
		out = append(out, blockHash(tokens[:blockSize], seed))
	}
	return out
}

func blockHash(tokens []uint32, seed uint64) uint64 {
	raw := make([]byte, 0, 4*len(tokens))
	for _, t := range tokens {
		raw = binary.LittleEndian.AppendUint32(raw, t)
	}
	return xxh3.HashSeed(raw, seed)
}

// block is one block of a store whose place may not be known yet.
type block struct {
	engine uint64
	local  uint64   // if tokens is nil
	tokens []uint32 // else
	named  namespace
}

func (e *Event) block(i int) block {
	b := block{engine: e.Engines[i], named: namespace{e.Lora, e.Salt}}
	if e.Locals != nil {
		b.local = e.Locals[i]
	} else {
		b.tokens = e.Tokens[i*e.BlockSize : (i+1)*e.BlockSize]
	}
	return b
}

// localIn is the block's local hash in the namespace where it turned out to lie.
func (b *block) localIn(n namespace) uint64 {
	if b.tokens == nil {
		return b.local
	}
	return blockHash(b.tokens, n.seed())
}
