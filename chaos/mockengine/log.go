package mockengine

import (
	"sync"

	"github.com/kvcluster/kvcluster/indexer"
)

// RecordKind is the kind of a log record.
type RecordKind uint8

// The kinds of record.
const (
	RecordStored RecordKind = 1 + iota
	RecordRemoved
	RecordCleared // every tier
	// RecordLife: the publisher has restarted; nothing from before is held any more,
	// announced or not. Its Sequence is the first one of the new life.
	RecordLife
)

// Fate says what became of the batch of a record.
type Fate uint8

// The fates.
const (
	Sent     Fate = iota // published
	Withheld             // kept for replay, not sent
	Lost                 // neither sent nor kept
)

// Record is one normalised event: what a reference model needs, whatever the format
// on the wire. Slices are valid only during the call.
type Record struct {
	Publisher int
	Kind      RecordKind
	Fate      Fate
	Tier      indexer.Tier // stored and removed
	Sequence  uint64
	HasParent bool
	Parent    uint64   // engine hash
	Engines   []uint64 // stored and removed
	Locals    []uint64 // stored: local hashes in the request's namespace
}

// Sink receives records, from the goroutine of each publisher, in the order of the
// events, before their batch is published. It must be safe for concurrent use by
// different publishers.
type Sink interface{ Append(Record) }

// MemoryLog is a Sink that keeps copies.
type MemoryLog struct {
	mu struct {
		sync.Mutex
		byPublisher map[int][]Record
	}
}

// Append implements Sink.
func (l *MemoryLog) Append(r Record) {
	r.Engines = append([]uint64(nil), r.Engines...)
	r.Locals = append([]uint64(nil), r.Locals...)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.byPublisher == nil {
		l.mu.byPublisher = make(map[int][]Record)
	}
	l.mu.byPublisher[r.Publisher] = append(l.mu.byPublisher[r.Publisher], r)
}

// Records returns the records of one publisher so far. Not to be changed.
func (l *MemoryLog) Records(publisher int) []Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := l.mu.byPublisher[publisher]
	return list[:len(list):len(list)]
}
