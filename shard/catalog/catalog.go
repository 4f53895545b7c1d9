package catalog

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Errors of commands; the text is what an operator reads.
var (
	// ErrConflict: the command contradicts what is registered.
	ErrConflict = errors.New("conflict")
	// ErrNotFound: the instance, rank or group is not there.
	ErrNotFound = errors.New("not found")
	// ErrInvalid: the command can never be right.
	ErrInvalid = errors.New("invalid")
	// ErrExhausted: no slot is free (rule G3).
	ErrExhausted = errors.New("slots exhausted")
)

// MaxSlots bounds the slots of one group.
const MaxSlots = 65_536

// Catalog is the mutable state. It belongs to one goroutine (the log's applier).
type Catalog struct {
	view      *View // nil = must be rebuilt
	index     uint64
	nextGroup uint32
	groups    map[GroupKey]*group
	workers   map[string]*worker
}

type group struct {
	id        uint32
	key       GroupKey
	blockSize uint32
	bigram    bool
	workers   int
	slots     []slot
	retired   int // slots that wait for Purged
}

type slot struct {
	holder Holder
	state  slotState
}

type slotState uint8

const (
	slotFree slotState = iota
	slotLive
	slotRetired // waits for Purged
)

type worker struct {
	instance string
	group    *group
	ranks    map[uint32]*Rank
	sources  map[sourceKey]uint64 // to the ID
}

type sourceKey struct{ endpoint, topic string }

// New returns an empty catalog.
func New() *Catalog {
	return &Catalog{groups: map[GroupKey]*group{}, workers: map[string]*worker{}}
}

// Retired names a slot whose content must be cleared and then reported by Purged.
type Retired struct {
	Group, Slot uint32
	Life        uint64
}

// Register adds one rank. index must rise with every command. Registering the same
// thing again is a conflict (ErrConflict); it never replaces a stream.
func (c *Catalog) Register(index uint64, r Registration) error {
	if r.Instance == "" || r.Group.Model == "" || r.BlockSize == 0 || r.Endpoint == "" {
		return fmt.Errorf("%w: registration needs an instance, a model, a block size above 0 and an endpoint", ErrInvalid)
	}
	w := c.workers[r.Instance]
	if w != nil && w.group.key != r.Group {
		return conflict("instance %s is already registered for model=%s routing_group=%s", r.Instance, w.group.key.Model, w.group.key.RoutingGroup)
	}
	if w != nil && w.ranks[r.Rank] != nil && !w.ranks[r.Rank].Discovered {
		return conflict("instance %s dp_rank %d already registered", r.Instance, r.Rank)
	}
	g := c.groups[r.Group]
	if g != nil && g.blockSize != r.BlockSize {
		return conflict("block_size mismatch for model=%s routing_group=%s: existing=%d, requested=%d", r.Group.Model, r.Group.RoutingGroup, g.blockSize, r.BlockSize)
	}
	if err := c.checkBound(r); err != nil {
		return err
	}
	if w != nil && w.ranks[r.Rank] != nil { // discovered before: keep its life when it is the same stream
		old := w.ranks[r.Rank]
		if old.Endpoint != r.Endpoint || old.Topic != r.Topic {
			return conflict("instance %s dp_rank %d is already fed by %s", r.Instance, r.Rank, old.Endpoint)
		}
		c.changed(index)
		old.Registration, old.Discovered = r, false
		return nil
	}
	if g == nil {
		c.nextGroup++
		g = &group{id: c.nextGroup, key: r.Group, blockSize: r.BlockSize}
	}
	s, err := g.acquire(Holder{Instance: r.Instance, Rank: r.Rank, Life: index})
	if err != nil {
		return err
	}
	c.changed(index)
	c.groups[r.Group] = g
	if w == nil {
		w = &worker{instance: r.Instance, group: g, ranks: map[uint32]*Rank{}, sources: map[sourceKey]uint64{}}
		c.workers[r.Instance] = w
		g.workers++
	}
	w.ranks[r.Rank] = &Rank{Registration: r, Slot: s, Life: index}
	k := sourceKey{r.Endpoint, r.Topic}
	if w.sources[k] == 0 {
		w.sources[k] = index
	}
	return nil
}

// checkBound refuses a second instance without a topic on one bound socket: their
// messages could not be told apart.
func (c *Catalog) checkBound(r Registration) error {
	if !Binds(r.Endpoint) {
		return nil
	}
	for _, w := range c.workers {
		if w.instance == r.Instance {
			continue
		}
		if _, ok := w.sources[sourceKey{r.Endpoint, r.Topic}]; ok {
			return conflict("endpoint %s with topic %q already belongs to instance %s: give each pushing engine its own topic", r.Endpoint, r.Topic, w.instance)
		}
	}
	return nil
}

