// Package engine knows what inference engines put into a batch of KV-cache
// events: vLLM (array and map events), SGLang (arrays, maps, bigrams), TensorRT-LLM
// streaming and the Mooncake master. It decodes all of them into one normalised
// form; package encode writes every format for mock engines, package enginehash
// computes the block hashes that engines send.
//
// It knows no sockets, no sequences and no trees; it does not judge streams, and
// it does not hash tokens.
//
// # Wire
//
//	live message    [topic][sequence, 8 bytes big-endian][payload]        ParseLive
//	replay reply    the same, or without the topic; end: empty payload    ParseReplay
//	payload         msgpack array [ts, [event, ...], rank], or a map of the same
//	event           array [tag, block_hashes, ...] or map {"type": tag, ...}, mixed
//	                as the sender likes
//
// # Memory
//
// A Batch points into the decoder's arenas, which are reused:
//
//	events  | Event | Event | Event |
//	            |  \_ Hashes, Tokens, Extra: windows of
//	hashes  |h h h h|h|h h h ...
//	tokens  |t t t t t t t t t|t t t ...
//
// When an arena is full a larger one begins, and what was handed out stays in the
// old one; so after a few batches nothing is allocated any more. Strings are
// interned in bounded tables and may be kept.
//
// # Rules
//
//   - A length is compared with the bytes that are left before anything is
//     allocated or looped over; nesting is bounded; walking uses no recursion.
//   - A payload whose bytes are not sound is rejected whole, wherever it breaks.
//   - An event that is sound but cannot be used (wrong type of a field, unknown tag,
//     foreign, ...) is skipped and counted by reason; its neighbours do not suffer.
//   - nil is the same as absent, for every field.
//   - Readers of single fields only say "not what I expected"; then skip, the one
//     judge of structure, passes over the value. So there is one place that decides
//     between "reject" and "skip".
package engine
