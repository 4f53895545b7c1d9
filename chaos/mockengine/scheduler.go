package mockengine

import (
	"container/heap"
	"math"
	"time"

	"github.com/kvcluster/kvcluster/chaos/driver"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/blockhash"
	"github.com/kvcluster/kvcluster/transport/engine"
)

// scheduler is the inside of one engine in trace time: requests arrive, wait for
// room, are computed and leave, and their blocks come and go in the caches. It does
// no I/O and knows no wall clock; its events collect in out until out.due.
type scheduler struct {
	cfg      *Config
	prof     profile
	plan     *driver.Plan
	requests []uint32 // of this publisher, by time
	hasher   Hasher

	pool *pool
	host *hostPool

	now     time.Duration
	next    int           // next arrival in requests
	round   int           // times the trace has been played
	offset  time.Duration // of this round
	waiting []uint32      // requests that have arrived and were not admitted
	head    *task         // of waiting[0], once it was tried
	running tasks
	order   uint64
	busy    time.Duration // the prefill queue is worked off until then
	flushed time.Duration // when out was last taken

	out   outbox
	stats schedulerStats

	tokens []uint32 // scratch
	gone   []evictedBlock
}

// outbox is the batch that is being collected. Its slices are made anew for every
// batch, because events point into them.
type outbox struct {
	events  []engine.Event
	records []Record
	due     time.Duration // when it must be sent; meaningful with events
}

// task is a request on its way through the engine.
type task struct {
	request int
	ns      driver.Namespace
	// The complete blocks of the prompt and of what will be generated.
	keys, engines, locals []uint64
	prompt, total         int     // tokens
	promptBlocks          int     // complete blocks of the prompt
	held                  []int32 // physical blocks
	done                  int     // complete blocks that are visible (or resident from before)
	computed              int     // prompt tokens
	prefilled             bool
	decodeStart           time.Duration
	at                    time.Duration // of its next step
	order                 uint64
}

func newScheduler(cfg *Config, prof profile, plan *driver.Plan, publisher int, h Hasher) *scheduler {
	return &scheduler{
		cfg: cfg, prof: prof, plan: plan, requests: plan.Requests(publisher), hasher: h,
		pool: newPool(cfg.Capacity), host: newHostPool(cfg.HostCapacity),
	}
}

// nextAt returns when something happens next; ok is false when the trace has been
// played and everything has finished.
func (s *scheduler) nextAt() (at time.Duration, ok bool) {
	at = math.MaxInt64
	if len(s.running) > 0 {
		at, ok = s.running[0].at, true
	}
	if t, more := s.arrival(); more && t < at {
		at, ok = t, true
	}
	return at, ok
}

func (s *scheduler) arrival() (time.Duration, bool) {
	if s.next == len(s.requests) {
		if len(s.requests) == 0 || s.cfg.Repeat >= 0 && s.round+1 >= s.cfg.Repeat {
			return 0, false
		}
		s.round++
		s.next = 0
		s.offset += s.plan.Trace().Span() + time.Second
	}
	return s.offset + s.plan.Trace().Requests[s.requests[s.next]].Time, true
}

// step does what happens next. Running requests come before an arrival at the same
// time, so that what they free is there.
func (s *scheduler) step() {
	at, more := s.arrival()
	if len(s.running) > 0 && (!more || s.running[0].at <= at) {
		t := heap.Pop(&s.running).(*task)
		s.now = max(s.now, t.at)
		s.advance(t)
		return
	}
	if !more {
		return
	}
	s.now = max(s.now, at)
	s.waiting = append(s.waiting, s.requests[s.next])
	s.next++
	s.admitWaiting()
}

