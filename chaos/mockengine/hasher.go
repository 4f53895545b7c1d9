package mockengine

import (
	"github.com/kvcluster/kvcluster/indexer/blockhash"
	"github.com/kvcluster/kvcluster/transport/engine/enginehash"
)

// newHasher returns the hasher of an engine with its newest rule.
func newHasher(f Format) (Hasher, error) {
	if _, err := profileOf(f); err != nil {
		return nil, err
	}
	switch f {
	case SGLangMap, SGLangArray, SGLangBigram:
		return &sglangHasher{pages: enginehash.SGLang{Bigram: f == SGLangBigram}}, nil
	case TRTLLM:
		return &trtHasher{}, nil
	}
	return &vllmHasher{blocks: enginehash.NewVLLM(enginehash.DefaultSeed)}, nil
}

// vllmHasher makes sha256_cbor digests. The LoRA name enters every block, the salt
// the first.
type vllmHasher struct {
	blocks *enginehash.VLLM
	last   enginehash.Digest
	keys   []enginehash.Key // of the next block
	lora   bool
}

func (h *vllmHasher) Begin(lora, salt string) {
	h.last = h.blocks.Root()
	h.keys = h.keys[:0]
	h.lora = lora != ""
	if h.lora {
		h.keys = append(h.keys, enginehash.Key{Text: lora})
	}
	if salt != "" {
		h.keys = append(h.keys, enginehash.Key{Text: taggedSalt + salt})
	}
}

func (h *vllmHasher) Next(tokens []uint32, _ uint64) uint64 {
	h.last = h.blocks.Block(&h.last, tokens, h.keys)
	if h.lora {
		h.keys = h.keys[:1]
	} else {
		h.keys = h.keys[:0]
	}
	return enginehash.FoldVLLM(h.last)
}

// sglangHasher makes page digests, seeded by the salt.
type sglangHasher struct {
	pages enginehash.SGLang
	last  enginehash.Digest
	prior *enginehash.Digest
}

func (h *sglangHasher) Begin(_, salt string) {
	h.prior = nil
	if salt != "" {
		h.last = enginehash.SaltDigest(salt)
		h.prior = &h.last
	}
}

func (h *sglangHasher) Next(tokens []uint32, _ uint64) uint64 {
	h.last = h.pages.Page(h.prior, tokens)
	h.prior = &h.last
	return enginehash.FoldSGLang(h.last)
}

// trtHasher stands for TensorRT-LLM's radix keys, whose exact digest is not public:
// SHA-256 chains over a domain of their own, so that they meet no other engine's.
type trtHasher struct {
	pages enginehash.SGLang
	last  enginehash.Digest
}

func (h *trtHasher) Begin(lora, salt string) {
	h.last = enginehash.SaltDigest("trtllm\x00" + lora + "\x00" + salt)
}

func (h *trtHasher) Next(tokens []uint32, _ uint64) uint64 {
	h.last = h.pages.Page(&h.last, tokens)
	return enginehash.FoldSGLang(h.last)
}

// fastHasher replaces an engine's digests by a mix of the path key: as good a name
// of a prefix, for fleets in which SHA-256 would be the load.
type fastHasher struct{ salt uint64 }

func (h *fastHasher) Begin(lora, salt string) {}

func (h *fastHasher) Next(_ []uint32, path uint64) uint64 {
	return blockhash.NextSequence(h.salt, path, false)
}
