package ingest

import (
	"github.com/kvcluster/kvcluster/transport/engine"
)

// maxCacheGroups bounds what is remembered of an engine's KV-cache groups.
const maxCacheGroups = 256

// groupFilter decides which cache group of an engine is indexed. A hash can occur in
// several groups, with different fates, so exactly one is: the first prefix-indexable
// one whose blocks have the registered size. Events without a group belong to it as
// well (offload connectors do not name one).
type groupFilter struct {
	kinds  map[int64]bool // learned from stores: is the group prefix-indexable?
	chosen int64
	has    bool
}

type verdict uint8

const (
	admit      verdict = iota
	otherGroup         // not of the group that is indexed
	wrongSize          // of it, but with blocks of another size
	disproved          // the group that was indexed turned out not to be prefix-indexable
)

// store judges a store event, and learns from it. Removals do not carry the kind.
func (g *groupFilter) store(ev *engine.Event, blockSize uint32) verdict {
	ok, known := ev.SpecKind.PrefixIndexable()
	if ev.Group < 0 {
		if known && !ok {
			return otherGroup
		}
		return sized(ev, blockSize)
	}
	if known {
		if g.kinds == nil {
			g.kinds = map[int64]bool{}
		}
		if _, have := g.kinds[ev.Group]; have || len(g.kinds) < maxCacheGroups {
			g.kinds[ev.Group] = ok
		}
	} else if ok, known = g.kinds[ev.Group]; !known {
		ok = ev.Group == 0 // an engine with one group need not say its kind
	}
	switch {
	case g.has && ev.Group == g.chosen && !ok:
		g.has = false
		return disproved
	case !ok || g.has && ev.Group != g.chosen:
		return otherGroup
	}
	v := sized(ev, blockSize)
	if v == admit && !g.has {
		g.chosen, g.has = ev.Group, true
	}
	return v
}

func sized(ev *engine.Event, blockSize uint32) verdict {
	if !ev.Placeholder && len(ev.Hashes) > 0 && ev.BlockSize != blockSize {
		return wrongSize
	}
	return admit
}

// remove judges a removal. Before a group was chosen nothing of any group with a
// number is held, and what is held without one may be meant.
func (g *groupFilter) remove(ev *engine.Event) bool {
	return ev.Group < 0 || !g.has || ev.Group == g.chosen
}
