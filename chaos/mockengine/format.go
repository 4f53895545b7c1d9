package mockengine

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/kvcluster/kvcluster/indexer/blockhash"
	"github.com/kvcluster/kvcluster/transport/engine"
)

// ErrConfig is wrapped by every error about a value that cannot be used.
var ErrConfig = errors.New("invalid mock engine configuration")

// Format is an engine and the shape in which it publishes.
type Format string

// The formats.
const (
	VLLMMap      Format = "vllm-map"      // vLLM 0.24 on: map events
	VLLMArray    Format = "vllm-array"    // vLLM 0.21 to 0.23: array events
	SGLangMap    Format = "sglang-map"    // SGLang 0.5.21 on
	SGLangArray  Format = "sglang-array"  // SGLang 0.5.9 to 0.5.20
	SGLangBigram Format = "sglang-bigram" // SGLang with an EAGLE model: token pairs
	TRTLLM       Format = "trtllm"        // TensorRT-LLM's streaming publisher
)

// Formats returns all formats.
func Formats() []Format {
	return []Format{VLLMMap, VLLMArray, SGLangMap, SGLangArray, SGLangBigram, TRTLLM}
}

// ParseFormats reads a comma separated list of formats.
func ParseFormats(s string) ([]Format, error) {
	var out []Format
	for _, part := range strings.Split(s, ",") {
		f := Format(strings.TrimSpace(part))
		if _, err := profileOf(f); err != nil {
			return nil, err
		}
		out = append(out, f)
	}
	return out, nil
}

// Encoder turns a batch into the payload of one format.
type Encoder interface {
	// AppendBatch appends the payload to dst.
	AppendBatch(dst []byte, b *engine.Batch) ([]byte, error)
}

// Hasher computes the engine hashes of one prompt, block by block.
type Hasher interface {
	// Begin starts a prompt in a namespace.
	Begin(lora, salt string)
	// Next returns the engine hash of the next block, given its tokens (one more
	// than the block size for bigram pages). path is the block's path key.
	Next(tokens []uint32, path uint64) uint64
}

// profile is how an engine behaves, besides its encoding.
type profile struct {
	bigram     bool
	fourFrames bool
	// decodeHold: events of decoding wait until this many decode steps have passed
	// or a prefill is reported.
	decodeHold int
	// storeAtEnd: what a request generates enters the cache in one piece when it
	// finishes (SGLang's radix tree), not block by block.
	storeAtEnd bool
	// clearFirst: batch 0 of every life says that all blocks are gone.
	clearFirst bool
	// clockSequence: sequences start at the nanosecond clock, not at 0.
	clockSequence bool
	// heartbeat is the wall time after which an idle engine sends an empty batch.
	heartbeat time.Duration
	// group and spec are the cache group written into events, -1 = none.
	group int64
	spec  engine.SpecKind
	// noLora: the events cannot name a LoRA adapter, so the engine runs without.
	noLora bool
	// saltOnce: only the store with the first block of a prompt names its salt.
	saltOnce bool
}

func profileOf(f Format) (profile, error) {
	switch f {
	case VLLMMap, VLLMArray:
		return profile{fourFrames: f == VLLMMap, group: 0, spec: engine.SpecFullAttention, saltOnce: true}, nil
	case SGLangMap, SGLangArray, SGLangBigram:
		return profile{bigram: f == SGLangBigram, decodeHold: 40, storeAtEnd: true, clearFirst: true, group: -1, noLora: true}, nil
	case TRTLLM:
		return profile{fourFrames: true, clearFirst: true, clockSequence: true, heartbeat: 5 * time.Second, group: -1, saltOnce: true}, nil
	}
	names := make([]string, 0, 6)
	for _, k := range Formats() {
		names = append(names, string(k))
	}
	return profile{}, fmt.Errorf("%w: format %q, want one of %s", ErrConfig, f, strings.Join(names, ", "))
}

// content describes blocks of a format to the local hash rule.
func (p *profile) content(tokens []uint32, blockSize int) blockhash.Content {
	c := blockhash.Content{Tokens: tokens, BlockSize: blockSize, Window: blockSize}
	if p.bigram {
		c.Window++
	}
	return c
}

// blocks is the number of complete blocks of a prompt.
func (p *profile) blocks(tokens, blockSize int) int {
	if p.bigram {
		tokens--
	}
	return max(tokens, 0) / blockSize
}
