package ingest

import (
	"fmt"
	"math"

	"github.com/kvcluster/kvcluster/cluster/ingest/translate"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/blockhash"
)

// plainTranslator translates with Go maps: one run for each block, orphans attached as
// their parents come. It shares nothing with the real one, so that what the tests of
// this package say is about streams alone.
type plainTranslator struct {
	cfg     translate.Config
	seq     uint64
	blocks  map[uint64]*plainBlock
	orphans map[uint64][]plainOrphan // by parent
	next    map[indexer.PartitionID]indexer.Run
	frames  map[indexer.PartitionID]*indexer.FrameBuilder
	stats   translate.Stats
}

type plainBlock struct {
	part       indexer.PartitionID
	run        indexer.Run
	tiers      indexer.TierMask
	namedSpace [2]string
}

type plainOrphan struct {
	tier      indexer.Tier
	engine    uint64
	tokens    blockhash.Content
	namespace [2]string
}

func newPlain(cfg translate.Config) translate.Interface {
	t := &plainTranslator{cfg: cfg}
	t.reset()
	return t
}

func (t *plainTranslator) reset() {
	t.blocks, t.orphans = map[uint64]*plainBlock{}, map[uint64][]plainOrphan{}
	t.next = map[indexer.PartitionID]indexer.Run{}
}

func (t *plainTranslator) Begin(seq uint64) {
	t.seq = seq
	t.frames = map[indexer.PartitionID]*indexer.FrameBuilder{}
}

func (t *plainTranslator) frame(p indexer.PartitionID) *indexer.FrameBuilder {
	b := t.frames[p]
	if b == nil {
		b = &indexer.FrameBuilder{}
		b.Reset(indexer.Header{Group: t.cfg.Group, Partition: p, Slot: t.cfg.Slot, Life: t.cfg.Life, Tenure: t.cfg.Tenure, Sequence: t.seq})
		t.frames[p] = b
	}
	return b
}

func (t *plainTranslator) End(emit func(indexer.Frame) error) error {
	for _, b := range t.frames {
		if err := emit(b.Frame()); err != nil {
			return err
		}
	}
	return nil
}

func (t *plainTranslator) Store(s translate.Store) (out translate.Outcome) {
	seen := map[uint64]bool{s.Parent: s.HasParent}
	for _, h := range s.Engines {
		if seen[h] {
			return translate.Outcome{Err: fmt.Errorf("%w: hash twice", translate.ErrRejected)}
		}
		seen[h] = true
	}
	parent, has := s.Parent, s.HasParent
	for i, h := range s.Engines {
		if b := t.blocks[h]; b != nil {
			if b.tiers.Has(s.Tier) {
				out.Trimmed++
			} else {
				t.claim(h, b, s.Tier)
				out.Claimed++
			}
			parent, has = h, true
			continue
		}
		if s.Placeholder {
			out.Unknown++
			continue
		}
		c := s.Content
		c.Tokens = c.Tokens[i*c.BlockSize : i*c.BlockSize+c.Window]
		c.Multimodal = nil
		for _, it := range s.Content.Multimodal {
			if it.Block == i {
				c.Multimodal = append(c.Multimodal, blockhash.Item{Hash: it.Hash})
			}
		}
		o := plainOrphan{s.Tier, h, c, [2]string{s.Lora, s.Salt}}
		if has && t.blocks[parent] == nil {
			o.tokens.Tokens = append([]uint32(nil), c.Tokens...)
			t.orphans[parent] = append(t.orphans[parent], o)
			t.stats.Orphans++
			out.Orphaned++
		} else {
			out.Stored++
			n := t.put(o, parent, has)
			out.Attached += n
			out.Stored += n
		}
		parent, has = h, true
	}
	t.stats.Stored += uint64(out.Stored)
	return out
}

func (t *plainTranslator) claim(h uint64, b *plainBlock, tier indexer.Tier) {
	b.tiers |= tier.Mask()
	t.stats.Held[tier]++
	t.frame(b.part).Claim(tier, indexer.MakeRange(b.run, 0, 1))
}

func (t *plainTranslator) put(o plainOrphan, parent uint64, has bool) (attached int) {
	b := &plainBlock{tiers: o.tier.Mask()}
	up := indexer.Parent{}
	ns := o.namespace
	if has {
		p := t.blocks[parent]
		if ns == [2]string{} {
			ns = p.namedSpace
		}
		b.part = p.part
		up = indexer.Parent{Kind: indexer.ParentName, Run: p.run}
	} else if ns[0] == "" {
		ns[0] = t.cfg.Lora
	}
	if !has && ns[1] == "" {
		ns[1] = t.cfg.Salt
	}
	b.namedSpace = ns
	local := o.tokens.AppendLocals(nil, blockhash.NamespaceSeed(ns[0], ns[1]))[0]
	if !has {
		b.part = t.cfg.Partition(local)
	}
	b.run = t.next[b.part]
	t.next[b.part]++
	l, e := t.frame(b.part).Store(o.tier, b.run, 0, up, 1)
	l[0], e[0] = local, o.engine
	t.blocks[o.engine] = b
	t.stats.Held[o.tier]++
	waiting := t.orphans[o.engine]
	delete(t.orphans, o.engine)
	t.stats.Orphans -= uint64(len(waiting))
	for _, w := range waiting {
		attached += 1 + t.put(w, o.engine, true)
	}
	return attached
}

func (t *plainTranslator) Remove(tier indexer.Tier, engines []uint64) (out translate.Outcome) {
	for _, h := range engines {
		b := t.blocks[h]
		if b == nil || !b.tiers.Has(tier) {
			out.Unknown++
			continue
		}
		b.tiers &^= tier.Mask()
		t.stats.Held[tier]--
		t.frame(b.part).Drop(tier, indexer.MakeRange(b.run, 0, 1))
		out.Dropped++
		if b.tiers == 0 {
			delete(t.blocks, h)
		}
	}
	return out
}

func (t *plainTranslator) Clear(tier indexer.Tier) (out translate.Outcome) {
	for h, b := range t.blocks {
		t.frame(b.part) // every partition that holds something
		if b.tiers &^= tier.Mask(); b.tiers == 0 {
			delete(t.blocks, h)
			out.Dropped++
		}
	}
	for _, f := range t.frames {
		f.Clear(tier)
	}
	if tier == indexer.AllTiers {
		t.reset()
		t.stats.Orphans = 0
	}
	return out
}

func (t *plainTranslator) Shed(share float64, in func(indexer.PartitionID) bool) (out translate.Outcome) {
	wanted := func(b *plainBlock) bool { return in == nil || in(b.part) }
	have := 0
	for _, b := range t.blocks {
		if wanted(b) {
			have++
		}
	}
	n := int(math.Ceil(share * float64(have)))
	for h, b := range t.blocks {
		if !wanted(b) {
			continue
		}
		if out.Shed >= n {
			break
		}
		for tier := range indexer.Tier(indexer.NumTiers) {
			if b.tiers.Has(tier) {
				t.frame(b.part).Drop(tier, indexer.MakeRange(b.run, 0, 1))
			}
		}
		delete(t.blocks, h)
		out.Shed++
	}
	return out
}

func (t *plainTranslator) Lookup(h uint64) translate.HashState {
	if t.blocks[h] != nil {
		return translate.HashHeld
	}
	for _, os := range t.orphans {
		for _, o := range os {
			if o.engine == h {
				return translate.HashOrphan
			}
		}
	}
	return translate.HashUnknown
}

func (t *plainTranslator) Stats() translate.Stats {
	s := t.stats
	s.Mapped = uint64(len(t.blocks))
	return s
}
