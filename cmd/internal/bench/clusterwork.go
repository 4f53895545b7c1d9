package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/kvcluster/kvcluster/chaos/mockengine"
	"github.com/kvcluster/kvcluster/chaos/trace"
	"github.com/kvcluster/kvcluster/indexer"
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

// clusterRun is one repetition of one size.
type clusterRun struct {
	nodes                          int
	batches, stored, removed, held uint64 // of the engines
	answers                        uint64
	queries, again, stale          int
	idle                           time.Duration // CPU of all nodes in idleLook
	each                           []nodeCPU     // write phase
	write                          nodeCPU       // sum
	wall                           time.Duration // of the write phase
	query                          time.Duration // CPU of the query phase
	heldBy                         []float64     // blocks in each index
	wire                           traffic
	gaps                           float64
	samples                        map[string]int64
}

// traffic is what nodes sent to each other in the write phase.
type traffic struct{ frames, blocks, bytes, link float64 }

// measureCluster starts a cluster, gives it the work and reads the clocks. With profile,
// the CPU of so long a time from the first batch on is divided by part as well.
func measureCluster(ctx context.Context, c *ClusterConfig, w *clusterWork, n int, profile time.Duration) (run *clusterRun, err error) {
	dir, err := os.MkdirTemp("", "kvcluster-bench-")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCluster, err)
	}
	defer os.RemoveAll(dir)
	nodes, err := startCluster(ctx, c, dir, n, profile > 0)
	defer func() { stopCluster(nodes) }()
	if err != nil {
		return nil, err
	}
	fleet, stop, err := c.openFleet(ctx, w)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if err := enter(ctx, nodes, fleet); err != nil {
		return nil, err
	}
	run = &clusterRun{nodes: n}
	if err := run.play(ctx, c, nodes, fleet, profile); err != nil {
		return nil, err
	}
	if err := run.ask(ctx, w, nodes); err != nil {
		return nil, err
	}
	return run, nil
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
				return fmt.Errorf("%w: %s sees streams %v, want %d active ones", ErrCluster, b.name, st.Listeners, want)
			}
		}
		return nil
	})
}

// play has the engines play, waits until every block is where it belongs and takes the
// CPU and the traffic of that time.
func (r *clusterRun) play(ctx context.Context, c *ClusterConfig, nodes []*benchNode, fleet *fleetRun, profile time.Duration) error {
	if err := settled(ctx, nodes, min(c.Replicas, len(nodes)), c.Settle); err != nil {
		return err
	}
	idle, err := cpuOf(nodes)
	if err != nil {
		return err
	}
	if err := sleepFor(ctx, idleLook); err != nil {
		return err
	}
	wireBefore, err := trafficOf(ctx, nodes)
	if err != nil {
		return err
	}
	before, err := cpuOf(nodes)
	if err != nil {
		return err
	}
	_, idleSum := cpuSince(before, idle)
	r.idle = idleSum.process
	expected := float64(c.Blocks) / c.Rate
	profiled := r.profile(ctx, nodes, profile, c.ProfileDir)
	start := time.Now()
	fleet.begin()
	select {
	case <-fleet.Done():
	case err := <-fleet.ended:
		fleet.ended <- err // for stop
		return fmt.Errorf("engines ended early: %w", errors.Join(err, ctx.Err()))
	case <-time.After(playSlack + 4*time.Duration(expected*float64(time.Second))):
		return fmt.Errorf("%w: the engines are not done after %v:\n%s", ErrCluster, time.Since(start), fleet.Stats())
	}
	s := fleet.Stats()
	r.batches, r.stored, r.removed, r.held = s.Batches, s.Stored.Blocks, s.Removed.Blocks, s.Held[indexer.Device]
	want := float64(r.held) * float64(min(c.Replicas, len(nodes)))
	if err := await(ctx, drain, func() error { return r.applied(ctx, nodes, want) }); err != nil {
		return err
	}
	r.wall = time.Since(start)
	after, err := cpuOf(nodes)
	if err != nil {
		return err
	}
	r.each, r.write = cpuSince(after, before)
	wireAfter, err := trafficOf(ctx, nodes)
	if err != nil {
		return err
	}
	r.wire = traffic{wireAfter.frames - wireBefore.frames, wireAfter.blocks - wireBefore.blocks, wireAfter.bytes - wireBefore.bytes, wireAfter.link - wireBefore.link}
	if err := profiled(); err != nil {
		return err
	}
	// What streams say of themselves is a snapshot of a moment ago.
	return await(ctx, drain, func() error { return r.checkStreams(ctx, nodes) })
}

