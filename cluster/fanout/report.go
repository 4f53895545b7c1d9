package fanout

import (
	"context"
	"maps"
	"math/bits"
	"sync"
	"time"

	"github.com/kvcluster/kvcluster/cluster/state"
)

// reports are the jobs that wait for this node.
type reports struct {
	mu   sync.Mutex
	jobs map[uint64]*jobReport
}

func (r *reports) init() { r.jobs = map[uint64]*jobReport{} }

// jobReport is how far this node is with one job.
type jobReport struct {
	version uint64
	// waits is what the targets have to acknowledge, once all copies are open there; nil
	// = not yet.
	waits   []wait
	filled  bool
	sending bool
	retryAt time.Time
	backoff time.Duration
	meter   meter
}

// report tells the log of jobs whose targets have everything of this node: all copies
// are open, and all that had been sent when the last one was opened is acknowledged. So
// each has reached what was acknowledged without it (protocol, Resync step 4).
func (f *Fanout) report(ctx context.Context, wg *sync.WaitGroup, t *table, now time.Time) {
	if t.view == nil {
		return
	}
	f.reports.mu.Lock()
	defer f.reports.mu.Unlock()
	seen := map[uint64]bool{}
	waiting := false
	version := t.view.Versions[f.cfg.Name]
	for i := range t.view.Jobs {
		j := &t.view.Jobs[i]
		if !j.Waiting[f.cfg.Name] {
			continue
		}
		seen[j.ID] = true
		r := f.reports.jobs[j.ID]
		if r == nil {
			r = &jobReport{}
			f.reports.jobs[j.ID] = r
		}
		r.meter.update(f.filledFor(j.Boots), now)
		if r.version != version {
			r.version, r.filled, r.waits = version, false, nil
		}
		if r.sending || now.Before(r.retryAt) {
			continue
		}
		boots, ok := f.boots(t.view, j)
		if !ok {
			r.filled = false
			continue
		}
		if !f.openAt(t, j) {
			r.filled = false
			continue
		}
		if !r.filled {
			r.filled, r.waits = true, f.sentTo(j)
		}
		waiting = true
		if !f.cfg.broken.early && !reached(r.waits) {
			continue
		}
		r.sending = true
		out := state.Report{Job: j.ID, Node: f.cfg.Name, Version: version, Boots: boots}
		wg.Go(func() { f.sendReport(ctx, r, out) })
	}
	maps.DeleteFunc(f.reports.jobs, func(id uint64, r *jobReport) bool { return !seen[id] && !r.sending })
	f.reporting.Store(waiting)
}

// sendReport proposes one report. That it is applied shows in a view.
func (f *Fanout) sendReport(ctx context.Context, r *jobReport, out state.Report) {
	ctx, cancel := context.WithTimeout(ctx, f.cfg.CallTimeout)
	defer cancel()
	err := f.cfg.Report(ctx, out)
	f.reports.mu.Lock()
	defer f.reports.mu.Unlock()
	r.sending = false
	if err == nil {
		f.log.Info("layout change reported", "job", out.Job)
		r.backoff = 0
		r.retryAt = time.Now().Add(f.cfg.RetryMax)
		return
	}
	f.log.Info("report failed; it is tried again", "job", out.Job, "error", err)
	r.backoff = min(max(2*r.backoff, f.cfg.RetryMin), f.cfg.RetryMax)
	r.retryAt = time.Now().Add(r.backoff)
}

// boots are the processes that have been filled. ok is false as long as one is not
// the one that the job began with.
func (f *Fanout) boots(v *state.View, j *state.Job) (boots map[string]uint64, ok bool) {
	boots = map[string]uint64{}
	for name, want := range j.Boots {
		var boot uint64
		if name == f.cfg.Name {
			if boot = f.cfg.Boot; boot == 0 {
				m, _ := v.Member(name)
				boot = m.Boot
			}
		} else if s := f.peers.get(name).cur.Load(); s != nil {
			boot = s.id.ReceiverBoot
		}
		if boot != want {
			return nil, false
		}
		boots[name] = boot
	}
	return boots, true
}

// openAt reports whether all copies of this node's slots are open at the targets.
func (f *Fanout) openAt(t *table, j *state.Job) bool {
	targets := f.targetsOf(t, j)
	for _, s := range t.own {
		if _, open := s.openAt(targets); !open {
			return false
		}
	}
	return true
}

// target is what a peer is to get by a layout change.
type target struct {
	peer  *peer
	parts set
}

func (f *Fanout) targetsOf(t *table, j *state.Job) (out []target) {
	for name := range j.Boots {
		out = append(out, target{f.peers.get(name), newSet(t.partitions)})
	}
	for _, m := range j.Moves {
		for i := range out {
			if out[i].peer.name == m.To {
				out[i].parts.add(int(m.Partition))
			}
		}
	}
	return out
}

// openAt counts which of the slot's copies are open at targets, and reports whether all
// are. Lives that nothing is written to have none.
func (s *slot) openAt(targets []target) (n int, all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.fresh || s.gone || s.retired {
		return 0, true
	}
	all = true
	for _, t := range targets {
		c := s.live(t.peer)
		for i, w := range t.parts {
			if c != nil {
				n += bits.OnesCount64(w & c.open[i])
				w &^= c.open[i]
			}
			all = all && w == 0
		}
	}
	return n, all
}

// sentTo is what has been sent to the targets of a job until now.
func (f *Fanout) sentTo(j *state.Job) (out []wait) {
	for name := range j.Boots {
		if s := f.peers.get(name).cur.Load(); s != nil && name != f.cfg.Name {
			out = append(out, wait{s, s.last.Load()})
		}
	}
	return out
}

func reached(waits []wait) bool {
	for _, w := range waits {
		if w.s.broken.Load() || w.s.acked.Load() < w.n {
			return false
		}
	}
	return true
}
