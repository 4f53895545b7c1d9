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
		view       *catalog.View
		entries    map[uint64]*entry
		byInstance map[string][]*entry
		load       []int // sources of each loop
		bound      map[string]*boundUse
		// lives are those that were this manager's to write and that it has not
		// reported as purged.
		lives map[catalog.Retired]*ownLife
	}
}

// ownLife is a life that this manager may have written.
type ownLife struct {
	loop *loop
	// left: its source was given away, or given again under another tenure; no slot
	// stands for it any more.
	left bool
	// again: it had been this manager's before it was given to it now.
	again bool
}

// entry is what the manager keeps of a source. source is touched only by its loop.
type entry struct {
	loop    *loop
	spec    catalog.Source
	foreign []uint32
	tenure  uint64
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
	m.mu.lives = map[catalog.Retired]*ownLife{}
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
// over new ranks, lives and tenures. Views older than the latest are ignored. It returns
// before the loops have acted.
func (m *Manager) Reconcile(view *catalog.View) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if view.Index < m.mu.index {
		return
	}
	m.mu.index, m.mu.view = view.Index, view
	seen := make(map[uint64]bool, len(view.Sources()))
	for _, spec := range view.Sources() {
		seen[spec.ID] = true
		foreign := foreignRanks(view, spec)
		tenure := m.cfg.Tenure(spec)
		e := m.mu.entries[spec.ID]
		switch {
		case tenure == 0: // a newer view will say who reads it
		case e == nil:
			m.add(spec, foreign, tenure)
		case e.tenure != tenure:
			m.reopen(e, spec, foreign, tenure)
		case !sameSource(e.spec, spec) || !slices.Equal(e.foreign, foreign):
			e.spec, e.foreign = spec, foreign
			m.own(e)
			e.loop.tl.Post(func() { e.source.update(spec, set(foreign)) })
		}
	}
	for id, e := range m.mu.entries {
		if !seen[id] {
			m.drop(view, id, e)
		}
	}
	m.retireLeft(view)
}

// add opens a source. The caller holds the lock.
func (m *Manager) add(spec catalog.Source, foreign []uint32, tenure uint64) {
	e := &entry{loop: m.loops[m.place(spec)], spec: spec, foreign: foreign, tenure: tenure}
	m.mu.entries[spec.ID] = e
	m.mu.byInstance[spec.Instance] = append(m.mu.byInstance[spec.Instance], e)
	m.own(e)
	e.loop.tl.Post(func() { e.begin(spec, foreign, tenure) })
}

// begin opens the source on its loop.
func (e *entry) begin(spec catalog.Source, foreign []uint32, tenure uint64) {
	e.source = newSource(e.loop, e, spec, tenure)
	e.loop.sources[spec.ID] = e.source
	e.source.update(spec, set(foreign))
	e.source.open()
	e.source.publish(e.loop.tl.Now())
}

// reopen begins a source anew that the log gave to this node again: others may have
// written its slots in between, so nothing that is known of them counts. The caller
// holds the lock.
func (m *Manager) reopen(e *entry, spec catalog.Source, foreign []uint32, tenure uint64) {
	m.leave(e)
	e.spec, e.foreign, e.tenure = spec, foreign, tenure
	m.own(e)
	e.loop.tl.Post(func() {
		e.source.close(func(catalog.Rank) bool { return false })
		e.begin(spec, foreign, tenure)
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
	m.leave(e)
	moved := feeds(view, e.spec)
	e.loop.tl.Post(func() {
		delete(e.loop.sources, id)
		e.source.close(func(r catalog.Rank) bool { return !moved && !holds(view, e.spec.Group.ID, r) })
	})
}

// own notes the lives that the entry's source may write from now on. The caller holds
// the lock.
func (m *Manager) own(e *entry) {
	for _, r := range e.spec.Ranks {
		if r.Life >= e.tenure || m.deps.Takeover != nil {
			k := catalog.Retired{Group: e.spec.Group.ID, Slot: r.Slot, Life: r.Life}
			old := m.mu.lives[k]
			m.mu.lives[k] = &ownLife{loop: e.loop, again: old != nil && (old.left || old.again)}
		}
	}
}

// leave notes that the entry's source writes no more. The caller holds the lock.
func (m *Manager) leave(e *entry) {
	for _, r := range e.spec.Ranks {
		if l := m.mu.lives[catalog.Retired{Group: e.spec.Group.ID, Slot: r.Slot, Life: r.Life}]; l != nil {
			l.left = true
		}
	}
}

// retireLeft reports the lives that ended after their source had left. The caller holds
// the lock.
func (m *Manager) retireLeft(view *catalog.View) {
	for r, l := range m.mu.lives {
		if l.left && !lives(view, r) {
			l.left = false
			l.loop.tl.Post(func() { l.loop.retire(r) })
		}
	}
}

// Reports says whether this manager reports a slot by Log.Purged once it is retired:
// the life was its own to write at some time, and has not been reported yet. All other
// retired slots are for somebody else to purge. It holds from the Reconcile on that
// gave the life to this manager.
func (m *Manager) Reports(r catalog.Retired) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.lives[r] != nil
}

// disown takes back that a life is this manager's to write: nothing was written. It is
// too late for that once the life has ended, since somebody may count on the report.
func (m *Manager) disown(r catalog.Retired) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if l := m.mu.lives[r]; !lives(m.mu.view, r) || l == nil || l.again {
		return false
	}
	delete(m.mu.lives, r)
	return true
}

func (m *Manager) reported(r catalog.Retired) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.mu.lives, r)
}

// place chooses the loop of a source: the one with the fewest, except that sources of
// one bound endpoint share a socket and so a loop, and that all frames of a slot go
// through one writer. The caller holds the lock.
func (m *Manager) place(spec catalog.Source) int {
	endpoint := spec.Endpoint
	best := 0
	for i, n := range m.mu.load {
		if n < m.mu.load[best] {
			best = i
		}
	}
	for _, r := range spec.Ranks {
		if l := m.mu.lives[catalog.Retired{Group: spec.Group.ID, Slot: r.Slot, Life: r.Life}]; l != nil {
			best = l.loop.index
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
	return lives(view, catalog.Retired{Group: group, Slot: r.Slot, Life: r.Life})
}

func lives(view *catalog.View, r catalog.Retired) bool {
	g, ok := view.GroupByID(r.Group)
	if !ok {
		return false
	}
	h, ok := g.Holder(r.Slot)
	return ok && h.Life == r.Life
}

// feeds says whether the catalog still has the source, whoever reads it.
func feeds(view *catalog.View, spec catalog.Source) bool {
	w, _ := view.Worker(spec.Instance)
	return slices.ContainsFunc(w.Ranks, func(r catalog.Rank) bool {
		return r.Endpoint == spec.Endpoint && r.Topic == spec.Topic
	})
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

func (m *Manager) setBigram(g indexer.GroupID) {
	if _, known := m.bigrams.LoadOrStore(g, struct{}{}); !known && m.deps.Bigram != nil {
		m.deps.Bigram(g)
	}
}

// Bigram says whether an engine of the group has announced EAGLE pages here, whose blocks
// are hashed over one token more than they have (blockhash.Content.Window).
func (m *Manager) Bigram(g indexer.GroupID) bool {
	_, ok := m.bigrams.Load(g)
	return ok
}
