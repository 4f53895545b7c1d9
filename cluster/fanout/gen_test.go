package fanout

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/kvcluster/kvcluster/cluster/copywire"
	"github.com/kvcluster/kvcluster/indexer"
)

// history makes valid random frames of one life of a slot, and knows what each of them
// did. It is the judge of what reads may say.
type history struct {
	name   copywire.SlotLife
	tenure uint64
	rng    *rand.Rand
	seq    uint64
	copies []*genCopy // by partition

	mu sync.Mutex // of the copies' frames and changes
}

// genCopy is the content of one partition.
type genCopy struct {
	runs map[indexer.Run]*genRun
	// held counts live names of the device tier by path; changes has, by path, when it
	// became held or not, counted in operations.
	held    map[string]int
	changes map[string][]change
	frames  []genFrame
	ops     int
}

type genRun struct {
	above   []uint64
	locals  []uint64
	tiers   []indexer.TierMask
	emptied int // number of the frame that did it
}

type change struct {
	op   int
	held bool
}

type genFrame struct {
	number uint64 // of the writer, from 1
	ops    int    // operations up to and with it
}

func newHistory(name copywire.SlotLife, tenure uint64, partitions int, seed uint64) *history {
	h := &history{name: name, tenure: tenure, rng: rand.New(rand.NewPCG(seed, uint64(name.Slot)<<32|name.Life))}
	for range partitions {
		h.copies = append(h.copies, &genCopy{runs: map[indexer.Run]*genRun{}, held: map[string]int{}, changes: map[string][]change{}})
	}
	return h
}

func key(path []uint64) string {
	b := make([]byte, 0, 8*len(path))
	for _, l := range path {
		b = binary.LittleEndian.AppendUint64(b, l)
	}
	return string(b)
}

// prompts are the paths that slots have in common.
func prompts() (out [][]uint64) {
	for i := range uint64(4) {
		p := make([]uint64, 24)
		for d := range p {
			if p[d] = 100 + uint64(d); d >= 8 {
				p[d] = 1000*(i+1) + uint64(d)
			}
		}
		out = append(out, p)
	}
	return out
}

var allPrompts = prompts()

// next makes a frame for a partition. number is what the writer will have written with
// it. The frame is valid until the next call.
func (h *history) next(b *indexer.FrameBuilder, p indexer.PartitionID, number uint64) indexer.Frame {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.copies[p]
	h.seq++
	b.Reset(indexer.Header{Group: h.name.Group, Partition: p, Slot: h.name.Slot, Life: h.name.Life, Tenure: h.tenure, Sequence: h.seq})
	for n := 1 + h.rng.IntN(3); n > 0; n-- {
		switch v := h.rng.IntN(100); {
		case v < 50:
			h.store(b, c)
		case v < 88:
			h.ranges(b, c, indexer.OpDrop)
		case v < 97:
			h.ranges(b, c, indexer.OpClaim)
		case v < 99:
			t := indexer.Tier(h.rng.IntN(indexer.NumTiers))
			b.Clear(t)
			h.clear(c, t)
		default:
			h.clearAll(b, c)
		}
	}
	if b.NumOps() == 0 {
		h.store(b, c)
	}
	c.frames = append(c.frames, genFrame{number, c.ops})
	return b.Frame()
}

// wipe is the last frame of a life.
func (h *history) wipe(b *indexer.FrameBuilder, p indexer.PartitionID, number uint64) indexer.Frame {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.copies[p]
	b.Reset(indexer.Header{Group: h.name.Group, Partition: p, Slot: h.name.Slot, Life: h.name.Life, Tenure: h.tenure, Sequence: h.seq})
	h.clearAll(b, c)
	c.frames = append(c.frames, genFrame{number, c.ops})
	return b.Frame()
}

// stray notes that the latest frame of a partition reached nobody: it is never
// acknowledged.
func (h *history) stray(p indexer.PartitionID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.copies[p]
	c.frames[len(c.frames)-1].number = ^uint64(0)
}

func (h *history) clearAll(b *indexer.FrameBuilder, c *genCopy) {
	b.Clear(indexer.AllTiers)
	h.clear(c, indexer.AllTiers)
}

// clear takes names away; a run without live ones may be named again by a later frame.
func (h *history) clear(c *genCopy, t indexer.Tier) {
	for _, r := range c.runs {
		for pos := range r.tiers {
			for each := range indexer.Tier(indexer.NumTiers) {
				if t.Mask().Has(each) && r.tiers[pos].Has(each) {
					c.set(r, pos, each, false, len(c.frames))
				}
			}
		}
	}
	c.ops++
}

func (c *genCopy) set(r *genRun, pos int, t indexer.Tier, on bool, frame int) {
	if on {
		r.tiers[pos] |= t.Mask()
	} else if r.tiers[pos] &^= t.Mask(); r.live() == 0 {
		r.emptied = frame
	}
	if t != indexer.Device {
		return
	}
	k := key(append(slices.Clone(r.above), r.locals[:pos+1]...))
	before := c.held[k] > 0
	if on {
		c.held[k]++
	} else {
		c.held[k]--
	}
	if now := c.held[k] > 0; now != before {
		c.changes[k] = append(c.changes[k], change{c.ops + 1, now})
	}
}

