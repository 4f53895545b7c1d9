package snapshot

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/zeebo/xxh3"

	"github.com/kvcluster/kvcluster/cluster/copywire"
)

const (
	magic   = "KVCSNAP\n"
	version = 1

	word       = 8
	headFixed  = 2 * word
	maxFields  = 4 << 10
	fieldsHead = 3 * word
	recordHead = 8 * word
	footBytes  = 4 * word

	partRecord = 1
	partFoot   = 2

	// MaxSlotBytes bounds what one slot has in a file, and the memory that writing and
	// reading it take. It is what a takeover accepts of one slot.
	MaxSlotBytes = 512 << 20
)

// Errors of files. All of them mean: not a word of this file is used.
var (
	// ErrDamaged: it is cut off, or something in it has changed.
	ErrDamaged = errors.New("damaged")
	// ErrVersion: it was written by another version of this program.
	ErrVersion = errors.New("written by another version")
	// ErrForeign: it belongs to another cluster or another node.
	ErrForeign = errors.New("not of this node")
)

// Header says whose copies a file has.
type Header struct {
	ClusterID, ServerID string
	Partitions          uint32
	Index               uint64 // of the log, as it was applied when the snapshot began
	Time                int64  // ns since 1970
}

// Slot is one record: the copies of a slot.
type Slot struct {
	copywire.SlotLife
	Cursor copywire.Cursor // zero = none holds for all copies
	Copies int
	Dump   []byte // copywire.DecodeCopies
}

var le = binary.LittleEndian

func sum(part []byte, offset int64) uint64 { return xxh3.HashSeed(part, uint64(offset)) }

func padded(n int) int { return (n + word - 1) &^ (word - 1) }

func appendHead(dst []byte, h Header) ([]byte, error) {
	n := padded(fieldsHead + len(h.ClusterID) + len(h.ServerID))
	if n > maxFields {
		return nil, fmt.Errorf("ids of %d bytes", len(h.ClusterID)+len(h.ServerID))
	}
	dst = append(dst, magic...)
	dst = le.AppendUint64(dst, version|uint64(n)<<32)
	dst = le.AppendUint64(dst, h.Index)
	dst = le.AppendUint64(dst, uint64(h.Time))
	dst = le.AppendUint64(dst, uint64(h.Partitions)|uint64(len(h.ClusterID))<<32|uint64(len(h.ServerID))<<48)
	dst = append(append(dst, h.ClusterID...), h.ServerID...)
	dst = append(dst, make([]byte, headFixed+n-len(dst))...)
	return le.AppendUint64(dst, sum(dst, 0)), nil
}

// decodeFields reads what is behind the fixed beginning of a head.
func decodeFields(b []byte) (h Header, err error) {
	w := le.Uint64(b[2*word:])
	c, s := int(uint16(w>>32)), int(w>>48)
	if padded(fieldsHead+c+s) != len(b) {
		return h, fmt.Errorf("%w: ids of %d and %d bytes in a head of %d", ErrDamaged, c, s, len(b))
	}
	h = Header{Index: le.Uint64(b), Time: int64(le.Uint64(b[word:])), Partitions: uint32(w)}
	h.ClusterID, h.ServerID = string(b[fieldsHead:][:c]), string(b[fieldsHead+c:][:s])
	return h, nil
}

func appendRecordHead(dst []byte, s Slot) []byte {
	for _, w := range [...]uint64{
		partRecord | uint64(s.Copies)<<32, uint64(len(s.Dump)), uint64(s.Group) | uint64(s.Slot)<<32, s.Life,
		s.Cursor.Life, s.Cursor.Tenure, s.Cursor.Sequence, s.Cursor.Digest,
	} {
		dst = le.AppendUint64(dst, w)
	}
	return dst
}

func appendFoot(dst []byte, records, copies uint64, bytes int64) []byte {
	for _, w := range [...]uint64{partFoot, records, copies, uint64(bytes)} {
		dst = le.AppendUint64(dst, w)
	}
	return dst
}
