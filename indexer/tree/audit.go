package tree

import (
	"fmt"

	"github.com/kvcluster/kvcluster/indexer"
)

// audit checks everything that a lane keeps more than once against each other. Tests
// call it, and a build with the tag invariants after frames.
func (l *Lane) audit() error {
	a := auditor{Lane: l, want: map[coverKey][]uint16{}, columns: map[ref]uint32{}, known: map[ref]bool{}}
	for _, step := range []func() error{a.table, a.names, a.coverages, a.totals} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

type coverKey struct {
	chain ref
	slot  uint32
	tier  indexer.Tier
}

type auditor struct {
	*Lane
	chains   []ref
	known    map[ref]bool
	want     map[coverKey][]uint16 // names on each position
	columns  map[ref]uint32
	held     [indexer.NumTiers]uint64
	distinct uint64
	stored   uint64
	copies   uint64
}

// table checks that every entry of the child table is found, linked and filtered.
func (a *auditor) table() error {
	children, listed := map[ref]uint32{}, map[ref]uint32{}
	live := uint32(0)
	for _, e := range a.arena.words(ref(a.Lane.children.word), int(hi(a.Lane.children.word))*bucketEntries) {
		if lo(e) == 0 {
			continue
		}
		live++
		c, h := ref(e), a.arena.header(ref(e))
		if h.isRoot() {
			k := treeKey{lo(h[hCuts]), hi(h[hCuts])}
			if a.findRoot(k, h[hCuts+1], hi(e)) != c || hi(e) != rootHash(k.group, k.partition, h[hCuts+1]) {
				return fmt.Errorf("root %d is not found", c)
			}
			continue
		}
		if n := h.length(); n == 0 || n > h.capacity() || n > maxChain {
			return fmt.Errorf("chain %d of length %d, capacity %d", c, n, h.capacity())
		}
		first := *a.arena.word(h.content(), 0)
		if childHash(h.parent(), h.fork(), first) != hi(e) || a.findChild(h.parent(), h.fork(), first, hi(e)) != c {
			return fmt.Errorf("chain %d is not found", c)
		}
		if p := a.arena.header(h.parent()); h.fork() > p.length() || p[hCoverage]&filterBit(hi(e)) == 0 ||
			h.fork() > a.arena.side(h.parent()).lastFork() {
			return fmt.Errorf("chain %d forks at %d of %d, which has %d blocks", c, h.fork(), h.parent(), p.length())
		}
		children[h.parent()]++
		a.chains = append(a.chains, c)
		a.known[c] = true
		a.stored += uint64(h.length())
	}
	for p, n := range children {
		prev := ref(0)
		for s := a.arena.side(p).firstChild(); s != 0; s = a.arena.side(s).nextSibling() {
			if a.arena.side(s).prevSibling() != prev || a.arena.header(s).parent() != p {
				return fmt.Errorf("chain %d is linked wrongly below %d", s, p)
			}
			listed[p]++
			prev = s
		}
		if listed[p] != n || a.arena.side(p).children() != n {
			return fmt.Errorf("%d children of %d in the table, %d linked, %d counted", n, p, listed[p], a.arena.side(p).children())
		}
	}
	if live != a.Lane.children.live {
		return fmt.Errorf("%d entries in the child table, %d counted", live, a.Lane.children.live)
	}
	return nil
}

// names adds up what the live names of all copies say is covered.
func (a *auditor) names() error {
	for _, t := range a.treeList {
		for s, r := range t.copies {
			if r == 0 {
				continue
			}
			c := (*copyRecord)(a.arena.at(r))
			runs := uint32(0)
			for k := range hi(c[1]) {
				word, live := *a.arena.word(ref(c[1]), int(k)), uint8(0)
				for i := range uint32(chunkRuns) {
					p := a.findRun(c, k*chunkRuns+i)
					if p == nil {
						if word>>(markShift+i)&1 != 0 {
							return fmt.Errorf("slot %d, run %d has a mark and no names", s, k*chunkRuns+i)
						}
						continue
					}
					runs++
					live++
					if err := a.run(uint32(s), a.pieces(p)); err != nil {
						return fmt.Errorf("slot %d, run %d: %w", s, k*chunkRuns+i, err)
					}
				}
				if counts := uint8(word >> 32); live != counts || live == 0 && word != 0 {
					return fmt.Errorf("slot %d has %d runs in chunk %d, which counts %d", s, live, k, counts)
				}
			}
			if runs != c.liveRuns() {
				return fmt.Errorf("slot %d has %d runs, counts %d", s, runs, c.liveRuns())
			}
			if runs > 0 {
				a.copies++
			}
		}
	}
	for r, n := range a.columns {
		if got := hi(a.engineColumn(r)[0]); got != n {
			return fmt.Errorf("engine column of %d pieces counts %d", n, got)
		}
	}
	return nil
}

func (a *auditor) run(slot uint32, pieces []piece) error {
	end := uint32(0)
	for i, p := range pieces {
		h := a.arena.header(p.chain())
		if p.n() == 0 || p.tiers() == 0 || p.pos() < end || p.off()+p.n() > h.length() || !a.known[p.chain()] {
			return fmt.Errorf("piece %d of %d: position %d, %d names at %d of chain %d with %d blocks, tiers %04b",
				i, len(pieces), p.pos(), p.n(), p.off(), p.chain(), h.length(), p.tiers())
		}
		end = p.end()
		if r := p.engines(); r != 0 {
			a.columns[r]++
		}
		for t := range indexer.Tier(indexer.NumTiers) {
			if !p.tiers().Has(t) {
				continue
			}
			k := coverKey{p.chain(), slot, t}
			if a.want[k] == nil {
				a.want[k] = make([]uint16, h.length())
			}
			for pos := p.off(); pos < p.off()+p.n(); pos++ {
				a.want[k][pos]++
			}
		}
	}
	return nil
}

// coverages checks what every chain says against the names.
func (a *auditor) coverages() error {
	seen := map[coverKey]bool{}
	for _, c := range a.chains {
		h, side := a.arena.header(c), a.arena.side(c)
		got, beyond := map[coverKey][]uint16{}, false
		add := func(s uint32, t indexer.Tier, from, to, n uint32) {
			if to > h.length() {
				beyond, to = true, h.length()
			}
			k := coverKey{c, s, t}
			if got[k] == nil {
				got[k] = make([]uint16, h.length())
			}
			for i := from; i < to; i++ {
				got[k][i] += uint16(n)
			}
		}
		for _, e := range h[hCuts:] {
			if e != 0 {
				add(hi(e), indexer.Device, 0, lo(e), 1)
			}
		}
		if b := a.cover(h); b != nil {
			live, bits := uint32(0), uint32(0)
			for i := range b.count() {
				if e := *b.cut(i); e != 0 {
					live++
					add(hi(e), indexer.Device, 0, lo(e), 1)
				}
			}
			for s := range b.words() * 64 {
				if b.isFull(s) {
					bits++
					add(s, indexer.Device, 0, h.length(), 1)
				}
			}
			if live != b.live() || bits != b.bits() {
				return fmt.Errorf("chain %d: %d cuts, %d counted; %d bits, %d counted", c, live, b.live(), bits, b.bits())
			}
		}
		a.islandsOf(side, add)
		for _, e := range a.tierRows(h) {
			for t := indexer.Host; e != 0 && t < indexer.NumTiers; t++ {
				for _, sp := range a.tierSpans(ref(e), t) {
					add(hi(e), t, sp.from(), sp.to(), 1)
				}
			}
		}
		if beyond {
			return fmt.Errorf("chain %d has %d blocks, and something covers more", c, h.length())
		}
		if err := a.compare(c, h, side, got, seen); err != nil {
			return err
		}
	}
	for k := range a.want {
		if !seen[k] {
			return fmt.Errorf("chain %d covers nothing of slot %d in tier %v, which has names there", k.chain, k.slot, k.tier)
		}
	}
	return nil
}

func (a *auditor) islandsOf(side *sideRecord, add func(s uint32, t indexer.Tier, from, to, n uint32)) {
	if list := side.islands(); list != 0 {
		for _, row := range a.rowList(list).rows() {
			if row == 0 {
				continue
			}
			for _, sp := range a.appendSpans(nil, lo(row)) {
				add(hi(row), indexer.Device, sp.from(), sp.to(), 1)
			}
		}
	}
	if list := side.aliases(); list != 0 {
		for _, row := range a.rowList(list).rows() {
			if row == 0 {
				continue
			}
			for _, e := range a.aliasBlock(ref(lo(row))) {
				add(hi(row), e.tier(), e.from(), e.to(), e.names())
			}
		}
	}
}

func (a *auditor) compare(c ref, h *header, side *sideRecord, got map[coverKey][]uint16, seen map[coverKey]bool) error {
	any := make([]bool, h.length())
	for k, g := range got {
		w := a.want[k]
		if w == nil {
			w = make([]uint16, h.length())
		}
		seen[k] = true
		for i := range g {
			if g[i] != w[i] {
				return fmt.Errorf("chain %d (%d blocks), position %d, slot %d, tier %v: covered %d times, %d names",
					c, h.length(), i, k.slot, k.tier, g[i], w[i])
			}
			if g[i] > 0 {
				any[i] = true
				a.held[k.tier]++
			}
		}
	}
	tip, covered := uint32(0), uint32(0)
	for i, b := range any {
		if b {
			covered++
			tip = uint32(i + 1)
		}
	}
	if covered != side.covered() || tip != side.tip() {
		return fmt.Errorf("chain %d: covered %d up to %d, counts %d up to %d", c, covered, tip, side.covered(), side.tip())
	}
	if covered == 0 && side.children() == 0 {
		return fmt.Errorf("chain %d has nothing left", c)
	}
	a.distinct += uint64(covered)
	return nil
}

func (a *auditor) totals() error {
	// Alias counts are in held as often as there are positions, not names.
	if a.held != a.Lane.held || a.distinct != a.Lane.distinct || a.stored != a.Lane.stored ||
		uint64(len(a.chains)) != a.Lane.chains || a.copies != a.Lane.copies {
		return fmt.Errorf("held %v, distinct %d, stored %d, chains %d, copies %d; counted %v, %d, %d, %d, %d",
			a.held, a.distinct, a.stored, len(a.chains), a.copies,
			a.Lane.held, a.Lane.distinct, a.Lane.stored, a.Lane.chains, a.Lane.copies)
	}
	return a.memory()
}

// memory checks the accounts of the arena.
func (a *auditor) memory() error {
	used := map[uint32]uint32{}
	for i := uint32(1); i < a.arena.top; {
		if a.arena.isFree(i) {
			i++
			continue
		}
		p := &a.arena.pages[i]
		switch {
		case p.large > 0:
			i += p.large
		case p.count == 0 || p.used == 0 || p.used > p.capacity:
			return fmt.Errorf("page %d: span of %d pages with %d of %d objects", i, p.count, p.used, p.capacity)
		default:
			used[uint32(p.class)] += uint32(p.used)
			i += uint32(p.count)
		}
	}
	if n := uint64(used[chainClass]) * (64 + sideBytes); n != a.arena.live[forChains] {
		return fmt.Errorf("chains take %d bytes, %d counted", n, a.arena.live[forChains])
	}
	return nil
}