// admitWaiting admits requests in order of arrival until one finds no room.
func (s *scheduler) admitWaiting() {
	for len(s.waiting) > 0 {
		if s.head == nil {
			s.head = s.newTask(int(s.waiting[0]))
		}
		t := s.head
		if t.blocks(s.cfg.BlockSize) > s.pool.capacity() {
			s.stats.TooLarge++
		} else if !s.admit(t) {
			return
		}
		s.head = nil
		s.waiting = s.waiting[1:]
	}
	s.waiting = nil // let the array go
}

// blocks is the number of physical blocks that a request needs.
func (t *task) blocks(size int) int { return max((t.total+size-1)/size, 1) }

// newTask computes every hash of a request.
func (s *scheduler) newTask(request int) *task {
	t := &task{
		request: request, ns: s.plan.Namespace(request),
		prompt: s.plan.Tokens(request, false), total: s.plan.Tokens(request, true),
	}
	if s.prof.noLora {
		t.ns.Lora = ""
	}
	size := s.cfg.BlockSize
	t.promptBlocks = s.prof.blocks(t.prompt, size)
	n := s.prof.blocks(t.total, size)
	columns := make([]uint64, 3*n)
	t.keys, t.engines = columns[:n:n], columns[n:2*n:2*n]
	s.tokens = s.plan.AppendTokens(s.tokens[:0], request, 0, t.total)
	content := s.prof.content(s.tokens, size)
	t.locals = content.AppendLocals(columns[2*n:2*n], t.ns.Seed())
	s.hasher.Begin(t.ns.Lora, t.ns.Salt)
	path := uint64(0)
	for i, l := range t.locals {
		path = blockhash.NextSequence(path, l, i == 0)
		t.keys[i] = path
		t.engines[i] = s.hasher.Next(s.tokens[i*size:i*size+content.Window], path)
	}
	return t
}

// admit pins what the request finds and reserves the rest; false = no room yet.
func (s *scheduler) admit(t *task) bool {
	size := s.cfg.BlockSize
	// At least one token of the prompt is computed, so a prompt that ends with a
	// block computes that block again: a second copy.
	hit := s.pool.prefix(t.keys[:min(t.promptBlocks, max(t.prompt-1, 0)/size)])
	var ok bool
	t.held, s.gone, ok = s.pool.admit(t.keys, hit, t.blocks(size), t.held[:0], s.gone[:0], s.cfg.AnnounceCopies)
	if !ok {
		return false
	}
	s.emitEvicted(s.gone)
	loaded := hit
	for loaded < t.promptBlocks && s.host.has(t.keys[loaded]) {
		loaded++
	}
	t.done, t.computed = hit, min(loaded*size, t.prompt)
	s.stats.Admitted++
	s.stats.HitBlocks += uint64(hit)
	s.stats.LoadedBlocks += uint64(loaded - hit)
	s.stats.PromptBlocks += uint64(t.promptBlocks)
	if s.cfg.Recorder != nil {
		s.cfg.Recorder.Issue(t.request)
	}
	s.schedulePrefill(t)
	return true
}

func (s *scheduler) schedulePrefill(t *task) {
	start := max(s.now, s.busy)
	t.at = start + seconds(float64(s.chunk(t))/s.cfg.PrefillRate)
	s.busy = t.at
	s.push(t)
}

// chunk is the number of prompt tokens that the next prefill step computes.
func (s *scheduler) chunk(t *task) int {
	left := t.prompt - t.computed
	if s.cfg.PrefillChunk > 0 {
		left = min(left, s.cfg.PrefillChunk)
	}
	return left
}

func (s *scheduler) push(t *task) {
	s.order++
	t.order = s.order
	heap.Push(&s.running, t)
}

