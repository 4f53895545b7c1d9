package sim

import (
	"testing/synctest"
	"time"
)

// Counts is what happened in a schedule.
type Counts struct {
	Steps                 map[string]int
	Batches, Acknowledged int
	Lives                 int // new ones of engines that had one
	Asked, None           int64
	Partial, Stale        int64
	PartialLate           int64 // of Partial: asked when something of every engine was acknowledged
	Judged, Moving, Rows  int64
	Full                  int64 // scores with a lower bound above 0
	Jobs, Takeovers       int   // layout changes, and readers that changed
	Virtual               time.Duration
}

// Add adds up what happened in several schedules.
func (c *Counts) Add(o Counts) {
	if c.Steps == nil {
		c.Steps = map[string]int{}
	}
	for k, n := range o.Steps {
		c.Steps[k] += n
	}
	c.Batches += o.Batches
	c.Acknowledged += o.Acknowledged
	c.Lives += o.Lives
	c.Jobs += o.Jobs
	c.Takeovers += o.Takeovers
	c.Asked += o.Asked
	c.None += o.None
	c.Partial += o.Partial
	c.PartialLate += o.PartialLate
	c.Stale += o.Stale
	c.Judged += o.Judged
	c.Moving += o.Moving
	c.Rows += o.Rows
	c.Full += o.Full
	c.Virtual += o.Virtual
}

// Report is the outcome of a schedule.
type Report struct {
	Failures []string
	Lines    []string // the schedule as it was carried out
	Counts   Counts
}

// Run carries a schedule out. It must be called in a testing/synctest bubble.
func Run(cfg Config, steps []Step) Report {
	w := newWorld(cfg)
	w.counts.Steps = map[string]int{}
	w.begin()
	for i := range steps {
		if w.failed() {
			break
		}
		w.do(&steps[i])
	}
	if !w.failed() {
		w.finish()
	}
	w.end()
	synctest.Wait()
	t := &w.tally
	w.counts.Asked, w.counts.None, w.counts.Partial, w.counts.PartialLate, w.counts.Stale = t.asked.Load(), t.none.Load(), t.partial.Load(), t.late.Load(), t.stale.Load()
	w.counts.Judged, w.counts.Moving, w.counts.Rows, w.counts.Full = t.judged.Load(), t.moving.Load(), t.rows.Load(), t.full.Load()
	w.counts.Virtual = time.Since(w.began)
	w.mu.Lock()
	defer w.mu.Unlock()
	return Report{Failures: w.mu.failures, Lines: w.mu.lines, Counts: w.counts}
}
