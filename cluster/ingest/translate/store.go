package translate

import (
	"fmt"
	"math/bits"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/blockhash"
)

// place is where the next block of an event hangs.
type place struct {
	kind placeKind
	id   uint32 // the block above, if mapped
	ns   uint32 // atRoot, or id != 0: namespace
	hash uint64 // atOrphan: engine hash of the predecessor
}

type placeKind uint8

const (
	atRoot    placeKind = iota
	atBlock             // below a mapped block
	atOrphan            // below a hash that is not mapped
	atTainted           // below a tainted hash
)

// Store translates one store event.
func (t *Translator) Store(s Store) Outcome {
	t.mustBeOpen()
	var out Outcome
	n := len(s.Engines)
	switch {
	case t.refused:
		out.Uncredited = n
		out.Err = fmt.Errorf("store of %d blocks: %w", n, ErrRefused)
	case s.Tier >= indexer.NumTiers:
		out.Err = fmt.Errorf("store of %d blocks: %w: tier %d", n, ErrRejected, s.Tier)
	case n == 0:
	case s.Placeholder:
		t.placeholder(&s, &out)
	case s.Content.Len() != n:
		out.Err = fmt.Errorf("store of %d blocks: %w: content of %d blocks", n, ErrRejected, s.Content.Len())
	default:
		t.storeBlocks(&s, &out)
	}
	t.count(&out)
	return out
}

func (t *Translator) storeBlocks(s *Store, out *Outcome) {
	n := len(s.Engines)
	t.blocks.reserve(n)
	t.blocks.reserveUnits(n/4 + 2)
	parent, ids, probes, mapped := t.lookupAll(s)
	at, why := t.startPlace(s, parent)
	if at.kind == atRoot && at.ns != 0 {
		t.spaces.hold(at.ns)
		defer t.spaces.release(at.ns)
	}
	if t.heir != nil && (why == "" || t.isLoose(s.Parent)) && t.settledStore(s, at, ids) {
		t.settle(s, at, ids, out)
		return
	}
	var were []looseBlock
	if len(t.loose) > 0 {
		if parent != 0 && t.isLoose(s.Parent) {
			t.dropLoose(s.Parent, parent)
			t.stats.LooseDropped++
			at, why = t.startPlace(s, 0)
		}
		if why == "" {
			were = t.letLooseGo(s, ids)
		}
		t.flushRanges()
	}
	if why == "" && mapped == 0 && at.kind <= atBlock && len(t.loose) == 0 && len(t.taint) == 0 && t.pool.len() == 0 && n <= indexer.MaxRunLength/2 {
		// All hashes are new: they are one stretch, and only a hash that occurs twice
		// can contradict, which entering them finds.
		if _, ok := t.storeStretch(at, s.Tier, s.Engines, s.Content, 0, probes); ok {
			out.Stored = n
			t.keepBound(out)
			return
		}
		why = "a hash occurs twice"
	}
	if why == "" {
		why = t.contradiction(s, at, ids)
	}
	if why != "" {
		for _, h := range s.Engines {
			t.taintHash(h)
		}
		out.Uncredited = n
		out.Err = fmt.Errorf("store of %d blocks: %w: %s", n, ErrRejected, why)
		t.checkTaint(out)
		return
	}
	t.scratch.fresh = t.scratch.fresh[:0]
	t.apply(s, at, ids, out)
	t.claimAgain(were, out)
	t.attach(out)
	t.checkTaint(out)
	t.keepBound(out)
}

func (t *Translator) keepBound(out *Outcome) {
	if over := t.blocks.len() - t.cfg.MaxBlocks; over > 0 {
		t.shed(over, nil, out)
		t.sweepLoose()
	}
}

// lookupAll finds the blocks of the parent and of every hash, in one batch.
func (t *Translator) lookupAll(s *Store) (parent uint32, ids []uint32, probes []probe, mapped int) {
	sc := t.scratch
	keys := sc.keys[:0]
	if s.HasParent {
		keys = append(keys, s.Parent)
	}
	keys = append(keys, s.Engines...)
	sc.keys = keys
	probes = sc.probes(len(keys))
	open := t.blocks.probe(keys, probes)
	if s.HasParent {
		p := &probes[0]
		if p.found&probeMatch != 0 || p.found&probeEnds == 0 {
			parent = t.blocks.resolve(s.Parent, p)
			open--
		}
		probes = probes[1:]
	}
	if cap(sc.ids) < len(s.Engines) {
		sc.ids = make([]uint32, len(s.Engines)*3/2)
	}
	ids = sc.ids[:len(s.Engines)]
	probes = probes[:len(ids)]
	clear(ids)
	for i := 0; open > 0; i++ {
		if p := &probes[i]; p.found&probeMatch != 0 || p.found&probeEnds == 0 {
			open--
			if ids[i] = t.blocks.resolve(s.Engines[i], p); ids[i] != 0 {
				mapped++
			}
		}
	}
	return parent, ids, probes, mapped
}

// startPlace resolves the parent and the namespace of an event.
func (t *Translator) startPlace(s *Store, parent uint32) (at place, why string) {
	if !s.HasParent {
		if s.Lora == "" && s.Salt == "" {
			return place{kind: atRoot}, ""
		}
		lora, salt := s.Lora, s.Salt
		if lora == "" {
			lora = t.cfg.Lora
		}
		if salt == "" {
			salt = t.cfg.Salt
		}
		return place{kind: atRoot, ns: t.spaces.intern(lora, salt)}, ""
	}
	at = place{kind: atOrphan, id: parent, hash: s.Parent}
	if parent != 0 {
		at.kind, at.ns = atBlock, t.runs.at(t.blocks.run(parent)).ns
		if !t.spaces.agrees(at.ns, s.Lora, s.Salt) {
			why = "namespace differs from the parent's"
		}
	}
	if t.tainted(s.Parent) {
		at.kind = atTainted
	}
	return at, why
}

