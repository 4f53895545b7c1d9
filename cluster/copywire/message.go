package copywire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"github.com/kvcluster/kvcluster/indexer"
)

// ErrMessage is wrapped by every error about bytes that break a format of this
// package.
var ErrMessage = errors.New("malformed copy message")

// Kind is the kind of a message.
type Kind uint8

// The kinds of messages.
const (
	KindFrame Kind = 1 + iota
	KindFill
	KindOpen
	KindClose
	KindFence
	KindCursor
	KindCarry
	kindPacked // is KindFrame when it is decoded
)

// String returns the name used in logs.
func (k Kind) String() string {
	if n := [...]string{"", "frame", "fill", "open", "close", "fence", "cursor", "carry"}; int(k) < len(n) && k > 0 {
		return n[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

const (
	flagFirst = 1
	flagLast  = 2

	headBytes   = 8
	word        = 8
	frameHeader = 6 // words, see indexer.Frame

	// MaxPartitions bounds the list of one message.
	MaxPartitions = 1 << 16
)

// FrameOverhead is how many bytes the payload of a frame has beside the frame.
const FrameOverhead = headBytes

// SlotLife names a slot in one life.
type SlotLife struct {
	Group indexer.GroupID
	Slot  indexer.Slot
	Life  uint64
}

// String is for logs.
func (l SlotLife) String() string {
	return fmt.Sprintf("slot %d of group %d, life %d", l.Slot, l.Group, l.Life)
}

// LifeOf returns whose frame it is.
func LifeOf(h indexer.Header) SlotLife { return SlotLife{h.Group, h.Slot, h.Life} }

// Cursor says how far the stream of a slot has come: life, sequence and digest of
// the batch with that sequence (rule T3), and the tenure under which it was read.
type Cursor struct {
	SlotLife
	Tenure   uint64
	Sequence uint64
	Digest   uint64
}

// Message is a decoded message; its slices point into the payload where that is
// aligned.
type Message struct {
	Kind        Kind
	First, Last bool          // Fill
	Frame       indexer.Frame // Frame, Fill; its operations are not checked
	SlotLife                  // all; of Frame and Fill it is that of the frame
	Tenure      uint64        // all but Fence
	Sequence    uint64        // Frame, Fill, Cursor
	Digest      uint64        // Cursor
	Token       uint64        // Fence
	Partitions  []indexer.PartitionID
	Labels      []Label // Carry
}

// Cursor returns the cursor of a message of that kind.
func (m *Message) Cursor() Cursor { return Cursor{m.SlotLife, m.Tenure, m.Sequence, m.Digest} }

// AppendFrame appends a Frame message. Its payload is len(f)*8 + FrameOverhead bytes.
func AppendFrame(dst []byte, f indexer.Frame) []byte {
	return appendWords(appendHead(dst, KindFrame, 0, 0), f)
}

// AppendFill appends a Fill message. The first one must begin with a clear of all
// tiers, as the frames of Rebuild do.
func AppendFill(dst []byte, first, last bool, f indexer.Frame) []byte {
	flags := uint8(0)
	if first {
		flags |= flagFirst
	}
	if last {
		flags |= flagLast
	}
	return appendWords(appendHead(dst, KindFill, flags, 0), f)
}

// AppendOpen appends an Open message for 1 to MaxPartitions partitions.
func AppendOpen(dst []byte, l SlotLife, tenure uint64, partitions []indexer.PartitionID) []byte {
	return appendList(dst, KindOpen, l, tenure, partitions)
}

// AppendClose appends a Close message for 1 to MaxPartitions partitions.
func AppendClose(dst []byte, l SlotLife, tenure uint64, partitions []indexer.PartitionID) []byte {
	return appendList(dst, KindClose, l, tenure, partitions)
}

// AppendFence appends a Fence message for 1 to MaxPartitions partitions.
func AppendFence(dst []byte, token uint64, l SlotLife, partitions []indexer.PartitionID) []byte {
	return appendList(dst, KindFence, l, token, partitions)
}

// AppendCursor appends a Cursor message.
func AppendCursor(dst []byte, c Cursor) []byte {
	dst = appendLife(appendHead(dst, KindCursor, 0, 0), c.SlotLife)
	dst = le.AppendUint64(dst, c.Tenure)
	dst = le.AppendUint64(dst, c.Sequence)
	return le.AppendUint64(dst, c.Digest)
}

// AppendCarry appends a Carry message for 1 to MaxPartitions copies: those with these
// labels are written by the sender from now on, under this tenure.
func AppendCarry(dst []byte, l SlotLife, tenure uint64, labels []Label) []byte {
	dst = appendLife(appendHead(dst, KindCarry, 0, len(labels)), l)
	dst = le.AppendUint64(dst, tenure)
	for _, c := range labels {
		dst = le.AppendUint64(le.AppendUint64(le.AppendUint64(dst, uint64(c.Partition)), c.Tenure), c.Sequence)
	}
	return dst
}

// Decode takes a payload apart. Of a frame it checks the header only. Errors wrap
// ErrMessage. The message points into payload; it allocates only for labels, and for a
// payload that is not aligned to 8 bytes or is packed, and then no more than that has. A
// Decoder does not for packed ones.
func Decode(payload []byte) (Message, error) {
	var d Decoder
	return d.Decode(payload)
}

// Decode is Decode in the memory of d.
func (d *Decoder) Decode(payload []byte) (Message, error) {
	if len(payload) > 0 && Kind(payload[0]) == kindPacked {
		m := Message{Kind: KindFrame}
		f, err := d.unpack(payload[1:])
		if err != nil {
			return Message{}, err
		}
		return m, m.takeFrame(f)
	}
	if len(payload) < headBytes || len(payload)%word != 0 {
		return Message{}, fmt.Errorf("%w: %d bytes", ErrMessage, len(payload))
	}
	m := Message{Kind: Kind(payload[0])}
	flags, zero, n := payload[1], le.Uint16(payload[2:]), int(le.Uint32(payload[4:]))
	if zero != 0 || flags != 0 && (m.Kind != KindFill || flags > flagFirst|flagLast) {
		return Message{}, fmt.Errorf("%w: %v with flags %#x %#x", ErrMessage, m.Kind, flags, zero)
	}
	body := payload[headBytes:]
	switch m.Kind {
	case KindFrame, KindFill:
		if n != 0 {
			return Message{}, fmt.Errorf("%w: %v with a count of %d", ErrMessage, m.Kind, n)
		}
		m.First, m.Last = flags&flagFirst != 0, flags&flagLast != 0
		return m, m.decodeFrame(body)
	case KindOpen, KindClose, KindFence:
		return m, m.decodeList(body, n)
	case KindCarry:
		return m, m.decodeLabels(body, n)
	case KindCursor:
		if n != 0 || len(body) != 5*word {
			return Message{}, fmt.Errorf("%w: cursor of %d bytes", ErrMessage, len(payload))
		}
		m.SlotLife = lifeAt(body)
		m.Tenure, m.Sequence, m.Digest = le.Uint64(body[16:]), le.Uint64(body[24:]), le.Uint64(body[32:])
		return m, nil
	}
	return Message{}, fmt.Errorf("%w: %v", ErrMessage, m.Kind)
}

// clearAll is the operation that a fill begins with.
const clearAll = uint64(indexer.OpClear) | uint64(indexer.AllTiers)<<8

func (m *Message) decodeFrame(body []byte) error {
	if len(body) < frameHeader*word || len(body) > indexer.MaxFrameWords*word {
		return fmt.Errorf("%w: frame of %d bytes", ErrMessage, len(body))
	}
	return m.takeFrame(words(body))
}

func (m *Message) takeFrame(f indexer.Frame) error {
	switch {
	case int(uint32(f[0])) != len(f):
		return fmt.Errorf("%w: frame says %d words, has %d", ErrMessage, uint32(f[0]), len(f))
	case f[2]>>32 != indexer.FrameVersion:
		return fmt.Errorf("%w: frame of format version %d, want %d", ErrMessage, f[2]>>32, indexer.FrameVersion)
	case m.First && (len(f) == frameHeader || f[frameHeader] != clearAll):
		return fmt.Errorf("%w: fill that does not begin with a clear", ErrMessage)
	}
	h := f.Header()
	m.Frame, m.SlotLife, m.Tenure, m.Sequence = f, LifeOf(h), h.Tenure, h.Sequence
	return nil
}

func (m *Message) decodeList(body []byte, n int) error {
	if n == 0 || n > MaxPartitions || len(body) != 3*word+(n+1)/2*word {
		return fmt.Errorf("%w: %v of %d partitions in %d bytes", ErrMessage, m.Kind, n, len(body))
	}
	m.SlotLife = lifeAt(body)
	if w := le.Uint64(body[16:]); m.Kind == KindFence {
		m.Token = w
	} else {
		m.Tenure = w
	}
	list := body[24:]
	if n%2 == 1 && le.Uint32(list[4*n:]) != 0 {
		return fmt.Errorf("%w: %v with bytes behind the last partition", ErrMessage, m.Kind)
	}
	m.Partitions = partitionsAt(list, n)
	return nil
}

func (m *Message) decodeLabels(body []byte, n int) error {
	if n == 0 || n > MaxPartitions || len(body) != 3*word+n*3*word {
		return fmt.Errorf("%w: %v of %d copies in %d bytes", ErrMessage, m.Kind, n, len(body))
	}
	m.SlotLife, m.Tenure = lifeAt(body), le.Uint64(body[16:])
	m.Labels = make([]Label, 0, n)
	for b := body[24:]; len(b) > 0; b = b[3*word:] {
		p := le.Uint64(b)
		if p >= MaxPartitions {
			return fmt.Errorf("%w: %v of partition %d", ErrMessage, m.Kind, p)
		}
		m.Labels = append(m.Labels, Label{Partition: indexer.PartitionID(p), Tenure: le.Uint64(b[8:]), Sequence: le.Uint64(b[16:])})
	}
	return nil
}

var le = binary.LittleEndian

// native: words are in memory as they are on the wire.
var native = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

func appendHead(dst []byte, k Kind, flags uint8, n int) []byte {
	return le.AppendUint64(dst, uint64(k)|uint64(flags)<<8|uint64(n)<<32)
}

func appendLife(dst []byte, l SlotLife) []byte {
	dst = le.AppendUint64(dst, uint64(l.Group)|uint64(l.Slot)<<32)
	return le.AppendUint64(dst, l.Life)
}

// lifeAt reads what appendLife wrote, 16 bytes.
func lifeAt(b []byte) SlotLife {
	return SlotLife{indexer.GroupID(le.Uint32(b)), indexer.Slot(le.Uint32(b[4:])), le.Uint64(b[8:])}
}

func appendList(dst []byte, k Kind, l SlotLife, w uint64, partitions []indexer.PartitionID) []byte {
	dst = appendLife(appendHead(dst, k, 0, len(partitions)), l)
	dst = le.AppendUint64(dst, w)
	return appendPartitions(dst, partitions)
}

func appendPartitions(dst []byte, partitions []indexer.PartitionID) []byte {
	for _, p := range partitions {
		dst = le.AppendUint32(dst, uint32(p))
	}
	if len(partitions)%2 == 1 {
		dst = le.AppendUint32(dst, 0)
	}
	return dst
}

func partitionsAt(b []byte, n int) []indexer.PartitionID {
	if native && aligned(b, 4) && n > 0 {
		return unsafe.Slice((*indexer.PartitionID)(unsafe.Pointer(unsafe.SliceData(b))), n)
	}
	out := make([]indexer.PartitionID, n)
	for i := range out {
		out[i] = indexer.PartitionID(le.Uint32(b[4*i:]))
	}
	return out
}

func appendWords(dst []byte, w []uint64) []byte {
	if native && len(w) > 0 {
		return append(dst, unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(w))), len(w)*word)...)
	}
	for _, v := range w {
		dst = le.AppendUint64(dst, v)
	}
	return dst
}

// words looks at bytes as words, in place if they lie right.
func words(b []byte) []uint64 {
	n := len(b) / word
	if native && aligned(b, word) && n > 0 {
		return unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(b))), n)
	}
	out := make([]uint64, n)
	for i := range out {
		out[i] = le.Uint64(b[word*i:])
	}
	return out
}

func aligned(b []byte, to uintptr) bool {
	return uintptr(unsafe.Pointer(unsafe.SliceData(b)))%to == 0
}
