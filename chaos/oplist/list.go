package oplist

// Kind is the kind of an operation.
type Kind uint8

// The operations, with the numbers that enter the checksum.
const (
	Query Kind = iota
	Stored
	Removed
)

// String returns the name used in reports.
func (k Kind) String() string {
	switch k {
	case Query:
		return "query"
	case Stored:
		return "stored"
	case Removed:
		return "removed"
	}
	return "unknown"
}

// Op is a view of one operation. Its slices point into the list and must not be
// changed.
type Op struct {
	Kind      Kind
	Worker    uint32
	Request   uint32   // request index, also that of the query: what Answers.Add wants
	HasParent bool     // stored: the first block has a predecessor
	Parent    uint64   // stored: engine hash of that predecessor
	Contents  []uint64 // query and stored: local hashes
	Keys      []uint64 // stored and removed: engine hashes
}

// Blocks is the number of block operations that the operation counts for.
func (o *Op) Blocks() int {
	if o.Kind == Removed {
		return len(o.Keys)
	}
	return len(o.Contents)
}

// op is the stored form: see the package comment.
type op struct {
	offset, length, request uint32
	head                    uint32 // kind (2) | has parent (1) | worker (29)
}

const (
	headParent  = 1 << 29
	headKind    = 30
	maxWorkers  = 1 << 16 // the row hash has 16 bits for a worker
	idsPerCopy  = 10_000_000
	blocksPerID = 4
)

// List is a built op list. It is immutable; any number of goroutines may read it.
type List struct {
	cfg      Config
	ids      int // largest id of the trace + 1
	ops      []op
	contents []uint64
	keys     []uint64
	evicted  []uint64
	totals   Totals
}

// Totals counts a list.
type Totals struct {
	Queries, QueryHashes          int
	StoredEvents, StoredBlocks    int
	RemovedEvents, RemovedBlocks  int
	Held, Distinct                int // resident at the end: (worker, block) pairs, blocks
	Checksum                      uint64
	LargestStore, LargestRemoval  int // blocks of one event
	LongestQuery                  int // blocks
	RequestsWithoutStore, Workers int
}

// BlockOps is the number of block operations: query, stored and removed hashes.
func (t Totals) BlockOps() int { return t.QueryHashes + t.StoredBlocks + t.RemovedBlocks }

// Config returns what the list was built with.
func (l *List) Config() Config { return l.cfg }

// Totals returns the counts and the checksum of the list.
func (l *List) Totals() Totals { return l.totals }

// Len returns the number of operations.
func (l *List) Len() int { return len(l.ops) }

// At fills o with operation i. It allocates nothing.
func (l *List) At(i int, o *Op) {
	p := l.ops[i]
	o.Kind = Kind(p.head >> headKind)
	o.Worker = p.head & (headParent - 1)
	o.Request = p.request
	o.HasParent, o.Parent = false, 0
	from, to := int(p.offset), int(p.offset)+int(p.length)
	switch o.Kind {
	case Query:
		o.Contents, o.Keys = l.contents[from:to:to], nil
	case Stored:
		o.Contents, o.Keys = l.contents[from:to:to], l.keys[from:to:to]
		if p.head&headParent != 0 {
			o.HasParent, o.Parent = true, l.keys[from-1]
		}
	case Removed:
		o.Contents, o.Keys = nil, l.evicted[from:to:to]
	}
}

// All calls yield for every operation, in order, until it returns false. The Op is
// reused. Use it as: for o := range list.All.
func (l *List) All(yield func(*Op) bool) {
	var o Op
	for i := range l.ops {
		l.At(i, &o)
		if !yield(&o) {
			return
		}
	}
}

// Mix is the hash of the list's rules: the finaliser of splitmix64.
func Mix(x uint64) uint64 {
	z := x + 0x9E3779B97F4A7C15
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}

// checksum computes the checksum over every field of every operation.
func (l *List) checksum() uint64 {
	h := uint64(0)
	add := func(x uint64) { h = Mix(h ^ x) }
	for o := range l.All {
		add(uint64(o.Kind))
		add(uint64(o.Worker))
		if o.HasParent {
			add(1)
		} else {
			add(0)
		}
		add(o.Parent)
		add(uint64(o.Blocks()))
		switch o.Kind {
		case Query:
			for _, c := range o.Contents {
				add(c)
			}
		case Stored:
			for i, k := range o.Keys {
				add(k)
				add(o.Contents[i])
			}
		case Removed:
			for _, k := range o.Keys {
				add(k)
			}
		}
	}
	return h
}
