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
	e := NewEncoder(dst, c.Partition)
	if !c.Open {
		return e.Closed()
	}
	for i := range c.Stretches {
		e.Add(&c.Stretches[i])
	}
	return e.Open(c.Tenure, c.Sequence)
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
		if w>>33 != 0 || n > uint64(len(b)-head) || !c.Open && n+c.Tenure+c.Sequence != 0 {
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

// stretchReader takes an encoded dump apart.
type stretchReader struct {
	words []uint64
	full  [][]uint64 // paths of the runs so far
	last  indexer.Run
	anc   []uint64 // their anchors
	total int      // words of all paths
}

// DecodeStretches reads the stretches of one copy. Errors wrap ErrMessage, or
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

// mark reads what was marked on a run.
func (r *stretchReader) mark(flags uint64) (m indexer.Mark, err error) {
	n := 0
	if flags&runMarked != 0 {
		n = 1
	}
	if flags&runNoted != 0 {
		n += len(m.Note)
	}
	bad := func() (indexer.Mark, error) {
		return m, fmt.Errorf("%w: mark of %d words, flags %d, %d words left", ErrMessage, n, flags>>62, len(r.words))
	}
	if len(r.words) < n || n == len(m.Note) {
		return bad()
	}
	if n > 0 {
		if m.Set, m.Tag = true, uint16(r.words[0]); r.words[0]>>16 != 0 {
			return bad()
		}
		if n > 1 {
			if copy(m.Note[:], r.words[1:]); m.Note == [2]uint64{} {
				return bad()
			}
		}
	}
	r.words = r.words[n:]
	return m, nil
}

func (r *stretchReader) run(out []indexer.Stretch) ([]indexer.Stretch, error) {
	if len(r.words) < 4 {
		return nil, fmt.Errorf("%w: %d words", ErrMessage, len(r.words))
	}
	run, count, flags := indexer.Run(r.words[0]), int(r.words[0]&^(runMarked|runNoted)>>32), r.words[0]
	ref, shared := int(uint32(r.words[1])), int(r.words[1]>>32)
	anchor, fresh := r.words[2], r.words[3]
	r.words = r.words[4:]
	mark, err := r.mark(flags)
	if err != nil {
		return nil, err
	}
	if len(r.full) > 0 && run == r.last {
		return nil, fmt.Errorf("%w: run %d comes twice", ErrMessage, run)
	}
	r.last = run
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
		s := indexer.Stretch{Run: run, Start: uint32(start), Tiers: tiers, Anchor: anchor, Engines: r.words[:n:n], Mark: mark}
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
