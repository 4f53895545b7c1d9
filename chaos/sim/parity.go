package sim

import (
	"context"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/kvcluster/kvcluster/chaos/model"
	"github.com/kvcluster/kvcluster/cluster/ingest"
	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/indexer"
)

// quietFor is how long a cluster without faults may take until all is in order: a grace
// period, the copies made after it, the linger of old owners, and a lot more.
const quietFor = 90 * time.Second

// finish ends all faults and checks that everything comes to rest, and how.
func (w *world) finish() {
	w.logf("all faults end")
	w.net.heal()
	for _, n := range w.nodes {
		w.net.pause(n.name, time.Time{})
		n.disk.SetSyncDelay(0)
	}
	for _, e := range w.engines {
		w.thaw(e)
	}
	w.changed()
	w.revive()
	for _, e := range w.engines {
		e.random(w.rng)
		e.addMarkers()
		e.send()
	}
	problem := w.awaitAll(quietFor, func() string {
		w.revive()
		w.enrol()
		if problem := w.unrest(); problem != "" {
			return problem
		}
		return w.lastAnswers()
	})
	if problem != "" {
		w.fail("%v after all faults ended: %s", quietFor, problem)
		w.logf("streams:%s", w.streams())
		w.logf("logs:%s", w.logs())
	}
	w.asks.Wait()
}

// revive starts the nodes that are down.
func (w *world) revive() {
	for _, n := range w.nodes {
		if n.process != nil && n.gone && !n.left {
			w.restart(n)
		}
	}
}

// enrol registers engines whose registration did not come through.
func (w *world) enrol() {
	v := w.view()
	if v == nil || len(w.up()) == 0 {
		return
	}
	for _, e := range w.engines {
		if _, _, ok := lifeIn(v, e.id); !ok && time.Since(e.enrolled) > 5*time.Second {
			e.enrolled = time.Now()
			w.register(e)
		}
	}
}

// unrest says what is not in order, or "".
func (w *world) unrest() string {
	v := w.view()
	if v == nil {
		return "nobody has a view"
	}
	if n := w.orders.Load(); n > 0 {
		return fmt.Sprintf("%d commands are under way", n)
	}
	if s := w.unsettled(v); s != "" {
		return s
	}
	var problems []string
	for _, e := range w.engines {
		if s := w.unread(v, e); s != "" {
			problems = append(problems, s)
		}
	}
	if s := w.disparity(v); s != "" {
		problems = append(problems, s)
	}
	return strings.Join(problems, "; ")
}

// unsettled looks at members, layout and log.
func (w *world) unsettled(v *state.View) string {
	var names []string
	for _, n := range w.nodes {
		if n.left {
			continue
		}
		if !n.up() {
			return fmt.Sprintf("%s is not up", n.name)
		}
		names = append(names, n.name)
	}
	slices.Sort(names)
	if got := settled(v); !slices.Equal(got, names) {
		return fmt.Sprintf("members are %v, running are %v", got, names)
	}
	for _, n := range w.up() {
		if s := n.member.Search().Stats(); !s.LeaseHeld {
			return fmt.Sprintf("%s cannot prove that its map is current, it is %v old", n.name, s.MapAge)
		}
		if own := n.member.Node().View(); own.Index != v.Index {
			return fmt.Sprintf("%s has applied the log to %d, others to %d", n.name, own.Index, v.Index)
		}
	}
	if len(v.Jobs) > 0 {
		return fmt.Sprintf("layout changes go on: %+v", v.Jobs)
	}
	for p, owners := range v.Owners {
		if want := min(w.cfg.Replicas, len(names)); len(owners) != want {
			return fmt.Sprintf("partition %d has owners %v, want %d", p, owners, want)
		}
		for _, o := range owners {
			if !v.Ready(uint32(p), o.Name) {
				return fmt.Sprintf("partition %d: %s is not ready", p, o.Name)
			}
		}
	}
	for name, list := range v.ToPurge {
		if len(list) > 0 {
			return fmt.Sprintf("%s has not purged %v", name, list)
		}
	}
	return ""
}

