package state

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvcluster/kvcluster/shard/catalog"
)

// log applies commands with rising indices and ids.
type log struct {
	*State
	next uint64
}

func newLog(members ...string) *log {
	l := &log{State: New()}
	l.do(Command{Found: &Founding{ClusterID: "c", Partitions: 8, Replicas: 2}})
	for _, m := range members {
		l.introduce(m, 1)
	}
	return l
}

func (l *log) do(c Command) Result {
	l.next++
	c.ID = [16]byte{byte(l.next), byte(l.next >> 8), 1}
	raw, err := c.Encode()
	if err != nil {
		panic(err)
	}
	c, err = DecodeCommand(raw) // everything passes through its log form
	if err != nil {
		panic(err)
	}
	return l.Apply(l.next, c)
}

func (l *log) introduce(name string, boot uint64) Result {
	return l.do(Command{Introduce: &Member{Name: name, ServerID: "id-" + name, Boot: boot}})
}

func (l *log) register(instance, node string) Result {
	return l.do(Command{Register: &Registration{Node: node, Registration: catalog.Registration{
		Instance: instance, Group: catalog.GroupKey{Model: "m", RoutingGroup: "default"}, BlockSize: 16, Endpoint: "tcp://127.0.0.1:1" + instance,
	}}})
}

func (l *log) begin(moves ...Move) Result { return l.do(Command{Begin: &Begin{Moves: moves}}) }

func (l *log) report(job uint64, node string) Result {
	v := l.View()
	boots := map[string]uint64{}
	for _, m := range v.Members {
		boots[m.Name] = m.Boot
	}
	return l.do(Command{Report: &Report{Job: job, Node: node, Version: v.Versions[node], Boots: boots}})
}

// source returns the source of an instance that has one.
func source(l *log, instance string) uint64 {
	for _, s := range l.View().Catalog.Sources() {
		if s.Instance == instance {
			return s.ID
		}
	}
	return 0
}

func ok(t *testing.T, r Result) Result {
	t.Helper()
	if r.Err() != nil {
		t.Fatal(r.Err())
	}
	return r
}

func refused(t *testing.T, r Result, sentinel error, part string) {
	t.Helper()
	if !errors.Is(r.Err(), sentinel) || !strings.Contains(r.Text, part) {
		t.Errorf("got %v, want %v with %q", r.Err(), sentinel, part)
	}
}

func TestFounding(t *testing.T) {
	s := New()
	refused(t, s.Apply(1, Command{Leave: new(string)}), ErrRefused, "not been founded")
	l := newLog()
	refused(t, l.do(Command{Found: &Founding{ClusterID: "d", Partitions: 8, Replicas: 1}}), ErrRefused, "exists already")
}

// A job fills a new copy; the layout that may be read changes only when every ingest
// node has reported for its present assignments.
func TestJobCommitsByReports(t *testing.T) {
	l := newLog("a", "b", "c")
	for p := range uint32(8) {
		ok(t, l.begin(Move{Partition: p, To: "a"})) // no sources yet: commits at once
	}
	ok(t, l.register("1", "a"))
	ok(t, l.register("2", "b"))
	job := ok(t, l.begin(Move{Partition: 3, To: "c", Drop: "a"})).Job
	if v := l.View(); !v.Ready(3, "a") || v.Ready(3, "c") || !reflect.DeepEqual(v.Receivers(3), []string{"a", "c"}) {
		t.Fatalf("during the job: owners %v, receivers %v", v.Owners[3], v.Receivers(3))
	}
	ok(t, l.report(job, "a"))
	if l.View().Ready(3, "c") {
		t.Fatal("committed before b reported")
	}
	ok(t, l.register("3", "a")) // a has a source that it has not copied: it must report again
	ok(t, l.report(job, "b"))
	if l.View().Ready(3, "c") {
		t.Fatal("committed although a got a source after its report")
	}
	ok(t, l.report(job, "a"))
	if v := l.View(); !v.Ready(3, "c") || v.Ready(3, "a") || len(v.Jobs) != 0 {
		t.Fatalf("after the reports: owners %v, jobs %v", v.Owners[3], v.Jobs)
	}
}

