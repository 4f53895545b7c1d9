package raftlog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/shard/catalog"
)

// ring is a group of servers on in-memory transports, in virtual time.
type ring struct {
	t     *testing.T
	logs  map[raft.ServerID]*Log
	trans map[raft.ServerID]*raft.InmemTransport
	store map[raft.ServerID]Stores
	wrap  func(raft.Transport) raft.Transport // of every server's; nil = as it is
}

func newRing(t *testing.T, ids ...raft.ServerID) *ring {
	r := &ring{t: t, logs: map[raft.ServerID]*Log{}, trans: map[raft.ServerID]*raft.InmemTransport{}, store: map[raft.ServerID]Stores{}}
	for _, id := range ids {
		r.start(id)
	}
	return r
}

func (r *ring) start(id raft.ServerID) {
	r.t.Helper()
	if _, ok := r.store[id]; !ok {
		r.store[id] = Stores{Log: raft.NewInmemStore(), Stable: raft.NewInmemStore(), Snapshots: raft.NewInmemSnapshotStore()}
	}
	_, tr := raft.NewInmemTransport(raft.ServerAddress(id))
	r.trans[id] = tr
	for other, o := range r.trans {
		if other != id {
			tr.Connect(raft.ServerAddress(other), o)
			o.Connect(raft.ServerAddress(id), tr)
		}
	}
	s := r.store[id]
	var through raft.Transport = tr
	if r.wrap != nil {
		through = r.wrap(tr)
	}
	log, err := Open(Config{ServerID: string(id), SnapshotEvery: 20, KeepLogs: 10}, s, through, r)
	if err != nil {
		r.t.Fatal(err)
	}
	r.logs[id] = log
}

// Forward implements Forwarder by a call.
func (r *ring) Forward(ctx context.Context, leader raft.ServerID, raw []byte) (state.Result, error) {
	return r.logs[leader].Serve(ctx, raw)
}

func (r *ring) cut(id raft.ServerID) {
	r.trans[id].DisconnectAll()
	for other, o := range r.trans {
		if other != id {
			o.Disconnect(raft.ServerAddress(id))
		}
	}
}

func (r *ring) close() {
	for _, l := range r.logs {
		if err := l.Close(); err != nil {
			r.t.Error(err)
		}
	}
}

func (r *ring) found() {
	r.t.Helper()
	first := []state.Command{{ID: id(1), Found: &state.Founding{ClusterID: "c", Partitions: 4, Replicas: 1}}}
	if err := r.logs["a"].Found(r.t.Context(), "a", first...); err != nil {
		r.t.Fatal(err)
	}
	for _, other := range []raft.ServerID{"b", "c"} {
		if err := r.logs["a"].AddServer(other, raft.ServerAddress(other)); err != nil {
			r.t.Fatal(err)
		}
	}
	time.Sleep(5 * time.Second) // virtual: let them catch up
	for _, other := range []raft.ServerID{"b", "c"} {
		if ok, err := r.logs["a"].Promote(other); err != nil || !ok {
			r.t.Fatalf("promote %s: %v, %v", other, ok, err)
		}
	}
}

func id(n int) [16]byte { return [16]byte{byte(n), byte(n >> 8), 7} }

func register(n int) state.Command {
	return state.Command{ID: id(n), Register: &state.Registration{Registration: catalog.Registration{
		Instance: fmt.Sprint(n), Group: catalog.GroupKey{Model: "m"}, BlockSize: 16, Endpoint: fmt.Sprintf("tcp://127.0.0.1:%d", n)}}}
}

