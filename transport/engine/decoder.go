package engine

import (
	"errors"
	"fmt"
	"math"
	"unsafe"
)

// DecoderConfig bounds what one payload may cost. Zero values mean the defaults.
type DecoderConfig struct {
	// MaxPayload is the largest payload in bytes; 0 = 64 MiB, as the transport's.
	MaxPayload int
	// MaxEvents, MaxHashes, MaxTokens bound one batch; 0 = 1 Mi, 4 Mi, 16 Mi. They
	// cap memory at about 180, 32 and 64 MiB whatever a payload says.
	MaxEvents, MaxHashes, MaxTokens int
	// MaxStrings bounds each of the two tables of interned strings (namespaces, and
	// everything else); 0 = 4,096.
	MaxStrings int
	// Retain is how many bytes of scratch memory a decoder keeps from one batch to
	// the next; 0 = 4 MiB.
	Retain int
}

// Validate reports limits that make no sense.
func (c DecoderConfig) Validate() error {
	for _, l := range []struct {
		name  string
		value int
	}{
		{"MaxPayload", c.MaxPayload}, {"MaxEvents", c.MaxEvents}, {"MaxHashes", c.MaxHashes},
		{"MaxTokens", c.MaxTokens}, {"MaxStrings", c.MaxStrings}, {"Retain", c.Retain},
	} {
		if l.value < 0 {
			return fmt.Errorf("decoder config: %s is %d, must not be negative", l.name, l.value)
		}
	}
	return nil
}

func orDefault(v, def int) int {
	if v <= 0 {
		return def
	}
	return v
}

// Decoder turns payloads into batches. It keeps its memory, so one decoder for each
// loop, shared by all streams of that loop, is the right number. It belongs to one
// goroutine at a time.
type Decoder struct {
	cfg   DecoderConfig
	batch Batch

	// Arenas that the events of the batch point into.
	events []Event
	hashes []uint64
	tokens []uint32
	extra  []ExtraKey

	keys  interner // keys of map events
	names interner // LoRA names, salts, backends: few, and asked for in every event
	other interner // sessions, multimodal identifiers: ever new ones
	// follow[t][k] is the key that came after key k of an event of type t lately, as
	// its bytes on the wire: engines write the keys of a map event in one order.
	follow [numTags][numFields + 1]wireKey
}

// NewDecoder returns a decoder; negative limits count as zero.
func NewDecoder(cfg DecoderConfig) *Decoder {
	cfg.MaxPayload = orDefault(cfg.MaxPayload, 64<<20)
	cfg.MaxEvents = orDefault(cfg.MaxEvents, 1<<20)
	cfg.MaxHashes = orDefault(cfg.MaxHashes, 4<<20)
	cfg.MaxTokens = orDefault(cfg.MaxTokens, 16<<20)
	cfg.MaxStrings = orDefault(cfg.MaxStrings, 4096)
	cfg.Retain = orDefault(cfg.Retain, 4<<20)
	d := &Decoder{cfg: cfg}
	d.names.max = (cfg.MaxStrings + 1) / 2
	d.other.max = d.names.max
	d.keys.max = 2 * int(numFields)
	return d
}

// Decode reads one payload. The batch is valid until the next Decode, except for
// its strings, which may be kept; it does not alias payload. An error means that
// the payload is not a sound event batch and nothing of it may be applied; it
// wraps one of ErrTruncated, ErrSyntax, ErrDepth, ErrEnvelope, ErrTooLarge.
// Events that are sound but cannot be used are left out and counted in Skipped.
func (d *Decoder) Decode(payload []byte) (*Batch, error) {
	if err := d.decode(payload); err != nil {
		return nil, fmt.Errorf("decode payload of %d bytes: %w", len(payload), err)
	}
	d.batch.Events = d.events
	return &d.batch, nil
}

func (d *Decoder) decode(b []byte) error {
	d.reset()
	if len(b) > d.cfg.MaxPayload {
		return fmt.Errorf("%w: more than %d bytes", ErrTooLarge, d.cfg.MaxPayload)
	}
	var i int
	var err error
	if n, next, ok := arrayHeader(b, 0); ok {
		i, err = d.arrayEnvelope(b, next, n)
	} else if n, next, ok := mapHeader(b, 0); ok {
		i, err = d.mapEnvelope(b, next, n)
	} else if _, err = skip(b, 0); err == nil {
		err = at(ErrEnvelope, 0)
	}
	if err != nil {
		return err
	}
	d.batch.Trailing = i != len(b)
	return nil
}

// reset empties the arenas and gives those back that a rare huge batch has left.
func (d *Decoder) reset() {
	d.batch = Batch{Rank: -1}
	const event, extra = int(unsafe.Sizeof(Event{})), int(unsafe.Sizeof(ExtraKey{}))
	if cap(d.events)*event+cap(d.hashes)*8+cap(d.tokens)*4+cap(d.extra)*extra > d.cfg.Retain {
		d.events, d.hashes, d.tokens, d.extra = nil, nil, nil, nil
	}
	d.events, d.hashes, d.tokens, d.extra = d.events[:0], d.hashes[:0], d.tokens[:0], d.extra[:0]
}

