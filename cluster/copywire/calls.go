package copywire

import (
	"context"
	"fmt"

	"github.com/kvcluster/kvcluster/indexer"
)

// Methods of calls between nodes.
const (
	// MethodDump fetches a part of a dump: DumpRequest -> Chunk. It waits until the
	// fence with the token has come.
	MethodDump = "copy.dump"
	// MethodPeek makes a dump without a fence: PeekRequest -> Chunk; the rest of it is
	// fetched by MethodDump with the token of that chunk.
	MethodPeek = "copy.peek"
	// MethodAdopt fences off older tenures: AdoptRequest -> Labels.
	MethodAdopt = "copy.adopt"
	// MethodRefill asks the ingest node of a slot to fill a copy again that the caller
	// had to close: header of the frame -> nothing. Served by cluster/fanout.
	MethodRefill = "copy.refill"
)

// ChunkBytes is the most that one chunk of a dump has.
const ChunkBytes = 4 << 20

// DumpRequest asks for the bytes of a dump from an offset on.
type DumpRequest struct {
	Token  uint64
	Offset uint64
}

// Append appends the request.
func (r DumpRequest) Append(dst []byte) []byte {
	return le.AppendUint64(le.AppendUint64(dst, r.Token), r.Offset)
}

// DecodeDumpRequest reads what Append wrote.
func DecodeDumpRequest(b []byte) (DumpRequest, error) {
	if len(b) != 2*word {
		return DumpRequest{}, fmt.Errorf("%w: dump request of %d bytes", ErrMessage, len(b))
	}
	return DumpRequest{le.Uint64(b), le.Uint64(b[8:])}, nil
}

// Chunk is a part of a dump.
type Chunk struct {
	Token uint64
	Total uint64 // bytes of the whole dump
	Bytes []byte
}

// Append appends the chunk.
func (c Chunk) Append(dst []byte) []byte {
	return append(le.AppendUint64(le.AppendUint64(dst, c.Token), c.Total), c.Bytes...)
}

// DecodeChunk reads what Append wrote; the bytes are those of b.
func DecodeChunk(b []byte) (Chunk, error) {
	if len(b) < 2*word {
		return Chunk{}, fmt.Errorf("%w: chunk of %d bytes", ErrMessage, len(b))
	}
	c := Chunk{le.Uint64(b), le.Uint64(b[8:]), b[16:]}
	if uint64(len(c.Bytes)) > c.Total {
		return Chunk{}, fmt.Errorf("%w: chunk of %d bytes in a dump of %d", ErrMessage, len(c.Bytes), c.Total)
	}
	return c, nil
}

// PeekRequest asks for a dump of copies as they are now.
type PeekRequest struct {
	SlotLife
	// Partitions, none = all that the node has.
	Partitions []indexer.PartitionID
}

// Append appends the request.
func (r PeekRequest) Append(dst []byte) []byte {
	dst = le.AppendUint64(appendLife(dst, r.SlotLife), uint64(len(r.Partitions)))
	return appendPartitions(dst, r.Partitions)
}

// DecodePeekRequest reads what Append wrote.
func DecodePeekRequest(b []byte) (PeekRequest, error) {
	if len(b) < 3*word {
		return PeekRequest{}, fmt.Errorf("%w: peek request of %d bytes", ErrMessage, len(b))
	}
	n := le.Uint64(b[16:])
	if n > MaxPartitions || uint64(len(b)) != 3*word+(n+1)/2*word {
		return PeekRequest{}, fmt.Errorf("%w: peek request for %d partitions in %d bytes", ErrMessage, n, len(b))
	}
	return PeekRequest{lifeAt(b), partitionsAt(b[24:], int(n))}, nil
}

// AdoptRequest says that a slot is read under a new tenure.
type AdoptRequest struct {
	SlotLife
	Tenure uint64
}

// Append appends the request.
func (r AdoptRequest) Append(dst []byte) []byte {
	return le.AppendUint64(appendLife(dst, r.SlotLife), r.Tenure)
}

// DecodeAdoptRequest reads what Append wrote.
func DecodeAdoptRequest(b []byte) (AdoptRequest, error) {
	if len(b) != 3*word {
		return AdoptRequest{}, fmt.Errorf("%w: adopt request of %d bytes", ErrMessage, len(b))
	}
	return AdoptRequest{lifeAt(b), le.Uint64(b[16:])}, nil
}

// Label says up to where a copy is complete.
type Label struct {
	Partition indexer.PartitionID
	// Current: what the copy has is all that was acknowledged. If not, whoever wrote it
	// may have gone on without it (it lapsed); up to its label it is complete.
	Current  bool
	Tenure   uint64
	Sequence uint64
}

// Labels are the open copies of one slot at one node; others are not named.
type Labels struct {
	// Cursor: the last that came, with life 0 if none did. The copies have all batches
	// up to it.
	Cursor Cursor
	Copies []Label
}

