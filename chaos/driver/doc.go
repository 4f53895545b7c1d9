// Package driver decides which worker serves which request of a trace, and knows
// every prompt, so that after a run anyone can ask an index for any of them and
// compare.
//
// A Plan is a pure function of the trace and its Config: workers, seed, stickiness,
// the share of requests with a LoRA adapter or a cache salt. Prompts are not stored
// but made again from the ids; generated tokens come from a hash of the request's
// number. A Recorder keeps which requests were really issued.
//
// The package sends nothing and keeps no time.
package driver
