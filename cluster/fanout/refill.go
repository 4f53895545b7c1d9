package fanout

import (
	"context"
	"fmt"

	"github.com/kvcluster/kvcluster/cluster/copywire"
)

// ServeRefill answers copywire.MethodRefill.
func (f *Fanout) ServeRefill(_ context.Context, peer string, req []byte) ([]byte, error) {
	h, err := copywire.DecodeRefill(req)
	if err != nil {
		return nil, fmt.Errorf("refill for %s: %w", peer, err)
	}
	f.Refill(peer, h)
	return nil, nil
}
