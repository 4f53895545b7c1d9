package translate

import (
	"unsafe"

	"github.com/kvcluster/kvcluster/indexer"
)

// runRecord is one run of the slot, in 16 bytes without a pointer. A record keeps
// its wire number while it waits for reuse, and is reused within its partition
// only: so wire numbers stay dense per partition without a second free list.
type runRecord struct {
	wire   uint32 // indexer.Run
	part   uint16 // index in partTable
	mark   uint16 // touched (1) | shed pass that spared it (15)
	ns     uint32 // namespace; of a free record the next one
	extent uint32 // units in use (15) | length (17)
}

const (
	runChunk    = 64
	touchedMark = 1 << 15
	lengthBits  = 17
	lengthMask  = 1<<lengthBits - 1
	oneUnit     = 1 << lengthBits
)

func (r *runRecord) length() int { return int(r.extent & lengthMask) }
func (r *runRecord) units() int  { return int(r.extent >> lengthBits) }
func (r *runRecord) touch()      { r.mark |= touchedMark }

func (r *runRecord) name() indexer.Run { return indexer.Run(r.wire) }

type runTable struct {
	chunks  []*[runChunk]runRecord // record 0 is not used
	made    uint32                 // records ever made
	live    int
	retired []retiredRun // emptied, not yet reusable, oldest first
	batch   int          // retired[batch:] were emptied in the batch that is open
	mem     allocator
}

type retiredRun struct {
	seq uint64
	run uint32
}

func (r *runTable) init(mem *Memory) { *r = runTable{made: 1, mem: allocator{mem}} }

func (r *runTable) at(run uint32) *runRecord { return &r.chunks[run/runChunk][run%runChunk] }

func (r *runTable) bytes() uint64 {
	return uint64(len(r.chunks))*(runChunk*16+8) + uint64(cap(r.retired))*16
}

// open returns a fresh run of a partition.
func (r *runTable) open(parts *partTable, part, ns uint32) uint32 {
	p := &parts.list[part]
	p.runs++
	r.live++
	if run := p.free; run != 0 {
		rec := r.at(run)
		p.free = rec.ns
		*rec = runRecord{wire: rec.wire, part: uint16(part), ns: ns, mark: touchedMark}
		return run
	}
	run := r.make(runRecord{wire: p.wires, part: uint16(part), ns: ns, mark: touchedMark})
	p.wires++
	return run
}

// make adds a record.
func (r *runTable) make(rec runRecord) uint32 {
	run := r.made
	if run == maxRuns {
		panic("translate: runs exhausted") // maxHeld blocks rule it out
	}
	r.made++
	if int(run/runChunk) == len(r.chunks) {
		r.chunks = append(r.chunks, r.mem.runs())
	}
	*r.at(run) = rec
	return run
}

// cancel takes back a run that was opened and never named in a frame.
func (r *runTable) cancel(parts *partTable, run uint32) {
	rec := r.at(run)
	parts.list[rec.part].runs--
	r.live--
	r.recycle(parts, run)
}

// retire puts an emptied run aside until its number may be used again.
func (r *runTable) retire(parts *partTable, run uint32) {
	rec := r.at(run)
	rec.extent = 0
	parts.list[rec.part].runs--
	r.live--
	r.retired = append(r.retired, retiredRun{run: run})
}

func (r *runTable) recycle(parts *partTable, run uint32) {
	rec := r.at(run)
	p := &parts.list[rec.part]
	rec.extent = 0
	rec.ns, p.free = p.free, run
}

// endBatch makes the runs that this batch emptied reusable, at once or when the
// batch has been acknowledged.
func (r *runTable) endBatch(parts *partTable, seq uint64, wait bool) {
	if len(r.retired) == 0 {
		return
	}
	for i := r.batch; i < len(r.retired); i++ {
		r.retired[i].seq = seq
	}
	r.batch = len(r.retired)
	if !wait {
		r.acknowledge(parts, seq)
	}
}

// abandonBatch forgets the runs that this batch emptied: their numbers are lost.
func (r *runTable) abandonBatch() { r.retired = r.retired[:r.batch] }

func (r *runTable) acknowledge(parts *partTable, seq uint64) {
	n := 0
	for n < r.batch && r.retired[n].seq <= seq {
		r.recycle(parts, r.retired[n].run)
		n++
	}
	r.batch -= n
	if r.retired = append(r.retired[:0], r.retired[n:]...); len(r.retired) == 0 && cap(r.retired) > 1024 {
		r.retired = nil
	}
}

// each visits every live run; visit may retire it.
func (r *runTable) each(visit func(run uint32, rec *runRecord)) {
	for run := uint32(1); run < r.made; run++ {
		if rec := r.at(run); rec.extent != 0 {
			visit(run, rec)
		}
	}
}

func (a allocator) runs() *[runChunk]runRecord {
	if a.mem == nil {
		return new([runChunk]runRecord)
	}
	c := (*[runChunk]runRecord)(a.mem.alloc(int(unsafe.Sizeof([runChunk]runRecord{}))))
	clear(c[:]) // a record that was never opened has extent 0
	return c
}

func (r *runTable) close() {
	if r.mem.mem != nil {
		for _, c := range r.chunks {
			r.mem.mem.release(unsafe.Pointer(c), int(unsafe.Sizeof(*c)))
		}
	}
	*r = runTable{}
}
