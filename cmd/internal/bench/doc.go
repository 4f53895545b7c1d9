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
// MeasureCluster is of another kind: it starts whole nodes (the command again, as serve
// and join), lets mock engines play, and reads the clocks of the processes. The CPU of
// the engines and of the benchmark itself is in none of its figures.
//
//	startCluster   n processes, all partitions owned, layout unchanged for a while
//	play           engines publish, until the indices hold what the engines hold
//	ask            the prompts of the trace, node by node in turn
//	divide         a further, profiled pass: samples by functions, see clusterprofile.go
//
// What the rows do not do: sockets, HTTP and several nodes are only in MeasureCluster's
// figures.
//
// Invariants: nothing of a repetition survives its process; what is measured is built
// of the same packages, with the same defaults, as a node; a row with a target that
// was not measured counts as missed.
package bench
