package translate

import "github.com/kvcluster/kvcluster/indexer"

// runRecord is one run of the slot. A record keeps its wire number while it waits
// for reuse, and is reused within its partition only: so wire numbers stay dense
// per partition without a second free list.
type runRecord struct {
	wire    indexer.Run
	part    uint32 // index in partTable
	ns      uint32
	length  int
	blocks  int // held in any tier
	touched bool
	next    uint32 // free list of the partition
}

type runTable struct {
	list    []runRecord // record 0 is not used
	live    int
	retired []retiredRun // emptied, not yet reusable, oldest first
	batch   int          // retired[batch:] were emptied in the batch that is open
}

type retiredRun struct {
	run uint32
	seq uint64
}

func (r *runTable) init() { r.list = make([]runRecord, 1) }

func (r *runTable) bytes() uint64 { return uint64(cap(r.list)) * 32 }

// open returns a fresh run of a partition.
func (r *runTable) open(parts *partTable, part, ns uint32) uint32 {
	p := &parts.list[part]
	p.runs++
	r.live++
	run := p.free
	if run != 0 {
		p.free = r.list[run].next
		r.list[run] = runRecord{wire: r.list[run].wire, part: part, ns: ns, touched: true}
		return run
	}
	r.list = append(r.list, runRecord{wire: indexer.Run(p.wires), part: part, ns: ns, touched: true})
	p.wires++
	return uint32(len(r.list) - 1)
}

// retire puts an emptied run aside until its number may be used again.
func (r *runTable) retire(parts *partTable, run uint32) {
	rec := &r.list[run]
	rec.blocks, rec.length = 0, 0
	parts.list[rec.part].runs--
	r.live--
	r.retired = append(r.retired, retiredRun{run: run})
}

// each visits every live run; visit may retire it.
func (r *runTable) each(visit func(run uint32)) {
	for i := range r.list {
		if r.list[i].blocks > 0 {
			visit(uint32(i))
		}
	}
}
