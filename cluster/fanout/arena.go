package fanout

import (
	"slices"

	"github.com/kvcluster/kvcluster/cluster/copywire"
	"github.com/kvcluster/kvcluster/indexer"
)

// arenaBytes is how much memory payloads of frames are cut from at a time: so much
// that allocating it is nothing per frame, and so little that it does not matter when
// the last frame in it keeps all of it.
const arenaBytes = 64 << 10

// arena cuts payloads of frames out of larger pieces. There is one for each route of a
// writer: frames of different receivers do not share a piece, since a slow receiver
// would keep those of the others as well. A piece is the collector's once the last link
// has let go of it.
type arena struct{ free []byte }

// pack returns a frame as the payload of a Frame message.
func (w *writer) pack(r *route, f indexer.Frame) []byte {
	for len(w.arenas) <= r.index {
		w.arenas = append(w.arenas, arena{})
	}
	a := &w.arenas[r.index]
	n := 8*len(f) + copywire.FrameOverhead
	if n > arenaBytes/4 {
		return copywire.AppendPacked(make([]byte, 0, n), f)
	}
	if n > len(a.free) {
		a.free = make([]byte, arenaBytes)
	}
	out := copywire.AppendPacked(a.free[:0:n], f)
	a.free = a.free[min(len(out), n):]
	return slices.Clip(out)
}
