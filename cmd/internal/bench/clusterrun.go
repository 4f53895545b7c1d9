package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"time"

	"github.com/kvcluster/kvcluster/indexer"
)

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
				err = os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d-nodes-%s.pprof", len(nodes), b.Name)), raw, 0o644)
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
