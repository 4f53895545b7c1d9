package copywire

import (
	"slices"

	"github.com/kvcluster/kvcluster/indexer"
)

// runPath is where one run of a dump lies: the blocks above it and its own.
type runPath struct {
	anchor uint64
	full   []uint64 // local hashes from the root to the last live name
	above  int      // how many of them are above the run
}

// pathOf returns the path of a run, given the stretches of that run.
func pathOf(of []indexer.Stretch) runPath {
	last := &of[len(of)-1]
	full := make([]uint64, 0, len(last.Path)+len(last.Locals))
	full = append(append(full, last.Path...), last.Locals...)
	return runPath{last.Anchor, full, len(last.Path) - int(last.Start)}
}

// nextRun returns how many of the first stretches belong to one run.
func nextRun(stretches []indexer.Stretch) int {
	n := 1
	for n < len(stretches) && stretches[n].Run == stretches[0].Run {
		n++
	}
	return n
}

// pathIndex finds the runs that have the beginning of a path. With each path all its
// beginnings are in it.
type pathIndex struct {
	paths []runPath
	at    map[uint64]place // by fingerprint
	prints
}

// place is the first depth blocks of a path.
type place struct{ path, depth uint32 }

// prints are the fingerprints of the beginnings of one path: prints[d] is that of
// its first d blocks.
type prints []uint64

func newPathIndex() *pathIndex { return &pathIndex{at: map[uint64]place{}} }

// of computes the fingerprints of a path.
func (p *prints) of(anchor uint64, full []uint64) {
	s := append((*p)[:0], mix(anchor))
	for _, l := range full {
		s = append(s, mix(s[len(s)-1]*0xd1342543de82ef95+l+1))
	}
	*p = s
}

// mix is the finaliser of SplitMix64.
func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// longest returns the longest beginning, of at most limit blocks, of the path whose
// prints were computed last. Fingerprints only say where to look; the blocks decide.
func (x *pathIndex) longest(p runPath, limit int) place {
	lo, hi := 0, limit // the beginning of lo blocks is in the index, that of hi+1 is not
	for lo < hi {
		mid := (lo + hi + 1) / 2
		if _, ok := x.at[x.prints[mid]]; ok {
			lo = mid
		} else {
			hi = mid - 1
		}
	}
	if lo == 0 {
		return place{}
	}
	at := x.at[x.prints[lo]]
	q := x.paths[at.path]
	if int(at.depth) != lo || q.anchor != p.anchor || !slices.Equal(q.full[:lo], p.full[:lo]) {
		return place{}
	}
	return at
}

// add puts the beginnings of more than from blocks into the index. The prints are
// those of the path.
func (x *pathIndex) add(p runPath, from int) {
	n := uint32(len(x.paths))
	x.paths = append(x.paths, p)
	for d := from + 1; d <= len(p.full); d++ {
		if _, ok := x.at[x.prints[d]]; !ok {
			x.at[x.prints[d]] = place{n, uint32(d)}
		}
	}
}