// Append appends the labels.
func (l Labels) Append(dst []byte) []byte {
	dst = appendLife(dst, l.Cursor.SlotLife)
	for _, w := range []uint64{l.Cursor.Tenure, l.Cursor.Sequence, l.Cursor.Digest, uint64(len(l.Copies))} {
		dst = le.AppendUint64(dst, w)
	}
	for _, c := range l.Copies {
		w := uint64(c.Partition)
		if c.Current {
			w |= 1 << 32
		}
		dst = le.AppendUint64(le.AppendUint64(le.AppendUint64(dst, w), c.Tenure), c.Sequence)
	}
	return dst
}

// DecodeLabels reads what Append wrote.
func DecodeLabels(b []byte) (Labels, error) {
	const head, each = 6 * word, 3 * word
	if len(b) < head || (len(b)-head)%each != 0 || le.Uint64(b[40:]) != uint64((len(b)-head)/each) {
		return Labels{}, fmt.Errorf("%w: labels of %d bytes", ErrMessage, len(b))
	}
	l := Labels{Cursor: Cursor{lifeAt(b), le.Uint64(b[16:]), le.Uint64(b[24:]), le.Uint64(b[32:])}}
	for b = b[head:]; len(b) > 0; b = b[each:] {
		w := le.Uint64(b)
		if w>>33 != 0 {
			return Labels{}, fmt.Errorf("%w: label with flags %#x", ErrMessage, w>>32)
		}
		l.Copies = append(l.Copies, Label{indexer.PartitionID(uint32(w)), w>>32 == 1, le.Uint64(b[8:]), le.Uint64(b[16:])})
	}
	return l, nil
}

// AppendRefill appends the request of MethodRefill.
func AppendRefill(dst []byte, h indexer.Header) []byte {
	dst = appendLife(dst, LifeOf(h))
	for _, w := range []uint64{uint64(h.Partition), h.Tenure, h.Sequence} {
		dst = le.AppendUint64(dst, w)
	}
	return dst
}

// DecodeRefill reads what AppendRefill wrote.
func DecodeRefill(b []byte) (indexer.Header, error) {
	if len(b) != 5*word || le.Uint32(b[20:]) != 0 {
		return indexer.Header{}, fmt.Errorf("%w: refill request of %d bytes", ErrMessage, len(b))
	}
	l := lifeAt(b)
	return indexer.Header{
		Group: l.Group, Partition: indexer.PartitionID(le.Uint32(b[16:])), Slot: l.Slot,
		Life: l.Life, Tenure: le.Uint64(b[24:]), Sequence: le.Uint64(b[32:]),
	}, nil
}

// A Caller makes one call of a method of some peer.
type Caller func(ctx context.Context, method string, req []byte) ([]byte, error)

// Fetch gets the whole dump of a fence that has been sent, or is about to be; it has
// at most limit bytes.
func Fetch(ctx context.Context, call Caller, token uint64, limit int) ([]Copy, error) {
	return fetch(ctx, call, Chunk{Token: token, Total: 1}, limit)
}

// Peek gets a dump of copies as they are now; it has at most limit bytes.
func Peek(ctx context.Context, call Caller, r PeekRequest, limit int) ([]Copy, error) {
	b, err := call(ctx, MethodPeek, r.Append(nil))
	if err != nil {
		return nil, fmt.Errorf("dump %v: %w", r.SlotLife, err)
	}
	c, err := DecodeChunk(b)
	if err != nil {
		return nil, fmt.Errorf("dump %v: %w", r.SlotLife, err)
	}
	return fetch(ctx, call, c, limit)
}

func fetch(ctx context.Context, call Caller, c Chunk, limit int) ([]Copy, error) {
	dump := c.Bytes
	for uint64(len(dump)) < c.Total {
		b, err := call(ctx, MethodDump, DumpRequest{c.Token, uint64(len(dump))}.Append(nil))
		if err != nil {
			return nil, fmt.Errorf("fetch dump %#x: %w", c.Token, err)
		}
		next, err := DecodeChunk(b)
		switch {
		case err != nil:
			return nil, fmt.Errorf("fetch dump %#x: %w", c.Token, err)
		case len(next.Bytes) == 0 || len(dump) > 0 && next.Total != c.Total || uint64(len(dump)+len(next.Bytes)) > next.Total:
			return nil, fmt.Errorf("fetch dump %#x: %w: chunk of %d bytes at %d of %d", c.Token, ErrMessage, len(next.Bytes), len(dump), next.Total)
		case next.Total > uint64(limit):
			return nil, fmt.Errorf("fetch dump %#x: %w: %d bytes, at most %d", c.Token, ErrTooLarge, next.Total, limit)
		}
		c.Total = next.Total
		dump = append(dump, next.Bytes...)
	}
	return DecodeCopies(dump)
}