func (r *genRun) live() (n int) {
	for _, m := range r.tiers {
		if m != 0 {
			n++
		}
	}
	return n
}

// pick returns a run with live names.
func (h *history) pick(c *genCopy) (indexer.Run, *genRun) {
	var live []indexer.Run
	for k, r := range c.runs {
		if r.live() > 0 {
			live = append(live, k)
		}
	}
	if len(live) == 0 {
		return 0, nil
	}
	slices.Sort(live)
	k := live[h.rng.IntN(len(live))]
	return k, c.runs[k]
}

func (h *history) tier() indexer.Tier {
	if h.rng.IntN(4) > 0 {
		return indexer.Device
	}
	return indexer.Tier(h.rng.IntN(indexer.NumTiers))
}

func (h *history) store(b *indexer.FrameBuilder, c *genCopy) {
	var run indexer.Run
	var start uint32
	var parent indexer.Parent
	var path []uint64
	k, r := h.pick(c)
	switch v := h.rng.IntN(10); {
	case r == nil || v < 4:
	case v < 7 && r.tiers[len(r.tiers)-1] != 0:
		run, start = k, uint32(len(r.locals))
		path = append(slices.Clone(r.above), r.locals...)
	default:
		pos := h.rng.IntN(len(r.locals))
		for r.tiers[pos] == 0 {
			pos = h.rng.IntN(len(r.locals))
		}
		parent = indexer.Parent{Kind: indexer.ParentName, Run: k, Pos: uint32(pos)}
		path = append(slices.Clone(r.above), r.locals[:pos+1]...)
	}
	if start == 0 {
		for old := c.runs[run]; old != nil && (old.live() > 0 || old.emptied >= len(c.frames)); old = c.runs[run] {
			run++
		}
		r = &genRun{above: path}
		c.runs[run] = r
	}
	content := h.content(path)
	tier := h.tier()
	locals, engines := b.Store(tier, run, start, parent, len(content))
	copy(locals, content)
	for i, l := range content {
		engines[i] = l*0x9e3779b97f4a7c15 + uint64(len(path)+i)
		r.locals, r.tiers = append(r.locals, l), append(r.tiers, 0)
		c.set(r, len(r.locals)-1, tier, true, len(c.frames))
	}
	c.ops++
}

// content continues a path, along a prompt if it lies on one.
func (h *history) content(path []uint64) []uint64 {
	n := 1 + h.rng.IntN(8)
	first := h.rng.IntN(len(allPrompts))
	for i := range allPrompts {
		p := allPrompts[(first+i)%len(allPrompts)]
		if len(path) < len(p) && slices.Equal(p[:len(path)], path) {
			return p[len(path):min(len(p), len(path)+n)]
		}
	}
	out := make([]uint64, 1+h.rng.IntN(2))
	for i := range out {
		out[i] = 1 + h.rng.Uint64N(3)
	}
	return out
}

func (h *history) ranges(b *indexer.FrameBuilder, c *genCopy, kind indexer.OpKind) {
	k, r := h.pick(c)
	if r == nil {
		return
	}
	tier := h.tier()
	from := h.rng.IntN(len(r.tiers))
	to := from + 1 + h.rng.IntN(len(r.tiers)-from)
	if h.rng.IntN(3) == 0 {
		from, to = 0, len(r.tiers)
	}
	any := false
	for pos := from; pos < to; pos++ {
		if r.tiers[pos] == 0 || r.tiers[pos].Has(tier) != (kind == indexer.OpDrop) {
			continue
		}
		// One range for each position: stretches of several are for the contract's tests.
		if any = true; kind == indexer.OpDrop {
			b.Drop(tier, indexer.MakeRange(k, pos, 1))
		} else {
			b.Claim(tier, indexer.MakeRange(k, pos, 1))
		}
		c.set(r, pos, tier, kind == indexer.OpClaim, len(c.frames))
	}
	if any {
		c.ops++
	}
}

// bounds returns how many leading blocks of a path a read may have seen at least and at
// most, if the writer had acknowledged that many frames when it began, and all frames
// so far were on their way when it ended.
func (h *history) bounds(p indexer.PartitionID, path []uint64, acked uint64) (low, high int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.copies[p]
	since := 0
	for _, f := range c.frames {
		if f.number <= acked {
			since = f.ops
		}
	}
	low, high = -1, -1
	for i := range path {
		always, ever := false, false
		for _, ch := range c.changes[key(path[:i+1])] {
			if ch.op <= since {
				always, ever = ch.held, ch.held
				continue
			}
			always = always && ch.held
			ever = ever || ch.held
		}
		if !always && low < 0 {
			low = i
		}
		if !ever {
			high = i
			break
		}
	}
	if high < 0 {
		high = len(path)
	}
	if low < 0 {
		low = len(path)
	}
	return low, high
}
