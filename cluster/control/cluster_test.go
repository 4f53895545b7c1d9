package control

import (
	"context"
	"fmt"
	"time"

	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/shard/catalog"
)

// found begins a cluster at the first node.
func (w *world) found(name string) *node {
	n := w.add(name)
	id, err := Found(w.t.Context(), n.p().log, &testGossip{n}, Founding{First: n.member(), ClusterID: "c", Partitions: parts, Replicas: 2})
	if err != nil {
		w.t.Fatal(err)
	}
	n.set(func(p *process) { p.clusterID = id })
	return n
}

func (w *world) join(names ...string) {
	for _, name := range names {
		w.add(name).set(func(p *process) { p.clusterID = "c" })
	}
}

// cluster founds and joins n nodes n0, n1, ... and waits until all is in order.
func (w *world) cluster(n int) {
	w.found("n0")
	for i := 1; i < n; i++ {
		w.join(fmt.Sprint("n", i))
	}
	w.settle()
}

func (w *world) register(at string, n int) {
	w.t.Helper()
	w.registerAt(at, n, "", fmt.Sprintf("tcp://127.0.0.1:%d", n))
}

func (w *world) registerAt(at string, n int, home, endpoint string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, time.Minute)
	defer cancel()
	r, err := w.ctl(at).Propose(ctx, state.Command{Register: &state.Registration{Node: home, Registration: catalog.Registration{
		Instance: fmt.Sprint(n), Group: catalog.GroupKey{Model: "m"}, BlockSize: 16, Endpoint: endpoint}}})
	if err == nil {
		err = r.Err()
	}
	if err != nil {
		w.t.Fatalf("register at %s: %v", at, err)
	}
}

// leader returns the node that leads and can be reached by a quorum, or nil.
func (w *world) leader() *node {
	for _, n := range w.running() {
		if _, err := n.p().log.ReadIndex(w.ctx); err == nil {
			return n
		}
	}
	return nil
}
