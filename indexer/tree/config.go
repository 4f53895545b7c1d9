package tree

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/kvcluster/kvcluster/indexer"
)

// ErrConfig is wrapped by errors about a configuration that cannot be used.
var ErrConfig = errors.New("invalid index configuration")

// Config has the choices of an index; the zero value is good.
type Config struct {
	// Lanes is the number of lanes; 0 = one for each CPU that lanes may use, but
	// one less for every four of them, and at least one.
	Lanes int
	// CPUs are the cores for lanes, one each, in this order; empty = lanes are not
	// pinned.
	CPUs []int
	// Pin chooses cores by itself when CPUs is empty: one hardware thread of each
	// core of the node's socket first.
	Pin bool
	// NUMANode restricts the choice to one node of the machine; -1 = the one that has
	// most of the CPUs that the process may use, 0 and up = that one. Only with Pin.
	NUMANode int
	// RingWords is the room between one writer and one lane in words of 8 bytes; a
	// power of two, 0 = 65,536.
	RingWords int
	// MemoryLimit is the memory in bytes that the index should stay below; 0 = none.
	// The index drops nothing by itself: beyond it Stats.WantShed asks for room, and
	// whoever owns the slots drops (rule N8).
	MemoryLimit uint64
	// Reserve, LimboLimit and EvictionLog are those of LaneConfig, for each lane.
	Reserve     uint64
	LimboLimit  uint64
	EvictionLog int
	// OnFault, if set, is told of every refused frame, by the lane that refused it.
	OnFault indexer.FaultHandler
	// System is where the machine describes itself, in the form of / with sys and
	// proc; nil = this machine. Only with Pin.
	System fs.FS
}

const (
	defaultRingWords = 1 << 16
	maxLanes         = 1 << 12
)

// Validate names the first value that cannot be used. Errors wrap ErrConfig.
func (c *Config) Validate() error {
	switch {
	case c.Lanes < 0 || c.Lanes > maxLanes:
		return fmt.Errorf("%w: %d lanes, want 0 to %d", ErrConfig, c.Lanes, maxLanes)
	case len(c.CPUs) > 0 && c.Lanes > len(c.CPUs):
		return fmt.Errorf("%w: %d lanes on %d CPUs", ErrConfig, c.Lanes, len(c.CPUs))
	case c.RingWords != 0 && (c.RingWords < 64 || c.RingWords&(c.RingWords-1) != 0):
		return fmt.Errorf("%w: ring of %d words, want a power of two from 64", ErrConfig, c.RingWords)
	}
	seen := map[int]bool{}
	for _, cpu := range c.CPUs {
		if cpu < 0 || seen[cpu] {
			return fmt.Errorf("%w: CPU %d", ErrConfig, cpu)
		}
		seen[cpu] = true
	}
	return nil
}

func (c Config) withDefaults() Config {
	if c.RingWords == 0 {
		c.RingWords = defaultRingWords
	}
	if c.System == nil {
		c.System = os.DirFS("/")
	}
	return c
}
