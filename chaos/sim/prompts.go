package sim

import (
	"github.com/kvcluster/kvcluster/chaos/model"
	"github.com/kvcluster/kvcluster/shard"
)

// The prompts that everybody talks about: few, so that engines share prefixes.
const (
	blockTokens    = 2
	families       = 4
	branches       = 2
	numPrompts     = families * branches
	promptBlocks   = 8
	sharedBlocks   = 3
	firstGroup     = 1 // number of the first group that is registered
	maxMarkerTries = 1 << 14
)

// prompt is one of them, or a marker, in every form that is needed.
type prompt struct {
	tokens    []uint32
	locals    []uint64
	engines   []uint64 // hashes that an engine gives to its blocks
	partition uint32
}

func newPrompt(l shard.Layout, tokens []uint32) *prompt {
	p := &prompt{tokens: tokens, locals: model.LocalHashes(tokens, blockTokens, "", "")}
	h := uint64(0x9e3779b97f4a7c15)
	for _, b := range p.locals {
		h = (h ^ b) * 0xff51afd7ed558ccd
		h ^= h >> 33
		p.engines = append(p.engines, h)
	}
	p.partition = l.Partition(firstGroup, p.locals[0], 0)
	return p
}

// prompts makes the prompts. Those of a family share their first blocks.
func prompts(l shard.Layout) []*prompt {
	var out []*prompt
	for family := range families {
		for branch := range branches {
			var tokens []uint32
			for b := range promptBlocks {
				for k := range blockTokens {
					tok := uint32(family+1)<<20 | uint32(b*blockTokens+k)
					if b >= sharedBlocks {
						tok |= uint32(branch+1) << 13
					}
					tokens = append(tokens, tok)
				}
			}
			out = append(out, newPrompt(l, tokens))
		}
	}
	return out
}

// marker returns a prompt of one block in a partition; each number makes another one.
// It moves number on.
func marker(l shard.Layout, engine int, partition uint32, number *uint32) *prompt {
	for range maxMarkerTries {
		*number++
		p := newPrompt(l, []uint32{1<<31 | *number, uint32(engine)})
		if p.partition == partition {
			return p
		}
	}
	panic("no marker found")
}

// sibling returns the prompt that begins like p.
func (w *world) sibling(p *prompt) *prompt {
	for i, q := range w.prompts {
		if q == p {
			return w.prompts[i^1]
		}
	}
	return nil
}
