package differential

import (
	"fmt"

	"github.com/kvcluster/kvcluster/chaos/model"
	"github.com/kvcluster/kvcluster/chaos/oplist"
)

// OpList replays the common op list through translators and an index, and through the
// judge if asked to. Every query waits for all events before it, and is compared with
// the judge row by row. It returns the index's answers, for comparison with those
// that are known of a list.
func OpList(setup Setup, l *oplist.List, judged bool) (oplist.Answers, error) {
	m := Mode{Name: "op list", Workers: l.Config().Workers, Ranks: 1}
	p := newPipeline(setup, m)
	defer p.close()
	told := model.New[uint32](model.Config{})
	var a oplist.Answers
	dirty := false
	for o := range l.All {
		e := model.Event{Kind: model.Stored, HasParent: o.HasParent, Parent: o.Parent, Engines: o.Keys, Locals: o.Contents}
		switch o.Kind {
		case oplist.Query:
			if dirty {
				if err := p.flush(); err != nil {
					return a, err
				}
				dirty = false
			}
			got, err := p.scores(o.Contents)
			if err != nil {
				return a, fmt.Errorf("request %d: %w", o.Request, err)
			}
			for h, w := range got {
				a.Add(o.Request, uint32(h), uint32(w[model.Device]))
			}
			if !judged {
				continue
			}
			want := told.Scores(o.Contents)
			for h, w := range want {
				if got[int(h)] != w {
					return a, fmt.Errorf("request %d: worker %d scores %v, want %v", o.Request, h, got[int(h)], w)
				}
			}
			if len(got) != len(want) {
				return a, fmt.Errorf("request %d: %d workers, want %d", o.Request, len(got), len(want))
			}
			continue
		case oplist.Removed:
			e.Kind = model.Removed
		}
		if judged {
			told.Apply(o.Worker, e)
		}
		if err := p.ranks[o.Worker].send([]model.Event{e}); err != nil {
			return a, fmt.Errorf("request %d: %w", o.Request, err)
		}
		dirty = true
	}
	if err := p.flush(); err != nil {
		return a, err
	}
	t, s := l.Totals(), p.x.Stats()
	if s.Held[model.Device] != uint64(t.Held) || s.Distinct != uint64(t.Distinct) || s.Faults != 0 {
		return a, fmt.Errorf("at the end %d held, %d distinct, %d faults; want %d, %d, 0",
			s.Held[model.Device], s.Distinct, s.Faults, t.Held, t.Distinct)
	}
	if c := told.Counts(); judged && (c.Held[model.Device] != t.Held || c.Distinct != t.Distinct) {
		return a, fmt.Errorf("at the end the judge has %d held, %d distinct, want %d, %d", c.Held[model.Device], c.Distinct, t.Held, t.Distinct)
	}
	return a, nil
}
