// Package trace holds request traces: who asks when, with which prompt, so that
// mock engines and benchmarks play the same traffic.
//
// A trace is a list of requests in file order. A prompt is a list of ids, one for
// each stretch of TokensPerID tokens (512 in the public Mooncake traces); equal ids
// mean equal tokens and, in a prompt that begins the same way, an equal prefix.
// The tokens themselves follow from the ids (AppendTokens).
//
// Traces come from JSONL files (Read) or from the built-in seeded generator
// (Generate), which makes traffic of the same shape when no file is there: shared
// system prompts, sessions of several turns, long tails, Poisson arrivals.
// Scale and Duplicate make a small trace long or wide. Summarise says in figures
// what a trace is, so that two generators can be compared.
//
// The package knows no engine, block size or index. It does not infer what a file
// does not say, except in InferSessions, which is asked for explicitly.
//
// File format, one JSON object a line, unknown fields ignored, blank lines skipped:
//
//	{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}
//	{"delay": 250, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47], "session_id": "a"}
//
// timestamp and delay are milliseconds. A delay counts from the row before it, of
// the same session when the row names one. session_id is a number or a text; rows
// without one are sessions of a single turn.
package trace