func TestReportsThatDoNotCount(t *testing.T) {
	l := newLog("a", "b")
	ok(t, l.begin(Move{Partition: 0, To: "a"}))
	ok(t, l.register("1", "a"))
	job := ok(t, l.begin(Move{Partition: 0, To: "b"})).Job
	stale := l.View().Versions["a"] - 1
	refused(t, l.do(Command{Report: &Report{Job: job, Node: "a", Version: stale, Boots: map[string]uint64{"b": 1}}}), ErrRefused, "assignments of a have changed")
	refused(t, l.do(Command{Report: &Report{Job: job, Node: "a", Version: stale + 1, Boots: map[string]uint64{"b": 9}}}), ErrRefused, "another boot id")
	refused(t, l.report(999, "a"), ErrUnknown, "change 999")
	if l.View().Ready(0, "b") {
		t.Error("b became ready without a report that counts")
	}
}

// A restarted owner keeps its partitions but may not be read until a job has filled
// it; its sources get new tenures.
func TestRestartedOwnerIsNotReady(t *testing.T) {
	l := newLog("a", "b")
	ok(t, l.begin(Move{Partition: 0, To: "a"}))
	ok(t, l.register("1", "a"))
	before := l.View().Assignments
	ok(t, l.introduce("a", 2))
	v := l.View()
	if v.Ready(0, "a") || len(v.Owners[0]) != 1 {
		t.Fatalf("owners %v after a restart", v.Owners[0])
	}
	for id, a := range v.Assignments {
		if a.Tenure <= before[id].Tenure {
			t.Errorf("source %d kept tenure %d over a restart", id, a.Tenure)
		}
	}
	job := ok(t, l.begin(Move{Partition: 0, To: "a"})).Job
	ok(t, l.report(job, "a"))
	if !l.View().Ready(0, "a") {
		t.Error("not ready after it was filled again")
	}
}

// A target that restarts in mid-job loses what it got: the job is gone.
func TestTargetRestartAbortsJob(t *testing.T) {
	l := newLog("a", "b")
	ok(t, l.begin(Move{Partition: 0, To: "a"}))
	ok(t, l.register("1", "a"))
	job := ok(t, l.begin(Move{Partition: 0, To: "b"})).Job
	ok(t, l.introduce("b", 2))
	refused(t, l.report(job, "a"), ErrUnknown, "change")
	if v := l.View(); len(v.Jobs) != 0 || v.Ready(0, "b") || !v.Ready(0, "a") {
		t.Errorf("jobs %v, owners %v", v.Jobs, v.Owners[0])
	}
}

func TestDisjointJobs(t *testing.T) {
	l := newLog("a", "b", "c")
	ok(t, l.begin(Move{Partition: 0, To: "a"}, Move{Partition: 1, To: "a"}))
	ok(t, l.register("1", "a"))
	ok(t, l.begin(Move{Partition: 0, To: "b"}))
	refused(t, l.begin(Move{Partition: 0, To: "c"}), ErrRefused, "part of change")
	ok(t, l.begin(Move{Partition: 1, To: "c"}))
	refused(t, l.begin(Move{Partition: 8, To: "c"}), ErrUnknown, "partition 8")
	refused(t, l.begin(Move{Partition: 2, To: "x"}), ErrUnknown, "member x")
	refused(t, l.begin(Move{Partition: 2, To: "c", Drop: "a"}), ErrRefused, "does not own")
	refused(t, l.begin(), ErrRefused, "without moves")
	refused(t, l.begin(Move{Partition: 7, Drop: "a"}), ErrRefused, "last complete owner")
}

// An owner may be dropped without a new copy as long as another one is complete.
func TestDropOnly(t *testing.T) {
	l := newLog("a", "b")
	ok(t, l.begin(Move{Partition: 0, To: "a"}))
	ok(t, l.begin(Move{Partition: 0, To: "b"}))
	ok(t, l.begin(Move{Partition: 0, Drop: "a"}))
	if v := l.View(); len(v.Owners[0]) != 1 || !v.Ready(0, "b") {
		t.Errorf("owners %v", v.Owners[0])
	}
	refused(t, l.begin(Move{Partition: 0, Drop: "b"}), ErrRefused, "last complete owner")
}

// A removal is about processes: a member that has started again since stays, and none of
// those that were meant comes in again.
func TestRemoveMeansProcesses(t *testing.T) {
	l := newLog("a", "b", "c")
	b := "b"
	ok(t, l.introduce("b", 5))
	refused(t, l.do(Command{Remove: &b, Boots: []uint64{1}}), ErrRefused, "has started again since")
	if v := l.View(); len(v.Members) != 3 || v.WasRemoved("id-b", 1) {
		t.Errorf("members %v, removed %v", v.Members, v.Removed)
	}
	ok(t, l.do(Command{Remove: &b, Boots: []uint64{5, 6}})) // 6 is seen, and not introduced yet
	for _, boot := range []uint64{5, 6} {
		refused(t, l.introduce("b", boot), ErrRefused, "was removed")
	}
	ok(t, l.introduce("b", 7))
	if v := l.View(); v.WasRemoved("id-b", 6) {
		t.Errorf("removed: %v", v.Removed)
	}
}

