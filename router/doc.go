// Package router is what clients see of a node: the HTTP API.
//
// One server speaks the API of NVIDIA Dynamo's standalone KV indexer and the three
// generations of Mooncake's KV-indexer API, so that a client written for either works
// unchanged. The request decides: model_name asks for Dynamo's answer, model or modelname
// for Mooncake's, a msgpack body for that of Mooncake's newest conductor. DESIGN.md of
// this folder has the rules, and what was decided where the originals leave a choice.
//
// The router holds no state of the index. Of its node it needs what the interface Cluster
// says: the worker catalog, searchers, commands, and snapshots to show. It does not know
// how these come about, and never opens an engine's socket.
//
// A query's way: scan the body (internal/wire), hash the tokens, ask the index, put the
// rows on a board in the order of the answer, write it. Nothing of it allocates in
// proportion to the prompt once the pools are warm.
//
// Files are split by route; call.go, body.go, fields.go and request.go are the way in,
// score.go, searcher.go, board.go and names.go the way through the index, dynamo.go and
// mooncake.go the way out.
package router
