package copywire

import (
	"errors"
	"fmt"

	"github.com/kvcluster/kvcluster/indexer"
)

// ErrTooLarge: a dump exceeds a limit.
var ErrTooLarge = errors.New("dump too large")

// maxPathWords bounds the paths of one decoded dump: 512 MiB. Runs share their paths
// on the wire, and each has its own when it is decoded.
const maxPathWords = 1 << 26

// Copy is the dump of one copy.
type Copy struct {
	Partition indexer.PartitionID
	// Open: the copy was complete up to its label. If not, nothing else is set.
	Open             bool
	Tenure, Sequence uint64 // its label
	Stretches        []indexer.Stretch
}

// AppendCopy appends the dump of one copy; a dump is any number of them.
func AppendCopy(dst []byte, c Copy) []byte {
	w := uint64(c.Partition)
	if c.Open {
		w |= 1 << 32
	}
	dst = le.AppendUint64(le.AppendUint64(le.AppendUint64(dst, w), c.Tenure), c.Sequence)
	at := len(dst)
	dst = AppendStretches(le.AppendUint64(dst, 0), c.Stretches)
	le.PutUint64(dst[at:], uint64(len(dst)-at-word))
	return dst
}

// DecodeCopies reads what AppendCopy wrote, again and again. The result points into b.
func DecodeCopies(b []byte) (out []Copy, err error) {
	const head = 4 * word
	for len(b) > 0 {
		if len(b) < head {
			return nil, fmt.Errorf("%w: dump ends with %d bytes", ErrMessage, len(b))
		}
		w, n := le.Uint64(b), le.Uint64(b[24:])
		c := Copy{Partition: indexer.PartitionID(uint32(w)), Open: w>>32 == 1, Tenure: le.Uint64(b[8:]), Sequence: le.Uint64(b[16:])}
		if w>>33 != 0 || n > uint64(len(b)-head) {
			return nil, fmt.Errorf("%w: dump of partition %d: %d bytes of %d, flags %#x", ErrMessage, c.Partition, len(b), n, w>>32)
		}
		if c.Stretches, err = DecodeStretches(b[head : head+n]); err != nil {
			return nil, fmt.Errorf("dump of partition %d: %w", c.Partition, err)
		}
		out = append(out, c)
		b = b[head+n:]
	}
	return out, nil
}

// AppendStretches appends the stretches of one copy, as an index dumps them. Paths
// are not repeated: each run names the run before it that has the longest beginning
// of its path.
//
//	dump      { run ... } ...
//	run       run (32) | number of stretches (32)
//	          0, or 1 + index of an earlier run (32) | blocks in common with it (32)
//	          anchor
//	          n, then n local hashes: the rest of the path to the last live name
//	          { stretch ... } ...
//	stretch   start (16) | length-1 (16) | tiers (8)
//	          engine hash of the block before it, 0 at the root
//	          engine hashes
func AppendStretches(dst []byte, stretches []indexer.Stretch) []byte {
	x := newPathIndex()
	for len(stretches) > 0 {
		of := stretches[:nextRun(stretches)]
		stretches = stretches[len(of):]
		p := pathOf(of)
		x.prints.of(p.anchor, p.full)
		same, ref := x.longest(p, len(p.full)), uint64(0)
		if same.depth > 0 {
			ref = uint64(same.path) + 1
		}
		x.add(p, int(same.depth))
		rest := p.full[same.depth:]
		for _, w := range [...]uint64{
			uint64(of[0].Run) | uint64(len(of))<<32, ref | uint64(same.depth)<<32, p.anchor, uint64(len(rest)),
		} {
			dst = le.AppendUint64(dst, w)
		}
		dst = appendWords(dst, rest)
		for i := range of {
			s := &of[i]
			dst = le.AppendUint64(dst, uint64(s.Start)|uint64(len(s.Locals)-1)<<16|uint64(s.Tiers)<<32)
			dst = le.AppendUint64(dst, s.Parent.Engine)
			dst = appendWords(dst, s.Engines)
		}
	}
	return dst
}

