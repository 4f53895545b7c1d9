package translate

import (
	"fmt"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/blockhash"
)

// place is where the next block of an event hangs.
type place struct {
	kind placeKind
	id   uint32 // atBlock: the block
	hash uint64 // atOrphan: engine hash of the predecessor
	ns   uint32 // atRoot, atBlock: namespace
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
	return t.count(out)
}

func (t *Translator) storeBlocks(s *Store, out *Outcome) {
	ids := t.lookupAll(s.Engines)
	at, why := t.startPlace(s)
	if at.kind == atRoot {
		t.spaces.hold(at.ns)
		defer t.spaces.release(at.ns)
	}
	if why == "" {
		why = t.contradiction(s, at, ids)
	}
	if why != "" {
		for _, h := range s.Engines {
			t.taintHash(h)
		}
		out.Uncredited = len(s.Engines)
		out.Err = fmt.Errorf("store of %d blocks: %w: %s", len(s.Engines), ErrRejected, why)
		t.checkTaint(out)
		return
	}
	t.apply(s, at, ids, out)
	t.attach(out)
	t.checkTaint(out)
	if t.cfg.MaxBlocks > 0 && t.blocks.len() > t.cfg.MaxBlocks {
		t.shed(t.blocks.len()-t.cfg.MaxBlocks, out)
	}
}

// lookupAll finds the block of every hash.
func (t *Translator) lookupAll(engines []uint64) []uint32 {
	t.ids = t.ids[:0]
	for _, h := range engines {
		t.ids = append(t.ids, t.blocks.find(h))
	}
	return t.ids
}

// startPlace resolves the parent and the namespace of an event.
func (t *Translator) startPlace(s *Store) (at place, why string) {
	if !s.HasParent {
		lora, salt := s.Lora, s.Salt
		if lora == "" {
			lora = t.cfg.Lora
		}
		if salt == "" {
			salt = t.cfg.Salt
		}
		return place{kind: atRoot, ns: t.spaces.intern(lora, salt)}, ""
	}
	if id := t.blocks.find(s.Parent); id != 0 {
		ns := t.runs.list[t.blocks.run(id)].ns
		if !t.spaces.agrees(ns, s.Lora, s.Salt) {
			return at, "namespace differs from the parent's"
		}
		if t.tainted(s.Parent) {
			return place{kind: atTainted, id: id, ns: ns}, ""
		}
		return place{kind: atBlock, id: id, ns: ns}, ""
	}
	if t.tainted(s.Parent) {
		return place{kind: atTainted}, ""
	}
	return place{kind: atOrphan, hash: s.Parent}, ""
}

// contradiction is the check of rule N2 over a whole event, before anything of it
// is applied. It returns "" or the reason.
func (t *Translator) contradiction(s *Store, at place, ids []uint32) string {
	known := at.kind == atRoot || at.id != 0 // is the path so far known?
	var tag uint16
	ns, prev := at.ns, at.id
	if at.kind == atRoot {
		tag = t.spaces.tag(at.ns)
	} else if at.id != 0 {
		tag = t.blocks.tag(at.id)
	}
	seen := make(map[uint64]struct{}, len(s.Engines)+1)
	if s.HasParent {
		seen[s.Parent] = struct{}{}
	}
	for i, h := range s.Engines {
		if _, twice := seen[h]; twice {
			return "a hash occurs twice"
		}
		seen[h] = struct{}{}
		id := ids[i]
		if id != 0 {
			rec := &t.runs.list[t.blocks.run(id)]
			if known && !t.blocks.follows(prev, id) &&
				(rec.ns != ns || t.blocks.tag(id) != mixTag(tag, h)) {
				return "a mapped hash is stored on another path"
			}
			if !known && !t.spaces.agrees(rec.ns, s.Lora, s.Salt) {
				return "a mapped hash is stored in another namespace"
			}
			known, ns, tag, prev = true, rec.ns, t.blocks.tag(id), id
			continue
		}
		if o, ok := t.pool.get(h); ok {
			hasPrev, p := i > 0 || s.HasParent, s.Parent
			if i > 0 {
				p = s.Engines[i-1]
			}
			if !hasPrev || o.parent != p {
				return "an orphan gets another parent"
			}
			if g := t.pool.group(o); differ(g.lora, s.Lora) || differ(g.salt, s.Salt) {
				return "an orphan gets another namespace"
			}
		}
		tag, prev = mixTag(tag, h), 0
	}
	return ""
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
			at = place{kind: atBlock, id: id, ns: t.runs.list[t.blocks.run(id)].ns}
			i++
		case at.kind == atOrphan:
			j := i + 1
			for j < n && ids[j] == 0 && !t.tainted(s.Engines[j]) {
				j++
			}
			t.poolStretch(s, at.hash, i, j, out)
			at.hash = s.Engines[j-1]
			i = j
		default:
			j := i + 1
			for j < n && ids[j] == 0 && !t.tainted(s.Engines[j]) {
				j++
			}
			at = t.storeStretch(at, s.Tier, s.Engines[i:j], s.Content, i)
			t.adoptPooled(s, i, j, out)
			i = j
		}
	}
}