// apply carries out an event that passed the check.
func (t *Translator) apply(s *Store, at place, ids []uint32, out *Outcome) {
	n := len(s.Engines)
	for i := 0; i < n; {
		h := s.Engines[i]
		switch {
		case at.kind == atTainted:
			t.taintHash(h)
			out.Uncredited++
			i++
		case t.tainted(h):
			out.Uncredited++
			at = place{kind: atTainted}
			i++
		case ids[i] != 0:
			id := ids[i]
			t.claim(id, h, s.Tier, out)
			at = place{kind: atBlock, id: id, ns: t.runs.at(t.blocks.run(id)).ns}
			i++
		default:
			j := i + 1
			for j < n && ids[j] == 0 && !t.tainted(s.Engines[j]) {
				j++
			}
			if at.kind == atOrphan {
				t.poolStretch(s, at.hash, i, j, out)
				at.hash = s.Engines[j-1]
			} else {
				at, _ = t.storeStretch(at, s.Tier, s.Engines[i:j], s.Content, i, nil)
				t.adoptPooled(s, i, j, out)
			}
			i = j
		}
	}
	t.flushRanges()
}

// claim gives a mapped block a further tier, or counts a duplicate.
func (t *Translator) claim(id uint32, h uint64, tier indexer.Tier, out *Outcome) {
	rec := t.runs.at(t.blocks.run(id))
	rec.touch()
	if t.blocks.tiers(id).Has(tier) {
		t.copies.add(h, tier)
		out.Trimmed++
		return
	}
	t.blocks.setTier(id, tier)
	t.stats.Held[tier]++
	out.Claimed++
	t.addRange(indexer.OpClaim, tier, t.blocks.run(id), rec, t.blocks.pos(id), 1)
}

// storeStretch maps hashes that are all new, extending the run of the predecessor
// when it is that run's tip, and returns the place after the last. With probes, of
// the table as it is, the hashes may contain duplicates: if so nothing is changed
// and ok is false. Without, they may not. The stretch is at most half a run long
// when probes are given.
func (t *Translator) storeStretch(at place, tier indexer.Tier, engines []uint64, c blockhash.Content, first int, probes []probe) (after place, ok bool) {
	seed := t.spaces.seed(at.ns)
	for done := 0; done < len(engines); {
		tag := t.tagAt(at)
		room := 1
		if probes != nil {
			room = len(engines)
		}
		run, start, parent := t.openRun(at, c, first+done, seed, room)
		m := min(len(engines)-done, indexer.MaxRunLength-start)
		rec := t.runs.at(run)
		column := engines[done : done+m]
		p := probes
		if p == nil {
			t.blocks.reserve(m)
			t.blocks.reserveUnits(m/4 + 2)
			p = t.scratch.probes(m)
			t.blocks.probe(column, p)
		}
		last, ok := t.mapRun(at, run, rec, start, tier, column, p)
		if !ok {
			return at, false
		}
		locals, copied := t.builder(uint32(rec.part)).Store(tier, rec.name(), uint32(start), parent, m)
		appendLocals(locals[:0], c, first+done, first+done+m, seed)
		copy(copied, column)
		if start == 0 {
			t.builder(uint32(rec.part)).Mark(indexer.Mark{Set: true, Tag: tag, Note: t.spaces.note(at.ns)})
		}
		at = place{kind: atBlock, id: last, ns: at.ns}
		done += m
	}
	return at, true
}

// adoptPooled takes blocks i..j of an event, which have just been stored, out of
// the pool, with the further tiers that they had there.
func (t *Translator) adoptPooled(s *Store, i, j int, out *Outcome) {
	out.Stored += j - i
	if t.pool.len() == 0 {
		return
	}
	for _, h := range s.Engines[i:j] {
		if o, ok := t.pool.get(h); ok {
			t.pool.remove(h)
			out.Stored--
			out.Attached++
			t.claimRest(t.blocks.find(h), h, o.tiers, out)
			if o.tiers.Has(s.Tier) {
				t.copies.add(h, s.Tier)
			}
		}
	}
}

// claimRest claims the tiers of mask that a block does not have yet.
func (t *Translator) claimRest(id uint32, h uint64, mask indexer.TierMask, out *Outcome) {
	for mask &^= t.blocks.tiers(id); mask != 0; mask &= mask - 1 {
		t.claim(id, h, indexer.Tier(bits.TrailingZeros8(uint8(mask))), out)
	}
}

// placeholder claims a further tier of hashes that are known already.
func (t *Translator) placeholder(s *Store, out *Outcome) {
	for _, h := range s.Engines {
		switch id := t.blocks.find(h); {
		case t.tainted(h):
			out.Uncredited++
		case id != 0 && t.heir != nil && t.settledBlock(id):
			out.Settled++
		case id != 0:
			t.claim(id, h, s.Tier, out)
		case t.pool.addTier(h, s.Tier):
			out.Orphaned++
		default:
			out.Unknown++
		}
	}
	t.flushRanges()
}