// A member that is removed takes its ownership, assignments and open reports with it.
func TestRemove(t *testing.T) {
	l := newLog("a", "b", "c")
	ok(t, l.begin(Move{Partition: 0, To: "a"}, Move{Partition: 1, To: "b"}))
	ok(t, l.register("1", "a"))
	ok(t, l.register("2", "b"))
	job := ok(t, l.begin(Move{Partition: 0, To: "c"})).Job
	ok(t, l.report(job, "a"))
	b := "b"
	ok(t, l.do(Command{Remove: &b})) // the only node that had not reported
	v := l.View()
	if v.Ready(0, "c") || len(v.Owners[1]) != 0 || len(v.Assignments) != 1 {
		t.Errorf("owners %v, assignments %v", v.Owners[:2], v.Assignments)
	}
	ok(t, l.do(Command{Assign: &Assign{Source: source(l, "2"), Node: "c"}})) // its next reader has to report
	if l.View().Ready(0, "c") {
		t.Fatal("committed before the next reader of a source reported")
	}
	ok(t, l.report(job, "c"))
	if !l.View().Ready(0, "c") {
		t.Fatal("not committed although everybody reported")
	}
	refused(t, l.do(Command{Remove: &b}), ErrUnknown, "member b")
	refused(t, l.introduce("b", 1), ErrRefused, "was removed")
	if v := l.View(); !v.WasRemoved("id-b", 1) || v.WasRemoved("id-b", 7) {
		t.Errorf("removed: %v", v.Removed)
	}
	ok(t, l.introduce("b", 7)) // another process of it may come, empty
	if l.View().Ready(1, "b") {
		t.Error("a removed node came back as an owner")
	}
}

func TestNames(t *testing.T) {
	l := newLog("a")
	r := l.do(Command{Introduce: &Member{Name: "a", ServerID: "another", Boot: 5}})
	refused(t, r, ErrRefused, "belongs to another node")
	r = l.do(Command{Introduce: &Member{Name: "z", ServerID: "id-a", Boot: 5}})
	refused(t, r, ErrRefused, "data folder belongs to member a")
}

// The slot of an ended life comes back only when every member has purged it.
func TestPurgeNeedsEveryMember(t *testing.T) {
	l := newLog("a", "b")
	ok(t, l.register("1", "a"))
	life := l.View().Catalog.Workers()[0].Ranks[0].Life
	old := ok(t, l.do(Command{NewLife: &NewLife{Instance: "1", Life: life}})).Retired[0]
	slotOf := func(instance string) uint32 {
		w, _ := l.View().Catalog.Worker(instance)
		return w.Ranks[0].Slot
	}
	ok(t, l.do(Command{Purged: &Purged{Member: "a", Slot: old}}))
	ok(t, l.register("2", "b"))
	if slotOf("2") == old.Slot {
		t.Fatal("slot reused before b purged it")
	}
	if got := l.View().ToPurge["b"]; len(got) != 1 || got[0] != old {
		t.Errorf("b has to purge %v", got)
	}
	ok(t, l.do(Command{Purged: &Purged{Member: "b", Slot: old}}))
	ok(t, l.register("3", "b"))
	if slotOf("3") != old.Slot {
		t.Errorf("slot %d, want the purged %d", slotOf("3"), old.Slot)
	}
}

