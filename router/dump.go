package router

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/shard/catalog"
)

// dumpChunk is how much of a dump is put together before it is sent.
const dumpChunk = 64 << 10

// dump serves GET /dump: the whole index as Dynamo's router events, streamed. As one
// object by default; as NDJSON, one event a line, with ?format=ndjson or Accept:
// application/x-ndjson. model_name and routing_group select groups, as for /workers.
//
// Each slot's blocks of one partition and tier are one consistent state; different ones
// are read one after the other.
func (c *call) dump() error {
	params := c.r.URL.Query()
	var groups []*catalog.Group
	view := c.router.cluster.View()
	for _, g := range view.Groups() {
		if (!params.Has("model_name") || params.Get("model_name") == g.Key.Model) &&
			(!params.Has("routing_group") || params.Get("routing_group") == g.Key.RoutingGroup) {
			groups = append(groups, g)
		}
	}
	d := dumper{c: c, view: view, keys: dumpKeys(view.Groups()), buf: c.out[:0], flow: http.NewResponseController(c.w)}
	if params.Get("format") == "ndjson" || strings.Contains(c.r.Header.Get("Accept"), "application/x-ndjson") {
		c.w.Header().Set("Content-Type", "application/x-ndjson")
		d.lines = true
	} else {
		c.w.Header().Set("Content-Type", "application/json")
	}
	c.code = http.StatusOK
	err := d.run(groups)
	c.out = d.buf
	if err != nil { // the client is gone, or half an event is out: only an abort tells it
		c.router.log.Warn("dump aborted", "error", err)
		panic(http.ErrAbortHandler)
	}
	return nil
}

// dumpKeys names the groups as "<model>:<group>". Where two groups would share a name,
// because names may have colons themselves, those of their models are written %3A.
func dumpKeys(groups []*catalog.Group) map[uint32]string {
	count := map[string]int{}
	key := func(g *catalog.Group) string { return g.Key.Model + ":" + g.Key.RoutingGroup }
	for _, g := range groups {
		count[key(g)]++
	}
	out := map[uint32]string{}
	for _, g := range groups {
		if out[g.ID] = key(g); count[key(g)] > 1 {
			out[g.ID] = strings.NewReplacer("%", "%25", ":", "%3A").Replace(g.Key.Model) + ":" + g.Key.RoutingGroup
		}
	}
	return out
}

// errClient wraps a failure to write: nobody is there to be told.
var errClient = errors.New("client is gone")

// dumper writes one dump.
type dumper struct {
	c     *call
	view  *catalog.View
	keys  map[uint32]string
	lines bool // NDJSON
	buf   []byte
	flow  *http.ResponseController

	// The group being dumped.
	group  *catalog.Group
	opened bool // its object, in the one-object form
	event  uint64
}

func (d *dumper) run(groups []*catalog.Group) error {
	if !d.lines {
		d.buf = append(d.buf, '{')
	}
	for _, g := range groups {
		if err := d.dumpGroup(g); err != nil {
			return err
		}
	}
	if !d.lines {
		d.buf = append(d.buf, '}')
	}
	return d.flush(0)
}

// dumpGroup writes one group: a device pass over its slots, then a pass for each lower
// tier that the first pass saw. A group that cannot be read says so in its place.
func (d *dumper) dumpGroup(g *catalog.Group) error {
	d.group, d.opened = g, false
	err := d.passes()
	if err != nil && (errors.Is(err, errClient) || d.c.r.Context().Err() != nil) {
		return err
	}
	switch {
	case d.lines && err != nil:
		d.buf = append(d.head(append(d.buf, '{')), `,"error":`...)
		d.buf = append(appendString(d.buf, err.Error()), "}\n"...)
	case d.lines:
	case err != nil && !d.opened:
		d.buf = append(appendKey(d.buf, d.keys[g.ID]), `{"error":`...)
		d.buf = append(appendString(d.buf, err.Error()), '}')
	default:
		d.open()
		d.buf = append(d.buf, ']')
		if err != nil {
			d.buf = appendStringField(d.buf, "error", err.Error())
		}
		d.buf = append(d.buf, '}')
	}
	return nil
}

