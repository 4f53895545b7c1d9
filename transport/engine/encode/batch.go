package encode

import "github.com/kvcluster/kvcluster/transport/engine"

// Batch is what a mock engine wants to send in one message.
type Batch struct {
	Time float64 // seconds since 1970; Mooncake's format writes milliseconds
	Rank int64   // -1 = nil
	// Events in order.
	Events []Event
	// FirstID numbers Mooncake's events.
	FirstID uint64
}

// Event is one event with everything that some format can say.
type Event struct {
	Kind engine.Kind
	// Hashes of the blocks. With Digests set, those are written instead, as bin.
	Hashes  []uint64
	Digests [][]byte
	// Medium as the engine spells it, see Format.Medium; "" = nil. A clear with a
	// medium becomes TierBlocksCleared.
	Medium string
	Group  int64 // group_idx; -1 = nil

	HasParent    bool
	Parent       uint64
	ParentDigest []byte // written instead of Parent when the event has Digests

	Tokens    []uint32 // one more than hashes x block size with Bigram
	BlockSize uint32
	Bigram    bool // write tokens as pairs; see Format.Bigrams

	LoraID   int64 // 0 = nil
	LoraName string
	Salt     string // SGLang's cache_salt, Mooncake's additional_salt
	// ExtraKeys has one list of keys for each block; a nil list is written as nil.
	ExtraKeys     [][]Key
	SpecKind      string
	SlidingWindow uint32 // 0 = nil
	Locality      string
	Ownership     string
	Session       string
	Backend       string // Mooncake's backend_id

	// Raw, when set, is written instead of the event: for garbage.
	Raw []byte
}

// Key is one of vLLM's extra keys.
type Key struct {
	Text      string
	Bytes     []byte // a bin instead of Text
	HasOffset bool   // [Text, Offset]
	Offset    int64
}
