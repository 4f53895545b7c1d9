package ingest

import (
	"sync/atomic"
	"time"
)

// lagBounds are the upper bounds of the buckets of a LagHistogram.
var lagBounds = [...]time.Duration{
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond,
	25 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond,
	500 * time.Millisecond, time.Second, 2500 * time.Millisecond, 5 * time.Second, 10 * time.Second, time.Minute,
}

// LagHistogram says how long batches took from the engine's clock to being applied in
// the index. Counts are not cumulative; the last bucket is everything above.
type LagHistogram struct {
	Bounds []time.Duration
	Counts []uint64
	Sum    time.Duration
	Skewed uint64 // batches whose engine's clock is ahead of ours: counted as 0
}

// lagMeter samples the time from publication to applied on one loop: a sample waits
// until the writer's applied count has reached its frames.
type lagMeter struct {
	pending []lagSample // touched only by the loop
	counts  [len(lagBounds) + 1]atomic.Uint64
	sum     atomic.Int64
	skewed  atomic.Uint64
}

type lagSample struct {
	mark uint64 // value of Written after its frames
	sent time.Time
}

const maxLagSamples = 256

// add begins a sample, unless enough are under way.
func (m *lagMeter) add(mark uint64, sent time.Time) {
	if len(m.pending) < maxLagSamples {
		m.pending = append(m.pending, lagSample{mark, sent})
	}
}

// settle ends the samples whose frames have been applied.
func (m *lagMeter) settle(applied uint64, now time.Time) {
	n := 0
	for n < len(m.pending) && m.pending[n].mark <= applied {
		m.observe(now.Sub(m.pending[n].sent))
		n++
	}
	m.pending = m.pending[:copy(m.pending, m.pending[n:])]
}

func (m *lagMeter) observe(d time.Duration) {
	if d < 0 {
		m.skewed.Add(1)
		d = 0
	}
	i := 0
	for i < len(lagBounds) && d > lagBounds[i] {
		i++
	}
	m.counts[i].Add(1)
	m.sum.Add(int64(d))
}

func (m *lagMeter) addTo(h *LagHistogram) {
	for i := range m.counts {
		h.Counts[i] += m.counts[i].Load()
	}
	h.Sum += time.Duration(m.sum.Load())
	h.Skewed += m.skewed.Load()
}

// acknowledged is the latest batch of a life that all owners have applied.
type acknowledged struct {
	has    bool
	seq    uint64
	behind bool // a batch came since next
	// next is the batch that is waited for, if there is one: mark is Written after it.
	waits      bool
	next, mark uint64
}

// tickAcknowledged looks how far the owners are.
func (sl *slot) tickAcknowledged() {
	a, l := &sl.acked, sl.src.loop
	if a.waits && l.w.Applied() >= a.mark {
		a.has, a.seq, a.waits = true, a.next, false
		sl.src.dirty = true
	}
	if !a.waits && a.behind && !sl.waiting {
		a.waits, a.behind, a.next, a.mark = true, false, sl.seq, l.w.Written()
	}
}
