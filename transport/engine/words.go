package engine

import (
	"bytes"

	"github.com/kvcluster/kvcluster/indexer"
)

// ParseMedium maps an engine's name of a storage medium to its tier. Case does not
// matter; ok is false for a name that is in no table.
func ParseMedium(name []byte) (tier indexer.Tier, ok bool) {
	if string(name) == "GPU" {
		return indexer.Device, true
	}
	var buf [12]byte
	if len(name) > len(buf) {
		return 0, false
	}
	for i, c := range name {
		if c >= 'a' && c <= 'z' {
			c -= 'a' - 'A'
		}
		buf[i] = c
	}
	switch string(buf[:len(name)]) {
	case "GPU", "DEVICE":
		return indexer.Device, true
	case "CPU", "CPU_PINNED", "CPU_TIER1":
		return indexer.Host, true
	case "CPU_TIER2", "DISK", "NVME", "STORAGE":
		return indexer.Disk, true
	case "EXTERNAL", "NETWORK", "REMOTE", "SHARED":
		return indexer.External, true
	}
	return 0, false
}

// parseSpecKind: a kind that is not known to form prefixes is SpecOther.
func parseSpecKind(name []byte) SpecKind {
	switch string(name) {
	case "full_attention":
		return SpecFullAttention
	case "mla_attention":
		return SpecMLAAttention
	case "sink_full_attention":
		return SpecSinkFullAttention
	}
	return SpecOther
}

// locality is what an event says about where the block lies.
type locality uint8

const (
	localityUnsaid locality = iota
	localityLocal
	localityElsewhere // REMOTE, or a word that is not known
)

var local = []byte("LOCAL")

func parseLocality(name []byte) locality {
	if bytes.EqualFold(name, local) {
		return localityLocal
	}
	return localityElsewhere
}

// tag is the type of an event.
type tag uint8

const (
	tagNone tag = iota // not said
	tagUnknown
	tagStored
	tagRemoved
	tagCleared
	tagTierCleared
	tagIgnored

	numTags
)

func parseTag(name []byte) tag {
	switch string(name) {
	case "BlockStored":
		return tagStored
	case "BlockRemoved":
		return tagRemoved
	case "AllBlocksCleared":
		return tagCleared
	case "TierBlocksCleared":
		return tagTierCleared
	case "Ignored":
		return tagIgnored
	}
	return tagUnknown
}

// parseEventType reads the word that Mooncake's master uses instead of a tag.
func parseEventType(name []byte) tag {
	switch string(name) {
	case "stored":
		return tagStored
	case "removed":
		return tagRemoved
	case "cleared":
		return tagCleared
	}
	return tagUnknown
}
