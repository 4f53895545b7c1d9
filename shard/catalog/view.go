package catalog

import (
	"cmp"
	"iter"
	"slices"
)

// GroupKey names an index group.
type GroupKey struct {
	Model        string
	RoutingGroup string
}

// Registration is what an operator or an engine says about one rank.
type Registration struct {
	Instance       string // identity as text; a JSON number 7 and the string "7" are one worker
	Rank           uint32
	Group          GroupKey
	BlockSize      uint32 // tokens per block
	Endpoint       string // ZMQ address of the publisher; tcp://*:port means: bind, engines push
	ReplayEndpoint string // "" = none
	Topic          string // only messages with this topic belong to it; "" = all
	Lora           string // namespace of events that carry no LoRA name
	Salt           string // namespace of events that carry no salt
	EngineType     string // as given ("vLLM", "SGLang", ...); the decoder does not depend on it
	HashSeed       string // PYTHONHASHSEED of an engine whose hash profile was registered, "" = none; shown, not used
	CountCopies    bool   // count physical copies of a block instead of one claim per hash
}

// Group is one index group in a View.
type Group struct {
	ID        uint32
	Key       GroupKey
	BlockSize uint32
	// Bigram: engines of the group have sent EAGLE pages, whose blocks are hashed over one
	// token more than they have. Once true it stays so.
	Bigram  bool
	holders []Holder // by slot; Life 0 = nobody
	whole   uint64   // the highest Whole of holders
}

// Holder is who a slot is.
type Holder struct {
	Instance string
	Rank     uint32
	Life     uint64 // 0 = the slot is free or retired
	// Whole is the log index from which on the slot has all that is known of its engine.
	// 0 = always: its reader is the first one.
	Whole uint64
}

// NotYet is the Whole of a slot whose source was taken over, and whose new reader still
// asks the engine for what the earlier one may have known alone.
const NotYet = ^uint64(0)

// Holder returns who the slot is; ok is false for a slot that is not live.
func (g *Group) Holder(slot uint32) (h Holder, ok bool) {
	if int(slot) >= len(g.holders) {
		return Holder{}, false
	}
	h = g.holders[slot]
	return h, h.Life != 0
}

// Unwhole yields the live slots that were not whole at a log index. It costs nothing while
// there are none.
func (g *Group) Unwhole(index uint64) iter.Seq2[uint32, Holder] {
	return func(yield func(uint32, Holder) bool) {
		if g.whole <= index {
			return
		}
		for i, h := range g.holders {
			if h.Life != 0 && h.Whole > index && !yield(uint32(i), h) {
				return
			}
		}
	}
}

// NumSlots returns an upper bound for slot numbers in use.
func (g *Group) NumSlots() int { return len(g.holders) }

// Rank is one rank of a worker in a View.
type Rank struct {
	Registration
	Slot       uint32
	Life       uint64
	Discovered bool // seen in a stream, not registered
	Filling    bool // its holder's Whole is NotYet
}

// Worker is one instance in a View. Ranks are ordered by number.
type Worker struct {
	Instance string
	Group    *Group
	Ranks    []Rank
}

// Source is one publisher socket of one instance.
type Source struct {
	ID             uint64 // log index of the registration that began it
	Instance       string
	Group          *Group
	Endpoint       string
	ReplayEndpoint string
	Topic          string
	Ranks          []Rank // ordered by number
}

// View is the catalog at one log index. It is immutable and may be shared.
type View struct {
	Index   uint64
	groups  map[GroupKey]*Group
	byID    map[uint32]*Group
	workers []Worker // ordered by instance
	sources []Source // ordered by ID
}

// Group returns the group of a key.
func (v *View) Group(k GroupKey) (*Group, bool) { g, ok := v.groups[k]; return g, ok }

// GroupByID returns the group of a number.
func (v *View) GroupByID(id uint32) (*Group, bool) { g, ok := v.byID[id]; return g, ok }

// Groups returns all groups ordered by model and routing group.
func (v *View) Groups() []*Group {
	out := make([]*Group, 0, len(v.groups))
	for _, g := range v.groups {
		out = append(out, g)
	}
	slices.SortFunc(out, func(a, b *Group) int {
		return cmp.Or(cmp.Compare(a.Key.Model, b.Key.Model), cmp.Compare(a.Key.RoutingGroup, b.Key.RoutingGroup))
	})
	return out
}

// Workers returns all workers ordered by instance. The slice belongs to the view.
func (v *View) Workers() []Worker { return v.workers }

// Worker returns one worker.
func (v *View) Worker(instance string) (Worker, bool) {
	i, ok := slices.BinarySearchFunc(v.workers, instance, func(w Worker, s string) int { return cmp.Compare(w.Instance, s) })
	if !ok {
		return Worker{}, false
	}
	return v.workers[i], true
}

// Sources returns all sources ordered by ID. The slice belongs to the view.
func (v *View) Sources() []Source { return v.sources }

// WithSources returns the view with only those sources that keep accepts.
func (v *View) WithSources(keep func(Source) bool) *View {
	out := *v
	out.sources = nil
	for _, s := range v.sources {
		if keep(s) {
			out.sources = append(out.sources, s)
		}
	}
	return &out
}