// advance does the next step of a running request.
func (s *scheduler) advance(t *task) {
	size := s.cfg.BlockSize
	if !t.prefilled {
		t.computed += s.chunk(t)
		s.commit(t, min(t.promptBlocks, s.prof.blocks(t.computed, size)), false)
		if t.computed < t.prompt {
			s.schedulePrefill(t)
			return
		}
		t.prefilled, t.decodeStart = true, s.now
	} else if t.done < len(t.keys) {
		upto := t.done + 1
		if s.prof.storeAtEnd {
			upto = len(t.keys)
		}
		s.commit(t, upto, true)
	} else {
		s.finish(t)
		return
	}
	// The next block fills with token number (done+1)*size, the pages of a bigram
	// model with one more; the request ends with its last token.
	generated := t.total - t.prompt
	if t.done < len(t.keys) && !s.prof.storeAtEnd {
		generated = (t.done+1)*size - t.prompt
		if s.prof.bigram {
			generated++
		}
	}
	t.at = max(s.now, t.decodeStart+seconds(float64(generated)/s.cfg.DecodeRate))
	s.push(t)
}

func (s *scheduler) finish(t *task) {
	s.pool.release(t.held)
	s.stats.Finished++
	s.stats.OutputTokens += uint64(t.total - t.prompt)
	s.admitWaiting()
	if len(s.running) == 0 && len(s.out.events) > 0 {
		s.out.due = min(s.out.due, s.stepAfter(s.now)) // an idle engine drains its queue
	}
}

// commit makes the complete blocks up to number upto visible.
func (s *scheduler) commit(t *task, upto int, decode bool) {
	from := t.done
	start := -1
	for i := from; i < upto; i++ {
		fresh := s.pool.commit(t.held[i], t.keys[i], t.engines[i])
		if fresh {
			s.host.deviceBack(t.keys[i])
		} else {
			s.stats.Duplicates++
		}
		if fresh || s.cfg.AnnounceCopies {
			if start < 0 {
				start = i
			}
			continue
		}
		if start >= 0 {
			s.emitStored(t, start, i, indexer.Device, decode)
			start = -1
		}
	}
	if start >= 0 {
		s.emitStored(t, start, upto, indexer.Device, decode)
	}
	t.done = max(t.done, upto)
	if s.cfg.HostCapacity > 0 {
		s.offload(t, from, upto, decode)
	}
}

// offload copies blocks to the host: what has to go there is removed first.
func (s *scheduler) offload(t *task, from, upto int, decode bool) {
	s.gone = s.gone[:0]
	var runs [][2]int
	for i := from; i < upto; i++ {
		old, any, ok := s.host.add(t.keys[i], t.engines[i])
		if any {
			s.gone = append(s.gone, old)
		}
		if !ok {
			continue
		}
		if k := len(runs) - 1; k >= 0 && runs[k][1] == i {
			runs[k][1]++
		} else {
			runs = append(runs, [2]int{i, i + 1})
		}
	}
	s.emitRemoved(s.gone, indexer.Host)
	for _, r := range runs {
		s.emitStored(t, r[0], r[1], indexer.Host, decode)
	}
}

// reset empties the caches. With requeue the running requests begin again, else
// they are lost together with those that wait, as the process is.
func (s *scheduler) reset(requeue bool) {
	again := make([]uint32, 0, len(s.running))
	for len(s.running) > 0 {
		again = append(again, uint32(heap.Pop(&s.running).(*task).request))
	}
	s.pool.reset(s.cfg.Capacity)
	s.host.reset()
	s.busy, s.head = s.now, nil
	if !requeue {
		s.stats.Aborted += uint64(len(again) + len(s.waiting))
		s.waiting, s.out = nil, outbox{}
		return
	}
	s.waiting = append(again, s.waiting...)
}

func seconds(f float64) time.Duration { return time.Duration(f * float64(time.Second)) }

// tasks is a heap by time.
type tasks []*task

func (h tasks) Len() int { return len(h) }
func (h tasks) Less(i, j int) bool {
	if h[i].at != h[j].at {
		return h[i].at < h[j].at
	}
	return h[i].order < h[j].order
}
func (h tasks) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *tasks) Push(x any)   { *h = append(*h, x.(*task)) }
func (h *tasks) Pop() any {
	old := *h
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return t
}