// A process that was started since a member purged a slot knows nothing of the life that
// ended there and may be sent its content by one that has not heard of the end: it counts
// only when it has purged the slot too.
func TestPurgeNeedsThePresentProcess(t *testing.T) {
	l := newLog("a", "b")
	ok(t, l.register("1", "a"))
	life := l.View().Catalog.Workers()[0].Ranks[0].Life
	old := ok(t, l.do(Command{NewLife: &NewLife{Instance: "1", Life: life}})).Retired[0]
	reused := func(instance string) bool {
		ok(t, l.register(instance, "b"))
		w, _ := l.View().Catalog.Worker(instance)
		return w.Ranks[0].Slot == old.Slot
	}
	purged := func(member string, boot uint64) {
		ok(t, l.do(Command{Purged: &Purged{Member: member, Boot: boot, Slot: old}}))
	}
	purged("a", 1)
	ok(t, l.introduce("a", 1)) // the same process again changes nothing
	if got := l.View().ToPurge["a"]; len(got) != 0 {
		t.Errorf("a has purged %v", got)
	}
	ok(t, l.introduce("a", 2))
	ok(t, l.introduce("c", 1))
	for _, m := range []string{"a", "c"} {
		if got := l.View().ToPurge[m]; len(got) != 1 || got[0] != old {
			t.Errorf("the new process of %s has to purge %v", m, got)
		}
	}
	purged("b", 1)
	purged("c", 1)
	if reused("2") {
		t.Fatal("slot reused before the new process of a purged it")
	}
	purged("a", 1) // was under way when the process ended
	if reused("3") {
		t.Fatal("what the old process of a has done was counted for the new one")
	}
	purged("a", 2)
	if !reused("4") {
		t.Errorf("slot %d does not come back", old.Slot)
	}
}

// The same entry twice (a leader lost its leadership and its client asked again) has
// one effect and one outcome.
func TestCommandsAreIdempotent(t *testing.T) {
	l := newLog("a")
	c := Command{ID: [16]byte{9}, Register: &Registration{Node: "a", Registration: catalog.Registration{
		Instance: "1", Group: catalog.GroupKey{Model: "m"}, BlockSize: 16, Endpoint: "tcp://127.0.0.1:1"}}}
	first := l.Apply(100, c)
	again := l.Apply(101, c)
	if first.Err() != nil || !reflect.DeepEqual(first, again) {
		t.Errorf("first %+v, again %+v", first, again)
	}
	c.ID = [16]byte{10}
	refused(t, l.Apply(102, c), catalog.ErrConflict, "already registered")
}

// Two nodes that apply the same log, one of them through a snapshot at any point, are
// equal; and a partition never loses its last ready owner to a job.
func TestDeterminism(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := newLog("n0", "n1", "n2"), newLog("n0", "n1", "n2")
		for step := range rapid.IntRange(1, 60).Draw(t, "steps") {
			c := drawCommand(t, a.View())
			ra, rb := a.do(c), b.do(c)
			if !reflect.DeepEqual(ra, rb) {
				t.Fatalf("step %d: %+v and %+v", step, ra, rb)
			}
			if rapid.IntRange(0, 9).Draw(t, "snapshot") == 0 {
				raw, err := b.Snapshot()
				if err != nil {
					t.Fatal(err)
				}
				if b.State, err = Restore(raw); err != nil {
					t.Fatal(err)
				}
			}
			va, vb := normal(a.State), normal(b.State)
			if va != vb {
				t.Fatalf("step %d (%+v): views differ\n%s\n%s", step, c, va, vb)
			}
		}
	})
}

// normal prints a state with maps in order and without the difference between nil and
// empty.
func normal(s *State) string {
	v := s.View()
	return fmt.Sprintf("%d %+v %+v %v %v %v %+v %v %+v %v", v.Index, v.Cluster, v.Members, v.Owners, v.Assignments, v.Versions, v.Jobs, v.ToPurge, s.catalog.Image(), v.Removed)
}

func drawCommand(t *rapid.T, v *View) Command {
	node := rapid.SampledFrom([]string{"n0", "n1", "n2"}).Draw(t, "node")
	switch rapid.IntRange(0, 10).Draw(t, "kind") {
	case 0:
		return Command{Register: &Registration{Node: node, Registration: catalog.Registration{
			Instance: rapid.SampledFrom([]string{"1", "2", "3"}).Draw(t, "instance"), Group: catalog.GroupKey{Model: "m"}, BlockSize: 16,
			Endpoint: "tcp://127.0.0.1:5", Rank: rapid.Uint32Range(0, 1).Draw(t, "rank")}}}
	case 1:
		return Command{Unregister: &Unregister{catalog.Unregistration{Instance: rapid.SampledFrom([]string{"1", "2", "3"}).Draw(t, "instance"), Model: "m"}}}
	case 2:
		if s := v.Catalog.Sources(); len(s) > 0 {
			return Command{Assign: &Assign{Source: s[0].ID, Node: node}}
		}
	case 3, 4:
		return Command{Begin: &Begin{Moves: []Move{{Partition: rapid.Uint32Range(0, 7).Draw(t, "partition"), To: node}}}}
	case 5, 6:
		if len(v.Jobs) > 0 {
			boots := map[string]uint64{}
			for _, m := range v.Members {
				boots[m.Name] = m.Boot
			}
			return Command{Report: &Report{Job: v.Jobs[0].ID, Node: node, Version: v.Versions[node], Boots: boots}}
		}
	case 7:
		return Command{Introduce: &Member{Name: node, ServerID: "id-" + node, Boot: rapid.Uint64Range(1, 4).Draw(t, "boot")}}
	case 9:
		return Command{Remove: &node}
	case 10:
		if len(v.Jobs) > 0 {
			return Command{Excuse: &Excuse{Job: v.Jobs[0].ID, Node: node}}
		}
	case 8:
		if w := v.Catalog.Workers(); len(w) > 0 {
			return Command{NewLife: &NewLife{Instance: w[0].Instance, Rank: w[0].Ranks[0].Rank, Life: w[0].Ranks[0].Life}}
		}
	}
	return Command{Leave: &node}
}

