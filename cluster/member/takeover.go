package member

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kvcluster/kvcluster/cluster/copywire"
	"github.com/kvcluster/kvcluster/cluster/ingest"
	"github.com/kvcluster/kvcluster/cluster/ingest/translate"
	"github.com/kvcluster/kvcluster/cluster/owner"
	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/indexer"
)

const (
	// adoptTimeout bounds one takeover; ingest gives up after AdoptTimeout, which is longer.
	adoptTimeout = 20 * time.Second
	// askOwner bounds the call of one node: it answers when it has applied what it has
	// received, or it is as good as dead.
	askOwner = 2 * time.Second
	// adoptAtOnce is how many slots are taken over at the same time: each has the dump of a
	// slot in memory.
	adoptAtOnce = 4
)

// takeover implements ingest.Takeover (rules T1, T2): fence, compare, dump, go on.
type takeover struct {
	m    *Member
	room chan struct{} // of adoptAtOnce
}

// Adopt implements ingest.Takeover.
func (t *takeover) Adopt(group indexer.GroupID, slot indexer.Slot, life, tenure uint64, done func(ingest.Inheritance, error)) {
	t.m.pending.Go(func() {
		ctx, cancel := context.WithTimeout(t.m.life, adoptTimeout)
		defer cancel()
		l := copywire.SlotLife{Group: group, Slot: slot, Life: life}
		for {
			in, err := t.once(ctx, l, tenure)
			if !errors.Is(err, errAbsent) || !t.m.wait(ctx, askAgain) {
				done(in, err)
				return
			}
		}
	})
}

// errAbsent: owners that may have more of a slot do not answer, and may only not have
// started yet.
var errAbsent = errors.New("owners cannot be reached")

const (
	// When all nodes of a cluster are started, this one may be the first. Until absentWait
	// after its start it waits for all owners, since one of them may be further; until
	// lostWait for those without whom a part of the slot is nowhere. askAgain is how often
	// it looks.
	absentWait = 4 * time.Second
	lostWait   = 15 * time.Second
	askAgain   = 200 * time.Millisecond
)

// wait reports that the time is over, and not ctx.
func (m *Member) wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (t *takeover) once(ctx context.Context, l copywire.SlotLife, tenure uint64) (ingest.Inheritance, error) {
	select {
	case t.room <- struct{}{}:
		defer func() { <-t.room }()
	case <-ctx.Done():
		return ingest.Inheritance{}, ctx.Err()
	}
	return t.adopt(ctx, l, tenure)
}

func (t *takeover) adopt(ctx context.Context, l copywire.SlotLife, tenure uint64) (in ingest.Inheritance, err error) {
	found, err := t.fence(ctx, l, tenure)
	if err != nil {
		return in, err
	}
	best, err := t.choose(found)
	if err != nil {
		return in, err
	}
	if in.Parts, err = t.dump(ctx, l, found, best); err != nil {
		return in, err
	}
	have := map[string][]copywire.Label{}
	at := make([]uint64, len(best))
	for name := range found {
		have[name] = nil // fenced off, whatever it has
	}
	for p, b := range best {
		at[p] = b.label.Sequence
		for name, f := range found {
			if x, ok := f.copies[indexer.PartitionID(p)]; ok && x.Tenure == b.label.Tenure && x.Sequence == b.label.Sequence {
				have[name] = append(have[name], x)
			}
		}
	}
	t.awaitSessions(ctx, have)
	if err := t.m.fanout.Adopt(l, tenure, have, at); err != nil {
		return in, err
	}
	for p := range best {
		in.Parts[p].Cursor = at[p]
	}
	// Copies with equal labels are equal (invariant I2), so what the cursor of one node says
	// of its copy holds for the others too.
	for name, equal := range have {
		c := found[name].cursor
		if c.Life != l.Life {
			continue
		}
		for _, x := range equal {
			part := &in.Parts[x.Partition]
			part.Cursor = max(part.Cursor, c.Sequence)
		}
		in.Cursors = append(in.Cursors, ingest.Cursor{Group: c.Group, Slot: c.Slot, Life: c.Life, Tenure: c.Tenure, Sequence: c.Sequence, Digest: c.Digest})
	}
	t.retell(l, tenure, in)
	return in, nil
}

