package mockengine

import (
	"fmt"
	"slices"
	"testing"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/blockhash"
)

// model is what the records of one publisher say, read strictly: a store never
// repeats what is held, its parent is held, and a removal names what is held.
type model struct {
	held map[uint64]Holding // by engine hash
}

func (m *model) apply(r Record) error {
	if m.held == nil {
		m.held = make(map[uint64]Holding)
	}
	switch r.Kind {
	case RecordLife, RecordCleared:
		clear(m.held)
	case RecordStored:
		path, root := uint64(0), true
		if r.HasParent {
			p, ok := m.held[r.Parent]
			if !ok {
				return fmt.Errorf("store below %x, which is not held", r.Parent)
			}
			path, root = p.Key, false
		}
		for i, e := range r.Engines {
			path = blockhash.NextSequence(path, r.Locals[i], root && i == 0)
			h, ok := m.held[e]
			if ok && h.Key != path {
				return fmt.Errorf("engine hash %x names two paths", e)
			}
			if h.Tiers.Has(r.Tier) {
				return fmt.Errorf("store of %x, which is held on %s", e, r.Tier)
			}
			h.Key, h.Engine, h.Tiers = path, e, h.Tiers|r.Tier.Mask()
			m.held[e] = h
		}
	case RecordRemoved:
		for _, e := range r.Engines {
			h, ok := m.held[e]
			if !ok || !h.Tiers.Has(r.Tier) {
				return fmt.Errorf("removal of %x, which is not held on %s", e, r.Tier)
			}
			if h.Tiers &^= r.Tier.Mask(); h.Tiers == 0 {
				delete(m.held, e)
			} else {
				m.held[e] = h
			}
		}
	default:
		return fmt.Errorf("kind %d", r.Kind)
	}
	return nil
}

// replay applies all records, stopping at the first that contradicts the others.
func replay(t testing.TB, records []Record) *model {
	t.Helper()
	m := &model{}
	for i, r := range records {
		if err := m.apply(r); err != nil {
			t.Fatalf("record %d of %d (sequence %d): %v", i, len(records), r.Sequence, err)
		}
	}
	return m
}

func (m *model) contents() []Holding {
	out := make([]Holding, 0, len(m.held))
	for _, h := range m.held {
		out = append(out, h)
	}
	slices.SortFunc(out, func(a, b Holding) int {
		if a.Key < b.Key {
			return -1
		}
		return 1
	})
	return out
}

// depths walks the tiers block by block.
func (m *model) depths(locals []uint64) Depths {
	byPath := make(map[uint64]indexer.TierMask, len(m.held))
	for _, h := range m.held {
		byPath[h.Key] = h.Tiers
	}
	var d Depths
	path := uint64(0)
	onDevice := true
	for i, l := range locals {
		path = blockhash.NextSequence(path, l, i == 0)
		tiers := byPath[path]
		onDevice = onDevice && tiers.Has(indexer.Device)
		switch {
		case onDevice:
			d.Device = uint32(i + 1)
		case !tiers.Has(indexer.Host):
			return Depths{Device: d.Device, Host: max(d.Host, d.Device)}
		}
		d.Host = uint32(i + 1)
	}
	return d
}
