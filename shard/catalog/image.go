package catalog

import (
	"cmp"
	"slices"
)

// Image is the whole catalog as plain data, for snapshots of the log.
type Image struct {
	Index     uint64
	NextGroup uint32
	Groups    []GroupImage  // ordered by ID
	Workers   []WorkerImage // ordered by instance
}

// GroupImage is one group of an Image.
type GroupImage struct {
	ID        uint32
	Key       GroupKey
	BlockSize uint32
	Bigram    bool `msgpack:",omitempty"`
	Slots     []SlotImage
}

// SlotImage is one slot of an Image; State 0 = free, 1 = live, 2 = retired.
type SlotImage struct {
	Holder Holder
	State  uint8
}

// WorkerImage is one worker of an Image.
type WorkerImage struct {
	Instance string
	Group    GroupKey
	Ranks    []Rank // ordered by number
	Sources  []SourceImage
}

// SourceImage is one source of an Image.
type SourceImage struct {
	Endpoint, Topic string
	ID              uint64
}

// Image returns a copy of the state.
func (c *Catalog) Image() Image {
	im := Image{Index: c.index, NextGroup: c.nextGroup}
	for k, g := range c.groups {
		gi := GroupImage{ID: g.id, Key: k, BlockSize: g.blockSize, Bigram: g.bigram, Slots: make([]SlotImage, len(g.slots))}
		for i, s := range g.slots {
			gi.Slots[i] = SlotImage{Holder: s.holder, State: uint8(s.state)}
		}
		im.Groups = append(im.Groups, gi)
	}
	for _, w := range c.workers {
		wi := WorkerImage{Instance: w.instance, Group: w.group.key}
		for _, r := range w.sorted() {
			wi.Ranks = append(wi.Ranks, *r)
		}
		for k, id := range w.sources {
			wi.Sources = append(wi.Sources, SourceImage{k.endpoint, k.topic, id})
		}
		slices.SortFunc(wi.Sources, func(a, b SourceImage) int { return cmp.Compare(a.ID, b.ID) })
		im.Workers = append(im.Workers, wi)
	}
	slices.SortFunc(im.Groups, func(a, b GroupImage) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortFunc(im.Workers, func(a, b WorkerImage) int { return cmp.Compare(a.Instance, b.Instance) })
	return im
}

// FromImage returns a catalog in the state of an Image made by this package.
func FromImage(im Image) *Catalog {
	c := New()
	c.index, c.nextGroup = im.Index, im.NextGroup
	for _, gi := range im.Groups {
		g := &group{id: gi.ID, key: gi.Key, blockSize: gi.BlockSize, bigram: gi.Bigram, slots: make([]slot, len(gi.Slots))}
		for i, s := range gi.Slots {
			g.slots[i] = slot{holder: s.Holder, state: slotState(s.State)}
			if g.slots[i].state == slotRetired {
				g.retired++
			}
		}
		c.groups[gi.Key] = g
	}
	for _, wi := range im.Workers {
		g := c.groups[wi.Group]
		g.workers++
		w := &worker{instance: wi.Instance, group: g, ranks: map[uint32]*Rank{}, sources: map[sourceKey]uint64{}}
		for _, r := range wi.Ranks {
			w.ranks[r.Rank] = &r
		}
		for _, s := range wi.Sources {
			w.sources[sourceKey{s.Endpoint, s.Topic}] = s.ID
		}
		c.workers[wi.Instance] = w
	}
	return c
}
