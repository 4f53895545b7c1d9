// Package mockengine plays inference engines: workers with a prefix cache that
// publish real event batches over real (or in-memory) sockets, register themselves,
// and break in the ways in which engines break.
//
// A Fleet is made of a Config, opened on a transport.Network and run; everything
// that happens follows from a trace (package trace) spread over the workers
// (package driver). One goroutine runs each (instance, rank).
//
//	trace --> driver.Plan --> scheduler (trace time) --> batch --> encoder --> transport.Publisher
//	                            pool, host pool            `--> Sink (normalised records)
//
// Inside a worker requests wait for room, are computed and leave:
//
//   - Admission pins the longest resident prefix of complete blocks and reserves all
//     other blocks of prompt and answer. What must go is the least recently released;
//     one removal event lists it, before the allocation.
//   - Blocks become visible when they are computed. Neighbouring new blocks form one
//     store event; a block that is visible as another copy breaks it: duplicates take
//     capacity and send nothing. At least one token of a prompt is always computed.
//   - Decoding stores single blocks as they fill. SGLang stores what a request has
//     generated in one piece at its end, and holds such events back for 40 decode steps
//     or until a prefill is reported.
//   - A finished request releases its blocks tail first. With duplicates, the removal
//     is sent when the last copy goes.
//   - With a host tier every computed block is copied there while there is room; the
//     device copy goes first, the host copy last; blocks found on the host are loaded
//     back, which is a store on the device.
//   - All events of one scheduler step are one batch.
//
// Two things are true of every run without faults: replaying the Sink's records gives
// exactly Contents, and Depths is what an exact index must answer. Truth is kept in
// path keys (rolling hashes of local hashes), so it depends on no engine hash.
//
// The package does not model time beyond constant prefill and decode rates, does not
// preempt requests, and knows no index.
package mockengine
