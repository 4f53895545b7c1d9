package engine

import (
	"bytes"
	"errors"
	"io"
	"math"
	"reflect"
	"sort"
	"strconv"
	"strings"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/blockhash"
	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// This file decodes the slow way: msgpack/v5 into a tree of values, then one plain
// reading of the rules over the tree. It shares no code with the decoder, only the
// types (and blockhash.ItemHash).

type (
	pair  struct{ key, value any }
	table []pair // a map, with its order and its duplicates
	ext   struct{}
)

// maxCompared is the depth up to which both must agree.
const maxCompared = 16

var errDeep = errors.New("deeper than compared")

func tree(d *msgpack.Decoder, r *bytes.Reader, depth int) (any, error) {
	if depth > maxCompared {
		return nil, errDeep
	}
	c, err := d.PeekCode()
	if err != nil {
		return nil, err
	}
	switch {
	case msgpcode.IsFixedMap(c) || c == msgpcode.Map16 || c == msgpcode.Map32:
		n, err := d.DecodeMapLen()
		if err != nil {
			return nil, err
		}
		t := table{}
		for range n {
			k, err := tree(d, r, depth+1)
			if err != nil {
				return nil, err
			}
			v, err := tree(d, r, depth+1)
			if err != nil {
				return nil, err
			}
			t = append(t, pair{k, v})
		}
		return t, nil
	case msgpcode.IsFixedArray(c) || c == msgpcode.Array16 || c == msgpcode.Array32:
		n, err := d.DecodeArrayLen()
		if err != nil {
			return nil, err
		}
		l := []any{}
		for range n {
			v, err := tree(d, r, depth+1)
			if err != nil {
				return nil, err
			}
			l = append(l, v)
		}
		return l, nil
	case msgpcode.IsExt(c):
		_, n, err := d.DecodeExtHeader()
		if err != nil {
			return nil, err
		}
		_, err = take(r, n)
		return ext{}, err
	case msgpcode.IsString(c) || msgpcode.IsBin(c):
		// Not DecodeInterface: v5.4.1 spins for ever on a length of 2^32-1.
		n, err := d.DecodeBytesLen()
		if err != nil {
			return nil, err
		}
		b, err := take(r, n)
		if msgpcode.IsString(c) {
			return string(b), err
		}
		return b, err
	}
	return d.DecodeInterface()
}

func take(r *bytes.Reader, n int) ([]byte, error) {
	if n > r.Len() {
		return nil, io.ErrUnexpectedEOF
	}
	b := make([]byte, n)
	_, err := io.ReadFull(r, b)
	return b, err
}

// integer reads any of the Go types that msgpack/v5 gives.
func integer(v any) (u uint64, neg, ok bool) {
	switch r := reflect.ValueOf(v); r.Kind() {
	case reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return uint64(r.Int()), r.Int() < 0, true
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return r.Uint(), false, true
	}
	return 0, false, false
}

func natural(v any, limit uint64) (uint64, bool) {
	u, neg, ok := integer(v)
	return u, ok && !neg && u <= limit
}

var errReject = errors.New("rejected")

// reference decodes a payload; errReject (or a msgpack error) means reject,
// errDeep that this payload is not compared.
func reference(payload []byte) (*Batch, error) {
	r := bytes.NewReader(payload)
	root, err := tree(msgpack.NewDecoder(r), r, 0)
	if err != nil {
		return nil, err
	}
	b := &Batch{Rank: -1, Trailing: r.Len() > 0}
	var ts, rank, events any
	switch root := root.(type) {
	case []any:
		if len(root) < 2 {
			return nil, errReject
		}
		ts, events = root[0], root[1]
		if len(root) > 2 {
			rank = root[2]
		}
	case table:
		found := 0
		for _, p := range root {
			switch p.key {
			case "ts":
				if err := referenceTime(b, p.value); err != nil {
					return nil, err
				}
			case "events":
				events = p.value
				found++
			case "data_parallel_rank", "attn_dp_rank", "dp_rank", "rank":
				if err := referenceRank(b, p.value); err != nil {
					return nil, err
				}
			}
		}
		if found != 1 {
			return nil, errReject
		}
	default:
		return nil, errReject
	}
	if err := referenceTime(b, ts); err != nil {
		return nil, err
	}
	if err := referenceRank(b, rank); err != nil {
		return nil, err
	}
	list, ok := events.([]any)
	if !ok {
		return nil, errReject
	}
	for _, e := range list {
		v := referenceEvent(e)
		if v.use {
			b.Events = append(b.Events, v.event)
			continue
		}
		b.Skipped[v.reason]++
		if v.lost {
			b.LostRemovals++
		}
	}
	return b, nil
}

func referenceTime(b *Batch, v any) error {
	if v == nil {
		return nil
	}
	var f float64
	switch x := v.(type) {
	case float32:
		f = float64(x)
	case float64:
		f = x
	default:
		u, neg, ok := integer(v)
		if !ok {
			return errReject
		}
		f = float64(u)
		if neg {
			f = -1
		}
	}
	b.Time = 0
	if f > 0 && !math.IsInf(f, 0) {
		b.Time = f
		for _, unit := range []struct{ above, per float64 }{{1e17, 1e9}, {1e14, 1e6}, {1e11, 1e3}} {
			if f > unit.above {
				b.Time = f / unit.per
				break
			}
		}
	}
	return nil
}

func referenceRank(b *Batch, v any) error {
	if v == nil {
		return nil
	}
	u, ok := natural(v, math.MaxUint32)
	if !ok {
		return errReject
	}
	b.Rank = int64(u)
	return nil
}

// verdict is what becomes of an event.
type verdict struct {
	event  Event
	use    bool
	reason SkipReason
	lost   bool // may have been a removal
}

// referenceEvent names the fields of an event, whatever its form, then judges them.
func referenceEvent(e any) verdict {
	var named table
	switch e := e.(type) {
	case table:
		named = e
	case []any:
		if len(e) == 0 {
			return verdict{reason: SkipMalformed, lost: true}
		}
		tag, ok := e[0].(string)
		if !ok {
			return verdict{reason: SkipMalformed, lost: true}
		}
		names := map[string][]string{
			"BlockStored":       {"type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys"},
			"BlockRemoved":      {"type", "block_hashes", "medium"},
			"TierBlocksCleared": {"type", "medium"},
		}[tag]
		named = table{{"type", tag}}
		for i := 1; i < len(e) && i < len(names); i++ {
			named = append(named, pair{names[i], e[i]})
		}
		if tag == "BlockStored" || tag == "BlockRemoved" {
			group, kind := false, false
			for i := len(names); i < len(e); i++ {
				if s, ok := e[i].(string); ok {
					switch {
					case s == "LOCAL" || s == "REMOTE":
						named = append(named, pair{"locality", s})
					case !kind && i-len(names) <= 2:
						named = append(named, pair{"kv_cache_spec_kind", s})
						kind = true
					}
				} else if _, ok := e[i].([]any); ok && i == 9 && tag == "BlockStored" {
					named = append(named, pair{"block_mm_infos", e[i]})
				} else if _, _, ok := integer(e[i]); ok && !group && !kind && i-len(names) < 2 {
					named = append(named, pair{"group_idx", e[i]})
					group = true
				}
			}
		}
	default:
		return verdict{reason: SkipMalformed, lost: true}
	}
	return judge(named)
}

func judge(named table) verdict {
	ev := Event{Group: -1}
	var typ, eventType, medium, objectKey, place string
	var hashes, seq []uint64
	var hasHashes, hasSeq, foreign, inside, bad bool
	var size uint64
	var extra, infos []any
	check := func(ok bool) bool { bad = bad || !ok; return ok }
	text := func(v any, into *string) {
		if s, ok := v.(string); check(ok) {
			*into = s
		}
	}
	perBlock := func(v any, into *[]any) {
		l, ok := v.([]any)
		check(ok)
		for _, x := range l {
			if x != nil {
				*into = l
			}
		}
	}
	refuse := func(r SkipReason) verdict {
		lost := r == SkipMalformed && typ != "BlockStored" || r == SkipMedium && typ == "TierBlocksCleared" && medium == ""
		return verdict{reason: r, lost: lost}
	}
	for _, p := range named {
		v := p.value
		if v == nil {
			continue
		}
		switch p.key {
		case "type":
			text(v, &typ)
			if typ == "" {
				typ = "?"
			}
			if _, ok := v.(string); !ok {
				typ = ""
			}
		case "event_type":
			text(v, &eventType)
		case "block_hashes":
			h, ok := hashesOf(v)
			if hasHashes = true; check(ok) {
				hashes = h
			}
		case "seq_hashes":
			h, ok := hashesOf(v)
			if hasSeq = true; check(ok) {
				seq = h
			}
		case "parent_block_hash", "parent_hash":
			if h, ok := hashOf(v); check(ok) {
				ev.Parent, ev.HasParent = h, true
			}
		case "token_ids":
			t, pairs, ok := tokensOf(v)
			if check(ok) {
				ev.Tokens, ev.Bigram = t, pairs
			}
		case "block_size":
			u, ok := natural(v, math.MaxUint64)
			if check(ok) {
				size = u
			}
		case "lora_id":
			u, _, ok := integer(v)
			check(ok)
			ev.LoraID = int64(u)
		case "medium":
			text(v, &medium)
			if medium == "" {
				medium = "?"
			}
		case "lora_name":
			if t, ok := v.(table); ok {
				for _, q := range t {
					if q.value == nil {
						continue
					}
					switch _, isMap := q.value.(table); {
					case q.key == "cache_salt":
						text(q.value, &ev.Salt)
					case q.key == "lora_name" && !isMap:
						text(q.value, &ev.LoraName)
					}
				}
			} else {
				text(v, &ev.LoraName)
			}
		case "extra_keys":
			perBlock(v, &extra)
		case "block_mm_infos":
			perBlock(v, &infos)
		case "group_idx":
			u, ok := natural(v, 1<<31)
			check(ok)
			ev.Group = int64(u)
		case "kv_cache_spec_kind":
			var kind string
			if text(v, &kind); kind != "" || !bad {
				ev.SpecKind = SpecOther
				for i, k := range []string{"full_attention", "mla_attention", "sink_full_attention"} {
					if k == kind {
						ev.SpecKind = SpecFullAttention + SpecKind(i)
					}
				}
			}
		case "cache_salt", "additional_salt":
			text(v, &ev.Salt)
		case "locality":
			text(v, &place)
			if place == "" {
				place = "?"
			}
		case "ownership":
			_, ok := v.(string)
			foreign = true
			check(ok)
		case "session_id":
			text(v, &ev.Session)
		case "object_key":
			text(v, &objectKey)
		case "base_block_idx":
			u, _, ok := integer(v)
			check(ok)
			inside = u != 0
		case "backend_id":
			text(v, &ev.Backend)
		}
	}
	if typ == "" {
		typ = map[string]string{"": "", "stored": "BlockStored", "removed": "BlockRemoved", "cleared": "AllBlocksCleared"}[eventType]
		if typ == "" && eventType != "" {
			typ = "?"
		}
	}
	known := map[string]bool{"BlockStored": true, "BlockRemoved": true, "AllBlocksCleared": true, "TierBlocksCleared": true}
	switch {
	case typ == "Ignored":
		return refuse(SkipIgnored)
	case typ != "" && !known[typ]:
		return refuse(SkipUnknownTag)
	case bad && typ != "AllBlocksCleared" || typ == "":
		return refuse(SkipMalformed)
	case foreign:
		return refuse(SkipForeign)
	case place != "" && !strings.EqualFold(place, "local"):
		return refuse(SkipNotLocal)
	}
	tier, ok := tiers[strings.ToUpper(medium)]
	ev.Tier = tier
	switch {
	case typ == "AllBlocksCleared":
		return verdict{event: Event{Kind: Cleared, Tier: indexer.AllTiers, Group: ev.Group}, use: true}
	case !ok || typ == "TierBlocksCleared" && medium == "":
		return refuse(SkipMedium)
	case typ == "TierBlocksCleared":
		return verdict{event: Event{Kind: Cleared, Tier: tier, Group: ev.Group}, use: true}
	}
	switch {
	case hasHashes:
		ev.Hashes = hashes
	case hasSeq:
		ev.Hashes = seq
	default:
		h, err := strconv.ParseUint(objectKey, 10, 64)
		if len(objectKey) > 2 && strings.EqualFold(objectKey[:2], "0x") {
			h, err = strconv.ParseUint(objectKey[2:], 16, 64)
		}
		if err != nil {
			return refuse(SkipMalformed)
		}
		ev.Hashes = []uint64{h}
	}
	if typ == "BlockRemoved" {
		return verdict{event: Event{Kind: Removed, Tier: tier, Hashes: ev.Hashes, Group: ev.Group, SpecKind: ev.SpecKind, Backend: ev.Backend}, use: true}
	}
	ev.Kind = Stored
	units := len(ev.Tokens)
	if ev.Bigram {
		units--
	}
	count := func() bool { // without overflow: sizes are as large as the sender likes
		return size < 1<<32 && uint64(len(ev.Hashes))*size == uint64(units)
	}
	empty := units == 0 && len(ev.Hashes) == 0
	switch {
	case units == 0 && size == 0:
		ev.Placeholder = true
	case empty || count():
	case ev.SpecKind == SpecOther:
		ev.Tokens, ev.Bigram = nil, false
	default:
		return refuse(SkipTokenCount)
	}
	ev.BlockSize = uint32(min(size, 1<<31))
	if inside && !ev.HasParent {
		ev.Placeholder, ev.Tokens, ev.Bigram, ev.BlockSize = true, nil, false, 0
	}
	for _, l := range []*[]any{&extra, &infos} {
		if len(*l) != 0 && len(*l) != len(ev.Hashes) {
			if ev.SpecKind != SpecOther {
				return refuse(SkipMalformed)
			}
			*l = nil
		}
	}
	for i, x := range extra {
		keys, ok := x.([]any)
		if !ok {
			keys = []any{x}
		}
		loraSeen := false
		for _, k := range keys {
			if s, ok := k.(string); ok {
				salt, tagged := strings.CutPrefix(s, "dynamo-cache-salt:")
				switch {
				case s == ev.LoraName && s != "" && !loraSeen:
					loraSeen = true
				case tagged && i == 0 && ev.Salt != "" && ev.Salt != salt:
					return refuse(SkipMalformed)
				case tagged && i == 0:
					ev.Salt = salt
				case tagged && ev.Salt == salt:
				default:
					ev.Extra = append(ev.Extra, ExtraKey{Block: i, Text: s, Digest: blockhash.ItemHash([]byte(s))})
				}
			} else if b, ok := k.([]byte); ok {
				ev.Extra = append(ev.Extra, ExtraKey{Block: i, Digest: blockhash.ItemHash(b)})
			} else if k != nil {
				x := ExtraKey{Block: i, HasOffset: true}
				if l, ok := k.([]any); ok && len(l) == 2 {
					if _, _, ok := integer(l[1]); ok {
						if s, ok := l[0].(string); ok {
							x.Text, x.Digest = s, blockhash.ItemHash([]byte(s))
						} else if b, ok := l[0].([]byte); ok {
							x.Digest = blockhash.ItemHash(b)
						}
					}
				}
				ev.Extra = append(ev.Extra, x) // other shapes: some digest, see equalExtra
			}
		}
	}
	for i, x := range infos {
		objects, ok := memberOf(x, "mm_objects").([]any)
		if !ok && x != nil {
			ev.Extra = append(ev.Extra, ExtraKey{Block: i, HasOffset: true})
		}
		for _, o := range objects {
			h, _, _ := integer(memberOf(o, "mm_hash"))
			ev.Extra = append(ev.Extra, ExtraKey{Block: i, HasOffset: true, Digest: h})
		}
	}
	sort.SliceStable(ev.Extra, func(i, j int) bool { return ev.Extra[i].Block < ev.Extra[j].Block })
	return verdict{event: ev, use: true}
}

func memberOf(v any, name string) any {
	switch v := v.(type) {
	case table:
		for _, p := range v {
			if p.key == name {
				return p.value
			}
		}
	case []any:
		if len(v) > 0 {
			return v[0]
		}
	}
	return nil
}

var tiers = map[string]indexer.Tier{
	"": indexer.Device, "GPU": indexer.Device, "DEVICE": indexer.Device,
	"CPU": indexer.Host, "CPU_PINNED": indexer.Host, "CPU_TIER1": indexer.Host,
	"CPU_TIER2": indexer.Disk, "DISK": indexer.Disk, "NVME": indexer.Disk, "STORAGE": indexer.Disk,
	"EXTERNAL": indexer.External, "NETWORK": indexer.External, "REMOTE": indexer.External, "SHARED": indexer.External,
}

func hashOf(v any) (uint64, bool) {
	if b, ok := v.([]byte); ok {
		var h uint64
		for _, c := range b {
			h = h<<8 + uint64(c) // what does not fit falls out at the top
		}
		return h, len(b) > 0
	}
	u, _, ok := integer(v)
	return u, ok
}

func hashesOf(v any) ([]uint64, bool) {
	l, ok := v.([]any)
	var hs []uint64
	for _, x := range l {
		h, good := hashOf(x)
		hs, ok = append(hs, h), ok && good
	}
	return hs, ok
}

func tokensOf(v any) (tokens []uint32, pairs, ok bool) {
	l, ok := v.([]any)
	if len(l) > 0 {
		_, pairs = l[0].([]any)
	}
	for i, x := range l {
		if pairs {
			p, isPair := x.([]any)
			if !isPair || len(p) != 2 {
				return nil, true, false
			}
			a, okA := natural(p[0], math.MaxUint32)
			b, okB := natural(p[1], math.MaxUint32)
			if i == 0 {
				tokens = append(tokens, uint32(a))
			}
			if !okA || !okB || tokens[i] != uint32(a) {
				return nil, true, false
			}
			tokens = append(tokens, uint32(b))
			continue
		}
		u, good := natural(x, math.MaxUint32)
		tokens, ok = append(tokens, uint32(u)), ok && good
	}
	return tokens, pairs, ok
}
