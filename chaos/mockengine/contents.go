package mockengine

import (
	"slices"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/blockhash"
)

// Holding is one logical block that a publisher holds.
type Holding struct {
	// Key is the path key: the rolling sequence hash over the local hashes of the
	// path, so it also names the namespace.
	Key    uint64
	Engine uint64 // engine hash
	Tiers  indexer.TierMask
}

// contents lists everything that is held, by key.
func (s *scheduler) contents() []Holding {
	out := make([]Holding, 0, len(s.pool.resident))
	for k, r := range s.pool.resident {
		h := Holding{Key: k, Engine: r.engine, Tiers: indexer.Device.Mask()}
		if s.host.has(k) {
			h.Tiers |= indexer.Host.Mask()
		}
		out = append(out, h)
	}
	for k, n := range s.host.place {
		if !s.pool.has(k) {
			out = append(out, Holding{Key: k, Engine: s.host.nodes[n].engine, Tiers: indexer.Host.Mask()})
		}
	}
	slices.SortFunc(out, func(a, b Holding) int {
		switch {
		case a.Key < b.Key:
			return -1
		case a.Key > b.Key:
			return 1
		}
		return 0
	})
	return out
}

// Depths is how far a query gets at one publisher: Device leading blocks on the
// device, and Host blocks when the host tier continues from there.
type Depths struct{ Device, Host uint32 }

// depths does the tier walk for the path keys of a query.
func (s *scheduler) depths(keys []uint64) Depths {
	n := s.pool.prefix(keys)
	d := Depths{Device: uint32(n)}
	for n < len(keys) && s.host.has(keys[n]) {
		n++
	}
	d.Host = uint32(n)
	return d
}

// Contents lists what publisher i holds now, ordered by key. While events wait in
// an unsent batch it is ahead of what was announced; when Done is closed it is not.
func (f *Fleet) Contents(i int) []Holding {
	w := f.publishers[i]
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.sched.contents()
}

// Depths returns for every publisher what an exact index must answer to a query,
// given by its local hashes. See Contents for the moment it is true of.
func (f *Fleet) Depths(locals []uint64) []Depths {
	keys := blockhash.AppendSequence(make([]uint64, 0, len(locals)), locals)
	out := make([]Depths, len(f.publishers))
	for i, w := range f.publishers {
		w.mu.Lock()
		out[i] = w.mu.sched.depths(keys)
		w.mu.Unlock()
	}
	return out
}
