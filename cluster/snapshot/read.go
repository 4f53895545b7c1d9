package snapshot

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// Read reads a whole file, part by part, and checks all of it: head is called first, then
// visit for every slot, which must not keep the dump. What visit got is only good when Read
// returns nil: the rest of the file may be missing. Errors wrap ErrDamaged or ErrVersion,
// or are those of the functions. It takes the memory of the largest record.
func Read(in io.Reader, head func(Header) error, visit func(Slot) error) error {
	r := reader{in: bufio.NewReaderSize(in, 64<<10)}
	h, err := r.head()
	if err != nil {
		return err
	}
	if err := head(h); err != nil {
		return err
	}
	begin, records, copies := r.offset, uint64(0), uint64(0)
	for {
		end := r.offset
		if err := r.more(word); err != nil {
			return err
		}
		switch le.Uint64(r.part) & 0xffff_ffff {
		case partRecord:
		case partFoot:
			if err := r.more(footBytes - word); err != nil {
				return err
			}
			if err := r.check("foot"); err != nil {
				return err
			}
			if !bytes.Equal(r.part[:footBytes], appendFoot(nil, records, copies, end-begin)) {
				return fmt.Errorf("%w: the foot counts other records than there are", ErrDamaged)
			}
			if _, err := r.in.ReadByte(); !errors.Is(err, io.EOF) {
				return fmt.Errorf("%w: there is something behind the foot", ErrDamaged)
			}
			return nil
		default:
			return fmt.Errorf("%w: no record at byte %d", ErrDamaged, end)
		}
		s, err := r.record()
		if err != nil {
			return err
		}
		records++
		copies += uint64(s.Copies)
		if err := visit(s); err != nil {
			return err
		}
	}
}

// reader reads one part at a time.
type reader struct {
	in     *bufio.Reader
	part   []byte // as far as it was read
	offset int64  // of the part
}

// growth bounds how much memory a length that is not yet proved may take at once.
const growth = 4 << 20

// more reads n further bytes of the part.
func (r *reader) more(n int) error {
	for n > 0 {
		k, at := min(n, growth), len(r.part)
		if cap(r.part)-at < k {
			r.part = append(r.part, make([]byte, k)...)
		}
		r.part = r.part[:at+k]
		if _, err := io.ReadFull(r.in, r.part[at:]); err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				return fmt.Errorf("%w: it is cut off in the part at byte %d", ErrDamaged, r.offset)
			}
			return err
		}
		n -= k
	}
	return nil
}

// check reads the checksum of the part, and goes to the next one.
func (r *reader) check(what string) error {
	n := len(r.part)
	if err := r.more(word); err != nil {
		return err
	}
	if sum(r.part[:n], r.offset) != le.Uint64(r.part[n:]) {
		return fmt.Errorf("%w: the checksum of the %s at byte %d is wrong", ErrDamaged, what, r.offset)
	}
	r.offset += int64(len(r.part))
	return nil
}

func (r *reader) head() (h Header, err error) {
	if err := r.more(headFixed); err != nil {
		return h, err
	}
	if string(r.part[:len(magic)]) != magic {
		return h, fmt.Errorf("%w: it does not begin like a snapshot", ErrDamaged)
	}
	w := le.Uint64(r.part[len(magic):])
	if v := uint32(w); v != version {
		return h, fmt.Errorf("%w: format %d, this program knows %d", ErrVersion, v, version)
	}
	n := int(w >> 32)
	if n < fieldsHead || n > maxFields || n%word != 0 {
		return h, fmt.Errorf("%w: a head of %d bytes", ErrDamaged, n)
	}
	if err := r.more(n); err != nil {
		return h, err
	}
	if err := r.check("head"); err != nil {
		return h, err
	}
	h, err = decodeFields(r.part[headFixed : headFixed+n])
	r.part = r.part[:0]
	return h, err
}

// record reads a record whose first word was read.
func (r *reader) record() (s Slot, err error) {
	if err := r.more(recordHead - word); err != nil {
		return s, err
	}
	w := func(i int) uint64 { return le.Uint64(r.part[i*word:]) }
	n := w(1)
	if n > MaxSlotBytes || n%word != 0 {
		return s, fmt.Errorf("%w: a dump of %d bytes at byte %d", ErrDamaged, n, r.offset)
	}
	if err := r.more(int(n)); err != nil {
		return s, err
	}
	if err := r.check("record"); err != nil {
		return s, err
	}
	s.Copies = int(w(0) >> 32)
	s.Group, s.Slot, s.Life = groupOf(w(2)), slotOf(w(2)), w(3)
	if s.Cursor.Life = w(4); s.Cursor.Life != 0 {
		s.Cursor.Group, s.Cursor.Slot = s.Group, s.Slot
		s.Cursor.Tenure, s.Cursor.Sequence, s.Cursor.Digest = w(5), w(6), w(7)
	}
	s.Dump = r.part[recordHead : recordHead+int(n)]
	r.part = r.part[:0]
	return s, nil
}