// unread looks at the source of an engine and the copies of its slot.
func (w *world) unread(v *state.View, e *engine) string {
	slot, id, ok := lifeIn(v, e.id)
	if !ok {
		return fmt.Sprintf("engine %s has no slot", e.id)
	}
	l := life{slot: slot, id: id}
	for _, s := range v.Catalog.Sources() {
		if s.Instance != e.id {
			continue
		}
		at := v.Assignments[s.ID].Node
		i := slices.IndexFunc(w.nodes, func(n *node) bool { return n.name == at && n.up() })
		if i < 0 {
			return fmt.Sprintf("engine %s is read by %q, which is not up", e.id, at)
		}
		if text := e.readBy(w.nodes[i]); text != "" {
			return fmt.Sprintf("engine %s, read by %s: %s", e.id, at, text)
		}
	}
	for p, owners := range v.Owners {
		for _, o := range owners {
			for _, n := range w.up() {
				if n.name == o.Name && n.unreadable(v, l, uint32(p)) {
					return fmt.Sprintf("%s cannot read %v (engine %s) in partition %d", n.name, l, e.id, p)
				}
			}
		}
	}
	if e.mark != nil {
		return fmt.Sprintf("the last batch of engine %s, %d, is not seen everywhere", e.id, e.seq-1)
	}
	return ""
}

// readBy looks at the stream at its reader.
func (e *engine) readBy(n *node) string {
	r, _, err := n.member.Node().Ingest().RankStatus(e.id, 0)
	switch {
	case err != nil:
		return err.Error()
	case r.State != ingest.Active:
		return fmt.Sprintf("its stream is %v (%s)", r.State, r.LastError)
	case r.HasSequence && r.Sequence != e.seq-1: // without one it has inherited all
		return fmt.Sprintf("batch %d is its last, not %d", r.Sequence, e.seq-1)
	}
	return ""
}

// copyOf is what a node holds of a slot in a partition, by engine hash.
func (n *node) copyOf(slot uint32, p uint32) (map[uint64]model.Claim, error) {
	out := map[uint64]model.Claim{}
	err := n.index.Dump(context.Background(), firstGroup, indexer.PartitionID(p), indexer.Slot(slot), func(s indexer.Stretch) error {
		path := slices.Clone(s.Path)
		for i, h := range s.Engines {
			path = append(path, s.Locals[i])
			out[h] = model.Claim{Engine: h, Path: slices.Clone(path), Tiers: uint8(s.Tiers) | out[h].Tiers}
		}
		return nil
	})
	return out, err
}

// disparity compares what every node holds with the model.
func (w *world) disparity(v *state.View) string {
	var wrong []string
	total := map[string]uint64{} // blocks that a node must hold, in all tiers
	for _, e := range w.engines {
		slot, _, _ := lifeIn(v, e.id)
		want := make([]map[uint64]model.Claim, w.cfg.Partitions)
		covered := make([]uint64, w.cfg.Partitions)
		for p := range want {
			want[p] = map[uint64]model.Claim{}
		}
		for _, c := range e.said.Claims(e.id) {
			p := w.layout.Partition(firstGroup, c.Path[0], slot)
			want[p][c.Engine] = c
			for t := c.Tiers; t > 0; t &= t - 1 {
				covered[p]++
			}
		}
		for p, owners := range v.Owners {
			for _, o := range owners {
				n := w.up()[slices.IndexFunc(w.up(), func(n *node) bool { return n.name == o.Name })]
				total[o.Name] += covered[p]
				got, err := n.copyOf(slot, uint32(p))
				if err != nil {
					return fmt.Sprintf("dump at %s: %v", n.name, err)
				}
				if d := difference(want[p], got); d != "" {
					wrong = append(wrong, fmt.Sprintf("copy of engine %s (slot %d) in partition %d at %s (of %v): %s", e.id, slot, p, n.name, owners, d))
				}
			}
		}
	}
	if len(wrong) > 0 {
		return strings.Join(wrong[:min(len(wrong), maxFailures)], "; ")
	}
	for _, n := range w.up() {
		holds := uint64(0)
		for _, h := range n.index.Stats().Held {
			holds += h
		}
		left, text := w.leftovers(v, n)
		if holds != total[n.name]+left {
			return fmt.Sprintf("%s holds %d blocks, of what it owns there are %d%s", n.name, holds, total[n.name], text)
		}
	}
	return ""
}

