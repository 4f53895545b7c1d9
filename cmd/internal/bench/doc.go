// Package bench measures the index on known work and checks its answers.
//
// Rules of measurement: CPU seconds of the process or thread, never wall time; a fresh
// process for every repetition (the command starts itself again), arms in turn, so
// that both see the same hour of a noisy machine; the median and all runs are
// printed; a figure whose answers are wrong is an error, not a figure. Memory is the
// live bytes that the parts account for and the growth of the resident set, both
// divided by the blocks held.
package bench
