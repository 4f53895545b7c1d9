package ingest

type lossKind uint8

const (
	// restarted: another engine run, or one that cannot be proved to be the same.
	restarted lossKind = iota
	// lost: provably the same run, but batches are missing for good.
	lost
	// refilled: nothing is wrong, but older batches can be had now than the stream began with.
	refilled
)

// rebase gives up the continuity of the stream: what its slots hold is not what the
// engine holds. They restart as new lives, or are flagged where the engine run is
// provably the same and the policy says so. next, if not 0, is the first batch of
// which the content is known again.
func (st *stream) rebase(kind lossKind, why string, next uint64) {
	s := st.src
	st.dropReplay()
	keep := kind == lost && s.loop.cfg.OnLoss == KeepOnLoss
	switch kind {
	case lost:
		s.n.Losses++
	case refilled:
		s.n.Refills++
	default:
		s.n.Restarts++
	}
	s.fail("%s", why)
	for _, sl := range s.sorted() {
		switch {
		case !st.feeds(sl):
		case keep:
			sl.degrade(why)
		case kind == lost:
			sl.n.Degraded++
			fallthrough
		default:
			sl.renew(why)
		}
	}
	switch kind {
	case restarted:
		st.floor = next
	case lost:
		st.floor = max(st.floor, next)
	case refilled:
		next = st.floor // or it would end at the same place again, for ever
	}
	st.joinFrom = next
	if keep && st.cur.set {
		st.joinFrom = max(next, st.cur.seq+1)
	}
	for next > 0 && st.held.len() > 0 && st.held.front().seq < next && !st.held.front().back {
		st.held.pop()
	}
	st.cur = cursor{}
	st.seen.reset()
	st.holeAt.set, st.need.set, st.short, st.rejoined, st.placed = false, false, false, false, false
	st.attempts = 0
	st.broken = false
	// A stream that breaks again and again must not have its engine's buffer sent each time.
	st.hurried = !st.noReplay && st.rebasedLately()
	st.noReplay = st.noReplay || st.hurried
	st.rebased = s.loop.tl.Now()
	if s.connected {
		st.join()
	}
}

func (st *stream) rebasedLately() bool {
	return !st.rebased.IsZero() && st.src.loop.tl.Now().Sub(st.rebased) < st.src.loop.cfg.RestartBackoff
}
