package search

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// counters count since New.
type counters struct {
	local, calls, served                    atomic.Uint64
	servedBehind, servedNotOwner, malformed atomic.Uint64
	hedges, hedgesWon, replans              atomic.Uint64
	timeouts, cancelled, down, notOwner     atomic.Uint64
	behind, bad, unreadable                 atomic.Uint64
	partialPartition, partialSlots          atomic.Uint64
	stale, refused, answers                 atomic.Uint64
	leaseAsked, leaseFailed                 atomic.Uint64
}

// failed counts a call without an answer.
func (c *counters) failed(err error) {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		c.timeouts.Add(1)
	case errors.Is(err, context.Canceled):
		c.cancelled.Add(1)
	default:
		c.down.Add(1)
	}
}

func (c *counters) answered(l *lacks, a Completeness) {
	c.answers.Add(1)
	if l.noOwner {
		c.partialPartition.Add(1)
	}
	if l.noSlot {
		c.partialSlots.Add(1)
	}
	if a.Stale {
		c.stale.Add(1)
	}
}

// Stats counts what a Search has done since New, and says how its lease stands.
type Stats struct {
	Requests uint64 // that were completed, on this node
	Local    uint64 // questions that this node's trees answered for its own requests
	Calls    uint64 // made to other owners
	Served   uint64 // calls of others
	Hedges   uint64 // second calls because a first one was slow
	// HedgesWon are those whose answer came first.
	HedgesWon uint64
	Replans   uint64 // times that an owner knew a later layout
	// Failed are calls without an answer that counts, by reason: timeout, cancelled (another
	// was faster, or the client left), error, not_owner, behind, malformed.
	Failed map[string]uint64
	// ServedFailed are calls of others that were not answered: behind, not_owner, malformed.
	ServedFailed map[string]uint64
	// Unreadable counts slots that an owner could not answer for.
	Unreadable uint64
	// Partial counts requests by what was missing: partition, slots.
	Partial map[string]uint64
	Stale   uint64 // requests answered without proof that the map is current
	Refused uint64 // of them, those that were refused
	// LeaseHeld: the map is proved to be current. MapAge is how old it may be.
	LeaseHeld   bool
	MapAge      time.Duration
	LeaseFailed uint64        // renewals that failed
	HedgeDelay  time.Duration // at the moment
}

// Stats returns counters. Safe to call at any time.
func (s *Search) Stats() Stats {
	c := &s.count
	return Stats{
		Requests: c.answers.Load(), Local: c.local.Load(), Calls: c.calls.Load(), Served: c.served.Load(),
		Hedges: c.hedges.Load(), HedgesWon: c.hedgesWon.Load(), Replans: c.replans.Load(),
		Failed: map[string]uint64{
			"timeout": c.timeouts.Load(), "cancelled": c.cancelled.Load(), "error": c.down.Load(), "not_owner": c.notOwner.Load(),
			"behind": c.behind.Load(), "malformed": c.bad.Load(),
		},
		ServedFailed: map[string]uint64{"behind": c.servedBehind.Load(), "not_owner": c.servedNotOwner.Load(), "malformed": c.malformed.Load()},
		Unreadable:   c.unreadable.Load(),
		Partial:      map[string]uint64{"partition": c.partialPartition.Load(), "slots": c.partialSlots.Load()},
		Stale:        c.stale.Load(), Refused: c.refused.Load(),
		LeaseHeld: s.lease.held(), MapAge: s.lease.age(), LeaseFailed: c.leaseFailed.Load(), HedgeDelay: s.pacer.delay(),
	}
}
