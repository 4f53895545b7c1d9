package ingest

import (
	"errors"
	"strconv"

	"github.com/kvcluster/kvcluster/cluster/ingest/translate"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/blockhash"
	"github.com/kvcluster/kvcluster/transport/engine"
)

// scratch is memory of a loop that events reuse.
type scratch struct {
	items []blockhash.Item
}

// event translates one event of a batch that has been begun.
func (sl *slot) event(ev *engine.Event) {
	switch ev.Kind {
	case engine.Stored:
		sl.store(ev)
	case engine.Removed:
		if !sl.groups.remove(ev) {
			sl.n.OtherGroupBlocks += uint64(len(ev.Hashes))
			sl.n.Events[engine.Removed][OtherGroup]++
			return
		}
		out := sl.tr.Remove(ev.Tier, ev.Hashes)
		if ev.Tier != indexer.Device {
			sl.n.UnknownLower += uint64(out.Unknown)
		}
		sl.count(engine.Removed, out)
	case engine.Cleared:
		sl.count(engine.Cleared, sl.tr.Clear(ev.Tier))
		if ev.Tier == indexer.AllTiers {
			sl.degraded = "" // what was doubtful is gone
		}
	}
}

func (sl *slot) store(ev *engine.Event) {
	v := sl.groups.store(ev, sl.src.spec.Group.BlockSize)
	if v == disproved {
		// What was indexed of the group names no prefixes.
		sl.count(engine.Cleared, sl.tr.Clear(indexer.AllTiers))
		v = otherGroup
	}
	switch v {
	case otherGroup:
		sl.n.OtherGroupBlocks += uint64(len(ev.Hashes))
		sl.n.Events[engine.Stored][OtherGroup]++
		return
	case wrongSize:
		sl.badSize = ev.BlockSize
		sl.n.WrongSizeBlocks += uint64(len(ev.Hashes))
		sl.n.Events[engine.Stored][WrongBlockSize]++
		return
	}
	st := translate.Store{
		Tier: ev.Tier, HasParent: ev.HasParent, Parent: ev.Parent, Engines: ev.Hashes,
		Lora: ev.LoraName, Salt: ev.Salt, Placeholder: ev.Placeholder,
	}
	if !ev.Placeholder {
		if ev.LoraName == "" && ev.LoraID != 0 && sl.reg.Lora == "" {
			st.Lora = unnamedLora(ev.LoraID)
		}
		window := int(ev.BlockSize)
		if ev.Bigram {
			window++
			sl.sawBigram()
		}
		st.Content = blockhash.Content{
			Tokens: ev.Tokens, BlockSize: int(ev.BlockSize), Window: window,
			Multimodal: sl.extraKeys(ev, &st),
		}
	}
	out := sl.tr.Store(st)
	if out.Trimmed > 0 && out.Stored+out.Claimed+out.Orphaned == 0 {
		sl.n.DuplicateStores++
	}
	sl.count(engine.Stored, out)
}

// unnamedLora is the namespace of an adapter of which only the engine's number is
// known: no query can name it, and it must not be taken for the base model.
func unnamedLora(id int64) string { return "\x00lora_id:" + strconv.FormatInt(id, 10) }

// extraKeys sorts the untagged keys of a store. vLLM puts the salt, untagged, into the
// first block of a request only, behind any multimodal identifiers: so the last plain
// text of a root store's first block is the salt, and everything else is an item that
// goes into the hash of its block. Where an old engine meant an image by it, the block
// is found by nobody, which is less than it holds and never more.
func (sl *slot) extraKeys(ev *engine.Event, st *translate.Store) []blockhash.Item {
	if len(ev.Extra) == 0 {
		return nil
	}
	salt := -1
	if !ev.HasParent && ev.Salt == "" {
		for i := range ev.Extra {
			if k := &ev.Extra[i]; k.Block == 0 && k.Text != "" && !k.HasOffset {
				salt = i
			}
		}
		if salt >= 0 {
			st.Salt = ev.Extra[salt].Text
		}
	}
	items := sl.src.loop.scratch.items[:0]
	for i := range ev.Extra {
		if i != salt {
			items = append(items, blockhash.Item{Block: ev.Extra[i].Block, Hash: ev.Extra[i].Digest})
		}
	}
	sl.src.loop.scratch.items = items
	if len(items) == 0 {
		return nil
	}
	return items
}

// sawBigram tells everyone who hashes prompts of the group to overlap the blocks.
func (sl *slot) sawBigram() {
	if !sl.bigram {
		sl.bigram = true
		sl.src.loop.m.setBigram(sl.src.group())
	}
}

// count adds what became of an event.
func (sl *slot) count(kind engine.Kind, out translate.Outcome) {
	n := &sl.n
	n.Stored += uint64(out.Stored)
	n.Claimed += uint64(out.Claimed)
	n.Trimmed += uint64(out.Trimmed)
	n.Attached += uint64(out.Attached)
	n.Orphaned += uint64(out.Orphaned)
	n.Dropped += uint64(out.Dropped)
	n.Unknown += uint64(out.Unknown)
	n.Uncredited += uint64(out.Uncredited)
	n.OrphansLost += uint64(out.OrphansLost)
	n.Shed += uint64(out.Shed)
	r := Applied
	switch {
	case errors.Is(out.Err, translate.ErrRefused):
		r = Refused
	case out.Err != nil:
		r = Rejected
	case out.Orphaned > 0:
		r = Orphaned
	case kind == engine.Removed && out.Dropped == 0 && out.Unknown > 0:
		r = UnknownBlock
	}
	n.Events[kind][r]++
	if out.Err != nil {
		sl.fail("%v", out.Err)
	}
}
