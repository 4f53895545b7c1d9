// Package shard is pure placement: which partition a chain belongs to. It does no
// I/O and holds no state; what it computes depends on its arguments only, so every
// node computes the same.
//
//	shard/catalog   who the workers are: index groups, lives, slots, endpoints
package shard