// propose repeats a command until its outcome is known, as every author has to.
func (r *ring) propose(at raft.ServerID, c state.Command) state.Result {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	defer cancel()
	for {
		res, err := r.logs[at].Propose(ctx, c)
		if err == nil {
			return res
		}
		if !errors.Is(err, ErrNoLeader) && !errors.Is(err, ErrUnknownOutcome) {
			r.t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func (r *ring) workers(at raft.ServerID) int { return len(r.logs[at].View().Catalog.Workers()) }

func TestProposeAnywhereReadYourWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRing(t, "a", "b", "c")
		defer r.close()
		r.found()
		for i, at := range []raft.ServerID{"a", "b", "c"} {
			if err := r.propose(at, register(10+i)).Err(); err != nil {
				t.Fatal(err)
			}
			if got := r.workers(at); got != i+1 {
				t.Errorf("%s sees %d workers after its own command, want %d", at, got, i+1)
			}
		}
		if err := r.propose("b", register(11)).Err(); err != nil {
			t.Errorf("the same command again: %v", err)
		}
		dup := register(11)
		dup.ID = id(99)
		if err := r.propose("b", dup).Err(); !errors.Is(err, catalog.ErrConflict) {
			t.Errorf("another command for the same rank: %v", err)
		}
	})
}

// A leader that is cut off answers no ReadIndex and accepts nothing; the others go on,
// and after healing it has what they decided.
func TestCutOffLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRing(t, "a", "b", "c")
		defer r.close()
		r.found()
		if _, err := r.logs["a"].ReadIndex(t.Context()); err != nil {
			t.Fatalf("ReadIndex on the leader: %v", err)
		}
		if _, err := r.logs["b"].ReadIndex(t.Context()); !errors.Is(err, ErrNoLeader) {
			t.Errorf("ReadIndex on a follower: %v", err)
		}
		r.cut("a")
		time.Sleep(10 * time.Second)
		if _, err := r.logs["a"].ReadIndex(t.Context()); !errors.Is(err, ErrNoLeader) {
			t.Errorf("ReadIndex on a leader that is cut off: %v", err)
		}
		if err := r.propose("b", register(20)).Err(); err != nil {
			t.Fatal(err)
		}
		for other, o := range r.trans {
			if other != "a" {
				o.Connect("a", r.trans["a"])
				r.trans["a"].Connect(raft.ServerAddress(other), o)
			}
		}
		time.Sleep(10 * time.Second)
		if got := r.workers("a"); got != 1 {
			t.Errorf("after healing a sees %d workers", got)
		}
	})
}

// A server that lost its process comes back from its stores, with a snapshot in
// between; a server with data refuses to found.
func TestRestartFromSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRing(t, "a", "b", "c")
		defer r.close()
		r.found()
		for i := range 60 { // beyond the snapshot threshold
			r.propose("a", register(100+i))
		}
		time.Sleep(5 * time.Minute) // raft looks for a snapshot every two minutes
		if err := r.logs["b"].Close(); err != nil {
			t.Fatal(err)
		}
		snaps, err := r.store["b"].Snapshots.List()
		if err != nil || len(snaps) == 0 {
			t.Fatalf("no snapshot was made: %v", err)
		}
		r.start("b")
		time.Sleep(10 * time.Second)
		if got := r.workers("b"); got != 60 {
			t.Errorf("after a restart b sees %d workers, want 60", got)
		}
		if err := r.logs["b"].Found(t.Context(), "b"); !errors.Is(err, ErrFounded) {
			t.Errorf("founding on used stores: %v", err)
		}
	})
}

func TestVotersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRing(t, "a", "b", "c", "d", "e", "f", "g")
		defer r.close()
		r.found()
		for _, other := range []raft.ServerID{"d", "e", "f", "g"} {
			if err := r.logs["a"].AddServer(other, raft.ServerAddress(other)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Second)
			if _, err := r.logs["a"].Promote(other); err != nil {
				t.Fatal(err)
			}
		}
		servers, err := r.logs["a"].Servers()
		if err != nil {
			t.Fatal(err)
		}
		voters := slices.DeleteFunc(servers, func(s Server) bool { return !s.Voter })
		if len(voters) != MaxVoters {
			t.Errorf("%d voters", len(voters))
		}
		if err := r.propose("g", register(30)).Err(); err != nil {
			t.Errorf("a non-voter cannot propose: %v", err)
		}
	})
}
