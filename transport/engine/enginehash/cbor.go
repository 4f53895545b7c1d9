package enginehash

import (
	"encoding/binary"
	"math"
)

// Canonical CBOR (RFC 8949, 4.2.1): definite lengths, shortest heads.

// CBOR major types, in the upper three bits of a head.
const (
	cborUint  = 0 << 5
	cborNeg   = 1 << 5
	cborBytes = 2 << 5
	cborText  = 3 << 5
	cborArray = 4 << 5
	cborNull  = 0xf6
)

func appendHead(b []byte, major byte, n uint64) []byte {
	switch {
	case n < 24:
		return append(b, major|byte(n))
	case n <= math.MaxUint8:
		return append(b, major|24, byte(n))
	case n <= math.MaxUint16:
		return append(b, major|25, byte(n>>8), byte(n))
	case n <= math.MaxUint32:
		return binary.BigEndian.AppendUint32(append(b, major|26), uint32(n))
	}
	return binary.BigEndian.AppendUint64(append(b, major|27), n)
}

func appendText(b []byte, s string) []byte {
	return append(appendHead(b, cborText, uint64(len(s))), s...)
}

func appendBytes(b, data []byte) []byte {
	return append(appendHead(b, cborBytes, uint64(len(data))), data...)
}

func appendInt(b []byte, v int64) []byte {
	if v < 0 {
		return appendHead(b, cborNeg, uint64(-(v + 1)))
	}
	return appendHead(b, cborUint, uint64(v))
}
