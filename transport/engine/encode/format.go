package encode

import (
	"fmt"
	"strings"

	"github.com/kvcluster/kvcluster/indexer"
)

// Format is what one generation of an engine puts on the wire.
type Format uint8

// The formats. Numbers are the releases from which an engine sends them.
const (
	VLLM090         Format = iota // two-slot envelope, arrays of 5 fields, signed hashes
	VLLM091                       // + rank
	VLLM011                       // + medium
	VLLM013                       // + lora_name
	VLLM017                       // + extra_keys
	VLLM019                       // + group_idx
	VLLM021                       // + kv_cache_spec_kind, kv_cache_spec_sliding_window
	VLLM024                       // map events
	VLLM026                       // + locality
	VLLM031                       // + ownership, session_id
	VLLMMapEnvelope               // never released: map envelope
	SGLang04                      // arrays of 5 fields
	SGLang059                     // + medium
	SGLang0518                    // + a map with the salt at index 7, in salted stores
	SGLang0521                    // map events, cache_salt, session_id
	TensorRT                      // streaming publisher: map events
	Mooncake                      // master with legacy aliases and object keys

	numFormats
)

// The formats that most fleets send today.
const (
	VLLMArray   = VLLM021
	VLLMMap     = VLLM031
	SGLangArray = SGLang0518
	SGLangMap   = SGLang0521
)

// spec has the properties of a format.
type spec struct {
	name        string
	stored      int // slots of a store after the tag (arrays)
	removed     int // slots of a removal after the tag (arrays)
	maps        bool
	mapEnvelope bool
	noRank      bool
	signed      bool // hashes are int64
	sglang      bool
	locality    bool // map keys
	ownership   bool
	session     bool
	vllmKeys    bool // lora_name, extra_keys, group_idx, kv_cache_spec_*
	mooncake    bool
}

var specs = [numFormats]spec{
	VLLM090:         {name: "vllm-0.9.0", stored: 5, removed: 1, noRank: true, signed: true},
	VLLM091:         {name: "vllm-0.9.1", stored: 5, removed: 1},
	VLLM011:         {name: "vllm-0.11", stored: 6, removed: 2},
	VLLM013:         {name: "vllm-0.13", stored: 7, removed: 2},
	VLLM017:         {name: "vllm-0.17", stored: 8, removed: 2},
	VLLM019:         {name: "vllm-0.19", stored: 9, removed: 3},
	VLLM021:         {name: "vllm-array", stored: 11, removed: 3},
	VLLM024:         {name: "vllm-0.24", maps: true, vllmKeys: true},
	VLLM026:         {name: "vllm-0.26", maps: true, vllmKeys: true, locality: true},
	VLLM031:         {name: "vllm-map", maps: true, vllmKeys: true, locality: true, ownership: true, session: true},
	VLLMMapEnvelope: {name: "vllm-map-envelope", maps: true, vllmKeys: true, mapEnvelope: true},
	SGLang04:        {name: "sglang-0.4", stored: 5, removed: 1, signed: true, sglang: true},
	SGLang059:       {name: "sglang-0.5.9", stored: 6, removed: 2, signed: true, sglang: true},
	SGLang0518:      {name: "sglang-array", stored: 6, removed: 2, signed: true, sglang: true},
	SGLang0521:      {name: "sglang-map", maps: true, signed: true, sglang: true, session: true},
	TensorRT:        {name: "trtllm", maps: true, signed: true, vllmKeys: true, locality: true},
	Mooncake:        {name: "mooncake", maps: true, mooncake: true},
}

// String is the name that ParseFormat reads.
func (f Format) String() string {
	if f >= numFormats {
		return fmt.Sprintf("format(%d)", uint8(f))
	}
	return specs[f].name
}

// Formats lists all formats.
func Formats() []Format {
	all := make([]Format, numFormats)
	for i := range all {
		all[i] = Format(i)
	}
	return all
}

// ParseFormat reads the name of a format.
func ParseFormat(name string) (Format, error) {
	var names []string
	for f, s := range specs {
		if s.name == name {
			return Format(f), nil
		}
		names = append(names, s.name)
	}
	return 0, fmt.Errorf("unknown event format %q, must be one of %s", name, strings.Join(names, ", "))
}

// Bigrams reports whether the format can carry EAGLE pairs.
func (f Format) Bigrams() bool { return specs[f].sglang }

// Medium is the engine's word for a tier, "" where the format has no medium.
func (f Format) Medium(t indexer.Tier) string {
	s := &specs[f]
	if !s.maps && s.removed < 2 {
		return ""
	}
	words := [indexer.NumTiers]string{"GPU", "CPU", "STORAGE", "EXTERNAL"}
	switch {
	case s.sglang:
		words = [indexer.NumTiers]string{"GPU", "CPU_PINNED", "DISK", "EXTERNAL"}
	case s.mooncake:
		words = [indexer.NumTiers]string{"gpu", "cpu", "disk", "external"}
	}
	if int(t) >= len(words) {
		return ""
	}
	return words[t]
}
