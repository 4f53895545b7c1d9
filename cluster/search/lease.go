package search

import (
	"context"
	"sync/atomic"
	"time"
)

// lease is the proof that the applied log is recent (rule Q3).
type lease struct {
	start  time.Time
	tserve time.Duration
	off    bool // for tests: any map counts as current
	// proved is when the last question was sent whose index is applied, since start;
	// 0 = there was none.
	proved atomic.Int64
}

func newLease(tserve time.Duration, off bool) *lease {
	return &lease{start: time.Now().Add(-1), tserve: tserve, off: off} // so that a moment never is 0
}

func (l *lease) now() time.Duration { return time.Since(l.start) }

// held reports whether the applied log is proved to be at most tserve old. Asked after
// the trees were read.
func (l *lease) held() bool {
	at := l.proved.Load()
	return l.off || at != 0 && l.now() <= time.Duration(at)+l.tserve
}

// age is how old the map may be; without any proof, the time since the start.
func (l *lease) age() time.Duration { return l.now() - time.Duration(l.proved.Load()) }

// keepLease asks the leader again and again. It warns once when the lease is lost, and
// says when it is back.
func (s *Search) keepLease(ctx context.Context) {
	l := s.lease
	warned := false
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		sent := l.now()
		err := s.proveLease(ctx, sent)
		switch held := l.held(); {
		case err == nil && warned:
			s.log.Info("map is proved to be current again")
			warned = false
		case err != nil && !held && !warned && ctx.Err() == nil:
			s.log.Warn("cannot prove that the map is current: answers are stale", "age", l.age(), "error", err)
			warned = true
		}
		// After a failure sooner: an election must not cost the lease.
		wait := l.tserve / 4
		if err != nil {
			wait = l.tserve / 20
		}
		timer.Reset(max(wait-(l.now()-sent), l.tserve/100))
	}
}

// proveLease asks once. A question that hangs is given up, so that the next can be asked
// while the lease still holds.
func (s *Search) proveLease(ctx context.Context, sent time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.TServe/4)
	defer cancel()
	s.count.leaseAsked.Add(1)
	index, err := s.deps.ReadIndex(ctx)
	if err == nil {
		err = s.deps.WaitApplied(ctx, index)
	}
	if err != nil {
		s.count.leaseFailed.Add(1)
		return err
	}
	s.lease.proved.Store(int64(sent))
	return nil
}
