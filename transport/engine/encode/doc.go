// Package encode writes the event batches of engines, for mock engines, tests and
// conformance runs. It writes what msgspec would: integers of minimal width, array
// events with every slot, map events without the keys that are nil by default.
//
//	live message   [topic][sequence, 8 bytes big-endian][payload]
//	payload        [ts, [event, ...], rank]              msgpack
//	array event    [tag, block_hashes, parent, token_ids, block_size, lora_id, ...]
//	map event      {"type": tag, "block_hashes": ..., ...}
//
// Append-style: nothing allocates but the growth of dst. It does not judge what it
// is given; a Format leaves out what its engine cannot say.
package encode