func sleepFor(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// applied returns nil when the indices hold so many blocks in all.
func (r *clusterRun) applied(ctx context.Context, nodes []*benchNode, want float64) error {
	sum := 0.0
	r.heldBy = r.heldBy[:0]
	for _, b := range nodes {
		if err := b.alive(); err != nil {
			return final{err}
		}
		var st struct {
			Index struct {
				Held map[string]float64 `json:"held_blocks"`
			}
		}
		if err := b.http.Get(ctx, "/status", nil, &st); err != nil {
			return err
		}
		r.heldBy = append(r.heldBy, st.Index.Held["device"])
		sum += st.Index.Held["device"]
	}
	if sum != want {
		return fmt.Errorf("%w: the nodes hold %.0f blocks, want %.0f", ErrCluster, sum, want)
	}
	return nil
}

// profile takes a profile of all nodes at once; the function that it returns waits for
// them.
func (r *clusterRun) profile(ctx context.Context, nodes []*benchNode, d time.Duration, dir string) (wait func() error) {
	if d == 0 {
		return func() error { return nil }
	}
	type one struct {
		parts map[string]int64
		err   error
	}
	all := make(chan one, len(nodes))
	for _, b := range nodes {
		go func() {
			raw, err := fetchProfile(ctx, b.pprof, int(max(1, d.Seconds())))
			if err == nil && dir != "" {
				err = os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d-nodes-%s.pprof", len(nodes), b.name)), raw, 0o644)
			}
			var parts map[string]int64
			if err == nil {
				parts, err = countParts(raw)
			}
			all <- one{parts, err}
		}()
	}
	return func() error {
		r.samples = map[string]int64{}
		var errs []error
		for range nodes {
			o := <-all
			errs = append(errs, o.err)
			for k, v := range o.parts {
				r.samples[k] += v
			}
		}
		return errors.Join(errs...)
	}
}

// checkStreams compares what engines sent with what was read.
func (r *clusterRun) checkStreams(ctx context.Context, nodes []*benchNode) error {
	sums := map[string]float64{}
	for _, b := range nodes {
		if err := b.metrics(ctx, func(name, _ string, v float64) { sums[name] += v }); err != nil {
			return err
		}
	}
	r.gaps = sums["kvcluster_stream_sequence_gaps_total"]
	for _, lost := range []string{
		"kvcluster_stream_losses_total", "kvcluster_stream_rejected_events_total", "kvcluster_stream_rejected_blocks_total",
		"kvcluster_stream_orphan_blocks_lost_total", "kvcluster_degraded_streams", "kvcluster_index_faults_total",
	} {
		if sums[lost] > 0 {
			return final{fmt.Errorf("%w: %s is %g", ErrCluster, lost, sums[lost])}
		}
	}
	if got := sums["kvcluster_stream_batches_total"]; got != float64(r.batches) {
		return fmt.Errorf("%w: engines sent %d batches, nodes read %.0f", ErrCluster, r.batches, got)
	}
	return nil
}

// ask puts the queries to the nodes in turn, and again where an answer is partial.
func (r *clusterRun) ask(ctx context.Context, w *clusterWork, nodes []*benchNode) error {
	before, err := cpuOf(nodes)
	if err != nil {
		return err
	}
	sum := fnv.New64a()
	for i, body := range w.queries {
		for try := 1; ; try++ {
			var a struct {
				Instances json.RawMessage
				Partial   bool
				Stale     bool
			}
			if err := nodes[(i+try)%len(nodes)].http.Post(ctx, "/query", body, &a); err != nil {
				return fmt.Errorf("query %d: %w", i, err)
			}
			if a.Partial {
				if r.again++; try == tries {
					return fmt.Errorf("%w: the answer to query %d is partial at every attempt", ErrCluster, i)
				}
				continue
			}
			if a.Stale {
				r.stale++
			}
			canonical, err := sortedJSON(a.Instances)
			if err != nil {
				return fmt.Errorf("query %d: %w", i, err)
			}
			sum.Write(canonical)
			break
		}
		r.queries++
	}
	after, err := cpuOf(nodes)
	if err != nil {
		return err
	}
	_, used := cpuSince(after, before)
	r.query, r.answers = used.process, sum.Sum64()
	return nil
}

// sortedJSON writes JSON with the keys of all objects in order.
func sortedJSON(raw []byte) ([]byte, error) {
	var v any
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	return json.Marshal(v)
}

// trafficOf sums up what all nodes sent to others.
func trafficOf(ctx context.Context, nodes []*benchNode) (t traffic, err error) {
	for _, b := range nodes {
		err := b.metrics(ctx, func(name, labels string, v float64) {
			switch name {
			case "kvcluster_forwarded_frames_total":
				t.frames += v
			case "kvcluster_forwarded_blocks_total":
				t.blocks += v
			case "kvcluster_forwarded_bytes_total":
				t.bytes += v
			case "kvcluster_link_bytes_total":
				if strings.Contains(labels, `direction="out"`) {
					t.link += v
				}
			}
		})
		if err != nil {
			return t, err
		}
	}
	return t, nil
}

// metrics calls fn for every sample of the node's metrics.
func (b *benchNode) metrics(ctx context.Context, fn func(name, labels string, v float64)) error {
	var raw []byte
	if err := b.http.Get(ctx, "/metrics", nil, &raw); err != nil {
		return err
	}
	sc := bufio.NewScanner(bytes.NewReader(raw))
	for sc.Scan() {
		line := sc.Text()
		at := strings.LastIndexByte(line, ' ')
		if strings.HasPrefix(line, "#") || at < 0 {
			continue
		}
		v, err := strconv.ParseFloat(line[at+1:], 64)
		if err != nil {
			return fmt.Errorf("metrics of %s: %q: %w", b.name, line, err)
		}
		name, labels, _ := strings.Cut(line[:at], "{")
		fn(name, labels, v)
	}
	return sc.Err()
}

// figures of the run by name.
func (r *clusterRun) figures() map[string]float64 {
	blocks := float64(r.stored + r.removed)
	perMillion := func(cpu float64) float64 { return cpu / blocks * 1e6 }
	over := func(a, b float64) float64 {
		if b == 0 {
			return 0
		}
		return a / b
	}
	idle := r.idle.Seconds() / idleLook.Seconds()
	cpu := make([]float64, len(r.each))
	for i := range r.each {
		cpu[i] = r.each[i].process.Seconds()
	}
	return map[string]float64{
		FigureTotal:     perMillion((r.write.process + r.query).Seconds()),
		FigureWrite:     perMillion(r.write.process.Seconds()),
		FigureWriteNet:  perMillion(max(0, r.write.process.Seconds()-idle*r.wall.Seconds())),
		FigureIO:        perMillion(r.write.io.Seconds()),
		FigureQuery:     over(r.query.Seconds()*1e6, float64(r.queries)),
		FigureIdle:      idle * 1e3,
		FigureFrame:     over(r.wire.bytes, r.wire.blocks),
		FigureLink:      over(r.wire.link, r.wire.blocks),
		FigureForwarded: over(r.wire.blocks, float64(r.stored)),
		FigureFrames:    r.wire.frames,
		FigureCPUMost:   mostOverMean(cpu),
		FigureHeldMost:  mostOverMean(r.heldBy),
		FigureSeconds:   r.wall.Seconds(),
		FigureAgain:     float64(r.again),
		FigureStale:     float64(r.stale),
		FigureGaps:      r.gaps,
	}
}

// mostOverMean is 1 when all values are equal.
func mostOverMean(v []float64) float64 {
	most, sum := 0.0, 0.0
	for _, x := range v {
		most = max(most, x)
		sum += x
	}
	if sum == 0 {
		return 0
	}
	return most * float64(len(v)) / sum
}