// Discover adds a rank that a source's batches carry but nobody registered. It does
// nothing when the rank exists.
func (c *Catalog) Discover(index uint64, source uint64, rank uint32) error {
	w, k := c.findSource(source)
	if w == nil {
		return fmt.Errorf("%w: source %d", ErrNotFound, source)
	}
	if w.ranks[rank] != nil {
		return nil
	}
	var like *Rank
	for _, r := range w.ranks {
		if r.Endpoint == k.endpoint && r.Topic == k.topic && (like == nil || r.Rank < like.Rank) {
			like = r
		}
	}
	reg := like.Registration
	reg.Rank = rank
	s, err := w.group.acquire(Holder{Instance: w.instance, Rank: rank, Life: index})
	if err != nil {
		return err
	}
	c.changed(index)
	w.ranks[rank] = &Rank{Registration: reg, Slot: s, Life: index, Discovered: true}
	return nil
}

// Bigram notes that engines of a group send EAGLE pages (Group.Bigram). It does nothing
// when that is known.
func (c *Catalog) Bigram(index uint64, id uint32) error {
	for _, g := range c.groups {
		if g.id != id {
			continue
		}
		if !g.bigram {
			c.changed(index)
			g.bigram = true
		}
		return nil
	}
	return fmt.Errorf("%w: group %d", ErrNotFound, id)
}

// NewLife gives a rank a fresh slot, if its present life is the one given, and
// returns what was retired (rule G1). With another life it does nothing: the
// command was late or repeated. A life that follows one that is not whole is not either.
func (c *Catalog) NewLife(index uint64, instance string, rank uint32, life uint64) (Retired, error) {
	w := c.workers[instance]
	if w == nil || w.ranks[rank] == nil {
		return Retired{}, fmt.Errorf("%w: instance %s dp_rank %d", ErrNotFound, instance, rank)
	}
	r := w.ranks[rank]
	if r.Life != life {
		return Retired{}, nil
	}
	h := Holder{Instance: instance, Rank: rank, Life: index}
	if r.Filling {
		h.Whole = NotYet
	}
	s, err := w.group.acquire(h)
	if err != nil {
		return Retired{}, err
	}
	c.changed(index)
	out := w.group.retire(r.Slot)
	r.Slot, r.Life = s, index
	return out, nil
}

// TakenOver says that a source has another reader: its slots may lack what only the
// earlier one knew, and are not whole before Filled.
func (c *Catalog) TakenOver(index uint64, source uint64) {
	w, k := c.findSource(source)
	if w == nil {
		return
	}
	c.changed(index)
	for _, r := range w.ranks {
		if r.Endpoint == k.endpoint && r.Topic == k.topic {
			r.Filling = true
			w.group.slots[r.Slot].holder.Whole = NotYet
		}
	}
}

// Filled says that a life that was not whole is so from now on. Of another life, or a
// second time, it says nothing.
func (c *Catalog) Filled(index uint64, instance string, rank uint32, life uint64) error {
	w := c.workers[instance]
	if w == nil || w.ranks[rank] == nil {
		return fmt.Errorf("%w: instance %s dp_rank %d", ErrNotFound, instance, rank)
	}
	r := w.ranks[rank]
	if r.Life != life || !r.Filling {
		return nil
	}
	c.changed(index)
	r.Filling = false
	w.group.slots[r.Slot].holder.Whole = index
	return nil
}

// Unregistration says what to remove. Without Group the worker is removed wherever
// it is inside Model and Rank is not looked at; with Group and without Rank the
// whole worker; with both that rank, and with the last rank the worker.
type Unregistration struct {
	Instance string
	Model    string
	Group    *string // routing group
	Rank     *uint32
}

// Unregister removes a worker or a rank and returns what was retired.
func (c *Catalog) Unregister(index uint64, u Unregistration) ([]Retired, error) {
	w := c.workers[u.Instance]
	if w == nil || w.group.key.Model != u.Model && u.Group == nil {
		return nil, notFound("instance %s not found", u.Instance)
	}
	if u.Group != nil && (GroupKey{u.Model, *u.Group}) != w.group.key {
		return nil, notFound("instance %s is registered for model=%s routing_group=%s", u.Instance, w.group.key.Model, w.group.key.RoutingGroup)
	}
	if u.Group != nil && u.Rank != nil {
		if w.ranks[*u.Rank] == nil {
			return nil, notFound("instance %s dp_rank %d not found", u.Instance, *u.Rank)
		}
		if len(w.ranks) > 1 {
			c.changed(index)
			return []Retired{w.removeRank(*u.Rank)}, nil
		}
	}
	c.changed(index)
	var out []Retired
	for _, r := range w.sorted() {
		out = append(out, w.removeRank(r.Rank))
	}
	delete(c.workers, w.instance)
	w.group.workers--
	if w.group.workers == 0 {
		delete(c.groups, w.group.key)
	}
	return out, nil
}

