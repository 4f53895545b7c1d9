// Package protocol looks at every order in which the steps of a copy can happen: the
// moving of content from one owner (A) to another (B) while events and a query go on. Two
// models, explored completely within small bounds, hold every answer against what the
// cluster promises (I5):
//
//   - [Copy]: resync, dual write, report and commit, with a log that each actor applies in
//     its own time; the target may restart, the ingest may die and be replaced.
//   - [Abort]: a move that is begun, aborted and begun again, with lag at every actor.
//
// A model is about one block of one stream. Streams do not touch each other's copies (I2)
// and promises are made claim by claim, so one stands for all. Batches about other
// blocks are part of it where a gap would otherwise be hidden by what follows.
//
// What is not here: names and how they are rebuilt, replay after a takeover, tiers,
// and what is argued with clocks (leases). The package has no code that runs in a node.
//
// # Rules and steps
//
//	rule                                      step, and the mutant that breaks it
//	Resync 1, fence in stream order           "ingest sends the fence"; NoFence: the dump lacks what was under way
//	Resync 2, one moment of one lane          "A dumps at the fence"
//	Resync 3, reset, content, then both       "ingest fills B and goes on with both"; NoReset, FillLast
//	Resync 4, ready = caught up               "ingest reports B ready"; NoCatchUp, ReportUnacked
//	Resync 5, too much waits: begin again     overflow in "engine ..."; OverflowGoesOn, AnyDump
//	M2 begin, M3 report and commit            "log: begin", "log: commit"; NoBoot: a report for a process that is gone
//	M4 an abort closes no newer copy          "B applies entry 2"; AbortCloses
//	M5 the source stops serving first         "the query reads A", "ingest hears that A serves no more"; ServeOn, StopAtCommit
//	I5 acknowledged = acked by all that count (the acknowledged cursor); ReadyUncounted
//	L2 a new boot id closes its copies        "B restarts"; NoBoot
//	L3 tenure and openness are checked        "A refuses", "B refuses", "B ignores"; NoTenure
//	T1, T2 takeover from the open copy        "the ingest dies"
//	Q2, Q4 a query reads who is ready         "the query reads B"; NoBoot
//
// # Holding back instead of pausing
//
// The rule pauses the stream between fence and fill. Nodes do not: batches go on to the
// source, and those after the fence are held for the target and follow its fill, so that the
// target gets the same sequence. With Hold the models do that, with a bound beyond which
// the held batches are dropped and the fill is begun again; the target counts for what is
// acknowledged from its fill on, and the report waits until all that was sent is acked. It is
// as clean as the pause. Two findings:
//
//   - A dump must be that of the last fence, once a fill can be begun again (AnyDump).
//   - The report must wait for all acks (ReportUnacked). As long as it does, it is no harm to
//     count the target only once it is ready (CountedLate alone is clean).
//
// Two defences are not needed for safety, and stay: acks that say which move they are
// for, and closed copies that take no frames (AcksUnmarked and ClosedTakes are clean).
//
// # Bounds
//
// Tests explore up to two batches; -deep goes to three, and to restart and crash
// together: make protocol.
package protocol
