package router

import (
	"fmt"
	"strings"
	"time"

	"github.com/kvcluster/kvcluster/indexer"
)

func tierList(m indexer.TierMask) string {
	var names []string
	for t, name := range tierNames {
		if m.Has(indexer.Tier(t)) {
			names = append(names, name)
		}
	}
	return strings.Join(names, "+")
}

// appendJSON appends the explanation as one object. Numbers named tokens and the scores
// are tokens, blocks count from 0.
func (e *explanation) appendJSON(b []byte) []byte {
	b = append(b, `{"instance_id":`...)
	b = appendID(b, e.instance)
	b = appendUintField(b, "dp_rank", uint64(e.rank))
	b = appendStringField(b, "model_name", e.group.Key.Model)
	b = appendStringField(b, "routing_group", e.group.Key.RoutingGroup)
	b = appendUintField(b, "block_size", uint64(e.group.BlockSize))
	if e.tokens > 0 {
		b = appendUintField(b, "tokens", uint64(e.tokens))
	}
	b = appendUintField(b, "blocks", uint64(len(e.states)))
	size := uint64(e.group.BlockSize)
	b = appendUintField(b, "gpu", uint64(e.walk[indexer.Device])*size)
	b = appendUintField(b, "cpu", uint64(e.walk[indexer.Host])*size)
	b = appendUintField(b, "disk", uint64(e.walk[indexer.External])*size)
	b = append(appendKey(b, "stops"), '[')
	for _, s := range e.stops {
		b = append(comma(b), '{')
		b = appendStringField(b, "count", s.count)
		b = appendUintField(b, "block", uint64(s.block))
		b = appendStringField(b, "reason", s.causes[0].reason)
		b = append(appendKey(b, "causes"), '[')
		for _, c := range s.causes {
			b = append(comma(b), '{')
			b = appendStringField(b, "reason", c.reason)
			b = append(appendStringField(b, "text", c.text), '}')
		}
		b = append(b, ']', '}')
	}
	b = append(b, ']')
	b = append(appendKey(b, "path"), '[')
	for i, s := range e.states {
		b = appendUint(append(comma(b), `{"block":`...), uint64(i))
		b = appendUint(append(b, `,"tokens_hash":`...), e.locals[i])
		b = append(b, `,"tiers":[`...)
		for t, name := range tierNames {
			if s.Tiers.Has(indexer.Tier(t)) {
				b = appendString(comma(b), name)
			}
		}
		b = fmt.Appendf(b, `],"known":%t,"evicted":%t}`, s.Known, s.Evicted)
	}
	b = append(b, ']')
	return append(appendCompleteness(b, e.complete), '}')
}

// appendText appends the explanation for a person; blocks in the same state share a line.
func (e *explanation) appendText(b []byte) []byte {
	size := int(e.group.BlockSize)
	b = fmt.Appendf(b, "instance %s rank %d, model %s, routing group %s, blocks of %d tokens\n",
		e.instance, e.rank, e.group.Key.Model, e.group.Key.RoutingGroup, size)
	b = fmt.Appendf(b, "prompt: %d complete blocks", len(e.states))
	if e.tokens > 0 {
		b = fmt.Appendf(b, ", %d tokens (%d in an incomplete block do not count)", e.tokens, e.tokens-len(e.states)*size)
	}
	b = fmt.Appendf(b, "\nscore: %d tokens on the device, %d with host memory, %d with all tiers\n\n",
		int(e.walk[indexer.Device])*size, int(e.walk[indexer.Host])*size, int(e.walk[indexer.External])*size)
	b = fmt.Appendf(b, "%-13s  %-17s  %s\n", "blocks", "tokens", "this rank")
	for i := 0; i < len(e.states); {
		n := i + 1
		for n < len(e.states) && e.states[n] == e.states[i] {
			n++
		}
		b = fmt.Appendf(b, "%-13s  %-17s  %s\n", span(i, n-1), span(i*size, n*size-1), describe(e.states[i]))
		i = n
	}
	b = append(b, '\n')
	if len(e.stops) == 0 {
		b = append(b, "the whole prompt is held\n"...)
	}
	for _, s := range e.stops {
		b = fmt.Appendf(b, "the count of %s ends at block %d:\n", s.count, s.block)
		for _, c := range s.causes {
			b = fmt.Appendf(b, "  - %s: %s\n", c.reason, c.text)
		}
	}
	if e.complete.Partial {
		b = fmt.Appendf(b, "a part of the cluster did not answer: %s\n", strings.Join(e.complete.Missing, ", "))
	}
	if e.complete.Stale {
		b = append(b, "the answering node cannot prove that its map is current"...)
		if e.complete.MapAge > 0 {
			b = fmt.Appendf(b, ": it may be %v old", e.complete.MapAge.Round(time.Millisecond))
		}
		b = append(b, '\n')
	}
	return b
}

func span(from, to int) string {
	if from == to {
		return fmt.Sprint(from)
	}
	return fmt.Sprintf("%d-%d", from, to)
}

func describe(s indexer.BlockState) string {
	switch {
	case s.Tiers != 0:
		return "held: " + tierList(s.Tiers)
	case s.Evicted && s.Known:
		return "evicted here, known elsewhere"
	case s.Evicted:
		return "evicted"
	case s.Known:
		return "not held, known elsewhere"
	}
	return "not held by anyone"
}
