// Package bench measures the index on known work and checks its answers.
//
// Rules of measurement: CPU seconds of the process or thread, never wall time, except
// where the figure is a latency; a fresh process for every repetition (the command
// starts itself again), arms in turn, so that both see the same hour of a noisy
// machine; the median, the spread and all runs are kept; a figure whose answers are
// wrong is an error, not a figure. Memory is the live bytes that the parts account for
// and the growth of the resident set, both divided by the blocks held, the workload
// itself left out.
//
//	MeasureOplist, MeasureIndex     the process that the user started
//	   |  writes the op list once as a tape, a file that all repetitions map
//	   |  Spawner: Job as JSON in, Result as JSON out
//	   v
//	RunJob                          a process for one repetition of one arm of one row
//
// A Row is a name, its measures with their targets, and a function that fills a Result
// by a bencher. To add one: write a file row<name>.go and put it into Rows.
//
// What it does not do: sockets, HTTP and several nodes are not in these figures; mock
// engines against a running node are (kvcluster mock, kvcluster demo).
//
// Invariants: nothing of a repetition survives its process; what is measured is built
// of the same packages, with the same defaults, as a node; a row with a target that
// was not measured counts as missed.
package bench
