package engine

import "github.com/kvcluster/kvcluster/indexer"

// finish judges an event whose bytes have all been read.
func (d *Decoder) finish(b []byte, ev *Event, f *fields) (SkipReason, bool) {
	if f.tag == tagNone {
		f.tag = f.eventType
	}
	switch {
	case f.tag == tagIgnored:
		return SkipIgnored, false
	case f.tag == tagUnknown:
		return SkipUnknownTag, false
	case f.tag == tagNone || f.bad && f.tag != tagCleared:
		// A clear is a clear whatever else it says: to drop it would overcount.
		return SkipMalformed, false
	case f.foreign:
		return SkipForeign, false
	case f.locality == localityElsewhere:
		return SkipNotLocal, false
	case f.mediumSaid && !f.mediumKnown && f.tag != tagCleared:
		return SkipMedium, false
	}
	switch f.tag {
	case tagCleared:
		*ev = Event{Kind: Cleared, Tier: indexer.AllTiers, Group: ev.Group}
		return 0, true
	case tagTierCleared:
		if !f.mediumSaid {
			return SkipMedium, false // which tier is not for us to guess
		}
		*ev = Event{Kind: Cleared, Tier: ev.Tier, Group: ev.Group}
		return 0, true
	}
	if !f.hasHashes && !d.pooledHashes(ev, f) {
		return SkipMalformed, false
	}
	if f.tag == tagRemoved {
		ev.Kind = Removed
		if ev.HasParent || ev.Tokens != nil || ev.LoraID|int64(len(ev.LoraName)+len(ev.Salt)+len(ev.Session)) != 0 {
			// What only stores have; no engine sends it.
			*ev = Event{Kind: Removed, Tier: ev.Tier, Hashes: ev.Hashes, Group: ev.Group, SpecKind: ev.SpecKind, Backend: ev.Backend}
		}
		return 0, true
	}
	return d.finishStore(b, ev, f)
}

// pooledHashes takes Mooncake's seq_hashes, or the hash that an object key spells.
func (d *Decoder) pooledHashes(ev *Event, f *fields) bool {
	if f.hasSeq {
		ev.Hashes = f.seqHashes
		return true
	}
	h, ok := parseObjectKey(f.objectKey)
	if ok {
		ev.Hashes, d.hashes = reserve(d.hashes, 1)
		ev.Hashes[0] = h
	}
	return ok
}

func (d *Decoder) finishStore(b []byte, ev *Event, f *fields) (SkipReason, bool) {
	ev.Kind = Stored
	tokens := uint64(len(ev.Tokens))
	if ev.Bigram {
		tokens-- // n pairs have n+1 tokens
	}
	blocks := uint64(len(ev.Hashes))
	fits := tokens == 0 && blocks == 0 ||
		f.blockSize != 0 && f.blockSize <= 1<<31 && tokens%f.blockSize == 0 && tokens/f.blockSize == blocks
	switch {
	case tokens == 0 && f.blockSize == 0:
		ev.Placeholder = true
	case fits:
	case ev.SpecKind == SpecOther:
		ev.Tokens, ev.Bigram = nil, false
	default:
		return SkipTokenCount, false
	}
	ev.BlockSize = uint32(min(f.blockSize, 1<<31))
	if f.inMiddle && !ev.HasParent {
		// Somewhere below the root, and not said below what.
		ev.Placeholder, ev.Tokens, ev.Bigram, ev.BlockSize = true, nil, false, 0
	}
	if f.extraAt|f.multimodalAt != 0 && !d.extras(b, ev, f) {
		return SkipMalformed, false
	}
	return 0, true
}
