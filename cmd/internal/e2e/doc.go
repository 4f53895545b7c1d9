// Package e2e has the tests of a whole node from outside: real sockets, real HTTP,
// mock engines, and chaos/model as the judge. There is no code but tests.
//
// The promises of a node (1 exact, 2 never more, 6 restarts, 7 memory, 8 nothing waits)
// each have a test of that name. A test of a promise is a check that takes a
// testing.TB; it is run on the node as it is, and then on nodes that break the promise
// on purpose (mutants_test.go), where it has to fail. To know that a batch is applied
// without looking inside, engines store a marker in the same partition and wait until a
// query finds it.
//
// TestContract runs the table of router/contract on a node and on a cluster of five,
// TestOpList a list whose answers are known (make oplist: the published ones, whole).
// TestClusterSurvives and its like run node processes.
//
// Other tests: a trace through mock engines in every format with every prompt compared
// (parity), bad input with a healthy worker beside it that must notice nothing, metrics,
// five hundred publishers.
//
// Flags: -parity.requests=-1 plays the whole trace (make parity), -soak=5m watches
// promise 2 for longer (make soak), -survive.nodes=5 kills nodes of a larger cluster (make
// survive). KVCLUSTER_TEST_NODES=3 puts a cluster where the tests speak of a node,
// KVCLUSTER_TEST_INDEX=reference runs everything on the plain index,
// KVCLUSTER_TEST_DEBUG=1 logs what the nodes log.
package e2e
