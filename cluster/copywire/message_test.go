package copywire_test

import (
	"bytes"
	"errors"
	"reflect"
	"slices"
	"testing"
	"unsafe"

	"github.com/kvcluster/kvcluster/cluster/copywire"
	"github.com/kvcluster/kvcluster/indexer"
)

var life = copywire.SlotLife{Group: 3, Slot: 70_000, Life: 1 << 40}

func header() indexer.Header {
	return indexer.Header{Group: life.Group, Partition: 17, Slot: life.Slot, Life: life.Life, Tenure: 9, Sequence: 1234}
}

func frame(clear bool) indexer.Frame {
	var b indexer.FrameBuilder
	b.Reset(header())
	if clear {
		b.Clear(indexer.AllTiers)
	}
	l, e := b.Store(indexer.Host, 4, 0, indexer.Parent{}, 3)
	copy(l, []uint64{1, 2, 3})
	copy(e, []uint64{11, 12, 13})
	b.Drop(indexer.Host, indexer.MakeRange(4, 1, 1))
	return b.Frame()
}

// samples has one of each message as it is decoded, with its bytes.
func samples() map[string]struct {
	bytes []byte
	want  copywire.Message
} {
	parts := []indexer.PartitionID{5, 0, 1023}
	cursor := copywire.Cursor{SlotLife: life, Tenure: 9, Sequence: 77, Digest: 1 << 63}
	labels := []copywire.Label{{Partition: 3, Tenure: 7, Sequence: 1 << 40}, {Partition: 1023, Tenure: 8}}
	f, g := frame(false), frame(true)
	type sample = struct {
		bytes []byte
		want  copywire.Message
	}
	return map[string]sample{
		"frame": {copywire.AppendFrame(nil, f),
			copywire.Message{Kind: copywire.KindFrame, Frame: f, SlotLife: life, Tenure: 9, Sequence: 1234}},
		"packed": {copywire.AppendPacked(nil, f),
			copywire.Message{Kind: copywire.KindFrame, Frame: f, SlotLife: life, Tenure: 9, Sequence: 1234}},
		"fill first": {copywire.AppendFill(nil, true, false, g),
			copywire.Message{Kind: copywire.KindFill, First: true, Frame: g, SlotLife: life, Tenure: 9, Sequence: 1234}},
		"fill last": {copywire.AppendFill(nil, false, true, f),
			copywire.Message{Kind: copywire.KindFill, Last: true, Frame: f, SlotLife: life, Tenure: 9, Sequence: 1234}},
		"fill in one": {copywire.AppendFill(nil, true, true, g),
			copywire.Message{Kind: copywire.KindFill, First: true, Last: true, Frame: g, SlotLife: life, Tenure: 9, Sequence: 1234}},
		"open": {copywire.AppendOpen(nil, life, 9, parts),
			copywire.Message{Kind: copywire.KindOpen, SlotLife: life, Tenure: 9, Partitions: parts}},
		"close": {copywire.AppendClose(nil, life, 9, parts[:2]),
			copywire.Message{Kind: copywire.KindClose, SlotLife: life, Tenure: 9, Partitions: parts[:2]}},
		"carry": {copywire.AppendCarry(nil, life, 9, labels),
			copywire.Message{Kind: copywire.KindCarry, SlotLife: life, Tenure: 9, Labels: labels}},
		"fence": {copywire.AppendFence(nil, 1<<50, life, parts[:1]),
			copywire.Message{Kind: copywire.KindFence, SlotLife: life, Token: 1 << 50, Partitions: parts[:1]}},
		"cursor": {copywire.AppendCursor(nil, cursor),
			copywire.Message{Kind: copywire.KindCursor, SlotLife: life, Tenure: 9, Sequence: 77, Digest: 1 << 63}},
	}
}

// at returns the bytes at an address that is off bytes behind one aligned to 8.
func at(b []byte, off int) []byte {
	w := make([]uint64, len(b)/8+2)
	all := unsafe.Slice((*byte)(unsafe.Pointer(&w[0])), len(w)*8)
	return all[off : off+copy(all[off:], b)]
}

func TestMessages(t *testing.T) {
	for name, s := range samples() {
		for off := range 8 {
			got, err := copywire.Decode(at(s.bytes, off))
			if err != nil || !reflect.DeepEqual(got, s.want) {
				t.Errorf("%s at %d: %+v, %v, want %+v", name, off, got, err, s.want)
			}
		}
		if len(s.bytes)%8 != 0 && s.bytes[0] != packed {
			t.Errorf("%s has %d bytes", name, len(s.bytes))
		}
	}
	if got := len(copywire.AppendFrame(nil, frame(false))); got != 8*len(frame(false))+copywire.FrameOverhead {
		t.Errorf("frame has %d bytes", got)
	}
	m, err := copywire.Decode(samples()["cursor"].bytes)
	if want := (copywire.Cursor{SlotLife: life, Tenure: 9, Sequence: 77, Digest: 1 << 63}); err != nil || m.Cursor() != want {
		t.Errorf("cursor %+v, want %+v", m.Cursor(), want)
	}
}

