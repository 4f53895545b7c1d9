package ingest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kvcluster/kvcluster/cluster/ingest/translate"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/shard/catalog"
)

// Manager runs the sources of one node. Its methods may be called from any goroutine.
type Manager struct {
	cfg   Config
	deps  Deps
	loops []*loop

	bigrams sync.Map // indexer.GroupID -> struct{}
	memory  *translate.Memory

	mu struct {
		sync.Mutex
		index      uint64 // of the latest view
		entries    map[uint64]*entry
		byInstance map[string][]*entry
		load       []int // sources of each loop
		bound      map[string]*boundUse
	}
}

// entry is what the manager keeps of a source. source is touched only by its loop.
type entry struct {
	loop    *loop
	spec    catalog.Source
	foreign []uint32
	source  *source
	status  atomic.Pointer[SourceStatus]
}

type boundUse struct{ loop, sources int }

// New makes a manager and its loops; nothing runs before Run. Reconcile may be called
// before.
func New(cfg Config, deps Deps) (*Manager, error) {
	cfg.applyDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if deps.Network == nil || deps.Log == nil || deps.NewWriter == nil {
		return nil, errors.New("ingest: Deps needs Network, Log and NewWriter")
	}
	deps.applyDefaults()
	m := &Manager{cfg: cfg, deps: deps, memory: translate.NewMemory()}
	m.mu.entries = map[uint64]*entry{}
	m.mu.byInstance = map[string][]*entry{}
	m.mu.bound = map[string]*boundUse{}
	m.mu.load = make([]int, cfg.Loops)
	for i := range cfg.Loops {
		tl, err := deps.Network.NewLoop(fmt.Sprintf("ingest-%d", i))
		if err != nil {
			return nil, fmt.Errorf("ingest loop %d: %w", i, err)
		}
		l := &loop{
			m: m, cfg: &m.cfg, index: i, tl: tl, dec: deps.NewDecoder(),
			log: deps.Logger.With("loop", i), rnd: rand.New(rand.NewPCG(uint64(i), rand.Uint64())),
			sources: map[uint64]*source{}, bound: map[string]*bound{},
			buffers: budget{max: cfg.LoopBufferBytes}, shared: translate.NewScratch(),
		}
		l.emitFn = l.emit
		m.loops = append(m.loops, l)
	}
	return m, nil
}

// Run works until ctx is done or a loop fails. What the slots hold stays in the index:
// ending a node is not unregistering its workers.
func (m *Manager) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, l := range m.loops {
		l.w = m.deps.NewWriter()
	}
	errs := make([]error, len(m.loops))
	var wg sync.WaitGroup
	for i, l := range m.loops {
		l.tl.Post(l.start)
		wg.Go(func() {
			if err := l.tl.Run(ctx); err != nil {
				errs[i] = fmt.Errorf("ingest loop %d: %w", i, err)
				cancel()
			}
		})
	}
	wg.Wait()
	for _, l := range m.loops {
		l.w.Close()
		for _, s := range l.sources {
			for _, sl := range s.slots {
				sl.release()
			}
		}
	}
	return errors.Join(errs...)
}

// Reconcile makes the running sources those of the view: opens and closes, and hands
// over new ranks and lives. Views older than the latest are ignored. It returns before
// the loops have acted.
func (m *Manager) Reconcile(view *catalog.View) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if view.Index < m.mu.index {
		return
	}
	m.mu.index = view.Index
	seen := make(map[uint64]bool, len(view.Sources()))
	for _, spec := range view.Sources() {
		seen[spec.ID] = true
		foreign := foreignRanks(view, spec)
		e := m.mu.entries[spec.ID]
		switch {
		case e == nil:
			m.add(spec, foreign)
		case !sameSource(e.spec, spec) || !slices.Equal(e.foreign, foreign):
			e.spec, e.foreign = spec, foreign
			e.loop.tl.Post(func() { e.source.update(spec, set(foreign)) })
		}
	}
	for id, e := range m.mu.entries {
		if !seen[id] {
			m.drop(view, id, e)
		}
	}
}

// add opens a source. The caller holds the lock.
func (m *Manager) add(spec catalog.Source, foreign []uint32) {
	e := &entry{loop: m.loops[m.place(spec.Endpoint)], spec: spec, foreign: foreign}
	m.mu.entries[spec.ID] = e
	m.mu.byInstance[spec.Instance] = append(m.mu.byInstance[spec.Instance], e)
	e.loop.tl.Post(func() {
		e.source = newSource(e.loop, e, spec)
		e.loop.sources[spec.ID] = e.source
		e.source.update(spec, set(foreign))
		e.source.open()
		e.source.publish(e.loop.tl.Now())
	})
}

// drop closes a source: unregistered, or given to another node, which then is the one
// to write its slots. The caller holds the lock.
func (m *Manager) drop(view *catalog.View, id uint64, e *entry) {
	delete(m.mu.entries, id)
	rest := slices.DeleteFunc(m.mu.byInstance[e.spec.Instance], func(o *entry) bool { return o == e })
	if len(rest) == 0 {
		delete(m.mu.byInstance, e.spec.Instance)
	} else {
		m.mu.byInstance[e.spec.Instance] = rest
	}
	m.mu.load[e.loop.index]--
	if use := m.mu.bound[e.spec.Endpoint]; use != nil {
		if use.sources--; use.sources == 0 {
			delete(m.mu.bound, e.spec.Endpoint)
		}
	}
	e.loop.tl.Post(func() {
		delete(e.loop.sources, id)
		e.source.close(func(r catalog.Rank) bool { return holds(view, e.spec.Group.ID, r) })
	})
}

// place chooses the loop of a source: the one with the fewest, except that sources of
// one bound endpoint share a socket and so a loop. The caller holds the lock.
func (m *Manager) place(endpoint string) int {
	best := 0
	for i, n := range m.mu.load {
		if n < m.mu.load[best] {
			best = i
		}
	}
	if catalog.Binds(endpoint) {
		use := m.mu.bound[endpoint]
		if use == nil {
			use = &boundUse{loop: best}
			m.mu.bound[endpoint] = use
		}
		use.sources++
		best = use.loop
	}
	m.mu.load[best]++
	return best
}

// foreignRanks returns the ranks of the source's instance that other sources feed.
func foreignRanks(view *catalog.View, spec catalog.Source) (out []uint32) {
	w, _ := view.Worker(spec.Instance)
	for _, r := range w.Ranks {
		if r.Endpoint != spec.Endpoint || r.Topic != spec.Topic {
			out = append(out, r.Rank)
		}
	}
	return out
}

// holds says whether the view still has the rank in this life.
func holds(view *catalog.View, group uint32, r catalog.Rank) bool {
	g, ok := view.GroupByID(group)
	if !ok {
		return false
	}
	h, ok := g.Holder(r.Slot)
	return ok && h.Life == r.Life
}

func sameSource(a, b catalog.Source) bool {
	return a.Group.ID == b.Group.ID && a.ReplayEndpoint == b.ReplayEndpoint && slices.Equal(a.Ranks, b.Ranks)
}

func set(ranks []uint32) map[uint32]bool {
	out := make(map[uint32]bool, len(ranks))
	for _, r := range ranks {
		out[r] = true
	}
	return out
}

func (m *Manager) setBigram(g indexer.GroupID) { m.bigrams.Store(g, struct{}{}) }

// Bigram says whether an engine of the group has announced EAGLE pages, whose blocks
// are hashed over one token more than they have (blockhash.Content.Window).
func (m *Manager) Bigram(g indexer.GroupID) bool {
	_, ok := m.bigrams.Load(g)
	return ok
}
