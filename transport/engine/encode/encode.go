package encode

import (
	"math"

	"github.com/kvcluster/kvcluster/transport/engine"
)

// Append appends the payload of a batch in format f.
func Append(dst []byte, f Format, b *Batch) []byte {
	s := &specs[f]
	switch {
	case s.mapEnvelope:
		dst = appendMap(dst, 3)
		dst = appendFloat(appendStr(dst, "ts"), b.Time)
		dst = appendStr(dst, "events")
	case s.mooncake:
		dst = appendArray(dst, 3)
		dst = appendUint(dst, uint64(millis(b.Time)))
	case s.noRank:
		dst = appendArray(dst, 2)
		dst = appendFloat(dst, b.Time)
	default:
		dst = appendArray(dst, 3)
		dst = appendFloat(dst, b.Time)
	}
	dst = appendArray(dst, len(b.Events))
	for i := range b.Events {
		ev := &b.Events[i]
		switch {
		case ev.Raw != nil:
			dst = append(dst, ev.Raw...)
		case s.mooncake:
			dst = appendPooled(dst, ev, b.FirstID+uint64(i), millis(b.Time))
		case s.maps:
			dst = appendMapEvent(dst, s, ev)
		default:
			dst = appendArrayEvent(dst, s, f, ev)
		}
	}
	if s.noRank {
		return dst
	}
	if s.mapEnvelope {
		dst = appendStr(dst, "data_parallel_rank")
	}
	if s.mooncake {
		return append(dst, 0)
	}
	return appendOptional(dst, b.Rank)
}

func millis(t float64) int64 { return int64(math.Round(t * 1000)) }

// appendOptional writes an integer, or nil for a negative one.
func appendOptional(b []byte, v int64) []byte {
	if v < 0 {
		return appendNil(b)
	}
	return appendInt(b, v)
}

func appendNonZero(b []byte, v int64) []byte {
	if v == 0 {
		return appendNil(b)
	}
	return appendInt(b, v)
}

// tagOf is the event's name on the wire.
func tagOf(ev *Event) string {
	switch ev.Kind {
	case engine.Stored:
		return "BlockStored"
	case engine.Removed:
		return "BlockRemoved"
	}
	if ev.Medium != "" {
		return "TierBlocksCleared"
	}
	return "AllBlocksCleared"
}

// appendArrayEvent writes all slots of the format's generation.
func appendArrayEvent(b []byte, s *spec, f Format, ev *Event) []byte {
	switch ev.Kind {
	case engine.Stored:
		salted := f == SGLang0518 && ev.Salt != ""
		n := 1 + s.stored
		if salted {
			n++
		}
		b = appendStr(appendArray(b, n), tagOf(ev))
		b = appendHashes(b, s, ev)
		b = appendParent(b, s, ev)
		b = appendTokens(b, ev)
		b = appendUint(b, uint64(ev.BlockSize))
		b = appendNonZero(b, ev.LoraID)
		if s.stored >= 6 {
			b = appendText(b, ev.Medium)
		}
		if salted {
			b = appendStr(appendStr(appendMap(b, 1), "cache_salt"), ev.Salt)
		}
		if s.stored >= 7 {
			b = appendText(b, ev.LoraName)
		}
		if s.stored >= 8 {
			b = appendExtra(b, ev.ExtraKeys)
		}
		if s.stored >= 9 {
			b = appendOptional(b, ev.Group)
		}
		if s.stored >= 11 {
			b = appendText(b, ev.SpecKind)
			b = appendNonZero(b, int64(ev.SlidingWindow))
		}
	case engine.Removed:
		b = appendStr(appendArray(b, 1+s.removed), tagOf(ev))
		b = appendHashes(b, s, ev)
		if s.removed >= 2 {
			b = appendText(b, ev.Medium)
		}
		if s.removed >= 3 {
			b = appendOptional(b, ev.Group)
		}
	default:
		if ev.Medium != "" {
			return appendStr(appendStr(appendArray(b, 2), tagOf(ev)), ev.Medium)
		}
		b = appendStr(appendArray(b, 1), tagOf(ev))
	}
	return b
}

func appendHashes(b []byte, s *spec, ev *Event) []byte {
	if ev.Digests != nil {
		b = appendArray(b, len(ev.Digests))
		for _, d := range ev.Digests {
			b = appendBin(b, d)
		}
		return b
	}
	b = appendArray(b, len(ev.Hashes))
	for _, h := range ev.Hashes {
		b = appendHash(b, s, h)
	}
	return b
}

func appendHash(b []byte, s *spec, h uint64) []byte {
	if s.signed {
		return appendInt(b, int64(h))
	}
	return appendUint(b, h)
}

func appendParent(b []byte, s *spec, ev *Event) []byte {
	switch {
	case !ev.HasParent:
		return appendNil(b)
	case ev.ParentDigest != nil:
		return appendBin(b, ev.ParentDigest)
	}
	return appendHash(b, s, ev.Parent)
}

func appendTokens(b []byte, ev *Event) []byte {
	if !ev.Bigram {
		b = appendArray(b, len(ev.Tokens))
		for _, t := range ev.Tokens {
			b = appendUint(b, uint64(t))
		}
		return b
	}
	pairs := max(len(ev.Tokens)-1, 0)
	b = appendArray(b, pairs)
	for i := range pairs {
		b = appendArray(b, 2)
		b = appendUint(b, uint64(ev.Tokens[i]))
		b = appendUint(b, uint64(ev.Tokens[i+1]))
	}
	return b
}

func appendExtra(b []byte, blocks [][]Key) []byte {
	if blocks == nil {
		return appendNil(b)
	}
	b = appendArray(b, len(blocks))
	for _, keys := range blocks {
		if keys == nil {
			b = appendNil(b)
			continue
		}
		b = appendArray(b, len(keys))
		for _, k := range keys {
			if k.HasOffset {
				b = appendArray(b, 2)
			}
			if k.Bytes != nil {
				b = appendBin(b, k.Bytes)
			} else {
				b = appendStr(b, k.Text)
			}
			if k.HasOffset {
				b = appendInt(b, k.Offset)
			}
		}
	}
	return b
}
