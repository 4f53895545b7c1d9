package ingest

// digestWindow is how many batches back a repeated sequence number can be told from
// a restart by its content. 2 KiB for each stream.
const digestWindow = 256

// digests remembers the digests of the latest batches of a stream. Their numbers are
// consecutive.
type digests struct {
	ring []uint64
	next uint64 // sequence after the latest
	n    int
}

func (d *digests) reset() { d.n = 0 }

func (d *digests) add(seq, digest uint64) {
	if d.ring == nil {
		d.ring = make([]uint64, digestWindow)
	}
	if d.n > 0 && seq != d.next {
		d.n = 0
	}
	d.ring[seq%digestWindow] = digest
	d.next = seq + 1
	d.n = min(d.n+1, digestWindow)
}

func (d *digests) get(seq uint64) (digest uint64, ok bool) {
	if back := d.next - seq; back == 0 || back > uint64(d.n) {
		return 0, false
	}
	return d.ring[seq%digestWindow], true
}
