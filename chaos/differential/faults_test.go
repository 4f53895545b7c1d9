package differential

import (
	"slices"
	"testing"

	"github.com/kvcluster/kvcluster/chaos/model"
	"github.com/kvcluster/kvcluster/cluster/ingest/translate"
	"github.com/kvcluster/kvcluster/indexer"
)

// fixture is a pipeline with one holder (and a second one for comparison) whose
// hashes the test writes down itself.
type fixture struct {
	*testing.T
	p    *pipeline
	told *model.Model[int]
}

func newFixture(t *testing.T, setup Setup, copies bool) *fixture {
	setup.Partitions = 1
	m := Mode{Workers: 2, Ranks: 1, Copies: copies}
	f := &fixture{t, newPipeline(setup, m), model.New[int](model.Config{CountCopies: copies})}
	t.Cleanup(func() {
		if err := f.p.close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// send lets a holder send one event.
func (f *fixture) send(holder int, e model.Event) translate.Outcome {
	f.Helper()
	f.told.Apply(holder, e)
	r := f.p.ranks[holder]
	r.sequence++
	r.tr.Begin(r.sequence)
	o := translateEvent(r.tr, &e)
	if err := r.tr.End(r.w.Write); err != nil {
		f.Fatal(err)
	}
	if err := f.p.flush(); err != nil {
		f.Fatal(err)
	}
	return o
}

// want checks the tier walk of holder 0 against the value and the judge.
func (f *fixture) want(step string, query []uint64, want ...int) {
	f.Helper()
	walk := model.Walk{}
	for t := range walk {
		walk[t] = want[min(t, len(want)-1)]
	}
	got, err := f.p.scores(query)
	if err != nil {
		f.Fatalf("%s: %v", step, err)
	}
	if got[0] != walk {
		f.Errorf("%s: query %d scores %v, want %v", step, query, got[0], walk)
	}
	if j := f.told.Walk(0, query); j != walk {
		f.Errorf("%s: query %d: the judge says %v, want %v", step, query, j, walk)
	}
}

func nums(from, to uint64) (out []uint64) {
	for i := from; i <= to; i++ {
		out = append(out, i)
	}
	return out
}

// st stores hashes under a parent hash (0 = none); local hashes equal engine hashes
// here, so a query is a list of hashes.
func st(tier int, parent uint64, hashes ...uint64) model.Event {
	return model.Event{Kind: model.Stored, Tier: tier, HasParent: parent != 0, Parent: parent, Engines: hashes, Locals: hashes}
}

func rm(tier int, hashes ...uint64) model.Event {
	return model.Event{Kind: model.Removed, Tier: tier, Engines: hashes}
}

func cl(tier int) model.Event { return model.Event{Kind: model.Cleared, Tier: tier} }

func announce(tier int, hashes ...uint64) model.Event {
	return model.Event{Kind: model.Stored, Tier: tier, Placeholder: true, Engines: hashes}
}

const (
	dev = model.Device
	hst = model.Host
	dsk = model.Disk
	ext = model.External
)

// knownFaults are event sequences that were reported against other indexes, with the
// right values.
var knownFaults = []struct {
	name   string
	copies bool
	run    func(f *fixture)
}{
	{"a second copy of a block, set semantics", false, func(f *fixture) {
		f.send(0, st(dev, 0, 1, 2, 3))
		f.send(0, st(dev, 0, nums(1, 7)...))
		f.send(0, rm(dev, 3))
		f.want("first removal", nums(1, 7), 2)
		f.send(0, rm(dev, 3))
		f.want("second removal", nums(1, 7), 2)
	}},
	{"a second copy of a block, counted", true, func(f *fixture) {
		f.send(0, st(dev, 0, 1, 2, 3))
		f.send(0, st(dev, 0, nums(1, 7)...))
		f.send(0, rm(dev, 3))
		f.want("first removal", nums(1, 7), 7)
		f.send(0, rm(dev, 3))
		f.want("second removal", nums(1, 7), 2)
	}},
	{"offload chunks that overlap, counted", true, func(f *fixture) {
		f.send(0, st(hst, 0, 1, 2))
		f.send(0, st(hst, 1, 2, 3))
		f.send(0, rm(hst, 1, 2))
		f.send(0, st(hst, 0, 1))
		f.want("one chunk removed", nums(1, 3), 0, 3)
		f.send(0, rm(hst, 2, 3))
		f.want("both removed", nums(1, 3), 0, 1)
	}},
	{"the same store ten times", false, func(f *fixture) {
		for range 10 {
			f.send(0, st(dev, 0, nums(1, 9)...))
		}
		if s := f.p.x.Stats(); s.Held[indexer.Device] != 9 || s.Distinct != 9 {
			f.Errorf("held %d, distinct %d, want 9", s.Held[indexer.Device], s.Distinct)
		}
		f.send(0, rm(dev, nums(1, 9)...))
		f.want("removed once", nums(1, 9), 0)
	}},
	{"blocks under a parent that came by transfer", false, func(f *fixture) {
		f.send(1, st(dev, 0, 1, 2))
		f.send(0, st(dev, 2, 3, 4))
		f.want("parent known to another holder only", nums(1, 4), 0)
		f.send(0, st(dev, 0, 1))
		f.want("still a gap", nums(1, 4), 1)
		f.send(0, st(dev, 1, 2))
		f.want("attached", nums(1, 4), 4)
	}},
	{"a partial entry whose parent is never announced", false, func(f *fixture) {
		f.send(0, st(dev, 0, 1536))
		f.send(0, st(dev, 1664, 1792))
		f.want("no credit", []uint64{1536, 1664, 1792}, 1)
		f.want("nor at the root", []uint64{1792}, 0)
		f.send(0, st(dev, 1536, 1700))
		f.want("the rest of the stream is unaffected", []uint64{1536, 1700}, 2)
		f.send(0, rm(dev, 1792))
		f.send(0, st(dev, 1536, 1664))
		f.want("a removed orphan stays away", []uint64{1536, 1664, 1792}, 2)
	}},
	{"a block that is its own ancestor", false, func(f *fixture) {
		f.send(0, st(dev, 0, 1, 2))
		if o := f.send(0, st(dev, 2, 7, 7)); o.Err == nil {
			f.Error("twice in a store, and taken")
		}
		if o := f.send(0, st(dev, 8, 8)); o.Err == nil {
			f.Error("its own parent, and taken")
		}
		f.want("nothing of them", []uint64{1, 2, 7, 7}, 2)
		f.want("nor at the root", []uint64{8, 8}, 0)
		f.send(0, st(dev, 2, 3))
		f.want("the stream goes on", nums(1, 3), 3)
	}},
	{"a duplicate hash does not clear the worker", false, func(f *fixture) {
		f.send(0, st(dev, 0, nums(1, 1000)...))
		f.send(0, st(dev, 1000, 2001, 2002, 2001))
		f.want("1,000 blocks", nums(1, 1000), 1000)
		f.want("not one more", append(nums(1, 1000), 2001, 2002), 1000)
	}},
	{"eight blocks in one event are a chain", false, func(f *fixture) {
		f.send(0, st(dev, 0, nums(1, 8)...))
		f.want("chain", nums(1, 8), 8)
		f.want("not siblings", []uint64{5}, 0)
		f.send(0, st(dev, 8, nums(9, 16)...))
		f.want("next event", nums(1, 16), 16)
	}},
	{"an evicted ancestor hides removals", false, func(f *fixture) {
		f.send(0, st(dev, 0, nums(1, 100)...))
		f.send(0, rm(dev, 2))
		f.want("no credit below the hole", nums(1, 100), 1)
		f.send(0, cl(model.AllTiers))
		if s := f.p.x.Stats(); s.Held[indexer.Device] != 0 || s.Distinct != 0 {
			f.Errorf("left after a clear: %+v", s)
		}
	}},
	{"a split that removes without a store", false, func(f *fixture) {
		f.send(0, st(dev, 0, 1, 2, 3))
		f.send(0, rm(dev, 1, 2, 3))
		if o := f.send(0, st(dev, 3, 4)); o.Orphaned != 1 {
			f.Errorf("a store below what was just removed: %+v", o)
		}
		f.want("no credit", nums(1, 4), 0)
	}},
	{"remove from the device, keep on the host", false, func(f *fixture) {
		f.send(0, st(dev, 0, nums(1, 5)...))
		f.send(0, st(hst, 0, nums(1, 5)...))
		f.send(0, rm(dev, nums(1, 5)...))
		f.want("host", nums(1, 5), 0, 5)
		f.send(0, st(dev, 0, 1, 2))
		f.want("loaded back", nums(1, 5), 2, 5)
		f.send(0, rm(hst, nums(1, 5)...))
		f.want("host gone", nums(1, 5), 2)
	}},
	{"a clear takes three tiers", false, func(f *fixture) {
		for _, tier := range []int{dev, hst, dsk} {
			f.send(0, st(tier, 0, nums(1, 4)...))
		}
		f.send(1, st(dev, 0, nums(1, 4)...))
		f.send(0, cl(model.AllTiers))
		f.want("nothing", nums(1, 4), 0)
		if got, _ := f.p.scores(nums(1, 4)); got[1] != (model.Walk{4, 4, 4, 4}) {
			f.Errorf("the other holder scores %v", got[1])
		}
	}},
	{"a clear of the device keeps the host", false, func(f *fixture) {
		f.send(0, st(dev, 0, nums(1, 4)...))
		f.send(0, st(hst, 0, 1, 2))
		f.send(0, cl(dev))
		f.want("host", nums(1, 4), 0, 2)
		f.send(0, st(dev, 0, 1, 2, 3))
		f.want("stored again", nums(1, 4), 3)
	}},
	{"hash-only offload announcements", false, func(f *fixture) {
		f.send(0, st(dev, 0, 1, 2))
		if o := f.send(0, announce(hst, 1, 2, 77)); o.Claimed != 2 || o.Unknown != 1 {
			f.Errorf("announcement: %+v", o)
		}
		f.send(0, rm(dev, 1, 2))
		f.want("host", nums(1, 2), 0, 2)
		f.want("an unknown hash is no root", []uint64{77}, 0)
	}},
	{"tier transitions without events", false, func(f *fixture) {
		f.send(0, st(dsk, 0, 1, 2))
		f.send(0, rm(hst, 1, 2))
		f.want("an unknown removal changes nothing", nums(1, 2), 0, 0, 2)
	}},
	{"removals in any order across chains", false, func(f *fixture) {
		f.send(0, st(dev, 0, 1, 2, 3, 4))
		f.send(0, st(dev, 1, 12, 13))
		f.send(0, rm(dev, 13, 3, 999, 1, 4))
		f.want("both gone", nums(1, 4), 0)
		f.send(0, st(dev, 0, 1))
		f.want("first", nums(1, 4), 2)
		f.want("second", []uint64{1, 12, 13}, 2)
	}},
	{"two over-counts by grouped removal", false, func(f *fixture) {
		f.send(0, st(dev, 0, 1, 2, 3))
		f.send(0, st(dev, 1, 4))
		f.send(0, rm(dev, 1))
		f.send(0, st(dev, 0, 1, 2))
		f.send(0, rm(dev, 3, 2))
		f.want("three blocks", nums(1, 2), 1)
		f.send(0, cl(model.AllTiers))
		f.send(0, st(dev, 0, 1, 30))
		f.send(0, st(dev, 1, 2, 20, 21))
		f.send(0, rm(dev, 1))
		f.send(0, st(dev, 0, 1))
		f.send(0, st(dev, 1, 2, 20))
		f.send(0, rm(dev, 21, 20))
		f.want("six events", []uint64{1, 2, 20}, 2)
	}},
	{"the worked table", false, func(f *fixture) {
		f.send(0, st(dev, 0, 1, 2, 3, 4))
		f.want("store 1 2 3 4", nums(1, 5), 4)
		f.send(0, rm(dev, 2))
		f.want("remove 2", nums(1, 5), 1)
		f.send(0, st(dev, 1, 2))
		f.want("store 2 under 1", nums(1, 5), 4)
		f.send(0, st(dev, 4, 5))
		f.want("store 5 under 4", nums(1, 5), 5)
		f.send(0, st(dev, 2, 3, 4))
		f.want("store 3 4 under 2", nums(1, 5), 5)
	}},
}

func TestKnownFaults(t *testing.T) { knownFaultsAll(t, references()) }

func knownFaultsAll(t *testing.T, setup Setup) {
	for _, c := range knownFaults {
		t.Run(c.name, func(t *testing.T) { c.run(newFixture(t, setup, c.copies)) })
	}
}

// One prompt under two salts and none: each is found under its own only.
func TestNamespaces(t *testing.T) {
	f := newFixture(t, references(), false)
	tokens := make([]uint32, 32)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	salts := []string{"tenant-a", "tenant-b", ""}
	for i, salt := range salts {
		e := model.Event{Kind: model.Stored, Engines: []uint64{uint64(10 * (i + 1)), uint64(10*(i+1) + 1)}, Salt: salt,
			Locals: model.LocalHashes(tokens, 16, "", salt)}
		f.send(0, e)
	}
	for i, salt := range salts {
		q := model.LocalHashes(tokens, 16, "", salt)
		f.want("salt "+salt, q, 2)
		f.send(0, rm(dev, uint64(10*(i+1))))
		f.want("removed under salt "+salt, q, 0)
	}
	// One hash under two salts is ambiguous: the second gets no credit.
	e := model.Event{Kind: model.Stored, Engines: []uint64{500}, Salt: "tenant-a", Locals: model.LocalHashes(tokens[:16], 16, "", "tenant-a")}
	f.send(0, e)
	e.Salt, e.Locals = "tenant-b", model.LocalHashes(tokens[:16], 16, "", "tenant-b")
	f.send(0, e)
	f.want("second salt", model.LocalHashes(tokens[:16], 16, "", "tenant-b"), 0)
}

// An engine whose hashes do not name prefixes is credited with some of what it has,
// or the mode that looks for over-counts would see nothing.
func TestContentOnlyIsCreditedAtAll(t *testing.T) {
	m := Modes()[slices.IndexFunc(Modes(), func(m Mode) bool { return m.ContentOnly })]
	r := Run{Setup: references(), Mode: m}
	p := newPipeline(r.Setup, m)
	defer p.close()
	j := newJudge(m)
	s := NewStream(1, m)
	credited, held := 0, 0
	for range 60 {
		for _, step := range s.Next(nil) {
			j.apply(&step)
			if err := p.apply(&step); err != nil {
				t.Fatal(err)
			}
		}
		for _, q := range m.Shape.prompts() {
			got, err := p.scores(q)
			if err != nil {
				t.Fatal(err)
			}
			for h := range p.ranks {
				credited += got[h][model.Device]
				held += j.truth.Held(h, q)
			}
		}
	}
	t.Logf("credited with %d of %d blocks", credited, held)
	if credited == 0 || credited > held {
		t.Errorf("credited with %d of %d blocks", credited, held)
	}
}

// A publisher that only ever stores stays within its bound.
func TestMemoryBound(t *testing.T) {
	setup := references()
	inner := setup.Translate
	setup.Translate = func(c translate.Config) translate.Interface {
		c.MaxBlocks = 1000
		return inner(c)
	}
	p := newPipeline(setup, Mode{Workers: 1, Ranks: 1})
	defer p.close()
	for i := range uint64(400) {
		e := st(hst, 0, nums(1000*i, 1000*i+49)...)
		if err := p.ranks[0].send([]model.Event{e}); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.flush(); err != nil {
		t.Fatal(err)
	}
	s := p.x.Stats()
	if n := s.Held[indexer.Host]; n == 0 || n > 1000 || s.Faults != 0 {
		t.Errorf("%d blocks held with a bound of 1000, %d faults", n, s.Faults)
	}
	if m := p.ranks[0].tr.Stats(); m.Mapped != s.Held[indexer.Host] {
		t.Errorf("the translator maps %d, the index holds %d", m.Mapped, s.Held[indexer.Host])
	}
	got, err := p.scores(nums(1000*399, 1000*399+49))
	if err != nil || got[0][ext] != 50 {
		t.Errorf("the newest prompt scores %v (%v)", got[0], err)
	}
}
