package router

import (
	"fmt"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/router/contract"
)

// The HTTP contract over a node made of plain maps. cmd/internal/e2e runs the same table
// on a node and on a cluster of five.
func TestContract(t *testing.T) {
	f := setup(t, Config{TestEndpoints: true})
	ports := map[streamKey]uint32{}
	contract.Run(t, contract.Site{
		Nodes: 1,
		Do: func(t testing.TB, _ int, r contract.Request) contract.Answer {
			a := f.do(r.Method, r.Path, r.ContentType, r.Body, r.Header[:]...)
			return contract.Answer{Status: a.status, Header: a.header, Body: a.body}
		},
		Endpoint: func(_ testing.TB, instance string, rank uint32) (string, string) {
			k := streamKey{instance, rank}
			if ports[k] == 0 {
				ports[k] = 5557 + uint32(len(ports))
				f.fake.stream(instance, rank).LastEvent = -1
			}
			return fmt.Sprint("tcp://127.0.0.1:", ports[k]), ""
		},
		Store: func(_ testing.TB, b contract.Blocks) {
			f.fake.stream(b.Instance, b.Rank).LastEvent = time.Second
			f.fake.hold(b.Instance, b.Rank, b.Tier, b.From, b.Locals()...)
			if b.Bigram {
				g, _ := f.fake.rank(b.Instance, b.Rank)
				f.fake.bigram[g.ID] = true
			}
		},
		Remove: func(_ testing.TB, b contract.Blocks) { f.fake.drop(b) },
	})
}

// drop ends what a rank holds of blocks in a tier.
func (f *fakeCluster) drop(b contract.Blocks) {
	f.mu.Lock()
	defer f.mu.Unlock()
	g, slot := f.rank(b.Instance, b.Rank)
	for i := b.From; i < b.To; i++ {
		k := heldKey{g.ID, slot, pathKey(b.Locals()[:i+1])}
		if f.held[k] &^= b.Tier.Mask(); f.held[k] == indexer.TierMask(0) {
			delete(f.held, k)
			f.evicted[k] = true
		}
	}
}
