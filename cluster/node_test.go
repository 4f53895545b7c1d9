package cluster

import (
	"context"
	"errors"
	"testing"

	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/reference"
	"github.com/kvcluster/kvcluster/shard/catalog"
	"github.com/kvcluster/kvcluster/transport/memory"
)

// deafLog carries Purged out and does not say so, as long as it is told.
type deafLog struct {
	*SoloLog
	deaf bool
}

func (l *deafLog) Propose(ctx context.Context, c state.Command) (state.Result, error) {
	r, err := l.SoloLog.Propose(ctx, c)
	if c.Purged != nil && l.deaf {
		return state.Result{}, errors.New("outcome not known")
	}
	return r, err
}

type countingIndex struct {
	indexer.Index
	purges int
}

func (x *countingIndex) Purge(ctx context.Context, g indexer.GroupID, s indexer.Slot) error {
	x.purges++
	return x.Index.Purge(ctx, g, s)
}

// When the outcome of "purged" is not known it is said again, but the slot is not purged
// again: its number may have been given to another life.
func TestSlotIsPurgedOnce(t *testing.T) {
	solo, err := NewSoloLog(state.Member{Name: "n", ServerID: "s", Boot: 1}, 4)
	if err != nil {
		t.Fatal(err)
	}
	log := &deafLog{SoloLog: solo, deaf: true}
	index := &countingIndex{Index: reference.New(reference.Config{})}
	n, err := New(Config{Name: "n"}, Deps{Log: log, Index: index, Network: memory.New(memory.Config{})})
	if err != nil {
		t.Fatal(err)
	}
	slot := catalog.Retired{Group: 1, Slot: 0, Life: 9}
	if err := n.purgeSlot(t.Context(), slot); err == nil {
		t.Fatal("an unknown outcome was taken for a success")
	}
	log.deaf = false
	if err := n.purgeSlot(t.Context(), slot); err != nil {
		t.Fatal(err)
	}
	if index.purges != 1 || len(n.purged) != 0 {
		t.Errorf("%d purges, %d remembered", index.purges, len(n.purged))
	}
}

// endings is an owner that notes the lives that it is told to end.
type endings struct {
	Owner
	ended []catalog.Retired
}

func (o *endings) Retire(r catalog.Retired, done func(error)) {
	o.ended = append(o.ended, r)
	done(nil)
}

// The owner hears of the end of lives that this node's own ingest wrote, too: a former
// reader that has not may still send it their content, behind the purge.
func TestOwnerHearsOfEveryEnd(t *testing.T) {
	log, err := NewSoloLog(state.Member{Name: "n", ServerID: "s", Boot: 1}, 4)
	if err != nil {
		t.Fatal(err)
	}
	n, err := New(Config{Name: "n"}, Deps{Log: log, Index: reference.New(reference.Config{}), Network: memory.New(memory.Config{})})
	if err != nil {
		t.Fatal(err)
	}
	o := &endings{}
	n.deps.Spread = &Spread{Owner: o}
	slot := catalog.Retired{Group: 1, Slot: 0, Life: 9}
	if err := n.endSlot(t.Context(), slot); err != nil {
		t.Fatal(err)
	}
	if len(o.ended) != 1 || o.ended[0] != slot {
		t.Errorf("the owner was told of %v", o.ended)
	}
}