// Purged frees a retired slot for reuse: every member has dropped its content.
func (c *Catalog) Purged(index uint64, r Retired) {
	for _, g := range c.groups {
		if g.id == r.Group && int(r.Slot) < len(g.slots) && g.slots[r.Slot].state == slotRetired && g.slots[r.Slot].holder.Life == r.Life {
			c.changed(index)
			g.slots[r.Slot] = slot{}
			g.retired--
			return
		}
	}
}

func (c *Catalog) findSource(id uint64) (*worker, sourceKey) {
	for _, w := range c.workers {
		for k, i := range w.sources {
			if i == id {
				return w, k
			}
		}
	}
	return nil, sourceKey{}
}

func (c *Catalog) changed(index uint64) { c.index, c.view = index, nil }

func (w *worker) sorted() []*Rank {
	out := make([]*Rank, 0, len(w.ranks))
	for _, r := range w.ranks {
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b *Rank) int { return cmp.Compare(a.Rank, b.Rank) })
	return out
}

func (w *worker) removeRank(rank uint32) Retired {
	r := w.ranks[rank]
	delete(w.ranks, rank)
	k := sourceKey{r.Endpoint, r.Topic}
	if !slices.ContainsFunc(w.sorted(), func(o *Rank) bool { return o.Endpoint == k.endpoint && o.Topic == k.topic }) {
		delete(w.sources, k)
	}
	return w.group.retire(r.Slot)
}

func (g *group) acquire(h Holder) (uint32, error) {
	for i := range g.slots {
		if g.slots[i].state == slotFree {
			g.slots[i] = slot{holder: h, state: slotLive}
			return uint32(i), nil
		}
	}
	if len(g.slots) >= MaxSlots {
		return 0, fmt.Errorf("%w: group model=%s routing_group=%s has %d slots, %d of them waiting to be purged", ErrExhausted, g.key.Model, g.key.RoutingGroup, len(g.slots), g.retired)
	}
	g.slots = append(g.slots, slot{holder: h, state: slotLive})
	return uint32(len(g.slots) - 1), nil
}

func (g *group) retire(s uint32) Retired {
	g.slots[s].state = slotRetired
	g.retired++
	return Retired{Group: g.id, Slot: s, Life: g.slots[s].holder.Life}
}

// View returns the present state. Views of an unchanged catalog are the same pointer.
func (c *Catalog) View() *View {
	if c.view != nil {
		return c.view
	}
	v := &View{Index: c.index, groups: map[GroupKey]*Group{}, byID: map[uint32]*Group{}}
	for k, g := range c.groups {
		out := &Group{ID: g.id, Key: k, BlockSize: g.blockSize, Bigram: g.bigram, holders: make([]Holder, len(g.slots))}
		for i, s := range g.slots {
			if s.state == slotLive {
				out.holders[i] = s.holder
				out.whole = max(out.whole, s.holder.Whole)
			}
		}
		v.groups[k], v.byID[g.id] = out, out
	}
	for _, w := range c.workers {
		g := v.groups[w.group.key]
		ww := Worker{Instance: w.instance, Group: g}
		for _, r := range w.sorted() {
			ww.Ranks = append(ww.Ranks, *r)
		}
		v.workers = append(v.workers, ww)
		for k, id := range w.sources {
			s := Source{ID: id, Instance: w.instance, Group: g, Endpoint: k.endpoint, Topic: k.topic}
			for _, r := range ww.Ranks {
				if r.Endpoint == k.endpoint && r.Topic == k.topic {
					s.Ranks = append(s.Ranks, r)
					s.ReplayEndpoint = cmp.Or(s.ReplayEndpoint, r.ReplayEndpoint)
				}
			}
			v.sources = append(v.sources, s)
		}
	}
	slices.SortFunc(v.workers, func(a, b Worker) int { return cmp.Compare(a.Instance, b.Instance) })
	slices.SortFunc(v.sources, func(a, b Source) int { return cmp.Compare(a.ID, b.ID) })
	c.view = v
	return v
}

// commandError carries the exact text that the HTTP contract asks for, and the
// sentinel that says which kind it is.
type commandError struct {
	kind error
	text string
}

func (e *commandError) Error() string { return e.text }
func (e *commandError) Unwrap() error { return e.kind }

func conflict(format string, a ...any) error {
	return &commandError{ErrConflict, fmt.Sprintf(format, a...)}
}

func notFound(format string, a ...any) error {
	return &commandError{ErrNotFound, fmt.Sprintf(format, a...)}
}
