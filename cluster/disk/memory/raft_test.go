package memory

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/kvcluster/kvcluster/cluster/raftlog"
	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/shard/catalog"
)

// trio is three servers of the log on disks in memory.
type trio struct {
	t     *testing.T
	disks map[string]*Disk
	mu    sync.Mutex // guards logs
	logs  map[string]*raftlog.Log
	trans map[string]*raft.InmemTransport
}

func (r *trio) start(id string) {
	r.t.Helper()
	_, s := mustOpen(r.t, r.disks[id])
	_, tr := raft.NewInmemTransport(raft.ServerAddress(id))
	for other, o := range r.trans {
		if other != id {
			tr.Connect(raft.ServerAddress(other), o)
			o.Connect(raft.ServerAddress(id), tr)
		}
	}
	r.trans[id] = tr
	log, err := raftlog.Open(raftlog.Config{ServerID: id, SnapshotEvery: 10, KeepLogs: 5}, s, tr, r)
	if err != nil {
		r.t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.logs[id] = log
}

// running returns the servers that have not been killed.
func (r *trio) running() map[string]*raftlog.Log {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.logs)
}

// kill cuts a server off, kills its disk and stops what is left of it, in this order.
func (r *trio) kill(id string) {
	r.t.Helper()
	r.trans[id].DisconnectAll()
	for other, o := range r.trans {
		if other != id {
			o.Disconnect(raft.ServerAddress(id))
		}
	}
	delete(r.trans, id)
	r.disks[id].Kill()
	log := r.running()[id]
	r.mu.Lock()
	delete(r.logs, id)
	r.mu.Unlock()
	if err := log.Close(); err != nil {
		r.t.Error(err)
	}
}

// Forward implements raftlog.Forwarder.
func (r *trio) Forward(ctx context.Context, leader raft.ServerID, raw []byte) (state.Result, error) {
	if l := r.running()[string(leader)]; l != nil {
		return l.Serve(ctx, raw)
	}
	return state.Result{}, raftlog.ErrNoLeader
}

func register(n int) state.Command {
	return state.Command{ID: [16]byte{byte(n), byte(n >> 8), 3}, Register: &state.Registration{Registration: catalog.Registration{
		Instance: fmt.Sprint(n), Group: catalog.GroupKey{Model: "m"}, BlockSize: 16, Endpoint: fmt.Sprintf("tcp://127.0.0.1:%d", n)}}}
}

// propose tries a command at any server for a while.
func (r *trio) propose(n int) bool {
	for range 40 {
		for _, l := range r.running() {
			ctx, cancel := context.WithTimeout(r.t.Context(), 10*time.Second)
			res, err := l.Propose(ctx, register(n))
			cancel()
			if err == nil && res.Err() == nil {
				return true
			}
		}
		time.Sleep(250 * time.Millisecond)
	}
	return false
}

// run kills servers at random, one at a time and then all at once, and returns how many
// confirmed commands were lost.
func run(t *testing.T, seed uint64, lying bool) (lost int) {
	rng := rand.New(rand.NewPCG(seed, 9))
	r := &trio{t: t, disks: map[string]*Disk{}, logs: map[string]*raftlog.Log{}, trans: map[string]*raft.InmemTransport{}}
	ids := []string{"a", "b", "c"}
	for i, id := range ids {
		r.disks[id] = New(id, seed*3+uint64(i))
		r.disks[id].SetSyncDelay(time.Duration(1+rng.IntN(20)) * time.Millisecond)
		r.start(id)
	}
	defer func() {
		for _, l := range r.running() {
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(time.Minute)
	}()
	first := state.Command{ID: [16]byte{1}, Found: &state.Founding{ClusterID: "c", Partitions: 4, Replicas: 1}}
	if err := r.running()["a"].Found(t.Context(), "a", first); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids[1:] {
		if err := r.running()["a"].AddServer(raft.ServerID(id), raft.ServerAddress(id)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		if ok, err := r.running()["a"].Promote(raft.ServerID(id)); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	for _, d := range r.disks {
		d.SetLying(lying)
	}
	var confirmed []int
	for step := range 12 {
		for i := range 3 {
			if n := 100 + step*10 + i; r.propose(n) {
				confirmed = append(confirmed, n)
			}
		}
		victims := ids[step%3 : step%3+1]
		if step%4 == 3 {
			victims = ids // the power fails
		}
		go r.propose(1000 + step) // under way when it happens
		time.Sleep(time.Duration(rng.IntN(30)) * time.Millisecond)
		synctest.Wait()
		for _, id := range victims {
			r.kill(id)
		}
		for _, id := range victims {
			r.start(id)
		}
		time.Sleep(12 * time.Second) // the one under way gives up
	}
	if len(confirmed) < 20 && !lying {
		t.Errorf("seed %d: only %d commands were confirmed", seed, len(confirmed))
	}
	if !r.propose(5000) && !lying {
		t.Errorf("seed %d: nothing can be decided at the end", seed)
	}
	time.Sleep(30 * time.Second)
	for _, l := range r.running() {
		have := map[string]bool{}
		for _, w := range l.View().Catalog.Workers() {
			have[w.Instance] = true
		}
		for _, n := range confirmed {
			if !have[fmt.Sprint(n)] {
				lost++
			}
		}
	}
	return lost
}

// What the log confirmed survives any kill, also of all servers in one moment; on disks
// that lie it does not, so this test can fail.
func TestConfirmedSurvives(t *testing.T) {
	lies := 0
	for seed := range uint64(4) {
		synctest.Test(t, func(t *testing.T) {
			if lost := run(t, seed, false); lost > 0 {
				t.Errorf("seed %d: %d confirmed commands were lost", seed, lost)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) { lies = run(t, 1, true) })
	if lies == 0 {
		t.Error("disks that lie lose nothing: the test tests nothing")
	}
}