func (d *dumper) passes() error {
	seen, err := d.pass(indexer.Device)
	for t := indexer.Host; t < indexer.NumTiers && err == nil; t++ {
		if seen.Has(t) {
			_, err = d.pass(t)
		}
	}
	return err
}

// pass writes one tier of every slot and returns which tiers it saw.
func (d *dumper) pass(t indexer.Tier) (seen indexer.TierMask, err error) {
	ctx := d.c.r.Context()
	for _, w := range d.view.Workers() {
		if w.Group.ID != d.group.ID {
			continue
		}
		for _, r := range w.Ranks {
			mask, err := d.slot(ctx, t, w.Instance, r)
			if seen |= mask; err != nil {
				return seen, err
			}
		}
	}
	return seen, nil
}

func (d *dumper) slot(ctx context.Context, t indexer.Tier, instance string, r catalog.Rank) (seen indexer.TierMask, err error) {
	d.event = 0
	err = d.c.router.cluster.DumpSlot(ctx, indexer.GroupID(d.group.ID), indexer.Slot(r.Slot), func(s indexer.Stretch) error {
		seen |= s.Tiers
		if !s.Tiers.Has(t) {
			return nil
		}
		return d.stored(t, instance, r.Rank, s)
	})
	return seen, err
}

// stored writes a stretch as one stored event.
func (d *dumper) stored(t indexer.Tier, instance string, rank uint32, s indexer.Stretch) error {
	if d.lines {
		d.buf = d.head(append(d.buf, '{'))
		d.buf = append(d.buf, `,"event":`...)
	} else {
		d.open()
		d.buf = comma(d.buf)
	}
	b := append(d.buf, `{"worker_id":`...)
	b = appendID(b, instance)
	b = appendStringField(b, "storage_tier", tierNames[t])
	b = appendUint(append(b, `,"event":{"event_id":`...), d.event)
	b = appendUint(append(b, `,"dp_rank":`...), uint64(rank))
	b = append(b, `,"data":{"stored":{"parent_hash":`...)
	if s.Parent.Root {
		b = append(b, "null"...)
	} else {
		b = appendUint(b, s.Parent.Engine)
	}
	b = append(b, `,"start_position":null,"blocks":[`...)
	for i := range s.Locals {
		b = appendUint(append(comma(b), `{"block_hash":`...), s.Engines[i])
		b = appendUint(append(b, `,"tokens_hash":`...), s.Locals[i])
		b = append(b, `,"mm_extra_info":null}`...)
		if d.buf = b; len(b) >= dumpChunk {
			if err := d.flush(1); err != nil {
				return err
			}
			b = d.buf
		}
	}
	d.buf = append(b, "]}}}}"...)
	if d.lines {
		d.buf = append(d.buf, "}\n"...)
	}
	d.event++
	return nil
}

// open begins the object of the group, once.
func (d *dumper) open() {
	if d.opened {
		return
	}
	d.opened = true
	d.buf = append(appendKey(d.buf, d.keys[d.group.ID]), `{"block_size":`...)
	d.buf = appendUint(d.buf, uint64(d.group.BlockSize))
	d.buf = appendStringField(d.buf, "model_name", d.group.Key.Model)
	d.buf = appendStringField(d.buf, "routing_group", d.group.Key.RoutingGroup)
	d.buf = append(d.buf, `,"events":[`...)
}

// head appends what every line says about its group.
func (d *dumper) head(b []byte) []byte {
	b = appendStringField(b, "key", d.keys[d.group.ID])
	b = appendUintField(b, "block_size", uint64(d.group.BlockSize))
	b = appendStringField(b, "model_name", d.group.Key.Model)
	return appendStringField(b, "routing_group", d.group.Key.RoutingGroup)
}

// flush sends all but the last keep bytes, which tell comma what came before. A client
// that goes on reading may take as long as it needs.
func (d *dumper) flush(keep int) error {
	// An unsupported deadline (a test's recorder) is no reason not to write.
	_ = d.flow.SetWriteDeadline(time.Now().Add(d.c.router.cfg.WriteTimeout))
	n := len(d.buf) - keep
	if _, err := d.c.w.Write(d.buf[:n]); err != nil {
		return errors.Join(errClient, err)
	}
	d.buf = d.buf[:copy(d.buf, d.buf[n:])]
	return nil
}
