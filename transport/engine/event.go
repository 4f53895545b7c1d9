package engine

import "github.com/kvcluster/kvcluster/indexer"

// Kind is what an event says.
type Kind uint8

// The kinds of event. Anything else on the wire is counted and skipped.
const (
	Stored  Kind = 1 + iota
	Removed      // named blocks, one tier
	Cleared      // everything of the rank; Tier is AllTiers unless the event names one
)

// Batch is one decoded payload. It and everything it points to is valid until the
// next Decode of the same decoder.
type Batch struct {
	// Time is the engine's clock when it sent the batch, in seconds since 1970
	// (Mooncake's milliseconds are converted); 0 when it cannot be one.
	Time float64
	// Rank is the data-parallel rank in the envelope, -1 when absent or nil.
	Rank int64
	// Events in the order of the batch. Malformed and unknown ones are not here.
	Events []Event
	// Skipped counts the events that were left out, by reason, and Trailing is set
	// when bytes follow the envelope.
	Skipped  SkipCounts
	Trailing bool
	// LostRemovals counts the skipped events that may have said that blocks are gone:
	// malformed removals and clears, and events that do not say what they are. Their
	// loss can leave a score too high; a skipped store never can.
	LostRemovals uint32
}

// Event is one store, removal or clear.
type Event struct {
	Kind Kind
	Tier indexer.Tier
	// Hashes are engine hashes: integers bit-cast to u64, digests folded to their
	// last 8 bytes, big-endian.
	Hashes []uint64
	// Group is the engine's KV-cache group, -1 when absent.
	Group int64

	// Stores only, below.

	HasParent bool // nil means no parent; 0 is a hash like any other
	Parent    uint64
	// Tokens are the token ids of all blocks, len(Hashes) x BlockSize of them (one
	// more for Bigram pages: the pairs (t0,t1)(t1,t2).. folded to t0 t1 t2 ..). Of
	// groups that are not prefix-indexable they may be left out: such groups send
	// few hashes for many tokens, and only their kind is of use.
	Tokens    []uint32
	BlockSize uint32
	Bigram    bool
	// Placeholder: hash-only announcement without tokens; it never yields local
	// hashes, only a further tier of a hash that is known already.
	Placeholder bool

	LoraName string // "" = not named. Interned by the decoder: no allocation per event
	// LoraID is the engine's own number of the adapter, 0 = none. With an empty
	// LoraName (vLLM before 0.13, SGLang) the blocks belong to an adapter that no
	// query can name: they must not be credited to the base model.
	LoraID int64
	Salt   string // "" = none
	// Extra holds the untagged extra keys, one entry per key that is neither the
	// LoRA name nor nil, ordered by block.
	Extra []ExtraKey
	// SpecKind is the cache group's kind; see PrefixIndexable.
	SpecKind SpecKind
	Session  string // the request that caused the store, "" = not said
	// Backend is Mooncake's owner of the pooled copy (also of removals), "" = none.
	// It is not a routing target.
	Backend string
}

// ExtraKey is one entry of vLLM's extra_keys.
type ExtraKey struct {
	Block int    // index of the block in the event
	Text  string // interned identifier, or "" for a digest
	// Digest is a stable hash of the key: for a string or bin its multimodal hash
	// (event-semantics rule: 64 hex digits give the first 16, else XXH3 of the
	// bytes, seed 0).
	Digest uint64
	// HasOffset: the key came as [identifier, offset], so it is a multimodal item
	// and not a salt.
	HasOffset bool
}

// SpecKind is the kind of a KV-cache group.
type SpecKind uint8

// The kinds of cache group.
const (
	SpecUnknown SpecKind = iota // not said
	SpecFullAttention
	SpecMLAAttention
	SpecSinkFullAttention
	SpecOther // sliding window, mamba, ...: says nothing about prefixes
)

// PrefixIndexable reports whether blocks of such a group form reusable prefixes;
// known is false when the event did not say.
func (k SpecKind) PrefixIndexable() (indexable, known bool) {
	return k != SpecOther && k != SpecUnknown, k != SpecUnknown
}

// SkipReason says why an event of a batch was left out.
type SkipReason uint8

// The reasons, in the order of SkipCounts.
const (
	SkipMalformed  SkipReason = iota // wrong type or shape of a field
	SkipUnknownTag                   // an event type we do not know
	SkipTokenCount                   // len(token_ids) is not hashes x block_size
	SkipMedium                       // a medium that is in no table
	SkipNotLocal                     // locality REMOTE or unknown
	SkipForeign                      // owned by something else than the engine
	SkipIgnored                      // announced as not for us (Dynamo's tag Ignored)
	NumSkipReasons = iota
)

// String is the metric label.
func (r SkipReason) String() string {
	return [...]string{"malformed", "unknown_tag", "token_count", "medium", "not_local", "foreign", "ignored"}[r]
}

// SkipCounts counts skipped events by reason.
type SkipCounts [NumSkipReasons]uint32

// Total is the number of events left out for any reason.
func (c SkipCounts) Total() int {
	n := 0
	for _, v := range c {
		n += int(v)
	}
	return n
}
