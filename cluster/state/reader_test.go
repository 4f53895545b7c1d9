package state

import (
	"testing"

	"github.com/kvcluster/kvcluster/shard/catalog"
)

// twoReaders returns a log in which a owns partition 0, a and b read a source each, and
// a job copies the partition to c. a has reported.
func twoReaders(t *testing.T) (l *log, job uint64) {
	l = newLog("a", "b", "c")
	ok(t, l.begin(Move{Partition: 0, To: "a"}))
	ok(t, l.register("1", "a"))
	ok(t, l.register("2", "b"))
	job = ok(t, l.begin(Move{Partition: 0, To: "c"})).Job
	ok(t, l.report(job, "a"))
	return l, job
}

// A dead ingest node is waited for until its sources are read elsewhere; then its
// successors are.
func TestJobFollowsItsSources(t *testing.T) {
	l, job := twoReaders(t)
	ok(t, l.register("3", "b"))
	ok(t, l.do(Command{Assign: &Assign{Source: source(l, "2"), Node: "a"}}))
	ok(t, l.report(job, "a"))
	if l.View().Ready(0, "c") {
		t.Fatal("committed while b still reads a source that it has not copied")
	}
	ok(t, l.do(Command{Assign: &Assign{Source: source(l, "3"), Node: "a"}}))
	if v := l.View(); v.Ready(0, "c") || v.Jobs[0].Waiting["b"] || !v.Jobs[0].Waiting["a"] {
		t.Fatalf("a has a new source, b none: jobs %+v", v.Jobs)
	}
	ok(t, l.report(job, "a"))
	if !l.View().Ready(0, "c") {
		t.Fatal("not committed although nobody is left to report")
	}
}

// A worker that is unregistered takes the waiting for its reader with it.
func TestJobForgetsUnregisteredSources(t *testing.T) {
	l, _ := twoReaders(t)
	ok(t, l.do(Command{Unregister: &Unregister{catalog.Unregistration{Instance: "2", Model: "m"}}}))
	if !l.View().Ready(0, "c") {
		t.Errorf("jobs %+v", l.View().Jobs)
	}
}

// A source that nobody reads yet holds a job up: what an owner drops may be the only
// copy of its slots.
func TestJobWaitsForHomelessSources(t *testing.T) {
	l, job := twoReaders(t)
	ok(t, l.register("3", ""))
	ok(t, l.report(job, "b"))
	if l.View().Ready(0, "c") {
		t.Fatal("committed while nobody reads source 3")
	}
	ok(t, l.do(Command{Assign: &Assign{Source: source(l, "3"), Node: "c"}}))
	ok(t, l.report(job, "c"))
	if !l.View().Ready(0, "c") {
		t.Errorf("jobs %+v", l.View().Jobs)
	}
}

// Engines that connect to their reader keep it, dead or not, until it is removed; the
// jobs need not wait for it.
func TestBoundSourceStays(t *testing.T) {
	l, job := twoReaders(t)
	ok(t, l.do(Command{Register: &Registration{Node: "b", Registration: catalog.Registration{
		Instance: "9", Group: catalog.GroupKey{Model: "m", RoutingGroup: "default"}, BlockSize: 16, Endpoint: "tcp://*:5557"}}}))
	bound := source(l, "9")
	refused(t, l.do(Command{Assign: &Assign{Source: bound, Node: "a"}}), ErrRefused, "stays there until")
	refused(t, l.do(Command{Excuse: &Excuse{Job: 999, Node: "b"}}), ErrUnknown, "change 999")
	ok(t, l.do(Command{Excuse: &Excuse{Job: job, Node: "b"}}))
	if !l.View().Ready(0, "c") {
		t.Fatalf("jobs %+v", l.View().Jobs)
	}
	b := "b"
	ok(t, l.do(Command{Remove: &b}))
	ok(t, l.do(Command{Assign: &Assign{Source: bound, Node: "a"}}))
	if a := l.View().Assignments[bound]; a.Node != "a" {
		t.Errorf("assigned to %+v", a)
	}
}

func TestSomebodyStays(t *testing.T) {
	l := newLog("a", "b")
	a, b := "a", "b"
	ok(t, l.begin(Move{Partition: 0, To: "a"}))
	ok(t, l.register("1", "a"))
	ok(t, l.begin(Move{Partition: 0, To: "b"}))
	ok(t, l.do(Command{Leave: &b}))
	if len(l.View().Jobs) != 0 {
		t.Errorf("a member that leaves is still being filled: %+v", l.View().Jobs)
	}
	refused(t, l.begin(Move{Partition: 0, To: "b"}), ErrRefused, "b is leaving")
	refused(t, l.do(Command{Leave: &a}), ErrRefused, "last member that stays")
	refused(t, l.do(Command{Remove: &a}), ErrRefused, "last member that stays")
	ok(t, l.do(Command{Remove: &b}))
}

// Removals are remembered for long, not for ever.
func TestRemovalsAreBounded(t *testing.T) {
	l := newLog("a", "b")
	b := "b"
	for boot := range uint64(keepRemovals + 10) {
		ok(t, l.do(Command{Remove: &b}))
		ok(t, l.introduce("b", boot+2))
	}
	if n := len(l.View().Removed); n != 0 { // each newer process of the same folder forgets the older
		t.Errorf("%d removals remembered", n)
	}
	for n := range keepRemovals + 10 {
		name := string(rune('A'+n%26)) + string(rune('A'+n/26%26)) + string(rune('A'+n/676))
		ok(t, l.introduce(name, 1))
		ok(t, l.do(Command{Remove: &name}))
	}
	if n := len(l.View().Removed); n != keepRemovals {
		t.Errorf("%d removals remembered, want %d", n, keepRemovals)
	}
}