// leftovers says what a node holds of partitions that it does not own, and how many blocks
// of it are of slots whose reader changed in the middle of a life: the new one does not
// know what the old one was about to have freed, so that stays until the life ends.
func (w *world) leftovers(v *state.View, n *node) (excused uint64, text string) {
	var b strings.Builder
	for _, e := range w.engines {
		slot, id, _ := lifeIn(v, e.id)
		inherited := false
		for _, s := range v.Catalog.Sources() {
			inherited = inherited || s.Instance == e.id && v.Assignments[s.ID].Tenure > id
		}
		for p := range w.cfg.Partitions {
			got, err := n.copyOf(slot, p)
			if err != nil || len(got) == 0 || v.Ready(p, n.name) {
				continue
			}
			fmt.Fprintf(&b, "; %d blocks of engine %s in partition %d, owned by %v", len(got), e.id, p, v.Owners[p])
			for _, c := range got {
				if inherited {
					excused += uint64(bits.OnesCount8(c.Tiers))
				}
			}
		}
	}
	// Slots that no engine has: lives that are over.
	for slot := range uint32(maxSlotSeen) {
		if slices.ContainsFunc(w.engines, func(e *engine) bool { s, _, _ := lifeIn(v, e.id); return s == slot }) {
			continue
		}
		for p := range w.cfg.Partitions {
			if got, err := n.copyOf(slot, p); err == nil && len(got) > 0 {
				fmt.Fprintf(&b, "; %d blocks of slot %d, which no engine has, in partition %d", len(got), slot, p)
			}
		}
	}
	return excused, b.String()
}

// maxSlotSeen is up to which number slots are looked at that nobody has.
const maxSlotSeen = 64

func difference(want, got map[uint64]model.Claim) string {
	var out []string
	for h, c := range want {
		switch g, ok := got[h]; {
		case !ok:
			out = append(out, fmt.Sprintf("block %x at depth %d is missing", h, len(c.Path)))
		case g.Tiers != c.Tiers || !slices.Equal(g.Path, c.Path):
			out = append(out, fmt.Sprintf("block %x at depth %d in tiers %b is at depth %d in tiers %b", h, len(c.Path), c.Tiers, len(g.Path), g.Tiers))
		}
	}
	for h, g := range got {
		if _, ok := want[h]; !ok {
			out = append(out, fmt.Sprintf("block %x at depth %d is too much", h, len(g.Path)))
		}
	}
	slices.Sort(out)
	if len(out) > 4 {
		out = append(out[:4], fmt.Sprintf("and %d more", len(out)-4))
	}
	return strings.Join(out, "; ")
}

// lastAnswers has every node answer for every prompt: complete, current and exact. It says
// what is not complete: a source may change its reader even now, for balance.
func (w *world) lastAnswers() string {
	for _, n := range w.up() {
		for i, p := range w.prompts {
			a, err := n.ask(context.Background(), p)
			if err != nil {
				return fmt.Sprintf("%s does not answer: %v", n.name, err)
			}
			if a.Partial || a.Stale {
				return fmt.Sprintf("an answer of %s is partial %t, stale %t: %v", n.name, a.Partial, a.Stale, a.Missing)
			}
			for _, e := range w.engines {
				walk := e.said.Walk(e.id, p.locals)
				if want, got := [2]int{walk[model.Device], walk[model.Host]}, a.walks[e.id]; got != want {
					w.fail("in the end %s answers %v blocks (device, host) for prompt %d of engine %s, want %v", n.name, got, i, e.id, want)
				}
			}
		}
	}
	return ""
}

// streams tells what the readers know of their streams.
func (w *world) streams() string {
	var b strings.Builder
	for _, n := range w.up() {
		for _, e := range w.engines {
			if r, s, err := n.member.Node().Ingest().RankStatus(e.id, 0); err == nil {
				fmt.Fprintf(&b, "\n    %s reads %s: %v %q, life %d, slot %d, batch %d; %v; source %+v", n.name, e.id, r.State, r.LastError, r.Life, r.Slot, r.Sequence, r.Warnings, s.Counters)
			}
		}
	}
	return b.String()
}

// logs tells what every node knows of who leads and who votes.
func (w *world) logs() string {
	var b strings.Builder
	for _, n := range w.nodes {
		if n.process == nil || !n.running() {
			fmt.Fprintf(&b, "\n    %s does not run", n.name)
			continue
		}
		fmt.Fprintf(&b, "\n    %s (%s), boot %d, up %t: ", n.name, n.serverID, n.boot, n.up())
		if !n.serves.Load() {
			fmt.Fprint(&b, "no member yet")
			continue
		}
		for _, m := range n.member.Control().Members() {
			fmt.Fprintf(&b, "%s (%s) boot %d %s %s %s; ", m.Name, m.ServerID, m.Boot, m.Standing, m.Role, m.Reason)
		}
	}
	return b.String()
}
