package gossip

import (
	"testing"
	"time"
)

func TestJoinAndDeath(t *testing.T) {
	inWorld(t, func(w *world) {
		w.cluster(5)
		w.stop("n3")
		_, limit := Detection(5, 300*time.Millisecond)
		took := w.await("n3 is dead for all", limit, func() bool { return w.allSee(4) })
		t.Logf("seen by all after %v, at most %v", took, limit)
		for name, n := range w.nodes {
			if p := n.peer("n3"); p.Alive || p.Raft != "10.0.0.3:1" || p.Address != addrOf(3) {
				t.Errorf("%s has n3 as %+v", name, p)
			}
		}
	})
}
