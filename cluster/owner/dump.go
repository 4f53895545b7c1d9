package owner

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/kvcluster/kvcluster/cluster/copywire"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/transport/link"
)

// dumps are kept until they have been fetched, or nobody asks for them any more.
type dumps struct {
	mu struct {
		sync.Mutex
		kept  map[dumpKey]*dump
		bytes int64
		ended bool
	}
}

type dumpKey struct {
	peer  string
	token uint64
}

// dump is one that a fence has made, or that a call waits for.
type dump struct {
	made    chan struct{} // closed when bytes or err is set
	done    bool
	bytes   []byte
	err     error
	session link.Session // of the fence; zero for a peek
	waiting int          // calls
	expires time.Time    // once done
}

// wait returns the dump when it is made. Calls may come before the fence.
func (d *dumps) wait(ctx context.Context, k dumpKey) ([]byte, error) {
	d.mu.Lock()
	e := d.mu.kept[k]
	if e == nil {
		if d.mu.ended {
			d.mu.Unlock()
			return nil, ErrClosed
		}
		e = &dump{made: make(chan struct{})}
		d.mu.kept[k] = e
	}
	e.waiting++
	d.mu.Unlock()
	var err error
	select {
	case <-e.made:
	case <-ctx.Done():
		err = ctx.Err()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	e.waiting--
	switch {
	case e.done:
		return e.bytes, e.err
	case e.waiting == 0 && d.mu.kept[k] == e:
		delete(d.mu.kept, k)
	}
	return nil, err
}

// finish hands a dump over to those who wait for it, or will ask.
func (d *dumps) finish(k dumpKey, s link.Session, bytes []byte, err error, expires time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.mu.kept[k]
	if e == nil {
		e = &dump{made: make(chan struct{})}
		d.mu.kept[k] = e
	}
	if e.done || d.mu.ended {
		return
	}
	e.done, e.bytes, e.err, e.session, e.expires = true, bytes, err, s, expires
	d.mu.bytes += int64(len(bytes))
	close(e.made)
}

// room reports whether one more dump may be kept, and for how many bytes there is room.
func (d *dumps) room(most int, bytes int64) int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := 0
	for _, e := range d.mu.kept {
		if e.done {
			n++
		}
	}
	if n >= most {
		return 0
	}
	return bytes - d.mu.bytes
}

func (d *dumps) len() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.mu.kept)
}

// renew keeps a dump that is being fetched; drop forgets it.
func (d *dumps) renew(k dumpKey, expires time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if e := d.mu.kept[k]; e != nil {
		e.expires = expires
	}
}

func (d *dumps) drop(k dumpKey) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dropLocked(k)
}

func (d *dumps) dropLocked(k dumpKey) {
	if e := d.mu.kept[k]; e != nil && e.done {
		d.mu.bytes -= int64(len(e.bytes))
		delete(d.mu.kept, k)
	}
}

// expire forgets what nobody has asked for in time.
func (d *dumps) expire(now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for k, e := range d.mu.kept {
		if e.done && !now.Before(e.expires) {
			d.dropLocked(k)
		}
	}
}

// forget drops the dumps of a session that is over.
func (d *dumps) forget(s link.Session) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for k, e := range d.mu.kept {
		if e.session == s {
			d.dropLocked(k)
		}
	}
}

// end lets those go who wait.
func (d *dumps) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.ended = true
	for k, e := range d.mu.kept {
		if !e.done {
			e.done, e.err = true, ErrClosed
			close(e.made)
		}
		d.dropLocked(k)
	}
}

// fence makes the dump of a fence: of the copies as they are after all that came
// before it. That this node cannot make one is said to who fetches it.
func (w *worker) fence(ctx context.Context, m *copywire.Message) error {
	if !w.o.cfg.broken.lateDump {
		if err := w.writer.Flush(ctx); err != nil {
			return err
		}
		w.openFilled()
		if w.foreign(m) {
			if err := w.quiesce(ctx, m.Group, m.Slot); err != nil {
				return err
			}
		}
	}
	bytes, err := w.o.dump(ctx, m.SlotLife, m.Partitions)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	k := dumpKey{w.carrier.session.Peer, m.Token}
	w.o.dumps.finish(k, w.carrier.session, bytes, err, time.Now().Add(w.o.cfg.DumpTTL))
	return nil
}

// foreign reports that somebody else writes one of the copies of a fence.
func (w *worker) foreign(m *copywire.Message) bool {
	for _, p := range m.Partitions {
		if _, r := w.o.table.find(m.Group, p, m.Slot); r != nil && carrierOf(r.state.Load()) != w.id {
			return true
		}
	}
	return false
}

