package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/kvcluster/kvcluster/chaos/mockengine"
	"github.com/kvcluster/kvcluster/chaos/trace"
	"github.com/kvcluster/kvcluster/transport/zmq"
)

const (
	clusterModel     = "bench"
	clusterBlockSize = 16
	// clusterQueries bounds the queries: prompts of requests, spread over the trace.
	clusterQueries = 2000
	// queryTokens bounds a prompt that is asked: the text of long ones would be most of the
	// cost.
	queryTokens = 4096
	// clusterCapacity is the cache of one mock engine, small enough for evictions.
	clusterCapacity = 16384
	// idleLook is how long the idle cluster is watched.
	idleLook = time.Second
	// playSlack is what playing may take beyond what the rate says.
	playSlack = 3 * time.Minute
	drain     = 60 * time.Second
	// tries bounds how often a query is asked again while its answer is partial.
	tries = 10
)

// clusterWork is the same for all sizes and repetitions.
type clusterWork struct {
	trace   *trace.Trace
	queries []json.RawMessage // bodies
}

func newClusterWork(c ClusterConfig) (*clusterWork, error) {
	t, err := clusterTrace(c)
	if err != nil {
		return nil, err
	}
	w := &clusterWork{trace: t}
	step := max(1, (len(t.Requests)+clusterQueries-1)/clusterQueries)
	for i := 0; i < len(t.Requests); i += step {
		tokens := t.AppendTokens(nil, i)
		body, err := json.Marshal(map[string]any{"model_name": clusterModel, "token_ids": tokens[:min(len(tokens), queryTokens)]})
		if err != nil {
			return nil, err
		}
		w.queries = append(w.queries, body)
	}
	return w, nil
}

// firstIDs counts the ids with which requests begin, and the requests of the most
// frequent one.
func (w *clusterWork) firstIDs() (distinct, largest int) {
	n := map[uint32]int{}
	for i := range w.trace.Requests {
		if ids := w.trace.Requests[i].IDs; len(ids) > 0 {
			n[ids[0]]++
			largest = max(largest, n[ids[0]])
		}
	}
	return len(n), largest
}

// fleetRun is a fleet that is started later, at the latest by stop.
type fleetRun struct {
	*mockengine.Fleet
	begin func()
	ended chan error
}

func (c *ClusterConfig) openFleet(ctx context.Context, w *clusterWork) (*fleetRun, func() error, error) {
	f, err := mockengine.New(mockengine.Config{
		Workers: c.Workers, Formats: []mockengine.Format{mockengine.VLLMMap, mockengine.VLLMArray, mockengine.SGLangMap, mockengine.SGLangArray},
		Trace: w.trace, BlockSize: clusterBlockSize, Capacity: clusterCapacity, Hash: mockengine.HashFast,
		MaxBlockRate: c.Rate, Model: clusterModel, Stay: true,
	})
	if err != nil {
		return nil, nil, err
	}
	network, err := zmq.New(zmq.Config{})
	if err != nil {
		return nil, nil, err
	}
	if err := f.Open(network); err != nil {
		return nil, nil, errors.Join(err, network.Close())
	}
	fctx, cancel := context.WithCancel(ctx)
	r := &fleetRun{Fleet: f, ended: make(chan error, 1)}
	begun := false
	r.begin = func() {
		begun = true
		go func() { r.ended <- f.Run(fctx) }()
	}
	stop := func() error {
		cancel()
		if !begun {
			r.begin() // a run that is over at once closes the sockets
		}
		return errors.Join(<-r.ended, network.Close())
	}
	return r, stop, nil
}

// enter registers the engines and waits until every stream is read by somebody.
func enter(ctx context.Context, nodes []*benchNode, fleet *fleetRun) error {
	for i, e := range fleet.Endpoints() {
		err := nodes[i%len(nodes)].http.Post(ctx, "/register", map[string]any{
			"instance_id": e.Instance, "endpoint": e.Publish, "replay_endpoint": e.Replay, "model_name": clusterModel, "block_size": e.BlockSize,
		}, nil)
		if err != nil {
			return fmt.Errorf("register engine %d: %w", e.Instance, err)
		}
	}
	want := uint64(len(fleet.Endpoints()))
	return await(ctx, clusterReady, func() error {
		for _, b := range nodes {
			var st struct{ Listeners map[string]uint64 }
			if err := b.http.Get(ctx, "/status", nil, &st); err != nil {
				return err
			}
			if st.Listeners["active"] != want {
				return fmt.Errorf("%w: %s sees streams %v, want %d active ones", ErrCluster, b.Name, st.Listeners, want)
			}
		}
		return nil
	})
}
