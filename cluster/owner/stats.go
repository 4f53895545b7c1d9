package owner

import "sync/atomic"

// The reasons for which messages are ignored.
const (
	ignoredClosed = iota
	ignoredLife
	ignoredTenure
	ignoredReopen
	ignoredMalformed
	numIgnored
)

var ignoredReasons = [numIgnored]string{"closed", "life", "tenure", "reopen", "malformed"}

type counters struct {
	frames, bytes, fills, dumps, dumpBytes, faults atomic.Uint64
	ignored                                        [numIgnored]atomic.Uint64
}

// Stats counts what an owner has and did.
type Stats struct {
	Sessions int
	Copies   int // open, or being filled
	Open     int
	Readable int // open, by a session that is current or this node itself

	Bytes     uint64 // payload received
	Frames    uint64 // of sessions, written to the index
	Fills     uint64 // complete ones
	Dumps     uint64
	DumpBytes uint64
	DumpsKept int
	Faults    uint64 // frames that the index refused
	// Ignored counts messages that were not carried out, by reason: "closed" and "life":
	// the copy is not open here, or is of another life; "tenure": a newer one is known;
	// "reopen": the copy has had content; "malformed".
	Ignored map[string]uint64
}

// Stats looks at all copies: some milliseconds for a million.
func (o *Owner) Stats() Stats {
	s := Stats{
		Bytes: o.count.bytes.Load(), Frames: o.count.frames.Load(), Fills: o.count.fills.Load(),
		Dumps: o.count.dumps.Load(), DumpBytes: o.count.dumpBytes.Load(), Faults: o.count.faults.Load(),
		Ignored: make(map[string]uint64, numIgnored),
	}
	for i, name := range ignoredReasons {
		s.Ignored[name] = o.count.ignored[i].Load()
	}
	o.mu.Lock()
	s.Sessions = len(o.mu.peers)
	o.mu.Unlock()
	s.DumpsKept = o.dumps.len()
	now := currency{o: o, carriers: *o.carriers.Load(), since: ^uint64(0), index: ^uint64(0)}
	for _, r := range o.table.all() {
		switch st := r.state.Load(); phase(st) {
		case open:
			s.Open++
			if now.current(carrierOf(st)) {
				s.Readable++
			}
			fallthrough
		case filling, filled:
			s.Copies++
		}
	}
	return s
}