// dump makes a dump of copies, as far as they are open.
func (o *Owner) dump(ctx context.Context, l copywire.SlotLife, partitions []indexer.PartitionID) ([]byte, error) {
	room := o.dumps.room(o.cfg.MaxDumps, o.cfg.DumpBytes)
	if room <= 0 {
		return nil, fmt.Errorf("dump %v: %w", l, ErrBusy)
	}
	var out []byte
	for _, p := range partitions {
		c := copywire.NewEncoder(out, p)
		sl, r := o.table.find(l.Group, p, l.Slot)
		if r == nil || sl.life.Load() != l.Life {
			out = c.Closed()
			continue
		}
		before := r.state.Load()
		tenure, sequence := r.tenure.Load(), r.sequence.Load()
		if !whole(before) {
			out = c.Closed()
			continue
		}
		if err := o.cfg.Index.Dump(ctx, l.Group, p, l.Slot, func(s indexer.Stretch) error {
			if c.Add(&s); int64(c.Len()) > room {
				return ErrBusy
			}
			return nil
		}); err != nil {
			return nil, fmt.Errorf("dump %v: %w", l, err)
		}
		// Who writes the copy, or a fault, may have closed it meanwhile.
		if sl.life.Load() != l.Life || r.state.Load()&^written != before&^written {
			out = c.Closed()
			continue
		}
		out = c.Open(tenure, sequence)
	}
	o.count.dumps.Add(1)
	o.count.dumpBytes.Add(uint64(len(out)))
	return out, nil
}

// serveDump answers copywire.MethodDump.
func (o *Owner) serveDump(ctx context.Context, peer string, req []byte) ([]byte, error) {
	r, err := copywire.DecodeDumpRequest(req)
	if err != nil {
		return nil, err
	}
	k := dumpKey{peer, r.Token}
	bytes, err := o.dumps.wait(ctx, k)
	if err != nil {
		o.dumps.drop(k)
		return nil, fmt.Errorf("dump %#x: %w", r.Token, err)
	}
	return o.chunk(k, bytes, r.Offset)
}

// chunk returns a part of a dump, and forgets the dump with the last one: an answer
// that is lost costs another fence.
func (o *Owner) chunk(k dumpKey, bytes []byte, offset uint64) ([]byte, error) {
	if offset >= uint64(len(bytes)) {
		return nil, fmt.Errorf("dump %#x at %d of %d bytes: %w", k.token, offset, len(bytes), ErrNoDump)
	}
	c := copywire.Chunk{Token: k.token, Total: uint64(len(bytes)), Bytes: bytes[offset:]}
	if len(c.Bytes) > copywire.ChunkBytes {
		c.Bytes = c.Bytes[:copywire.ChunkBytes]
		o.dumps.renew(k, time.Now().Add(o.cfg.DumpTTL))
	} else {
		defer o.dumps.drop(k)
	}
	return c.Append(nil), nil
}

// servePeek answers copywire.MethodPeek. What is on its way to the index is applied
// first, so that the copies have all that their labels say.
func (o *Owner) servePeek(ctx context.Context, peer string, req []byte) ([]byte, error) {
	r, err := copywire.DecodePeekRequest(req)
	if err != nil {
		return nil, err
	}
	bytes, err := o.Peek(ctx, r.SlotLife, r.Partitions)
	if err != nil {
		return nil, err
	}
	k := dumpKey{peer, rand.Uint64()}
	if len(bytes) > copywire.ChunkBytes {
		o.dumps.finish(k, link.Session{}, bytes, nil, time.Now().Add(o.cfg.DumpTTL))
	}
	if len(bytes) == 0 {
		return copywire.Chunk{Token: k.token}.Append(nil), nil
	}
	return o.chunk(k, bytes, 0)
}

// Peek returns a dump (copywire.DecodeCopies) of copies as they are now, all of the slot
// if none are named.
func (o *Owner) Peek(ctx context.Context, l copywire.SlotLife, partitions []indexer.PartitionID) ([]byte, error) {
	if err := o.quiesce(ctx, l.Group, l.Slot, nil); err != nil {
		return nil, fmt.Errorf("dump %v: %w", l, err)
	}
	if len(partitions) == 0 {
		if g := at(&o.table.groups, int(l.Group)); g != nil {
			for p, r := range g.ofSlot(l.Slot) {
				if phase(r.state.Load()) == open {
					partitions = append(partitions, p)
				}
			}
		}
	}
	return o.dump(ctx, l, partitions)
}
