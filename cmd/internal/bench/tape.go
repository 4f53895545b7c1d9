package bench

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"github.com/kvcluster/kvcluster/chaos/oplist"
	"github.com/kvcluster/kvcluster/chaos/trace"
	"golang.org/x/sys/unix"
)

// Tape is an op list as flat words, so that the processes of all repetitions map one
// file instead of building the list again: that takes five times as long as running
// it. Little-endian words, in this order:
//
//	header    magic | operations | contents | keys | evicted | workers | requests | 0
//	ops       4 words each:
//	          kind (8) | has parent (8) | 0 (16) | worker (32)
//	          request (32) | length (32)
//	          offset in contents or evicted (32) | offset in keys (32)
//	          parent
//	contents  local hashes; a store's are those at the end of its query
//	keys      engine hashes of the stores
//	evicted   engine hashes of the removals
//	times     arrival of each request in ns
//
// A tape is read-only and may be read by any number of goroutines.
type Tape struct {
	words                   []uint64
	ops                     []uint64
	contents, keys, evicted []uint64
	times                   []uint64
	workers                 int
}

const (
	tapeMagic  = 0x31455041542d766b // "kv-TAPE1"
	tapeHeader = 8
	tapeOp     = 4
)

// ErrTape: the file is not a tape.
var ErrTape = errors.New("not an op list tape")

// NewTape flattens the list of a trace.
func NewTape(l *oplist.List, tr *trace.Trace) *Tape {
	t := l.Totals()
	var ops, contents, keys, evicted []uint64
	ops = make([]uint64, 0, tapeOp*l.Len())
	contents = make([]uint64, 0, t.QueryHashes)
	keys = make([]uint64, 0, t.StoredBlocks)
	evicted = make([]uint64, 0, t.RemovedBlocks)
	for o := range l.All {
		parent := uint64(0)
		if o.HasParent {
			parent = 1
		}
		at, keyAt := len(contents), len(keys)
		switch o.Kind {
		case oplist.Query:
			contents = append(contents, o.Contents...)
		case oplist.Stored:
			at -= len(o.Contents) // the end of the query before it
			keys = append(keys, o.Keys...)
		case oplist.Removed:
			at = len(evicted)
			evicted = append(evicted, o.Keys...)
		}
		ops = append(ops, uint64(o.Kind)|parent<<8|uint64(o.Worker)<<32, uint64(o.Request)|uint64(o.Blocks())<<32,
			uint64(at)|uint64(keyAt)<<32, o.Parent)
	}
	words := append(make([]uint64, 0, tapeHeader+len(ops)+len(contents)+len(keys)+len(evicted)+t.Queries),
		tapeMagic, uint64(l.Len()), uint64(len(contents)), uint64(len(keys)), uint64(len(evicted)), uint64(t.Workers), uint64(t.Queries), 0)
	words = append(append(append(append(words, ops...), contents...), keys...), evicted...)
	for i := range t.Queries {
		words = append(words, uint64(tr.Requests[i/l.Config().Copies].Time))
	}
	tape, err := parseTape(words)
	if err != nil {
		panic(err) // made here
	}
	return tape
}

func parseTape(words []uint64) (*Tape, error) {
	if len(words) < tapeHeader || words[0] != tapeMagic {
		return nil, ErrTape
	}
	at := uint64(tapeHeader)
	cut := func(n uint64) []uint64 {
		if n > uint64(len(words))-at {
			return nil
		}
		at += n
		return words[at-n : at : at]
	}
	t := &Tape{words: words, ops: cut(words[1] * tapeOp), contents: cut(words[2]), keys: cut(words[3]), evicted: cut(words[4]), times: cut(words[6]), workers: int(words[5])}
	if at != uint64(len(words)) {
		return nil, fmt.Errorf("%w: %d words, its header says %d", ErrTape, len(words), at)
	}
	return t, nil
}

// WriteFile writes the tape to a new file.
func (t *Tape) WriteFile(path string) error {
	raw := unsafe.Slice((*byte)(unsafe.Pointer(&t.words[0])), 8*len(t.words))
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		return fmt.Errorf("write op list tape: %w", err)
	}
	return nil
}

// OpenTape maps a tape and touches all of it, so that no fault falls into what is
// measured. The mapping stays until the process ends.
func OpenTape(path string) (*Tape, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open op list tape: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("open op list tape: %w", err)
	}
	size := int(info.Size())
	if size < 8*tapeHeader || size%8 != 0 {
		return nil, fmt.Errorf("open op list tape %s: %w", path, ErrTape)
	}
	raw, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("map op list tape %s: %w", path, err)
	}
	t, err := parseTape(unsafe.Slice((*uint64)(unsafe.Pointer(&raw[0])), size/8))
	if err != nil {
		return nil, fmt.Errorf("open op list tape %s: %w", path, err)
	}
	return t, nil
}

// Len returns the number of operations.
func (t *Tape) Len() int { return len(t.ops) / tapeOp }

// Workers returns the number of workers.
func (t *Tape) Workers() int { return t.workers }

// Queries returns the number of queries, one for each request.
func (t *Tape) Queries() int { return len(t.times) }

// BlockOps returns the hashes of queries, stores and removals.
func (t *Tape) BlockOps() int { return len(t.contents) + len(t.keys) + len(t.evicted) }

// At fills o with operation i. It allocates nothing.
func (t *Tape) At(i int, o *oplist.Op) {
	p := (*[tapeOp]uint64)(t.ops[tapeOp*i:])
	o.Kind, o.HasParent, o.Worker = oplist.Kind(p[0]), p[0]>>8&1 != 0, uint32(p[0]>>32)
	o.Request, o.Parent = uint32(p[1]), p[3]
	n, at, keyAt := p[1]>>32, p[2]&(1<<32-1), p[2]>>32
	switch o.Kind {
	case oplist.Query:
		o.Contents, o.Keys = t.contents[at:at+n:at+n], nil
	case oplist.Stored:
		o.Contents, o.Keys = t.contents[at:at+n:at+n], t.keys[keyAt:keyAt+n:keyAt+n]
	case oplist.Removed:
		o.Contents, o.Keys = nil, t.evicted[at:at+n:at+n]
	}
}
