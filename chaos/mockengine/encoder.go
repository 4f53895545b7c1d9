package mockengine

import (
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/transport/engine"
	"github.com/kvcluster/kvcluster/transport/engine/encode"
)

// taggedSalt marks a salt among vLLM's extra keys, by Dynamo's convention. A plain
// vLLM sends the salt without it, and then nothing tells it from other keys.
const taggedSalt = "dynamo-cache-salt:"

// newEncoder returns the encoder of a format: the newest generation of each.
func newEncoder(f Format) (Encoder, error) {
	if _, err := profileOf(f); err != nil {
		return nil, err
	}
	e := &wireEncoder{format: encode.VLLMMap}
	switch f {
	case VLLMMap:
		e.spec, e.extra = "full_attention", true
	case VLLMArray:
		e.format, e.spec, e.extra = encode.VLLMArray, "full_attention", true
	case SGLangArray:
		e.format = encode.SGLangArray
	case SGLangMap, SGLangBigram:
		e.format = encode.SGLangMap
	case TRTLLM:
		e.format, e.extra = encode.TensorRT, true
	}
	return e, nil
}

// wireEncoder translates decoded batches into what encode writes.
type wireEncoder struct {
	format encode.Format
	spec   string
	extra  bool // the format has extra keys
	batch  encode.Batch
	lists  [][]encode.Key
	keys   []encode.Key
}

// AppendBatch implements Encoder.
func (e *wireEncoder) AppendBatch(dst []byte, b *engine.Batch) ([]byte, error) {
	e.batch.Time, e.batch.Rank = b.Time, b.Rank
	e.batch.Events = e.batch.Events[:0]
	e.lists = e.lists[:0]
	e.keys = e.keys[:0]
	for i := range b.Events {
		ev := &b.Events[i]
		out := encode.Event{
			Kind: ev.Kind, Hashes: ev.Hashes, Group: ev.Group, HasParent: ev.HasParent, Parent: ev.Parent,
			Tokens: ev.Tokens, BlockSize: ev.BlockSize, Bigram: ev.Bigram, LoraName: ev.LoraName, Salt: ev.Salt,
			Session: ev.Session,
		}
		if ev.Tier != indexer.AllTiers {
			out.Medium = e.format.Medium(ev.Tier)
		}
		if ev.Kind == engine.Stored {
			out.SpecKind = e.spec
			if e.extra {
				out.ExtraKeys = e.extraKeys(ev)
			}
		}
		e.batch.Events = append(e.batch.Events, out)
	}
	return encode.Append(dst, e.format, &e.batch), nil
}

// extraKeys has the LoRA name in every block and the salt in the event's first one;
// text without either has a list of nils, as vLLM sends.
func (e *wireEncoder) extraKeys(ev *engine.Event) [][]encode.Key {
	from := len(e.lists)
	for i := range ev.Hashes {
		at := len(e.keys)
		if ev.LoraName != "" {
			e.keys = append(e.keys, encode.Key{Text: ev.LoraName})
		}
		if i == 0 && ev.Salt != "" {
			e.keys = append(e.keys, encode.Key{Text: taggedSalt + ev.Salt})
		}
		var list []encode.Key
		if len(e.keys) > at {
			list = e.keys[at:len(e.keys):len(e.keys)]
		}
		e.lists = append(e.lists, list)
	}
	return e.lists[from:len(e.lists):len(e.lists)]
}
