package fanout

import (
	"time"
)

// PeerStats is what has been sent to one peer since the start. The peer that has this
// node's name stands for the fills of its own copies.
type PeerStats struct {
	Up           bool
	Sessions     uint64
	Frames       uint64 // of batches
	Blocks       uint64 // that stores in them have: Bytes/Blocks is the cost of a block on the wire
	Bytes        uint64 // of frames, without what the link adds
	ControlBytes uint64 // of all else but fills
	FillFrames   uint64
	FillBytes    uint64
	Fills        uint64 // done: one slot, some partitions
	FailedFills  uint64
	SendErrors   uint64
	// Unacked is how many payloads of the present session have not been acknowledged.
	Unacked uint64
}

// Stats is a snapshot of the counters.
type Stats struct {
	Peers map[string]PeerStats
	Slots int
	// Open and Missing count (slot, partition) copies at all receivers.
	Open, Missing uint64
	HeldBytes     int64  // frames that wait for fills
	Strayed       uint64 // frames of slots that this node does not write
	Renewals      uint64 // requests for new lives
	Refills       uint64 // copies that receivers had to close
	ClosedSources uint64 // fills whose source had closed its copy
	Overflows     uint64 // fills that held too many frames
}

// Stats may be called at any time.
func (f *Fanout) Stats() Stats {
	t := f.table.Load()
	st := Stats{
		Peers: map[string]PeerStats{}, Slots: len(t.own), HeldBytes: f.heldBytes.Load(),
		Strayed: f.count.strayed.Load(), Renewals: f.count.renewals.Load(), Refills: f.count.refills.Load(),
		ClosedSources: f.count.closedSources.Load(), Overflows: f.count.overflows.Load(),
	}
	f.writers.mu.Lock()
	writers := f.writers.all
	f.writers.mu.Unlock()
	for _, p := range f.peers.all() {
		c := &p.count
		ps := PeerStats{
			Up: p.up(), Sessions: c.session.Load(), Frames: c.sent.frames.Load(), Blocks: c.sent.blocks.Load(), Bytes: c.sent.bytes.Load(),
			ControlBytes: c.control.Load(), FillFrames: c.fillFrames.Load(), FillBytes: c.filled.Load(),
			Fills: c.fills.Load(), FailedFills: c.failed.Load(), SendErrors: c.sendErrors.Load(),
		}
		for _, w := range writers {
			if p.index < len(w.counts) {
				ps.Frames += w.counts[p.index].frames.Load()
				ps.Blocks += w.counts[p.index].blocks.Load()
				ps.Bytes += w.counts[p.index].bytes.Load()
			}
		}
		if s := p.cur.Load(); s != nil {
			acked := s.acked.Load()
			ps.Unacked = max(s.last.Load(), acked) - acked
		}
		st.Peers[p.name] = ps
	}
	for _, s := range t.own {
		s.mu.Lock()
		for _, p := range f.peers.all() {
			want := t.want(p)
			if want.empty() {
				continue
			}
			n := uint64(want.count())
			if c := s.live(p); c != nil {
				have := c.open.clone()
				have.and(want)
				st.Open += uint64(have.count())
				n -= uint64(have.count())
			}
			st.Missing += n
		}
		s.mu.Unlock()
	}
	return st
}

// Progress is how far this node is with the copies of one layout change.
type Progress struct {
	Job    uint64
	Copies int // (slot, partition) pairs to be open at targets
	Open   int // of them
	// Bytes is what fills have sent to the targets since this node knows the change, and
	// Rate what they sent lately, in bytes a second; both may have parts for others.
	Bytes, Rate uint64
	Reported    bool
}

// meter remembers how far fills to the targets of a job had come.
type meter struct {
	first, last uint64
	at          time.Time
	rate        float64
}

// meterEvery is how often the rate of a job is measured.
const meterEvery = time.Second

func (m *meter) update(bytes uint64, now time.Time) {
	if m.at.IsZero() {
		*m = meter{bytes, bytes, now, 0}
		return
	}
	if d := now.Sub(m.at); d >= meterEvery {
		m.rate = float64(bytes-m.last) / d.Seconds()
		m.last, m.at = bytes, now
	}
}

// Progress returns the state of all layout changes that the log has, as far as this
// node is concerned.
func (f *Fanout) Progress() (out []Progress) {
	t := f.table.Load()
	if t.view == nil {
		return nil
	}
	now := time.Now()
	for i := range t.view.Jobs {
		j := &t.view.Jobs[i]
		p := Progress{Job: j.ID, Reported: !j.Waiting[f.cfg.Name]}
		targets := f.targetsOf(t, j)
		for _, s := range t.own {
			if !s.fresh {
				continue
			}
			for _, to := range targets {
				p.Copies += to.parts.count()
			}
			n, _ := s.openAt(targets)
			p.Open += n
		}
		bytes := f.filledFor(j.Boots)
		f.reports.mu.Lock()
		if r := f.reports.jobs[j.ID]; r != nil {
			r.meter.update(bytes, now)
			p.Bytes, p.Rate = bytes-r.meter.first, uint64(r.meter.rate)
		}
		f.reports.mu.Unlock()
		out = append(out, p)
	}
	return out
}

func (f *Fanout) filledFor(targets map[string]uint64) (n uint64) {
	for name := range targets {
		n += f.peers.get(name).count.filled.Load()
	}
	return n
}
