package member

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/kvcluster/kvcluster/indexer"
)

// Memory bound (rule N8). The index of a node only asks for room; what it lacks is asked of
// everyone who reads sources, as a share of what is held in the partitions that this node
// has. The translators drop that share, so that owners and translators agree on what there
// is. The other owners of a partition lose the same blocks: they are equal.
//
// A request is a share (float64) and a set of partitions, one bit each, little-endian.

const (
	methodShed = "ingest.shed"
	// ShedPeriod is how often a node looks at its memory.
	ShedPeriod = 250 * time.Millisecond
	// shedRest is for how long nothing more is dropped of a partition: its owners are full
	// at the same time, and each of them asks.
	shedRest = ShedPeriod * 4 / 5
)

var errShed = errors.New("malformed request for room")

// shedding is what this node's ingest has dropped for others.
type shedding struct {
	mu struct {
		sync.Mutex
		last []time.Time // by partition
	}
}

// askForRoom asks all readers for room whenever the index is above its bound.
func (m *Member) askForRoom(ctx context.Context) error {
	t := time.NewTicker(ShedPeriod)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		st := m.index.Stats()
		share := st.ShedShare()
		if share == 0 {
			continue
		}
		v := m.control.View()
		req := make([]byte, 8+(len(v.Owners)+7)/8)
		binary.LittleEndian.PutUint64(req, math.Float64bits(share))
		for p := range v.Owners {
			if slices.Contains(v.Receivers(uint32(p)), m.cfg.Self.Name) {
				req[8+p/8] |= 1 << (p % 8)
			}
		}
		readers := map[string]bool{}
		for _, a := range v.Assignments {
			readers[a.Node] = true
		}
		cctx, cancel := context.WithTimeout(ctx, ShedPeriod)
		var asked sync.WaitGroup
		for name := range readers {
			asked.Go(func() {
				var err error
				if name == m.cfg.Self.Name {
					_, err = m.serveShed(cctx, name, req)
				} else if m.alive(name) {
					_, err = m.hub.Call(cctx, name, methodShed, req)
				}
				if err != nil {
					m.log.Debug("a reader was not asked for room; it will be again", "reader", name, "error", err)
				}
			})
		}
		asked.Wait()
		cancel()
	}
}

// serveShed lets this node's ingest drop what an owner has no room for.
func (m *Member) serveShed(_ context.Context, peer string, req []byte) ([]byte, error) {
	n := len(m.control.View().Owners)
	if len(req) != 8+(n+7)/8 {
		return nil, fmt.Errorf("%w: %d bytes", errShed, len(req))
	}
	share := math.Float64frombits(binary.LittleEndian.Uint64(req))
	if !(share > 0 && share <= 1) {
		return nil, fmt.Errorf("%w: share %v", errShed, share)
	}
	in := m.shed.take(req[8:], n, time.Now())
	if in == nil {
		return nil, nil
	}
	m.log.Debug("an owner asks for room", "owner", peer, "share", share)
	m.node.Ingest().Shed(share, func(p indexer.PartitionID) bool { return int(p) < len(in) && in[p] })
	return nil, nil
}

// take returns which of the partitions in a set something may be dropped of now, nil if of
// none, and notes that it is.
func (s *shedding) take(set []byte, n int, now time.Time) (in []bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.last == nil {
		s.mu.last = make([]time.Time, n)
	}
	for p := range n {
		if set[p/8]>>(p%8)&1 == 0 || now.Sub(s.mu.last[p]) < shedRest {
			continue
		}
		if in == nil {
			in = make([]bool, n)
		}
		in[p], s.mu.last[p] = true, now
	}
	return in
}
