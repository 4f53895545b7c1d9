package raftlog

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/kvcluster/kvcluster/cluster/state"
)

// What only a leader may decide is not forwarded, and a context that has ended proposes
// nothing.
func TestLeadIsNotForwarded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRing(t, "a", "b", "c")
		defer r.close()
		r.found()
		if _, err := r.logs["b"].Lead(t.Context(), register(40)); !errors.Is(err, ErrNoLeader) {
			t.Errorf("on a follower: %v", err)
		}
		past, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
		defer cancel()
		if _, err := r.logs["a"].Lead(past, register(41)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after its deadline: %v", err)
		}
		if n := r.workers("a"); n != 0 {
			t.Errorf("%d workers", n)
		}
		if res, err := r.logs["a"].Lead(t.Context(), register(42)); err != nil || res.Err() != nil || r.workers("a") != 1 {
			t.Errorf("on the leader: %+v, %v", res, err)
		}
	})
}

// Many may ask a new leader at the same time, also one that is cut off before its first
// barrier: they wait for the barrier, not for a lock.
func TestManyAskANewLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRing(t, "a", "b", "c")
		defer r.close()
		r.found()
		servers, err := r.logs["a"].Servers()
		if err != nil {
			t.Fatal(err)
		}
		b := servers[slices.IndexFunc(servers, func(s Server) bool { return s.ID == "b" })]
		if err := r.logs["a"].TransferLeadership(b); err != nil {
			t.Fatal(err)
		}
		for r.logs["b"].raft.State() != raft.Leader {
			time.Sleep(time.Millisecond)
		}
		r.cut("b")
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if _, err := r.logs["b"].ReadIndex(t.Context()); !errors.Is(err, ErrNoLeader) {
					t.Errorf("a leader that is cut off: %v", err)
				}
			})
		}
		wg.Wait()
	})
}

func TestDemoteAndRemove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRing(t, "a", "b", "c")
		defer r.close()
		r.found()
		if err := r.logs["a"].Demote("c"); err != nil {
			t.Fatal(err)
		}
		servers, err := r.logs["a"].Servers()
		if err != nil || len(servers) != 3 || servers[slices.IndexFunc(servers, func(s Server) bool { return s.ID == "c" })].Voter {
			t.Errorf("servers %+v, %v", servers, err)
		}
		if err := r.logs["a"].RemoveServer("c"); err != nil {
			t.Fatal(err)
		}
		if servers, err = r.logs["a"].Servers(); err != nil || len(servers) != 2 {
			t.Errorf("servers %+v, %v", servers, err)
		}
	})
}

// Whether a state has all up to an index is a matter of commands alone: other entries
// never reach it, and what is not stored any more is in a snapshot.
func TestCommandsIn(t *testing.T) {
	store := raft.NewInmemStore()
	for i, kind := range map[uint64]raft.LogType{7: raft.LogCommand, 8: raft.LogNoop, 9: raft.LogConfiguration, 10: raft.LogBarrier} {
		if err := store.StoreLog(&raft.Log{Index: i, Type: kind}); err != nil {
			t.Fatal(err)
		}
	}
	l := &Log{entries: store}
	for _, c := range []struct {
		from, to uint64
		want     bool
	}{{7, 10, true}, {7, 7, true}, {8, 10, false}, {9, 9, false}, {11, 10, false}, {1, 6, false}} {
		if got := l.commandsIn(c.from, c.to); got != c.want {
			t.Errorf("%d to %d: %v", c.from, c.to, got)
		}
	}
	l.entries = brokenStore{store}
	if !l.commandsIn(8, 10) {
		t.Error("entries that cannot be read may be commands")
	}
}

type brokenStore struct{ raft.LogStore }

func (brokenStore) GetLog(uint64, *raft.Log) error { return errors.New("disk") }

// An entry that nobody can read is left out, and the state has come past it.
func TestUnreadableEntry(t *testing.T) {
	f := newFSM(slog.New(slog.DiscardHandler))
	r, ok := f.Apply(&raft.Log{Index: 5, Data: []byte{0xc1}}).(state.Result)
	if !ok || r.Code == state.OK || r.Index != 5 || !strings.Contains(r.Text, "decode") || f.view().Index != 5 {
		t.Errorf("result %+v, view at %d", r, f.view().Index)
	}
}
