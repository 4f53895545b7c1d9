package recording

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"time"
)

// Errors of files.
var (
	// ErrFormat: not a recording, or of a version that is not known.
	ErrFormat = errors.New("not a recording")
	// ErrChecksum: the file is damaged.
	ErrChecksum = errors.New("checksum mismatch")
	// ErrTruncated: the file ends within a frame; all frames before it were good.
	ErrTruncated = errors.New("recording ends within a frame")
)

const (
	magic      = "kvc-rec\n"
	version    = 1
	headerSize = 24
	bodyFixed  = 18
	// maxBody bounds a frame, so that a damaged length costs no memory: the largest
	// message that the transport takes, and its topic.
	maxBody = 64<<20 + bodyFixed + math.MaxUint16
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Frame is one batch.
type Frame struct {
	At       time.Duration // since the recording's time
	Sequence uint64
	Topic    string
	Payload  []byte
}

// Writer writes a recording. Not safe for concurrent use.
type Writer struct {
	out  *bufio.Writer
	base time.Time
	last time.Duration
	head []byte
	err  error
}

// NewWriter writes the header. base is the time from which frames count.
func NewWriter(w io.Writer, base time.Time) (*Writer, error) {
	out := bufio.NewWriterSize(w, 1<<16)
	h := make([]byte, 0, headerSize)
	h = append(h, magic...)
	h = binary.LittleEndian.AppendUint32(h, version)
	h = binary.LittleEndian.AppendUint64(h, uint64(base.UnixNano()))
	h = binary.LittleEndian.AppendUint32(h, crc32.Checksum(h, castagnoli))
	if _, err := out.Write(h); err != nil {
		return nil, fmt.Errorf("write recording: %w", err)
	}
	return &Writer{out: out, base: base}, nil
}

// Write appends a batch that was seen at a given time. Times that fall are raised to
// the one before, as a clock may be set back. After an error all further calls fail.
func (w *Writer) Write(at time.Time, sequence uint64, topic string, payload []byte) error {
	if w.err != nil {
		return w.err
	}
	if len(topic) > math.MaxUint16 || bodyFixed+len(topic)+len(payload) > maxBody {
		return fmt.Errorf("write recording: batch %d: topic of %d and payload of %d bytes are too large", sequence, len(topic), len(payload))
	}
	w.last = max(w.last, at.Sub(w.base))
	b := append(w.head[:0], make([]byte, 8)...)
	b = binary.LittleEndian.AppendUint64(b, uint64(w.last))
	b = binary.LittleEndian.AppendUint64(b, sequence)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(topic)))
	b = append(b, topic...)
	w.head = b
	binary.LittleEndian.PutUint32(b, uint32(len(b)-8+len(payload)))
	sum := crc32.Update(crc32.Checksum(b[8:], castagnoli), castagnoli, payload)
	binary.LittleEndian.PutUint32(b[4:], sum)
	if _, err := w.out.Write(b); err != nil {
		w.err = fmt.Errorf("write recording: batch %d: %w", sequence, err)
		return w.err
	}
	if _, err := w.out.Write(payload); err != nil {
		w.err = fmt.Errorf("write recording: batch %d: %w", sequence, err)
	}
	return w.err
}

// Flush hands what is buffered to the underlying writer.
func (w *Writer) Flush() error {
	if w.err != nil {
		return w.err
	}
	if err := w.out.Flush(); err != nil {
		w.err = fmt.Errorf("write recording: %w", err)
	}
	return w.err
}

// Reader reads a recording. Not safe for concurrent use.
type Reader struct {
	in     *bufio.Reader
	base   time.Time
	frames int
	last   time.Duration
	body   []byte
	topic  string // interned: it rarely changes
}

// NewReader reads the header.
func NewReader(r io.Reader) (*Reader, error) {
	in := bufio.NewReaderSize(r, 1<<16)
	var h [headerSize]byte
	if _, err := io.ReadFull(in, h[:]); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = fmt.Errorf("%w: no header", ErrFormat)
		}
		return nil, fmt.Errorf("read recording: %w", err)
	}
	if string(h[:len(magic)]) != magic {
		return nil, fmt.Errorf("read recording: %w: it begins with %q", ErrFormat, h[:len(magic)])
	}
	if sum := crc32.Checksum(h[:20], castagnoli); sum != binary.LittleEndian.Uint32(h[20:]) {
		return nil, fmt.Errorf("read recording: header: %w", ErrChecksum)
	}
	if v := binary.LittleEndian.Uint32(h[8:]); v != version {
		return nil, fmt.Errorf("read recording: %w: version %d, want %d", ErrFormat, v, version)
	}
	return &Reader{in: in, base: time.Unix(0, int64(binary.LittleEndian.Uint64(h[12:])))}, nil
}

// Base is the time of the recording.
func (r *Reader) Base() time.Time { return r.base }

// Next reads a frame; its payload is valid until the next call. It returns io.EOF at
// the end, or an error that wraps ErrTruncated, ErrChecksum or ErrFormat and names
// the frame.
func (r *Reader) Next() (Frame, error) {
	var h [8]byte
	if n, err := io.ReadFull(r.in, h[:]); err != nil {
		if n == 0 && errors.Is(err, io.EOF) {
			return Frame{}, io.EOF
		}
		return Frame{}, r.fail(err)
	}
	n := binary.LittleEndian.Uint32(h[:])
	if n < bodyFixed || n > maxBody {
		return Frame{}, r.fail(fmt.Errorf("%w: body of %d bytes", ErrFormat, n))
	}
	if err := r.read(int(n)); err != nil {
		return Frame{}, r.fail(err)
	}
	b := r.body
	if crc32.Checksum(b, castagnoli) != binary.LittleEndian.Uint32(h[4:]) {
		return Frame{}, r.fail(ErrChecksum)
	}
	f := Frame{At: time.Duration(binary.LittleEndian.Uint64(b)), Sequence: binary.LittleEndian.Uint64(b[8:])}
	t := int(binary.LittleEndian.Uint16(b[16:]))
	if bodyFixed+t > len(b) || f.At < r.last {
		return Frame{}, r.fail(fmt.Errorf("%w: topic of %d bytes at %s after %s", ErrFormat, t, f.At, r.last))
	}
	if topic := b[bodyFixed : bodyFixed+t]; string(topic) != r.topic {
		r.topic = string(topic)
	}
	f.Topic, f.Payload = r.topic, b[bodyFixed+t:]
	r.last = f.At
	r.frames++
	return f, nil
}

// read fills the body, in steps, so that a length without data costs little memory.
func (r *Reader) read(n int) error {
	const step = 1 << 20
	r.body = r.body[:0]
	for len(r.body) < n {
		at := len(r.body)
		k := min(n-at, step)
		if cap(r.body) < at+k {
			r.body = append(r.body, make([]byte, k)...)
		} else {
			r.body = r.body[:at+k]
		}
		if _, err := io.ReadFull(r.in, r.body[at:]); err != nil {
			return err
		}
	}
	return nil
}

func (r *Reader) fail(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = ErrTruncated
	}
	return fmt.Errorf("read recording: frame %d: %w", r.frames, err)
}
