package tree

import (
	"testing"

	"github.com/kvcluster/kvcluster/indexer"
)

// TestAuditFindsDamage damages a lane in one place after the other: the audit must
// see each.
func TestAuditFindsDamage(t *testing.T) {
	path := sequence(1, 100)
	for name, damage := range map[string]func(l *Lane, c ref, h *header, side *sideRecord){
		"a lost cut":            func(l *Lane, _ ref, h *header, _ *sideRecord) { h[hCuts] = 0 },
		"a cut too far":         func(l *Lane, _ ref, h *header, _ *sideRecord) { h[hCuts]++ },
		"a cut of another slot": func(l *Lane, _ ref, h *header, _ *sideRecord) { h[hCuts] += 1 << 32 },
		"a wrong tip":           func(l *Lane, _ ref, _ *header, side *sideRecord) { side.setTip(3) },
		"a wrong count":         func(l *Lane, _ ref, _ *header, side *sideRecord) { side.setCovered(3) },
		"a lost island": func(l *Lane, _ ref, _ *header, side *sideRecord) {
			l.putIslands(side, l.findRow(side.islands(), 2), 2, nil)
		},
		"a lost chain":        func(l *Lane, c ref, h *header, _ *sideRecord) { l.unlink(c) },
		"a broken link":       func(l *Lane, _ ref, h *header, _ *sideRecord) { l.arena.side(h.parent())[0] = 0 },
		"a lost filter bit":   func(l *Lane, _ ref, h *header, _ *sideRecord) { l.arena.header(h.parent())[hCoverage] &= 0xffffffff },
		"a held count":        func(l *Lane, _ ref, _ *header, _ *sideRecord) { l.held[0]++ },
		"a distinct count":    func(l *Lane, _ ref, _ *header, _ *sideRecord) { l.distinct-- },
		"a stored count":      func(l *Lane, _ ref, _ *header, _ *sideRecord) { l.stored++ },
		"a count of copies":   func(l *Lane, _ ref, _ *header, _ *sideRecord) { l.copies++ },
		"a lost tier record":  func(l *Lane, _ ref, h *header, _ *sideRecord) { h[hContent] &= 0xffffffff },
		"other first content": func(l *Lane, _ ref, h *header, _ *sideRecord) { *l.arena.word(h.content(), 0) ^= 1 },
		"a mark without a run": func(l *Lane, _ ref, _ *header, _ *sideRecord) {
			*l.arena.word(ref((*copyRecord)(l.arena.at(l.treeList[0].copies[1]))[1]), 0) |= 1 << (markShift + 5)
		},
		"a count of a chunk": func(l *Lane, _ ref, _ *header, _ *sideRecord) {
			*l.arena.word(ref((*copyRecord)(l.arena.at(l.treeList[0].copies[1]))[1]), 0) += oneRun
		},
		"a run too much": func(l *Lane, _ ref, _ *header, _ *sideRecord) {
			(*copyRecord)(l.arena.at(l.treeList[0].copies[1]))[2]++
		},
	} {
		l := openTest(t, LaneConfig{})
		one, two := sender{l: l, slot: 1}, sender{l: l, slot: 2}
		one.store(0, 0, indexer.Parent{}, path)
		two.store(0, 0, indexer.Parent{}, path)
		two.drop(0, 50, 1)
		one.begin().Claim(indexer.Host, indexer.MakeRange(0, 3, 9))
		l.Apply(one.b.Frame())
		one.store(1, 0, indexer.Parent{Kind: indexer.ParentName, Pos: 30}, sequence(2, 5))
		if err := l.audit(); err != nil {
			t.Fatalf("%s: before: %v", name, err)
		}
		c := (*copyRecord)(l.arena.at(l.treeList[0].copies[1]))
		chain := l.pieces(l.findRun(c, 0))[0].chain()
		damage(l, chain, l.arena.header(chain), l.arena.side(chain))
		if err := l.audit(); err == nil {
			t.Errorf("%s is not seen", name)
		}
	}
}
