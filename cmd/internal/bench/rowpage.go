package bench

import (
	"fmt"

	"github.com/kvcluster/kvcluster/chaos/oplist"
	"github.com/kvcluster/kvcluster/chaos/trace"
	"github.com/kvcluster/kvcluster/cluster/ingest/translate"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/blockhash"
)

func pageRow() Row {
	return Row{
		Name: "page", Title: "page size 1 in SGLang's cadence, tokens hashed, translator and tree", run: runPage,
		Measures: []Measure{
			{Key: "rate", Title: "pages stored and removed per CPU-second", Unit: "M/s", HigherIsBetter: true, Scale: 1e6},
			{Key: "cpu", Title: "CPU for 1,000 pages", Unit: "us"},
			{Key: "pages", Title: "pages of a prompt's store event, mean", Unit: ""},
			{Key: "query.p50", Title: "query of a prompt, p50", Unit: "us", Scale: 1e3},
			{Key: "query.p99", Title: "query of a prompt, p99", Unit: "us", Scale: 1e3},
			{Key: "live", Title: "live bytes per held page", Unit: "B"},
		},
	}
}

const (
	pageWorkers  = 16
	pageCapacity = 1 << 18 // pages of one worker
	pageDecode   = 40      // output pages of one event
)

// pageEvent is a stretch of tokens and keys.
type pageEvent struct {
	worker    uint32
	removed   bool
	hasParent bool
	parent    uint64
	from, to  int
}

// pageStream is the events of a fleet of engines with pages of one token. A prompt's
// uncached rest is one event, output comes in bursts, and an evicted node of the
// engine's tree, here the pages of one trace id, is one removal.
type pageStream struct {
	tokens  []uint32
	keys    []uint64
	events  []pageEvent
	stores  int // events that store prompts
	prompts int // pages in them
	sizes   map[uint32]int
	caches  []*pageCache
}

// pageCache is the tree of one engine by trace id: least recent first.
type pageCache struct {
	at    map[uint32]int
	order []uint32 // 0 = gone; by time of the last touch
	first int
	pages int
}

// outputID is the id of what request i generated.
func outputID(i int) uint32 { return 1<<31 | uint32(i) }

func newPageStream(t *trace.Trace) *pageStream {
	s := &pageStream{sizes: map[uint32]int{}}
	for range pageWorkers {
		s.caches = append(s.caches, &pageCache{at: map[uint32]int{}})
	}
	for i := range t.Requests {
		left := t.PromptTokens(i)
		for _, id := range t.Requests[i].IDs {
			n := min(left, t.TokensPerID)
			s.sizes[id] = max(s.sizes[id], n)
			left -= n
		}
		s.sizes[outputID(i)] = int(t.Requests[i].Output)
	}
	for i := range t.Requests {
		s.request(t.Requests[i].IDs, uint32(i%pageWorkers), i)
	}
	return s
}

func pageOf(id uint32, j int) uint64 { return oplist.Mix(uint64(id)<<16 | uint64(j)) }

// append adds the pages from..to of an id to the columns.
func (s *pageStream) append(id uint32, from, to int) {
	for j := from; j < to; j++ {
		p := pageOf(id, j)
		s.tokens = append(s.tokens, uint32(p%128_000))
		s.keys = append(s.keys, oplist.Mix(p))
	}
}

func (s *pageStream) lastKey(id uint32) uint64 { return oplist.Mix(pageOf(id, s.sizes[id]-1)) }

func (s *pageStream) request(ids []uint32, worker uint32, i int) {
	c := s.caches[worker]
	k := 0
	for k < len(ids) && c.holds(ids[k]) {
		k++
	}
	e := pageEvent{worker: worker, from: len(s.keys)}
	if k > 0 {
		e.hasParent, e.parent = true, s.lastKey(ids[k-1])
	}
	for _, id := range ids[k:] {
		s.append(id, 0, s.sizes[id])
		c.pages += s.sizes[id]
	}
	if e.to = len(s.keys); e.to > e.from {
		s.events = append(s.events, e)
		s.stores++
		s.prompts += e.to - e.from
	}
	out := outputID(i)
	parent, has := uint64(0), false
	if n := len(ids); n > 0 {
		parent, has = s.lastKey(ids[n-1]), true
	}
	for from := 0; from < s.sizes[out]; from += pageDecode {
		to := min(from+pageDecode, s.sizes[out])
		at := len(s.keys)
		s.append(out, from, to)
		s.events = append(s.events, pageEvent{worker: worker, hasParent: has, parent: parent, from: at, to: len(s.keys)})
		parent, has = s.keys[len(s.keys)-1], true
	}
	if s.sizes[out] > 0 {
		c.pages += s.sizes[out]
		c.touch(out)
	}
	for j := len(ids) - 1; j >= 0; j-- {
		c.touch(ids[j])
	}
	for c.pages > pageCapacity {
		id := c.evict()
		at := len(s.keys)
		s.append(id, 0, s.sizes[id])
		s.events = append(s.events, pageEvent{worker: worker, removed: true, from: at, to: len(s.keys)})
		c.pages -= s.sizes[id]
	}
}

