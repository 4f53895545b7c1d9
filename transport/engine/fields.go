package engine

// field names what a slot of an array event or a key of a map event holds.
type field uint8

const (
	fieldUnknown field = iota
	fieldType
	fieldHashes
	fieldParent
	fieldTokens
	fieldBlockSize
	fieldLoraID
	fieldMedium
	fieldLora // lora_name; in arrays possibly SGLang's map instead
	fieldExtra
	fieldGroup
	fieldSpecKind
	fieldSalt
	fieldLocality
	fieldOwner
	fieldSession
	fieldMultimodal // Dynamo's block_mm_infos
	// Mooncake's own.
	fieldEventType
	fieldSeqHashes
	fieldParentHash
	fieldObjectKey
	fieldBaseIndex
	fieldBackend

	numFields
)

func parseField(key []byte) field {
	switch string(key) {
	case "type":
		return fieldType
	case "block_hashes":
		return fieldHashes
	case "parent_block_hash":
		return fieldParent
	case "token_ids":
		return fieldTokens
	case "block_size":
		return fieldBlockSize
	case "lora_id":
		return fieldLoraID
	case "medium":
		return fieldMedium
	case "lora_name":
		return fieldLora
	case "extra_keys":
		return fieldExtra
	case "group_idx":
		return fieldGroup
	case "kv_cache_spec_kind":
		return fieldSpecKind
	case "cache_salt", "additional_salt":
		return fieldSalt
	case "locality":
		return fieldLocality
	case "ownership":
		return fieldOwner
	case "session_id":
		return fieldSession
	case "block_mm_infos":
		return fieldMultimodal
	case "event_type":
		return fieldEventType
	case "seq_hashes":
		return fieldSeqHashes
	case "parent_hash":
		return fieldParentHash
	case "object_key":
		return fieldObjectKey
	case "base_block_idx":
		return fieldBaseIndex
	case "backend_id":
		return fieldBackend
	}
	return fieldUnknown
}

// fields is what is known of an event while it is read, beside the Event itself.
// Keys of a map come in any order, so nothing is judged before the end.
type fields struct {
	tag       tag
	eventType tag
	bad       bool // some field has a wrong type or shape

	mediumSaid  bool
	mediumKnown bool
	foreign     bool
	hasHashes   bool // block_hashes is a list
	inMiddle    bool // base_block_idx > 0: not a root even without a parent
	locality    locality
	blockSize   uint64

	seqHashes []uint64 // used when there are no block_hashes
	hasSeq    bool
	objectKey []byte

	// Offsets of extra_keys and block_mm_infos when they may say something, else 0.
	extraAt, multimodalAt int
}

// field reads the value of one field at i. errShape: it is not what the field
// should hold; the caller then skips the value.
func (d *Decoder) field(b []byte, i int, id field, ev *Event, f *fields) (next int, err error) {
	if isNil(b, i) {
		return i + 1, nil // as if absent, whatever the field
	}
	var ok bool
	var text []byte
	switch id {
	case fieldType:
		f.tag = tagNone
		if text, next, ok = readStr(b, i); ok {
			f.tag = parseTag(text)
		}
	case fieldEventType:
		if text, next, ok = readStr(b, i); ok {
			f.eventType = parseEventType(text)
		}
	case fieldHashes:
		ev.Hashes, next, err = d.hashList(b, i)
		f.hasHashes = true
		return next, err
	case fieldSeqHashes:
		f.seqHashes, next, err = d.hashList(b, i)
		f.hasSeq = true
		return next, err
	case fieldParent, fieldParentHash:
		var h uint64
		if h, next, ok = readHash(b, i); ok {
			ev.Parent, ev.HasParent = h, true
		}
	case fieldTokens:
		ev.Tokens, ev.Bigram, next, err = d.tokenList(b, i)
		return next, err
	case fieldBlockSize:
		var neg bool
		f.blockSize, neg, next, ok = readInt(b, i)
		ok = ok && !neg
	case fieldLoraID:
		var v uint64
		v, _, next, ok = readInt(b, i)
		ev.LoraID = int64(v)
	case fieldMedium:
		if text, next, ok = readStr(b, i); ok {
			f.mediumSaid = true
			ev.Tier, f.mediumKnown = ParseMedium(text)
		}
	case fieldLora:
		if n, body, isMap := mapHeader(b, i); isMap {
			return d.metadata(b, body, n, ev, f)
		}
		if text, next, ok = readStr(b, i); ok {
			ev.LoraName = d.names.get(text)
		}
	case fieldExtra:
		return perBlock(b, i, &f.extraAt)
	case fieldMultimodal:
		return perBlock(b, i, &f.multimodalAt)
	case fieldGroup:
		var v uint64
		var neg bool
		v, neg, next, ok = readInt(b, i)
		ok = ok && !neg && v <= maxGroup
		ev.Group = int64(v)
	case fieldSpecKind:
		if text, next, ok = readStr(b, i); ok {
			ev.SpecKind = parseSpecKind(text)
		}
	case fieldSalt:
		if text, next, ok = readStr(b, i); ok {
			ev.Salt = d.names.get(text)
		}
	case fieldLocality:
		if text, next, ok = readStr(b, i); ok {
			f.locality = parseLocality(text)
		}
	case fieldOwner:
		_, next, ok = readStr(b, i)
		f.foreign = true
	case fieldSession:
		if text, next, ok = readStr(b, i); ok {
			ev.Session = d.other.get(text)
		}
	case fieldObjectKey:
		f.objectKey, next, ok = readStr(b, i)
	case fieldBaseIndex:
		var v uint64
		v, _, next, ok = readInt(b, i)
		f.inMiddle = v != 0
	case fieldBackend:
		if text, next, ok = readStr(b, i); ok {
			ev.Backend = d.names.get(text)
		}
	default:
		return skip(b, i)
	}
	if !ok {
		return i, errShape
	}
	return next, nil
}

// maxGroup is far beyond any model's number of cache groups.
const maxGroup = 1 << 31

// read is field, with the value skipped and the event marked when it does not fit.
func (d *Decoder) read(b []byte, i int, id field, ev *Event, f *fields) (int, error) {
	next, err := d.field(b, i, id, ev, f)
	if err == errShape {
		f.bad = true
		return skip(b, i)
	}
	return next, err
}

// metadata reads the map that SGLang 0.5.18 to 0.5.20 puts where vLLM has lora_name.
func (d *Decoder) metadata(b []byte, i, n int, ev *Event, f *fields) (int, error) {
	var err error
	for range n {
		key, next, ok := readStr(b, i)
		if !ok {
			if next, err = skip(b, i); err != nil {
				return i, err
			}
		}
		id := fieldUnknown
		switch string(key) {
		case "cache_salt":
			id = fieldSalt
		case "lora_name":
			// Only a name: a map inside the map would recurse.
			if _, _, isMap := mapHeader(b, next); !isMap {
				id = fieldLora
			}
		}
		if i, err = d.read(b, next, id, ev, f); err != nil {
			return i, err
		}
	}
	return i, nil
}
