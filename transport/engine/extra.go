package engine

import (
	"bytes"
	"encoding/binary"

	"github.com/kvcluster/kvcluster/indexer/blockhash"
)

// saltPrefix marks a salt among extra keys, by Dynamo's convention.
var saltPrefix = []byte("dynamo-cache-salt:")

// extraSpan passes over extra_keys and remembers where they are if they say
// anything: text-only stores send a list of nils, and what is in the others can be
// told only when the rest of the event is known.
func extraSpan(b []byte, i int, f *fields) (int, error) {
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
	f.extraAt = i
	return skip(b, i)
}

// extraKeys sorts the keys of every block: the LoRA name and nils are dropped, a
// tagged salt in the first block becomes the event's salt, the rest is Extra. The
// bytes from i on are known to be sound.
func (d *Decoder) extraKeys(b []byte, i int, ev *Event) bool {
	n, i, _ := arrayHeader(b, i)
	if n != 0 && n != len(ev.Hashes) && ev.SpecKind != SpecOther {
		return false // which key belongs to which block is anyone's guess
	}
	from := len(d.extra)
	for block := range n {
		var ok bool
		if i, ok = d.blockKeys(b, i, block, ev); !ok {
			return false
		}
	}
	if len(d.extra) > from {
		ev.Extra = d.extra[from:len(d.extra):len(d.extra)]
	}
	return true
}

// blockKeys reads the entry of one block: nil, a list of keys, or a single key.
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