func (c *pageCache) holds(id uint32) bool { _, ok := c.at[id]; return ok }

// touch makes an id the most recent one.
func (c *pageCache) touch(id uint32) {
	if at, ok := c.at[id]; ok {
		c.order[at] = 0
	}
	c.at[id] = len(c.order)
	c.order = append(c.order, id+1)
}

// evict takes the least recent id out.
func (c *pageCache) evict() uint32 {
	for c.order[c.first] == 0 {
		c.first++
	}
	id := c.order[c.first] - 1
	c.order[c.first] = 0
	delete(c.at, id)
	return id
}

// loadTrace reads the trace of a job, or generates one of the public shape.
func loadTrace(path string, requests int) (*trace.Trace, error) {
	if path == "" {
		return trace.Generate(trace.DefaultGenerate(requests))
	}
	t, err := trace.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return t.Head(requests), nil
}

func runPage(b *bencher) error {
	t, err := loadTrace(b.job.Trace, b.choose(1500, 150))
	if err != nil {
		return err
	}
	s := newPageStream(t)
	before, err := takeMemory()
	if err != nil {
		return err
	}
	a, err := newIndexArm(pageWorkers)
	if err != nil {
		return err
	}
	err = b.profiled(func() error {
		cpu := processCPU()
		for i := range s.events {
			e := &s.events[i]
			tr := a.begin(e.worker)
			if e.removed {
				a.end(tr, tr.Remove(indexer.Device, s.keys[e.from:e.to]))
				continue
			}
			a.end(tr, tr.Store(translate.Store{
				Tier: indexer.Device, HasParent: e.hasParent, Parent: e.parent, Engines: s.keys[e.from:e.to],
				Content: blockhash.Content{Tokens: s.tokens[e.from:e.to], BlockSize: 1, Window: 1},
			}))
		}
		seconds := (processCPU() - cpu).Seconds()
		b.set("rate", float64(len(s.keys))/seconds)
		b.set("cpu", seconds*1e6/float64(len(s.keys))*1e3)
		return b.ctx.Err()
	})
	if err != nil {
		return err
	}
	after, err := takeMemory()
	if err != nil {
		return err
	}
	held, _ := a.counts()
	b.set("live", float64(int64(a.mappedBytes())+after.heap-before.heap)/float64(held))
	b.set("pages", float64(s.prompts)/float64(max(s.stores, 1)))
	b.inputs("%d requests, %d engines with %d pages each: %d events, %d pages stored and removed, %d held", len(t.Requests), pageWorkers, pageCapacity, len(s.events), len(s.keys), held)
	if err := s.check(b, a, t); err != nil {
		return err
	}
	return a.close()
}

// check asks for the last prompts and compares all rows with the caches.
func (s *pageStream) check(b *bencher, a *indexArm, t *trace.Trace) error {
	want := uint64(0)
	for _, c := range s.caches {
		want += uint64(c.pages)
	}
	if held, _ := a.counts(); held != want {
		return fmt.Errorf("%w: %d pages held, want %d", ErrWrongAnswers, held, want)
	}
	var samples []uint32
	var tokens []uint32
	var locals []uint64
	for i := max(0, len(t.Requests)-400); i < len(t.Requests); i++ {
		ids := t.Requests[i].IDs
		tokens = tokens[:0]
		for _, id := range ids {
			for j := range s.sizes[id] {
				tokens = append(tokens, uint32(pageOf(id, j)%128_000))
			}
		}
		if locals = blockhash.AppendTokens(locals[:0], tokens, 1, blockhash.Seed); len(locals) == 0 {
			continue
		}
		at := ticks()
		rows := a.query(locals)
		samples = append(samples, since(at))
		depth := map[indexer.Slot]uint32{}
		for w, c := range s.caches {
			for _, id := range ids {
				if !c.holds(id) {
					break
				}
				depth[indexer.Slot(w)] += uint32(s.sizes[id])
			}
		}
		// A token is a page: different ids can begin with the same ones, by chance.
		for _, r := range rows {
			if d, ok := depth[r.Slot]; r.Depth < d || r.Depth > d+3 || !ok && r.Depth > 3 {
				return fmt.Errorf("%w: request %d: slot %d scores %d, its cache has %d", ErrWrongAnswers, i, r.Slot, r.Depth, d)
			}
			delete(depth, r.Slot)
		}
		for slot, d := range depth {
			if d > 0 {
				return fmt.Errorf("%w: request %d: slot %d scores nothing, its cache has %d", ErrWrongAnswers, i, slot, d)
			}
		}
	}
	b.latencies("query", samples)
	return nil
}
