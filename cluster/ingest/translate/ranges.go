package translate

import "github.com/kvcluster/kvcluster/indexer"

// pendingRange is a stretch of claimed or dropped positions that may still grow.
// There is one for each tier.
type pendingRange struct {
	run  uint32
	wire indexer.Run
	part uint16
	kind indexer.OpKind
	from int32
	to   int32 // exclusive; 0 = none
}

// addRange claims or drops n positions of a run, joined to the previous ones if
// they touch. flushRanges must follow before the event ends.
func (t *Translator) addRange(kind indexer.OpKind, tier indexer.Tier, run uint32, rec *runRecord, from, n int) {
	p := &t.pending[tier]
	if p.run == run && p.to != 0 && p.kind == kind {
		if int(p.from) == from+n {
			p.from = int32(from)
			return
		}
		if int(p.to) == from {
			p.to += int32(n)
			return
		}
	}
	t.flushRange(tier)
	*p = pendingRange{run: run, wire: rec.name(), part: rec.part, kind: kind, from: int32(from), to: int32(from + n)}
}

func (t *Translator) flushRange(tier indexer.Tier) {
	p := &t.pending[tier]
	if p.to == 0 {
		return
	}
	r := indexer.MakeRange(p.wire, int(p.from), int(p.to-p.from))
	if b := t.builder(uint32(p.part)); p.kind == indexer.OpDrop {
		b.Drop(tier, r)
	} else {
		b.Claim(tier, r)
	}
	p.to = 0
}

func (t *Translator) flushRanges() {
	for tier := range t.pending {
		if t.pending[tier].to != 0 {
			t.flushRange(indexer.Tier(tier))
		}
	}
}
