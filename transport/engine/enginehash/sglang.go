package enginehash

import (
	"crypto/sha256"
	"encoding/binary"
)

// saltDomain separates salts from pages, since SGLang 0.5.18.
const saltDomain = "sglang-cache-salt-v1\x00"

// SGLang computes the page hashes of an SGLang engine. It keeps a buffer: one
// goroutine at a time. The zero value is ready.
type SGLang struct {
	// Bigram hashes the pairs (t0,t1)(t1,t2).. of EAGLE models; a page then covers
	// one token more than its size.
	Bigram bool
	// PageOnly leaves the prior out, as before November 2025: such hashes do not
	// name a prefix.
	PageOnly bool

	buf []byte
}

// SaltDigest is the prior of the first page under a cache salt.
func SaltDigest(salt string) Digest {
	return sha256.Sum256(append([]byte(saltDomain), salt...))
}

// Page returns the digest of one page; prior is nil for the first page without a
// salt. With Bigram, tokens has one more than the page has pairs.
func (s *SGLang) Page(prior *Digest, tokens []uint32) Digest {
	b := s.buf[:0]
	if prior != nil && !s.PageOnly {
		b = append(b, prior[:]...)
	}
	if s.Bigram {
		for i := 0; i+1 < len(tokens); i++ {
			b = binary.LittleEndian.AppendUint32(b, tokens[i])
			b = binary.LittleEndian.AppendUint32(b, tokens[i+1])
		}
	} else {
		for _, t := range tokens {
			b = binary.LittleEndian.AppendUint32(b, t)
		}
	}
	s.buf = b
	return sha256.Sum256(b)
}

// Append appends the hashes (int64 bit-cast to u64) of the complete pages of tokens
// below prior, and returns the last digest, nil when there is none. prior may be
// nil, a page's digest, or SaltDigest's.
func (s *SGLang) Append(dst []uint64, prior *Digest, tokens []uint32, pageSize int) ([]uint64, *Digest) {
	window := pageSize
	if s.Bigram {
		window++
	}
	var last Digest
	if prior != nil {
		last = *prior
	}
	pages := 0
	for at := 0; pageSize > 0 && at+window <= len(tokens); at += pageSize {
		p := &last
		if prior == nil && pages == 0 {
			p = nil
		}
		last = s.Page(p, tokens[at:at+window])
		dst = append(dst, FoldSGLang(last))
		pages++
	}
	if pages == 0 {
		return dst, prior
	}
	return dst, &last
}

// FoldSGLang is the integer that SGLang sends for a digest: its first 8 bytes.
func FoldSGLang(d Digest) uint64 { return binary.BigEndian.Uint64(d[:8]) }
