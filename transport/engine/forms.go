package engine

// wireKey is a key of a map event as it was seen on the wire.
type wireKey struct {
	raw string // header and text
	id  field
}

// mapEvent reads the n pairs of a map event from i on.
func (d *Decoder) mapEvent(b []byte, i, n int, ev *Event, f *fields) (int, error) {
	id := numFields // before the first key
	for range n {
		var err error
		prev, under := id, f.tag
		if k := &d.follow[under][prev]; len(k.raw) != 0 && len(b)-i >= len(k.raw) && string(b[i:i+len(k.raw)]) == k.raw {
			id = k.id
			i += len(k.raw)
		} else {
			start := i
			key, next, ok := readStr(b, i)
			if !ok {
				if i, err = skip(b, i); err == nil {
					i, err = skip(b, i)
				}
				if err != nil {
					return i, err
				}
				continue
			}
			id, i = parseField(key), next
			if id != fieldUnknown {
				d.follow[under][prev] = wireKey{raw: d.keys.get(b[start:next]), id: id}
			}
		}
		if i, err = d.read(b, i, id, ev, f); err != nil {
			return i, err
		}
	}
	return i, nil
}

// storedSlots are the fields of an array store, tag first; SGLang's and vLLM's
// orders agree. What follows is read by tail.
var storedSlots = [...]field{
	fieldType, fieldHashes, fieldParent, fieldTokens, fieldBlockSize, fieldLoraID,
	fieldMedium, fieldLora, fieldExtra,
}

var removedSlots = [...]field{fieldType, fieldHashes, fieldMedium}

// arrayEvent reads the n slots of an array event from i on.
func (d *Decoder) arrayEvent(b []byte, i, n int, ev *Event, f *fields) (int, error) {
	name, next, ok := readStr(b, i)
	if n == 0 || !ok {
		f.bad = true
		return skipValues(b, i, n)
	}
	i = next
	f.tag = parseTag(name)
	var slots []field
	switch f.tag {
	case tagStored:
		slots = storedSlots[:]
	case tagRemoved:
		slots = removedSlots[:]
	case tagTierCleared:
		if n < 2 {
			return i, nil
		}
		next, err := d.read(b, i, fieldMedium, ev, f)
		if err != nil {
			return i, err
		}
		return skipValues(b, next, n-2)
	default:
		return skipValues(b, i, n-1)
	}
	var err error
	for slot := 1; slot < min(n, len(slots)); slot++ {
		if i, err = d.read(b, i, slots[slot], ev, f); err != nil {
			return i, err
		}
	}
	if n > len(slots) {
		return d.tail(b, i, len(slots), n, ev, f)
	}
	return i, nil
}

func skipValues(b []byte, i, n int) (int, error) {
	var err error
	for range n {
		if i, err = skip(b, i); err != nil {
			return i, err
		}
	}
	return i, nil
}

// tail reads what follows the common slots of an array event, from slot on. vLLM
// has group_idx, kv_cache_spec_kind, kv_cache_spec_sliding_window there; Dynamo has
// multimodal infos before them, and locality and source_kind behind. Both are told
// apart by type: the first integer is the group (unless it stands where only a
// window can), the first text in reach of a kind is the kind, LOCAL and REMOTE are
// localities wherever they are.
func (d *Decoder) tail(b []byte, i, slot, n int, ev *Event, f *fields) (int, error) {
	base := slot
	var err error
	groupSeen, kindSeen := false, false
	for ; slot < n; slot++ {
		id := fieldUnknown
		switch {
		case i >= len(b):
		case slot == base && f.tag == tagStored && isArray(b[i]):
			id = fieldMultimodal
		case isInteger(b[i]) && !groupSeen && !kindSeen && slot < base+2:
			id, groupSeen = fieldGroup, true
		case isString(b[i]):
			text, _, _ := readStr(b, i)
			switch string(text) {
			case "LOCAL", "REMOTE":
				id = fieldLocality
			default:
				if !kindSeen && slot <= base+2 {
					id, kindSeen = fieldSpecKind, true
				}
			}
		}
		if i, err = d.read(b, i, id, ev, f); err != nil {
			return i, err
		}
	}
	return i, nil
}

func isArray(c byte) bool { return c&0xf0 == 0x90 || c == tagArray16 || c == tagArray32 }

func isInteger(c byte) bool {
	return c < 0x80 || c >= 0xe0 || c >= tagU8 && c <= tagI64
}

func isString(c byte) bool {
	return c&0xe0 == 0xa0 || c >= tagStr8 && c <= tagStr32
}
