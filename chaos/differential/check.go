package differential

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kvcluster/kvcluster/chaos/model"
	"github.com/kvcluster/kvcluster/cluster/ingest/translate"
	"github.com/kvcluster/kvcluster/indexer"
)

// judge is what must be true after the steps so far.
type judge struct {
	mode Mode
	told *model.Model[int] // what the translators were told
	// truth is what the engines have, when hashes do not say it.
	truth *model.Model[int]
}

func newJudge(m Mode) *judge {
	c := model.Config{CountCopies: m.Copies}
	return &judge{m, model.New[int](c), model.New[int](c)}
}

func (j *judge) apply(s *Step) {
	if s.End != GoesOn {
		j.told.Remove(s.Holder)
		j.truth.Remove(s.Holder)
		return
	}
	hash := j.mode.hasher(s.Holder)
	for i := range s.Batch {
		if !s.Lost {
			j.told.Apply(s.Holder, s.Batch[i].event(hash))
		}
		if j.mode.ContentOnly {
			j.truth.Apply(s.Holder, s.Batch[i].event(func(p []uint64) uint64 { return engineHash(p, 0) }))
		}
	}
}

// scores asks the index for one prompt and brings the answer into the judge's form.
func (p *pipeline) scores(prompt []uint64) (map[int]model.Walk, error) {
	var out indexer.Scores
	p.reader.Match(indexer.Query{Group: group, Partition: p.setup.partition(prompt[0]), Locals: prompt}, &out)
	holders := map[indexer.Slot]int{}
	for h, r := range p.ranks {
		holders[r.slot] = h
	}
	got := map[int]model.Walk{}
	for _, w := range out.Rows {
		h, ok := holders[w.Slot]
		if !ok {
			return nil, fmt.Errorf("a row for slot %d, which nobody has", w.Slot)
		}
		if _, twice := got[h]; twice || w.Depth == 0 {
			return nil, fmt.Errorf("row %+v (twice: %t)", w, twice)
		}
		d := int(w.Depth)
		got[h] = model.Walk{d, d, d, d}
	}
	seen := map[indexer.Slot]bool{}
	for _, w := range out.Tiers {
		h, ok := holders[w.Slot]
		if !ok || seen[w.Slot] {
			return nil, fmt.Errorf("a tier row for slot %d (in use: %t, twice: %t)", w.Slot, ok, seen[w.Slot])
		}
		seen[w.Slot] = true
		walk := model.Walk{}
		for t, d := range w.Depth {
			walk[t] = int(d)
		}
		if walk[model.Device] != got[h][model.Device] || walk[model.External] <= walk[model.Device] {
			return nil, fmt.Errorf("tier row %+v beside a device score of %d", w, got[h][model.Device])
		}
		got[h] = walk
	}
	return got, nil
}

func (j *judge) checkPrompt(p *pipeline, prompt []uint64) error {
	got, err := p.scores(prompt)
	if err != nil {
		return fmt.Errorf("query %d: %w", prompt, err)
	}
	if j.mode.ContentOnly {
		for h, w := range got {
			if most := j.truth.Held(h, prompt); w[model.Device] > most {
				return fmt.Errorf("query %d: holder %d is credited with %d blocks and has %d", prompt, h, w[model.Device], most)
			}
		}
		return nil
	}
	want := j.told.Scores(prompt)
	for h := range p.ranks {
		if got[h] != want[h] {
			return fmt.Errorf("query %d: holder %d (slot %d) scores %v, want %v", prompt, h, p.ranks[h].slot, got[h], want[h])
		}
	}
	return nil
}

// checkHashes compares what the translator knows of the hashes of a step.
func (j *judge) checkHashes(p *pipeline, s *Step) error {
	if j.mode.ContentOnly || s.End != GoesOn {
		return nil
	}
	r := p.ranks[s.Holder]
	for i := range s.Batch {
		e := s.Batch[i].event(r.hash)
		for _, h := range e.Engines {
			got, want := r.tr.Lookup(h), j.told.Lookup(s.Holder, h)
			if states[got] != want {
				return fmt.Errorf("holder %d: the translator's state of hash %#x is %d, want %d", s.Holder, h, got, want)
			}
		}
	}
	return nil
}

var states = map[translate.HashState]model.State{
	translate.HashUnknown: model.Unknown, translate.HashHeld: model.Held,
	translate.HashOrphan: model.Orphan, translate.HashTainted: model.Tainted,
}

// checkAll compares everything; the index must be quiet.
func (j *judge) checkAll(p *pipeline, prompts [][]uint64) error {
	for _, q := range prompts {
		if err := j.checkPrompt(p, q); err != nil {
			return err
		}
	}
	s := p.x.Stats()
	if s.Faults != 0 {
		return fmt.Errorf("%d faults", s.Faults)
	}
	if j.mode.ContentOnly {
		return nil
	}
	for h := range p.ranks {
		if err := j.checkClaimsOf(p, p.ranks[h], h); err != nil {
			return fmt.Errorf("holder %d (slot %d): %w", h, p.ranks[h].slot, err)
		}
	}
	c := j.told.Counts()
	for t, n := range c.Held {
		if s.Held[t] != uint64(n) {
			return fmt.Errorf("the index counts %d held in tier %d, want %d", s.Held[t], t, n)
		}
	}
	if s.Distinct != uint64(c.Distinct) {
		return fmt.Errorf("the index counts %d distinct blocks, want %d", s.Distinct, c.Distinct)
	}
	var mapped, orphans uint64
	for _, r := range p.ranks {
		ts := r.tr.Stats()
		mapped += ts.Mapped
		orphans += ts.Orphans
	}
	if mapped != uint64(c.Claims) || orphans != uint64(c.Orphans) {
		return fmt.Errorf("the translators map %d hashes and pool %d, want %d and %d", mapped, orphans, c.Claims, c.Orphans)
	}
	return nil
}

// checkClaimsOf compares the names that the index dumps for a rank with the claims of
// holder h: the same engine hashes, each on its path, in its tiers.
func (j *judge) checkClaimsOf(p *pipeline, r *rank, h int) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var got []model.Claim
	var errs []error
	for part := range indexer.PartitionID(p.setup.partitions()) {
		errs = append(errs, p.x.Dump(ctx, group, part, r.slot, func(s indexer.Stretch) error {
			path := slices.Clone(s.Path)
			for i, l := range s.Locals {
				path = append(path, l)
				got = append(got, model.Claim{Engine: s.Engines[i], Path: slices.Clone(path), Tiers: uint8(s.Tiers)})
			}
			return nil
		}))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	slices.SortFunc(got, func(a, b model.Claim) int { return cmp.Compare(a.Engine, b.Engine) })
	want := j.told.Claims(h)
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(got):
			return fmt.Errorf("dumped %d names for %d claims; %+v is missing", len(got), len(want), want[i])
		case i >= len(want):
			return fmt.Errorf("dumped %d names for %d claims; %+v is too many", len(got), len(want), got[i])
		case got[i].Engine != want[i].Engine || got[i].Tiers != want[i].Tiers || !slices.Equal(got[i].Path, want[i].Path):
			return fmt.Errorf("dumped %+v, want %+v", got[i], want[i])
		}
	}
	return nil
}