// The reader of a source may be told to begin it again under a new tenure, once for each
// tenure that ends; being told what it has already changes nothing.
func TestAssignAgain(t *testing.T) {
	l := newLog("a")
	ok(t, l.register("1", "a"))
	source := l.View().Catalog.Sources()[0].ID
	first := l.View().Assignments[source].Tenure
	ok(t, l.do(Command{Assign: &Assign{Source: source, Node: "a"}}))
	ok(t, l.do(Command{Assign: &Assign{Source: source, Node: "a", Over: first - 1}}))
	if got := l.View().Assignments[source].Tenure; got != first {
		t.Fatalf("tenure %d without a reason, was %d", got, first)
	}
	ok(t, l.do(Command{Assign: &Assign{Source: source, Node: "a", Over: first}}))
	second := l.View().Assignments[source].Tenure
	if second <= first || l.View().Versions["a"] != second {
		t.Fatalf("tenure %d after %d, version %d", second, first, l.View().Versions["a"])
	}
	ok(t, l.do(Command{Assign: &Assign{Source: source, Node: "a", Over: first}}))
	if got := l.View().Assignments[source].Tenure; got != second {
		t.Fatalf("the same end of a tenure twice: %d after %d", got, second)
	}
	// Begun again for the sake of a life: not when another has begun.
	rank := l.View().Catalog.Sources()[0].Ranks[0]
	lost := catalog.Retired{Group: 1, Slot: rank.Slot, Life: rank.Life}
	ok(t, l.do(Command{NewLife: &NewLife{Instance: "1", Rank: rank.Rank, Life: rank.Life}}))
	ok(t, l.do(Command{Assign: &Assign{Source: source, Node: "a", Over: second, Lost: lost}}))
	if got := l.View().Assignments[source].Tenure; got != second {
		t.Fatalf("begun again for a life that had ended: %d after %d", got, second)
	}
	rank = l.View().Catalog.Sources()[0].Ranks[0]
	lost = catalog.Retired{Group: 1, Slot: rank.Slot, Life: rank.Life}
	ok(t, l.do(Command{Assign: &Assign{Source: source, Node: "a", Over: second, Lost: lost}}))
	if got := l.View().Assignments[source].Tenure; got <= second {
		t.Fatalf("not begun again for the life that goes on: %d", got)
	}
}

// The first reader of a source continues its lives; whoever reads it later, the same
// process again included, has a tenure younger than them.
func TestFirstReaderContinues(t *testing.T) {
	l := newLog("a", "b")
	ok(t, l.register("1", ""))
	source := l.View().Catalog.Sources()[0]
	ok(t, l.do(Command{Assign: &Assign{Source: source.ID, Node: "a"}}))
	if a := l.View().Assignments[source.ID]; a.Tenure > source.Ranks[0].Life || a.Tenure == 0 {
		t.Fatalf("tenure %d, life %d", a.Tenure, source.Ranks[0].Life)
	}
	raw, err := l.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	if l.State, err = Restore(raw); err != nil {
		t.Fatal(err)
	}
	name := "a"
	ok(t, l.do(Command{Remove: &name}))
	ok(t, l.do(Command{Assign: &Assign{Source: source.ID, Node: "b"}}))
	if a := l.View().Assignments[source.ID]; a.Tenure <= source.Ranks[0].Life {
		t.Fatalf("tenure %d of the second reader, life %d", a.Tenure, source.Ranks[0].Life)
	}
}
