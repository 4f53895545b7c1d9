package contract

import (
	"fmt"
	"strings"

	"github.com/kvcluster/kvcluster/indexer"
)

// frame is a frame before it is packed, or a purge.
type frame struct {
	at    at
	purge bool
	ops   []op
}

type op struct {
	kind    indexer.OpKind
	tier    indexer.Tier
	run     indexer.Run
	start   uint32
	parent  indexer.Parent
	locals  []uint64
	engines []uint64
	ranges  []indexer.Range
	fault   bool // names what cannot exist
}

// send writes the frame to the bench's index.
func (f *frame) send(b *bench) {
	b.Helper()
	if f.purge {
		b.flush()
		b.purge(f.at.g, f.at.s)
		return
	}
	b.write(f.at, func(o ops) { f.pack(o.FrameBuilder) })
}

// pack appends the operations to a frame.
func (f *frame) pack(b *indexer.FrameBuilder) {
	for _, o := range f.ops {
		switch o.kind {
		case indexer.OpStore:
			l, e := b.Store(o.tier, o.run, o.start, o.parent, len(o.locals))
			copy(l, o.locals)
			copy(e, o.engines)
		case indexer.OpClear:
			b.Clear(o.tier)
		case indexer.OpClaim:
			for _, r := range o.ranges {
				b.Claim(o.tier, r)
			}
		case indexer.OpDrop:
			for _, r := range o.ranges {
				b.Drop(o.tier, r)
			}
		}
	}
}

// String is the frame as the text of a test.
func (f *frame) String() string {
	if f.purge {
		return fmt.Sprintf("b.purge(%d, %d)", f.at.g, f.at.s)
	}
	var s strings.Builder
	fmt.Fprintf(&s, "b.do(at{%d, %d, %d}, func(o ops) {", f.at.g, f.at.p, f.at.s)
	for i, o := range f.ops {
		if i > 0 {
			s.WriteString(";")
		}
		switch o.kind {
		case indexer.OpStore:
			parent := "root()"
			switch {
			case o.start > 0:
			case o.parent.Kind == indexer.ParentName:
				parent = fmt.Sprintf("under(%d, %d)", o.parent.Run, o.parent.Pos)
			case o.parent.Anchor != 0:
				parent = fmt.Sprintf("anchor(%d)", o.parent.Anchor)
			}
			fmt.Fprintf(&s, " o.storeIn(%v, %d, %d, %s", o.tier, o.run, o.start, parent)
			for _, l := range o.locals {
				fmt.Fprintf(&s, ", %d", l)
			}
			fmt.Fprintf(&s, ") /* engines %#x */", o.engines)
		case indexer.OpClear:
			tier := o.tier.String()
			if o.tier == indexer.AllTiers {
				tier = "indexer.AllTiers"
			}
			fmt.Fprintf(&s, " o.Clear(%s)", tier)
		default:
			verb := "Drop"
			if o.kind == indexer.OpClaim {
				verb = "Claim"
			}
			for i, r := range o.ranges {
				if i > 0 {
					s.WriteString(";")
				}
				fmt.Fprintf(&s, " o.%s(%v, indexer.MakeRange(%d, %d, %d))", verb, o.tier, r.Run(), r.From(), r.Len())
			}
		}
	}
	s.WriteString(" })")
	return s.String()
}
