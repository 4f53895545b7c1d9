package engine

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/kvcluster/kvcluster/indexer/blockhash"
)

// saltPrefix marks a salt among extra keys, by Dynamo's convention.
var saltPrefix = []byte("dynamo-cache-salt:")

// perBlock passes over a list that has something for each block and remembers where
// it is if it says anything: text-only stores send a list of nils, and what is in the
// others can be told only when the rest of the event is known.
func perBlock(b []byte, i int, where *int) (int, error) {
	n, p, ok := arrayHeader(b, i)
	if !ok {
		return i, errShape
	}
	end := p + n
	const eightNils = 0xc0c0c0c0c0c0c0c0
	for p+8 <= end && binary.LittleEndian.Uint64(b[p:]) == eightNils {
		p += 8
	}
	for p < end && b[p] == tagNil {
		p++
	}
	if p == end {
		return p, nil
	}
	*where = i
	return skip(b, i)
}

// extras fills ev.Extra, ordered by block.
func (d *Decoder) extras(b []byte, ev *Event, f *fields) bool {
	from := len(d.extra)
	if f.extraAt != 0 && !d.eachBlock(b, f.extraAt, ev, (*Decoder).blockKeys) {
		return false
	}
	keys := len(d.extra)
	if f.multimodalAt != 0 && !d.eachBlock(b, f.multimodalAt, ev, (*Decoder).blockItems) {
		return false
	}
	if len(d.extra) == from {
		return true
	}
	ev.Extra = d.extra[from:len(d.extra):len(d.extra)]
	if keys > from && len(d.extra) > keys {
		slices.SortStableFunc(ev.Extra, func(x, y ExtraKey) int { return cmp.Compare(x.Block, y.Block) })
	}
	return true
}

// eachBlock calls read for the entry of every block. The bytes from i on are known
// to be sound.
func (d *Decoder) eachBlock(b []byte, i int, ev *Event, read func(d *Decoder, b []byte, i, block int, ev *Event) (int, bool)) bool {
	n, i, _ := arrayHeader(b, i)
	if n != len(ev.Hashes) {
		// Which entry belongs to which block is anyone's guess; it matters only if
		// the blocks can be indexed.
		return ev.SpecKind == SpecOther
	}
	for block := range n {
		var ok bool
		if i, ok = read(d, b, i, block, ev); !ok {
			return false
		}
	}
	return true
}

// blockKeys sorts the extra keys of one block, which come as nil, a list of keys or
// a single key: the LoRA name and nils are dropped, a tagged salt in the first block
// becomes the event's salt, the rest is Extra.
func (d *Decoder) blockKeys(b []byte, i, block int, ev *Event) (int, bool) {
	if isNil(b, i) {
		return i + 1, true
	}
	n, body, list := arrayHeader(b, i)
	if !list {
		n, body = 1, i
	}
	i = body
	loraSeen := false
	for range n {
		start := i
		i, _ = skip(b, i)
		raw := b[start:i]
		if raw[0] == tagNil {
			continue
		}
		k := ExtraKey{Block: block}
		if text, _, ok := readStr(raw, 0); ok {
			if !loraSeen && ev.LoraName != "" && string(text) == ev.LoraName {
				loraSeen = true
				continue
			}
			if salt, tagged := bytes.CutPrefix(text, saltPrefix); tagged && block == 0 {
				if ev.Salt != "" && ev.Salt != string(salt) {
					return i, false // two salts
				}
				ev.Salt = d.names.get(salt)
				continue
			} else if tagged && ev.Salt == string(salt) {
				continue
			}
			k.Text, k.Digest = d.other.get(text), blockhash.ItemHash(text)
		} else {
			d.otherKey(raw, &k)
		}
		d.extra = append(d.extra, k)
	}
	return i, true
}

// otherKey reads a key that is no text: a digest, [identifier, offset], or a shape
// that no engine has yet, which still makes the block unlike all others.
func (d *Decoder) otherKey(raw []byte, k *ExtraKey) {
	if digest, _, ok := readBin(raw, 0); ok {
		k.Digest = blockhash.ItemHash(digest)
		return
	}
	k.HasOffset = true
	if n, i, ok := arrayHeader(raw, 0); ok && n == 2 {
		if text, i, ok := readStr(raw, i); ok && isInteger(raw[i]) {
			k.Text, k.Digest = d.other.get(text), blockhash.ItemHash(text)
			return
		}
		if digest, i, ok := readBin(raw, i); ok && isInteger(raw[i]) {
			k.Digest = blockhash.ItemHash(digest)
			return
		}
	}
	k.Digest = blockhash.ItemHash(raw)
}

// blockItems reads Dynamo's multimodal info of one block, {mm_objects: [{mm_hash: h}]}
// or the same as arrays. Whatever else it is still makes the block unlike others.
func (d *Decoder) blockItems(b []byte, i, block int, ev *Event) (int, bool) {
	next, _ := skip(b, i)
	if isNil(b, i) {
		return next, true
	}
	objects := member(b, i, "mm_objects")
	n, at, ok := arrayHeader(b, objects)
	if objects == 0 || !ok {
		d.extra = append(d.extra, ExtraKey{Block: block, Digest: blockhash.ItemHash(b[i:next]), HasOffset: true})
		return next, true
	}
	for range n {
		k := ExtraKey{Block: block, HasOffset: true}
		end, _ := skip(b, at)
		if h := member(b, at, "mm_hash"); h != 0 {
			k.Digest, _, _, ok = readInt(b, h)
		} else {
			ok = false
		}
		if !ok {
			k.Digest = blockhash.ItemHash(b[at:end])
		}
		d.extra = append(d.extra, k)
		at = end
	}
	return next, true
}

// member is the offset of a named member of the map at i, or of the first element
// when an array is there (a struct without names), or 0. The bytes are sound.
func member(b []byte, i int, name string) int {
	if n, at, ok := arrayHeader(b, i); ok && n > 0 {
		return at
	}
	n, at, _ := mapHeader(b, i)
	for range n {
		key, _, _ := readStr(b, at)
		at, _ = skip(b, at)
		if string(key) == name {
			return at
		}
		at, _ = skip(b, at)
	}
	return 0
}
