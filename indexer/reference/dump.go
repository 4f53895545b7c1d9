package reference

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/kvcluster/kvcluster/indexer"
)

// Dump implements indexer.Index. The copy is taken at once; visit is called with
// the index unlocked.
func (x *Index) Dump(ctx context.Context, g indexer.GroupID, p indexer.PartitionID, s indexer.Slot, visit func(indexer.Stretch) error) error {
	stretches, err := x.stretches(copyKey{treeKey{g, p}, s})
	if err != nil {
		return fmt.Errorf("dump slot %d of group %d, partition %d: %w", s, g, p, err)
	}
	for _, st := range stretches {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("dump slot %d of group %d, partition %d: %w", s, g, p, err)
		}
		if err := visit(st); err != nil {
			return err
		}
	}
	return nil
}

func (x *Index) stretches(k copyKey) ([]indexer.Stretch, error) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if x.mu.closed {
		return nil, indexer.ErrClosed
	}
	c := x.mu.copies[k]
	if c == nil {
		return nil, nil
	}
	var out []indexer.Stretch
	for _, number := range slices.Sorted(maps.Keys(c.runs)) {
		r := c.runs[number]
		path := r.nodes[len(r.nodes)-1].locals()
		above := len(path) - len(r.nodes)
		engines := slices.Clone(r.engines)
		for from := 0; from < len(r.nodes); {
			to := from + 1
			for to < len(r.nodes) && r.tiers[to] == r.tiers[from] {
				to++
			}
			if r.tiers[from] != 0 {
				st := indexer.Stretch{
					Run: number, Start: uint32(from), Tiers: r.tiers[from], Anchor: r.anchor,
					Path: path[: above+from : above+from], Locals: path[above+from : above+to : above+to],
					Engines: engines[from:to:to], Mark: r.mark,
				}
				switch {
				case above+from == 0:
					st.Parent.Root = true
				case from == 0:
					st.Parent.Engine = r.parentEngine
				default:
					st.Parent.Engine = engines[from-1]
				}
				out = append(out, st)
			}
			from = to
		}
	}
	return out, nil
}