// arrayEnvelope reads [ts, events, rank, ...]: n slots from i on.
func (d *Decoder) arrayEnvelope(b []byte, i, n int) (int, error) {
	if n < 2 {
		if _, err := skip(b, 0); err != nil {
			return i, err
		}
		return i, fmt.Errorf("%w: %d slots", ErrEnvelope, n)
	}
	i, err := d.time(b, i)
	if err != nil {
		return i, err
	}
	if i, err = d.list(b, i); err != nil {
		return i, err
	}
	for slot := 2; slot < n; slot++ {
		if slot == 2 {
			i, err = d.rank(b, i)
		} else {
			i, err = skip(b, i)
		}
		if err != nil {
			return i, err
		}
	}
	return i, nil
}

// mapEnvelope reads the same as a map of n pairs from i on.
func (d *Decoder) mapEnvelope(b []byte, i, n int) (int, error) {
	var err error
	seen := false
	for range n {
		key, next, ok := readStr(b, i)
		if !ok {
			if next, err = skip(b, i); err != nil {
				return i, err
			}
		}
		i = next
		switch string(key) {
		case "ts":
			i, err = d.time(b, i)
		case "events":
			if seen {
				return i, fmt.Errorf("%w: two lists of events", ErrEnvelope)
			}
			seen = true
			i, err = d.list(b, i)
		case "data_parallel_rank", "attn_dp_rank", "dp_rank", "rank":
			i, err = d.rank(b, i)
		default:
			i, err = skip(b, i)
		}
		if err != nil {
			return i, err
		}
	}
	if !seen {
		return i, fmt.Errorf("%w: no events", ErrEnvelope)
	}
	return i, nil
}

// mismatch says why the value at i is not what the envelope has there.
func mismatch(b []byte, i int, what string) error {
	if _, err := skip(b, i); err != nil {
		return err
	}
	return fmt.Errorf("%w: %s at byte %d", ErrEnvelope, what, i)
}

// time reads the timestamp and brings it to seconds: numbers of the size of
// milliseconds, microseconds or nanoseconds since 1970 are taken as such.
func (d *Decoder) time(b []byte, i int) (int, error) {
	if isNil(b, i) {
		return i + 1, nil
	}
	t, next, ok := readNumber(b, i)
	if !ok {
		return i, mismatch(b, i, "timestamp is not a number")
	}
	switch {
	case !(t > 0) || math.IsInf(t, 0):
		t = 0
	case t > 1e17:
		t /= 1e9
	case t > 1e14:
		t /= 1e6
	case t > 1e11:
		t /= 1e3
	}
	d.batch.Time = t
	return next, nil
}

func (d *Decoder) rank(b []byte, i int) (int, error) {
	if isNil(b, i) {
		return i + 1, nil
	}
	v, neg, next, ok := readInt(b, i)
	if !ok || neg || v > math.MaxUint32 {
		return i, mismatch(b, i, "rank is not a small non-negative integer")
	}
	d.batch.Rank = int64(v)
	return next, nil
}

// list reads the events.
func (d *Decoder) list(b []byte, i int) (int, error) {
	n, next, ok := arrayHeader(b, i)
	if !ok {
		return i, mismatch(b, i, "events are not an array")
	}
	i = next
	for range n {
		var err error
		if i, err = d.event(b, i); err != nil {
			return i, err
		}
	}
	return i, nil
}

// errShape: a field does not have the type or shape it should have. The event is
// skipped, the batch is not.
var errShape = errors.New("unexpected shape")

// event reads one event and keeps it or counts why not.
func (d *Decoder) event(b []byte, i int) (int, error) {
	if len(d.events) >= d.cfg.MaxEvents {
		return i, fmt.Errorf("%w: more than %d events", ErrTooLarge, d.cfg.MaxEvents)
	}
	if len(d.events) == cap(d.events) {
		d.events = append(d.events, Event{})[:len(d.events)]
	}
	ev := &d.events[:len(d.events)+1][len(d.events)]
	*ev = Event{Group: -1}
	f := fields{}
	hashes, tokens, extra := len(d.hashes), len(d.tokens), len(d.extra)

	var err error
	next := i
	if n, body, ok := mapHeader(b, i); ok {
		next, err = d.mapEvent(b, body, n, ev, &f)
	} else if n, body, ok := arrayHeader(b, i); ok {
		next, err = d.arrayEvent(b, body, n, ev, &f)
	} else {
		f.bad = true
		next, err = skip(b, i)
	}
	if err != nil {
		return i, err
	}
	reason, use := d.finish(b, ev, &f)
	if !use {
		d.batch.Skipped[reason]++
		if reason == SkipMalformed && f.tag != tagStored || reason == SkipMedium && f.tag == tagTierCleared && !f.mediumSaid {
			d.batch.LostRemovals++
		}
		// What the event put into an arena that has since been replaced is garbage.
		d.hashes = d.hashes[:min(hashes, len(d.hashes))]
		d.tokens = d.tokens[:min(tokens, len(d.tokens))]
		d.extra = d.extra[:min(extra, len(d.extra))]
		return next, nil
	}
	d.events = d.events[:len(d.events)+1]
	return next, nil
}