// stretchReader takes an encoded dump apart.
type stretchReader struct {
	words []uint64
	full  [][]uint64 // paths of the runs so far
	anc   []uint64   // their anchors
	total int        // words of all paths
}

// DecodeStretches reads what AppendStretches wrote. Errors wrap ErrMessage, or
// ErrTooLarge when the paths of all runs have more than 512 MiB. Engine hashes point
// into b where that is aligned.
func DecodeStretches(b []byte) ([]indexer.Stretch, error) {
	if len(b)%word != 0 {
		return nil, fmt.Errorf("%w: dump of %d bytes", ErrMessage, len(b))
	}
	r := stretchReader{words: words(b)}
	var out []indexer.Stretch
	for len(r.words) > 0 {
		var err error
		if out, err = r.run(out); err != nil {
			return nil, fmt.Errorf("run %d of a dump: %w", len(r.full), err)
		}
	}
	return out, nil
}

func (r *stretchReader) run(out []indexer.Stretch) ([]indexer.Stretch, error) {
	if len(r.words) < 4 {
		return nil, fmt.Errorf("%w: %d words", ErrMessage, len(r.words))
	}
	run, count := indexer.Run(r.words[0]), int(r.words[0]>>32)
	ref, shared := int(uint32(r.words[1])), int(r.words[1]>>32)
	anchor, fresh := r.words[2], r.words[3]
	r.words = r.words[4:]
	if fresh > uint64(len(r.words)) || count == 0 || count > len(r.words)/3 {
		return nil, fmt.Errorf("%w: %d stretches and %d blocks in %d words", ErrMessage, count, fresh, len(r.words))
	}
	if ref > len(r.full) || ref == 0 && shared != 0 || ref > 0 && (shared > len(r.full[ref-1]) || anchor != r.anc[ref-1]) {
		return nil, fmt.Errorf("%w: %d blocks in common with run %d", ErrMessage, shared, ref-1)
	}
	n := shared + int(fresh)
	if r.total += n; r.total > maxPathWords {
		return nil, fmt.Errorf("%w: paths of %d blocks", ErrTooLarge, r.total)
	}
	full := make([]uint64, 0, n)
	if ref > 0 {
		full = append(full, r.full[ref-1][:shared]...)
	}
	full = append(full, r.words[:fresh]...)
	r.words = r.words[fresh:]
	r.full, r.anc = append(r.full, full), append(r.anc, anchor)

	first, end := len(out), 0
	for range count {
		if len(r.words) < 2 {
			return nil, fmt.Errorf("%w: stretch of %d words", ErrMessage, len(r.words))
		}
		w, engine := r.words[0], r.words[1]
		start, n, tiers := int(uint16(w)), int(uint16(w>>16))+1, indexer.TierMask(w>>32)
		r.words = r.words[2:]
		if w>>40 != 0 || tiers == 0 || tiers >= 1<<indexer.NumTiers || start < end || start+n > indexer.MaxRunLength || n > len(r.words) {
			return nil, fmt.Errorf("%w: stretch %#x in %d words, after position %d", ErrMessage, w, len(r.words), end)
		}
		s := indexer.Stretch{Run: run, Start: uint32(start), Tiers: tiers, Anchor: anchor, Engines: r.words[:n:n]}
		s.Parent.Engine = engine
		out = append(out, s)
		r.words = r.words[n:]
		end = start + n
	}
	above := len(full) - end
	if above < 0 {
		return nil, fmt.Errorf("%w: path of %d blocks to position %d", ErrMessage, len(full), end)
	}
	for i := first; i < len(out); i++ {
		s := &out[i]
		from := above + int(s.Start)
		to := from + len(s.Engines)
		s.Path, s.Locals = full[:from:from], full[from:to:to]
		if s.Parent.Root = from == 0; s.Parent.Root && s.Parent.Engine != 0 {
			return nil, fmt.Errorf("%w: engine hash above the root", ErrMessage)
		}
	}
	return out, nil
}