// claim gives a mapped block a further tier, or counts a duplicate.
func (t *Translator) claim(id uint32, h uint64, tier indexer.Tier, out *Outcome) {
	run := t.blocks.run(id)
	t.runs.list[run].touched = true
	if t.blocks.tiers(id).Has(tier) {
		t.copies.add(h, tier)
		out.Trimmed++
		return
	}
	t.blocks.addTier(id, tier)
	t.stats.Held[tier]++
	out.Claimed++
	rec := &t.runs.list[run]
	t.builder(rec.part).Claim(tier, indexer.MakeRange(rec.wire, t.blocks.pos(id), 1))
}

// storeStretch maps hashes that are all new, extending the run of the predecessor
// when it is that run's tip, and returns the place after the last.
func (t *Translator) storeStretch(at place, tier indexer.Tier, engines []uint64, c blockhash.Content, first int) place {
	seed := t.spaces.seed(at.ns)
	for done := 0; done < len(engines); {
		run, start, parent := t.openRun(at, c, first+done, seed)
		m := min(len(engines)-done, indexer.MaxRunLength-start)
		rec := &t.runs.list[run]
		locals, column := t.builder(rec.part).Store(tier, rec.wire, uint32(start), parent, m)
		appendLocals(locals[:0], c, first+done, first+done+m, seed)
		copy(column, engines[done:done+m])
		at = t.mapRun(at, run, start, tier, column)
		done += m
	}
	return at
}

// openRun returns the run that takes the blocks after at, and its length: the
// predecessor's run when that ends there (rule N3), or a new one.
func (t *Translator) openRun(at place, c blockhash.Content, first int, seed uint64) (run uint32, start int, parent indexer.Parent) {
	if at.kind == atRoot {
		return t.runs.open(&t.parts, t.parts.index(t.cfg.Partition(firstLocal(c, first, seed))), t.spaces.hold(at.ns)), 0, indexer.Parent{}
	}
	prev, pos := t.blocks.run(at.id), t.blocks.pos(at.id)
	rec := &t.runs.list[prev]
	rec.touched = true
	if pos == rec.length-1 && rec.length < indexer.MaxRunLength {
		return prev, rec.length, parent
	}
	parent = indexer.Parent{Kind: indexer.ParentName, Run: rec.wire, Pos: uint32(pos)}
	return t.runs.open(&t.parts, rec.part, t.spaces.hold(at.ns)), 0, parent
}

// mapRun enters hashes as positions start.. of a run.
func (t *Translator) mapRun(at place, run uint32, start int, tier indexer.Tier, engines []uint64) place {
	tag := t.spaces.tag(at.ns)
	if at.kind == atBlock {
		tag = t.blocks.tag(at.id)
	}
	rec := &t.runs.list[run]
	var id uint32
	for i, h := range engines {
		tag = mixTag(tag, h)
		id = t.blocks.insert(h, run, start+i, tier, tag)
		t.fresh = append(t.fresh, id)
	}
	rec.length = start + len(engines)
	rec.blocks += len(engines)
	t.stats.Held[tier] += uint64(len(engines))
	return place{kind: atBlock, id: id, ns: at.ns}
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
	for tier := range indexer.Tier(indexer.NumTiers) {
		if mask.Has(tier) && !t.blocks.tiers(id).Has(tier) {
			t.claim(id, h, tier, out)
		}
	}
}

// placeholder claims a further tier of hashes that are known already.
func (t *Translator) placeholder(s *Store, out *Outcome) {
	for _, h := range s.Engines {
		switch id := t.blocks.find(h); {
		case t.tainted(h):
			out.Uncredited++
		case id != 0:
			t.claim(id, h, s.Tier, out)
		case t.pool.addTier(h, s.Tier):
			out.Orphaned++
		default:
			out.Unknown++
		}
	}
}
