package encode

import (
	"encoding/binary"

	"github.com/kvcluster/kvcluster/transport/engine"
)

// pairs writes a map whose number of pairs is known only at its end. The head is
// one byte; finish makes room when it needs three.
type pairs struct {
	b    []byte
	head int
	n    int
}

func beginMap(b []byte) pairs { return pairs{b: append(b, 0x80), head: len(b)} }

func (p *pairs) key(k string) {
	p.b = appendStr(p.b, k)
	p.n++
}

func (p *pairs) text(k, v string) {
	p.key(k)
	p.b = appendText(p.b, v)
}

// optional leaves a pair out when its text is empty.
func (p *pairs) optional(k, v string) {
	if v != "" {
		p.text(k, v)
	}
}

func (p *pairs) null(k string) {
	p.key(k)
	p.b = appendNil(p.b)
}

func (p *pairs) finish() []byte {
	if p.n < 16 {
		p.b[p.head] |= byte(p.n)
		return p.b
	}
	p.b = append(p.b, 0, 0)
	copy(p.b[p.head+3:], p.b[p.head+1:len(p.b)-2])
	p.b[p.head] = 0xde
	binary.BigEndian.PutUint16(p.b[p.head+1:], uint16(p.n))
	return p.b
}

// appendMapEvent writes the map events of vLLM, SGLang and TensorRT-LLM. Keys come
// in the order of their declaration; those without a default are always there.
func appendMapEvent(b []byte, s *spec, ev *Event) []byte {
	p := beginMap(b)
	p.text("type", tagOf(ev))
	switch ev.Kind {
	case engine.Stored:
		p.key("block_hashes")
		p.b = appendHashes(p.b, s, ev)
		p.key("parent_block_hash")
		p.b = appendParent(p.b, s, ev)
		p.key("token_ids")
		p.b = appendTokens(p.b, ev)
		p.key("block_size")
		p.b = appendUint(p.b, uint64(ev.BlockSize))
		p.key("lora_id")
		p.b = appendNonZero(p.b, ev.LoraID)
		if s.sglang {
			p.optional("medium", ev.Medium)
			p.optional("cache_salt", ev.Salt)
			p.optional("session_id", ev.Session)
			break
		}
		p.text("medium", ev.Medium)
		p.text("lora_name", ev.LoraName)
		if ev.ExtraKeys != nil {
			p.key("extra_keys")
			p.b = appendExtra(p.b, ev.ExtraKeys)
		}
		p.group(ev)
		p.optional("kv_cache_spec_kind", ev.SpecKind)
		if ev.SlidingWindow != 0 {
			p.key("kv_cache_spec_sliding_window")
			p.b = appendUint(p.b, uint64(ev.SlidingWindow))
		}
		p.where(s, ev)
		if s.session {
			p.optional("session_id", ev.Session)
		}
	case engine.Removed:
		p.key("block_hashes")
		p.b = appendHashes(p.b, s, ev)
		if s.sglang {
			p.optional("medium", ev.Medium)
			break
		}
		p.text("medium", ev.Medium)
		p.group(ev)
		p.where(s, ev)
	default:
		p.optional("medium", ev.Medium)
	}
	return p.finish()
}

func (p *pairs) group(ev *Event) {
	if ev.Group >= 0 {
		p.key("group_idx")
		p.b = appendInt(p.b, ev.Group)
	}
}

func (p *pairs) where(s *spec, ev *Event) {
	if s.locality {
		p.optional("locality", ev.Locality)
	}
	if s.ownership {
		p.optional("ownership", ev.Ownership)
	}
}

// appendPooled writes an event of the Mooncake master, legacy aliases and object
// key included. It has no clear: such an event is written as one of its RFC.
func appendPooled(b []byte, ev *Event, id uint64, ms int64) []byte {
	words := [...]string{engine.Stored: "stored", engine.Removed: "removed", engine.Cleared: "cleared"}
	p := beginMap(b)
	p.key("event_id")
	p.b = appendUint(p.b, id)
	p.key("timestamp")
	p.b = appendInt(p.b, ms)
	p.text("event_type", words[ev.Kind])
	p.text("type", tagOf(ev))
	p.null("model_name")
	p.null("block_size")
	p.text("additional_salt", ev.Salt)
	p.text("lora_name", ev.LoraName)
	p.text("tenant_id", "default")
	p.text("backend_id", ev.Backend)
	p.null("group_id")
	p.text("medium", ev.Medium)
	p.null("dp_rank")
	if ev.Kind == engine.Cleared {
		return p.finish()
	}
	p.key("object_key")
	p.b = appendObjectKey(p.b, ev.Hashes)
	p.key("seq_hashes")
	p.b = appendHashes(p.b, &spec{}, ev)
	p.key("block_hashes") // the alias is cast to int64
	p.b = appendHashes(p.b, &spec{signed: true}, ev)
	if ev.Kind == engine.Stored {
		p.key("base_block_idx")
		p.b = append(p.b, 0)
		p.null("parent_hash")
		p.null("token_ids")
		p.null("parent_block_hash")
	}
	return p.finish()
}

// appendObjectKey spells the first hash in hex, without leading zeros.
func appendObjectKey(b []byte, hashes []uint64) []byte {
	if len(hashes) == 0 {
		return appendStr(b, "object")
	}
	const digits = "0123456789abcdef"
	var buf [18]byte
	i := len(buf)
	for h := hashes[0]; ; h >>= 4 {
		i--
		buf[i] = digits[h&15]
		if h < 16 {
			break
		}
	}
	i--
	buf[i] = 'x'
	i--
	buf[i] = '0'
	b = append(b, 0xa0|byte(len(buf)-i))
	return append(b, buf[i:]...)
}
