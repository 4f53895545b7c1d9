// Package wire walks request bodies, JSON and msgpack, value by value, without
// building a tree of them. It exists because a prompt of a million tokens arrives as
// one integer array: the walkers read it straight into a slice.
//
// Both walkers have the shape of Value. They check everything they pass over, skipped
// values included, bound the nesting, and allocate in proportion to the bytes that are
// really there, whatever lengths a body claims.
//
// What a body may contain is the caller's business: field names, required fields, and
// what becomes of an error. A Walker tells only apart a body that is no JSON or msgpack
// at all (Syntax) from one whose value has another type or range than asked for (Shape).
package wire
