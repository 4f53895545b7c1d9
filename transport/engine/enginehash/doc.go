// Package enginehash computes the block hashes that engines put into their events,
// so that mock engines announce what real ones would and tests can compare with
// captures.
//
//	vLLM    digest(i) = SHA-256(canonical CBOR of [digest(i-1), [tokens], keys])
//	        digest(-1) = SHA-256(CBOR of the seed as text); on the wire the digest's
//	        LAST 8 bytes, big-endian, unsigned. Only with the hash algorithm
//	        sha256_cbor: vLLM's default pickles a Python tuple.
//	SGLang  digest(i) = SHA-256(digest(i-1), tokens as u32 little-endian); the first
//	        page has no prior, or the salt's; on the wire the FIRST 8 bytes,
//	        big-endian, as int64 (here bit-cast to u64).
//
// The hashes are opaque to the index, which never computes one.
package enginehash
