// Package contract is the test suite that every indexer.Index passes.
//
//	func TestContract(t *testing.T) {
//		contract.Run(t, func(t *testing.T) indexer.Index { return tree.New(...) })
//	}
//
// It knows the index through its interface only. Fixed sequences state the right
// values in the test; random ones are compared with a model of sets that lives
// here, shares no code with any index, and is itself compared with the reference.
//
// # What it covers
//
//	held.go        the held score: holes and refills, forks, published faults of others
//	tiers.go       tier walks, claims and clears of one tier
//	names.go       aliases, extensions, dead parents, unknown names, closed copies
//	isolation.go   groups, partitions, anchors, slots
//	size.go        the longest runs, many holders
//	dump.go        dumps and what can be rebuilt from them
//	lifecycle.go   flush, purge, statistics, memory, close
//	race.go        readers during writes; raceorder.go: clears, dumps and purges among them
//	random.go      random streams against the model, shrunk when they fail
//
// # What it does not do
//
// It measures no speed, and it asks for nothing that a correct stream cannot
// contain: whether an index notices a claim that a name already has, for example,
// is its own affair.
package contract

import (
	"testing"

	"github.com/kvcluster/kvcluster/indexer"
)

// Open returns a new and empty index. The suite closes it.
type Open func(t *testing.T) indexer.Index

// Run runs the whole suite.
func Run(t *testing.T, open func(t *testing.T) indexer.Index) {
	for _, group := range []struct {
		name  string
		tests []test
	}{
		{"held", heldTests()},
		{"tiers", tierTests()},
		{"names", nameTests()},
		{"isolation", isolationTests()},
		{"size", sizeTests()},
		{"dump", dumpTests()},
		{"lifecycle", lifecycleTests()},
		{"race", raceTests()},
		{"random", randomTests()},
	} {
		t.Run(group.name, func(t *testing.T) {
			for _, c := range group.tests {
				t.Run(c.name, func(t *testing.T) { c.run(t, open) })
			}
		})
	}
}

type test struct {
	name string
	run  func(t *testing.T, open Open)
}

// on makes a test of a function that needs one bench.
func on(name string, run func(b *bench)) test {
	return test{name, func(t *testing.T, open Open) {
		b := newBench(t, open)
		defer b.close()
		run(b)
	}}
}
