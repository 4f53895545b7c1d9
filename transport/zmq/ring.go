package zmq

import "encoding/binary"

// record is one batch as an engine keeps it for replay.
type record struct {
	topic   []byte
	seq     uint64
	payload []byte
}

func sequence(seq uint64) (b [8]byte) {
	binary.BigEndian.PutUint64(b[:], seq)
	return b
}

// ring keeps the newest batches in the order in which they came.
type ring struct {
	records []record
	limit   int
	first   int // index of the oldest, once the ring is full
}

func (r *ring) add(rec record) {
	if len(r.records) < r.limit {
		r.records = append(r.records, rec)
		return
	}
	r.records[r.first] = rec
	r.first = (r.first + 1) % r.limit
}

func (r *ring) forget() {
	clear(r.records)
	r.records, r.first = r.records[:0], 0
}

// from calls fn with every batch of sequence start or higher, oldest first.
func (r *ring) from(start uint64, fn func(record)) {
	for i := range r.records {
		if rec := r.records[(r.first+i)%len(r.records)]; rec.seq >= start {
			fn(rec)
		}
	}
}
