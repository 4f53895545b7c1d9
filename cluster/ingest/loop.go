package ingest

import (
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/kvcluster/kvcluster/cluster/ingest/translate"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/shard/catalog"
	"github.com/kvcluster/kvcluster/transport"
)

// loop is one goroutine with its sockets, its writer and its sources. Its fields and all
// that hangs below them are touched only by functions that run on the loop.
type loop struct {
	m       *Manager
	cfg     *Config
	index   int
	tl      transport.Loop
	w       indexer.Writer
	dec     Decoder
	log     *slog.Logger
	rnd     *rand.Rand
	sources map[uint64]*source
	bound   map[string]*bound
	purges  []*purge
	buffers budget
	lag     lagMeter
	lagTick bool
	// writeErr is the writer's first error: the index is closed or broken.
	writeErr error
	emitFn   func(indexer.Frame) error // bound once: no closure per batch
	trimmed  time.Time                 // latest Trim of the translators' memory, by loop 0
	scratch  scratch
	shared   *translate.Scratch // of the loop's translators: batches of one loop never overlap
}

// purge is a retired slot whose last frames have been written.
type purge struct {
	slot    catalog.Retired
	mark    uint64    // Written after its clear
	asked   bool      // Log.Purged is under way
	at      time.Time // not before
	backoff time.Duration
	done    bool
}

// Pages that growing tables have left free go back to the system every trimEvery, a
// bounded number of slabs (2 MiB each) at a time so that no batch waits for long.
const (
	trimEvery = 10 * time.Second
	trimSlabs = 64
)

func (l *loop) start() { l.tick() }

// tick drives all time-outs. There is one timer for each loop, not for each source.
func (l *loop) tick() {
	now := l.tl.Now()
	for _, s := range l.sources {
		s.tick(now)
	}
	l.settlePurges(now)
	l.lag.settle(l.w.Applied(), now)
	if l.index == 0 && now.Sub(l.trimmed) >= trimEvery {
		l.trimmed = now
		l.m.memory.Trim(trimSlabs)
	}
	l.tl.AfterFunc(l.cfg.Tick, l.tick)
}

func (l *loop) emit(f indexer.Frame) error { return l.w.Write(f) }

// wrote notes the writer's error. Frames are never dropped silently: the loop's
// sources are shown as failed from then on.
func (l *loop) wrote(err error) {
	if err != nil && l.writeErr == nil {
		l.writeErr = err
		l.log.Error("writing frames failed", "loop", l.index, "error", err)
	}
}

// sampleLag begins a sample for a batch whose frames have just been written.
func (l *loop) sampleLag(sent time.Time) {
	l.lag.add(l.w.Written(), sent)
	if !l.lagTick {
		l.lagTick = true
		l.tl.AfterFunc(time.Millisecond, l.settleLag)
	}
}

func (l *loop) settleLag() {
	l.lag.settle(l.w.Applied(), l.tl.Now())
	if l.lagTick = len(l.lag.pending) > 0; l.lagTick {
		l.tl.AfterFunc(2*time.Millisecond, l.settleLag)
	}
}

// retire remembers a slot whose clear has been written: it is reported when applied.
func (l *loop) retire(r catalog.Retired) {
	l.purges = append(l.purges, &purge{slot: r, mark: l.w.Written(), backoff: l.cfg.RetryMin})
	l.settlePurges(l.tl.Now())
}

func (l *loop) settlePurges(now time.Time) {
	if len(l.purges) == 0 {
		return
	}
	applied := l.w.Applied()
	for _, p := range l.purges {
		if p.asked || p.done || p.mark > applied || now.Before(p.at) {
			continue
		}
		p.asked = true
		l.m.deps.Log.Purged(p.slot, func(err error) {
			l.tl.Post(func() {
				p.asked, p.done = false, err == nil
				if err == nil {
					l.m.reported(p.slot)
				} else {
					p.at = l.tl.Now().Add(p.backoff)
					p.backoff = min(2*p.backoff, l.cfg.RetryMax)
				}
			})
		})
	}
	l.purges = slices.DeleteFunc(l.purges, func(p *purge) bool { return p.done })
}

// jitter spreads d by a quarter to both sides.
func (l *loop) jitter(d time.Duration) time.Duration {
	return d - d/4 + time.Duration(l.rnd.Int64N(int64(d/2)+1))
}