// retell tells the owners from where the slot goes on. Those that are filled have no
// cursor of their own or one that does not hold any more; without this they would have
// none until the engine has proved itself, and another restart before that would cost
// the content.
func (t *takeover) retell(l copywire.SlotLife, tenure uint64, in ingest.Inheritance) {
	if len(in.Cursors) == 0 {
		return
	}
	low := slices.MinFunc(in.Cursors, func(a, b ingest.Cursor) int { return cmp.Compare(a.Sequence, b.Sequence) })
	for _, p := range in.Parts {
		if p.Cursor < low.Sequence {
			return // it does not hold for this one; the slot starts over
		}
	}
	t.m.fanout.AppendCursor(copywire.Cursor{SlotLife: l, Tenure: tenure, Sequence: low.Sequence, Digest: low.Digest})
}

// labels are what one node has of a slot.
type labels struct {
	cursor copywire.Cursor
	copies map[indexer.PartitionID]copywire.Label
}

// fence asks every node that may have something of the slot, and is alive, to take
// nothing of older tenures any more, and what it has.
func (t *takeover) fence(ctx context.Context, l copywire.SlotLife, tenure uint64) (map[string]labels, error) {
	m := t.m
	found := map[string]labels{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	var refused error
	v := m.control.View()
	for _, x := range v.Members {
		if x.Name != m.cfg.Self.Name && !m.alive(x.Name) {
			continue
		}
		wg.Go(func() {
			cctx, cancel := context.WithTimeout(ctx, askOwner)
			defer cancel()
			var got copywire.Labels
			var err error
			if x.Name == m.cfg.Self.Name {
				got, err = m.owner.Adopt(cctx, l, tenure)
			} else {
				var raw []byte
				if raw, err = m.hub.Call(cctx, x.Name, copywire.MethodAdopt, copywire.AdoptRequest{SlotLife: l, Tenure: tenure}.Append(nil)); err == nil {
					got, err = copywire.DecodeLabels(raw)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			switch {
			case errors.Is(err, owner.ErrTenure), errors.Is(err, owner.ErrLife):
				refused = err
			case err != nil:
				m.log.Warn("an owner cannot be asked what it has of a slot", "owner", x.Name, "slot", l, "error", err)
			default:
				f := labels{got.Cursor, map[indexer.PartitionID]copywire.Label{}}
				for _, c := range got.Copies {
					// What is left at a former owner has nothing of the batches since, although its
					// node's cursor says so.
					if ownerIn(v, c.Partition, x.Name) {
						f.copies[c.Partition] = c
					}
				}
				found[x.Name] = f
			}
		})
	}
	wg.Wait()
	if refused != nil {
		return nil, refused
	}
	return found, nil
}

// ownerIn reports whether the log calls a node an owner of a partition, whatever process it
// is. Targets of changes are none: they may have something left from before.
func ownerIn(v *state.View, p indexer.PartitionID, name string) bool {
	return int(p) < len(v.Owners) && slices.ContainsFunc(v.Owners[p], func(o state.Owner) bool { return o.Name == name })
}

// best is the copy that a partition is continued from.
type best struct {
	node  string
	label copywire.Label
}

// choose takes, for every partition, the copy with the highest label. Whether the log
// calls its owner ready does not matter: a label is only given to a copy that is whole up
// to it, and after a restart of all nodes nobody is ready.
func (t *takeover) choose(found map[string]labels) ([]best, error) {
	v := t.m.control.View()
	out := make([]best, len(v.Owners))
	young := time.Since(t.m.began)
	for _, owners := range v.Owners {
		for _, o := range owners {
			if _, ok := found[o.Name]; !ok && young < absentWait {
				return nil, fmt.Errorf("%w: %s", errAbsent, o.Name)
			}
		}
	}
	names := make([]string, 0, len(found))
	for name := range found {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { // this node first: its dump costs no call
		switch self := t.m.cfg.Self.Name; {
		case a == self && b != self:
			return -1
		case b == self && a != self:
			return 1
		case a < b:
			return -1
		}
		return 1
	})
	for p := range out {
		for _, name := range names {
			x, ok := found[name].copies[indexer.PartitionID(p)]
			if !ok {
				continue
			}
			if b := &out[p]; b.node == "" || x.Tenure > b.label.Tenure || x.Tenure == b.label.Tenure && x.Sequence > b.label.Sequence {
				*b = best{name, x}
			}
		}
		if out[p].node == "" && young < lostWait && missing(v.Owners[p], found) {
			return nil, fmt.Errorf("%w: partition %d", errAbsent, p)
		}
		if out[p].node == "" {
			return nil, fmt.Errorf("no complete copy of partition %d can be reached", p)
		}
	}
	return out, nil
}

// missing reports that some owner has not said what it has.
func missing(owners []state.Owner, found map[string]labels) bool {
	return slices.ContainsFunc(owners, func(o state.Owner) bool {
		_, ok := found[o.Name]
		return !ok
	})
}

// dump gets the content of the chosen copies.
func (t *takeover) dump(ctx context.Context, l copywire.SlotLife, found map[string]labels, chosen []best) ([]translate.Inherited, error) {
	m := t.m
	byNode := map[string][]indexer.PartitionID{}
	for p, b := range chosen {
		byNode[b.node] = append(byNode[b.node], indexer.PartitionID(p))
	}
	out := make([]translate.Inherited, len(chosen))
	for name, parts := range byNode {
		var copies []copywire.Copy
		var err error
		if name == m.cfg.Self.Name {
			var raw []byte
			if raw, err = m.owner.Peek(ctx, l, parts); err == nil {
				copies, err = copywire.DecodeCopies(raw)
			}
		} else {
			call := func(ctx context.Context, method string, req []byte) ([]byte, error) {
				return m.hub.Call(ctx, name, method, req)
			}
			copies, err = copywire.Peek(ctx, call, copywire.PeekRequest{SlotLife: l, Partitions: parts}, maxDump)
		}
		if err != nil {
			return nil, fmt.Errorf("dump at %s: %w", name, err)
		}
		have := 0
		for _, c := range copies {
			if int(c.Partition) >= len(chosen) || chosen[c.Partition].node != name {
				continue
			}
			if b := chosen[c.Partition]; !c.Open || c.Tenure != b.label.Tenure || c.Sequence != b.label.Sequence {
				return nil, fmt.Errorf("the copy of partition %d at %s has changed", c.Partition, name)
			}
			out[c.Partition] = translate.Inherited{Partition: c.Partition, Stretches: c.Stretches}
			have++
		}
		if have != len(parts) {
			return nil, fmt.Errorf("%s gave %d of %d partitions", name, have, len(parts))
		}
	}
	return out, nil
}

// awaitSessions waits a little until something can be sent to those who have copies: a
// process that has just started may not have reached them yet.
func (t *takeover) awaitSessions(ctx context.Context, have map[string][]copywire.Label) {
	const patience, look = 3 * time.Second, 20 * time.Millisecond
	for end := time.Now().Add(patience); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(look) {
		up := true
		for name := range have {
			up = up && t.m.fanout.Up(name)
		}
		if up {
			return
		}
	}
}

// fences returns what fences off the earlier tenures of every source that gets another
// reader in the middle of a life (rule L3: by the log too, not only by what the new reader
// sends). That one may be cut off from this node, and then goes on without it.
func (m *Member) fences() func(*state.View) {
	tenures := map[uint64]uint64{}
	return func(v *state.View) {
		for _, s := range v.Catalog.Sources() {
			a := v.Assignments[s.ID]
			if tenures[s.ID] == a.Tenure {
				continue
			}
			tenures[s.ID] = a.Tenure
			for _, r := range s.Ranks {
				if r.Life < a.Tenure {
					m.owner.Fence(copywire.SlotLife{Group: indexer.GroupID(s.Group.ID), Slot: indexer.Slot(r.Slot), Life: r.Life}, a.Tenure)
				}
			}
		}
	}
}
