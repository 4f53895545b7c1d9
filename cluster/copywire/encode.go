package copywire

import "github.com/kvcluster/kvcluster/indexer"

// copyHead is partition (32) | open (1), tenure, sequence, bytes of the stretches.
const copyHead = 4 * word

// Flags in the first word of a run.
const (
	runMarked = 1 << 63
	runNoted  = 1 << 62
)

// Encoder appends the dump of one copy to a dump, stretch by stretch in the order in
// which an index gives them. Paths are not repeated: each run names a run before it
// that has the longest beginning of its path.
//
//	copy      partition (32) | open (1)
//	          tenure, sequence
//	          bytes of the runs
//	          { run ... } ...
//	run       run (32) | number of stretches (30) | with a note (1) | with a mark (1)
//	          0, or 1 + index of an earlier run (32) | blocks in common with it (32)
//	          anchor
//	          n
//	          with a mark: tag; with a note: its two words
//	          n local hashes: the rest of the path to the last live name
//	          { stretch ... } ...
//	stretch   start (16) | length-1 (16) | tiers (8)
//	          engine hash of the block before it, 0 at the root
//	          engine hashes
type Encoder struct {
	dst   []byte
	at    int // where the copy begins
	index *pathIndex

	// The present run; its path grows with its stretches.
	run       indexer.Run
	path      runPath
	mark      indexer.Mark
	stretches int
	body      []byte // of its stretches
}

// NewEncoder begins a copy behind dst. Open or Closed must be called last.
func NewEncoder(dst []byte, p indexer.PartitionID) *Encoder {
	e := &Encoder{at: len(dst), index: newPathIndex()}
	e.dst = append(le.AppendUint64(dst, uint64(p)), make([]byte, copyHead-word)...)
	return e
}

// Len is about how many bytes the dump has by now.
func (e *Encoder) Len() int { return len(e.dst) + len(e.body) + word*len(e.path.full) }

// Add appends a stretch. It keeps nothing of it.
func (e *Encoder) Add(s *indexer.Stretch) {
	if e.stretches > 0 && e.run != s.Run {
		e.endRun()
	}
	if e.stretches == 0 {
		e.run, e.mark, e.path = s.Run, s.Mark, runPath{anchor: s.Anchor, above: len(s.Path) - int(s.Start)}
	}
	e.stretches++
	e.path.full = append(append(e.path.full, s.Path[len(e.path.full):]...), s.Locals...)
	e.body = le.AppendUint64(e.body, uint64(s.Start)|uint64(len(s.Locals)-1)<<16|uint64(s.Tiers)<<32)
	e.body = le.AppendUint64(e.body, s.Parent.Engine)
	e.body = appendWords(e.body, s.Engines)
}

func (e *Encoder) endRun() {
	x, p := e.index, e.path
	x.prints.of(p.anchor, p.full)
	same, ref := x.longest(p, len(p.full)), uint64(0)
	if same.depth > 0 {
		ref = uint64(same.path) + 1
	}
	x.add(p, int(same.depth))
	rest := p.full[same.depth:]
	var mark []uint64
	flags := uint64(0)
	if e.mark.Set {
		mark, flags = append(mark, uint64(e.mark.Tag)), runMarked
	}
	if e.mark.Note != [2]uint64{} {
		mark, flags = append(mark, e.mark.Note[:]...), flags|runNoted
	}
	for _, w := range [...]uint64{
		uint64(e.run) | uint64(e.stretches)<<32 | flags, ref | uint64(same.depth)<<32, p.anchor, uint64(len(rest)),
	} {
		e.dst = le.AppendUint64(e.dst, w)
	}
	e.dst = append(appendWords(appendWords(e.dst, mark), rest), e.body...)
	e.body, e.stretches, e.path = e.body[:0], 0, runPath{}
}

// Open ends the copy, which is complete up to the label, and returns the dump.
func (e *Encoder) Open(tenure, sequence uint64) []byte {
	if e.stretches > 0 {
		e.endRun()
	}
	head := e.dst[e.at:]
	head[4] = 1
	le.PutUint64(head[8:], tenure)
	le.PutUint64(head[16:], sequence)
	le.PutUint64(head[24:], uint64(len(head)-copyHead))
	return e.dst
}

// Closed ends the copy, of which nothing is said, and returns the dump.
func (e *Encoder) Closed() []byte { return e.dst[:e.at+copyHead] }