// TestDecodeInPlace: an aligned payload is neither copied nor does it cost an
// allocation, but for a list of labels; a packed one costs none in a Decoder.
func TestDecodeInPlace(t *testing.T) {
	for name, s := range samples() {
		b := at(s.bytes, 0)
		if s.want.Labels != nil || b[0] == packed {
			continue
		}
		if n := testing.AllocsPerRun(20, func() {
			if _, err := copywire.Decode(b); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	b := at(copywire.AppendFrame(nil, frame(false)), 0)
	m, err := copywire.Decode(b)
	if err != nil || unsafe.Pointer(&m.Frame[0]) != unsafe.Pointer(&b[8]) {
		t.Errorf("frame was copied: %v", err)
	}
}

// TestMalformed spoils each message in one place.
func TestMalformed(t *testing.T) {
	all := samples()
	for name, spoil := range map[string]func() []byte{
		"empty":                 func() []byte { return nil },
		"half a head":           func() []byte { return all["open"].bytes[:4] },
		"kind 0":                func() []byte { return make([]byte, 8) },
		"kind 8":                func() []byte { return edit(all["cursor"].bytes, 0, 8) },
		"short labels":          func() []byte { b := all["carry"].bytes; return b[:len(b)-8] },
		"label of no partition": func() []byte { return edit(all["carry"].bytes, 8+24+2, 1) },
		"no labels":             func() []byte { return copywire.AppendCarry(nil, life, 9, nil) },
		"flags of a frame":      func() []byte { return edit(all["frame"].bytes, 1, 1) },
		"unknown flag":          func() []byte { return edit(all["fill last"].bytes, 1, 4) },
		"reserved bytes":        func() []byte { return edit(all["frame"].bytes, 2, 1) },
		"count of a frame":      func() []byte { return edit(all["frame"].bytes, 4, 1) },
		"count of a cursor":     func() []byte { return edit(all["cursor"].bytes, 4, 1) },
		"short frame":           func() []byte { return all["frame"].bytes[:40] },
		"cut frame":             func() []byte { b := all["frame"].bytes; return b[:len(b)-8] },
		"odd length":            func() []byte { b := all["frame"].bytes; return b[:len(b)-3] },
		"frame version":         func() []byte { return edit(all["frame"].bytes, 8+20, 9) },
		"fill without clear":    func() []byte { return copywire.AppendFill(nil, true, true, frame(false)) },
		"fill of one tier":      func() []byte { return edit(all["fill first"].bytes, 8+48+1, 0) },
		"fill of a header":      func() []byte { return append(edit(all["fill first"].bytes, 8, 6)[:56:56], []byte{}...) },
		"no partitions":         func() []byte { return copywire.AppendOpen(nil, life, 1, nil) },
		"too few partitions":    func() []byte { return edit(all["open"].bytes, 4, 1) },
		"more than there are":   func() []byte { return edit(all["open"].bytes, 4, 5) },
		"far more than can be":  func() []byte { return edit(all["open"].bytes, 7, 0xff) },
		"behind the last":       func() []byte { b := all["open"].bytes; return edit(b, len(b)-1, 1) },
		"too many":              func() []byte { return copywire.AppendClose(nil, life, 1, make([]indexer.PartitionID, 1<<16+2)) },
		"short cursor":          func() []byte { return all["cursor"].bytes[:40] },
		"long cursor":           func() []byte { return append(slices.Clone(all["cursor"].bytes), make([]byte, 8)...) },
		"list without its life": func() []byte { return all["close"].bytes[:24] },
	} {
		if m, err := copywire.Decode(spoil()); !errors.Is(err, copywire.ErrMessage) {
			t.Errorf("%s: %+v, %v, want %v", name, m, err, copywire.ErrMessage)
		}
	}
}

func edit(b []byte, i int, v byte) []byte {
	b = slices.Clone(b)
	b[i] = v
	return b
}

// reencode makes bytes of a decoded message again.
func reencode(m *copywire.Message) []byte {
	switch m.Kind {
	case copywire.KindFrame:
		return copywire.AppendFrame(nil, m.Frame)
	case copywire.KindFill:
		return copywire.AppendFill(nil, m.First, m.Last, m.Frame)
	case copywire.KindOpen:
		return copywire.AppendOpen(nil, m.SlotLife, m.Tenure, m.Partitions)
	case copywire.KindClose:
		return copywire.AppendClose(nil, m.SlotLife, m.Tenure, m.Partitions)
	case copywire.KindFence:
		return copywire.AppendFence(nil, m.Token, m.SlotLife, m.Partitions)
	case copywire.KindCarry:
		return copywire.AppendCarry(nil, m.SlotLife, m.Tenure, m.Labels)
	}
	return copywire.AppendCursor(nil, m.Cursor())
}

// FuzzDecode: whatever comes is an error or a message that has exactly these bytes.
func FuzzDecode(f *testing.F) {
	for _, s := range samples() {
		f.Add(s.bytes)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for off := range 2 {
			m, err := copywire.Decode(at(b, 4*off))
			if err != nil {
				if !errors.Is(err, copywire.ErrMessage) {
					t.Errorf("error %v", err)
				}
				continue
			}
			got := reencode(&m)
			if b[0] == packed {
				got = copywire.AppendPacked(nil, m.Frame)
			}
			if !bytes.Equal(got, b) {
				t.Errorf("%x is %+v, which is %x", b, m, got)
			}
		}
	})
}
