package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvcluster/kvcluster/cmd/internal/client"
	"github.com/kvcluster/kvcluster/cmd/internal/node"
	"github.com/kvcluster/kvcluster/cmd/internal/process"
)

// benchNode is a node process.
type benchNode struct {
	*process.Process
	url, pprof string
	http       *client.Client
}

// clusterReady bounds the start of all nodes.
const clusterReady = 60 * time.Second

// startCluster starts n nodes in dir and waits until all partitions have their owners.
// The nodes that it returns are to be stopped, also after an error.
func startCluster(ctx context.Context, c *ClusterConfig, dir string, n int, profile bool) (nodes []*benchNode, err error) {
	seed := ""
	for i := range n {
		name := fmt.Sprintf("n%d", i+1)
		args := []string{"serve", "--replicas", fmt.Sprint(c.Replicas)}
		if i > 0 {
			args = []string{"join", seed}
		}
		// One thread of each kind, whatever the machine has: the same program at every size.
		args = append(args, "--gossip", "127.0.0.1:0", "--raft", "127.0.0.1:0", "--link", "127.0.0.1:0", "--listen", "127.0.0.1:0",
			"--name", name, "--cluster", "bench", "--lanes", "1", "--loops", "1", "--io-threads", "1",
			"--data", filepath.Join(dir, name), "--address-file", filepath.Join(dir, name+".address"))
		b := &benchNode{}
		if profile {
			if b.pprof, err = freePort(); err != nil {
				return nodes, err
			}
			args = append(args, "--pprof", b.pprof)
		}
		if b.Process, err = process.Start(name, filepath.Join(dir, name+".log"), append(slices.Clone(c.Command), args...)...); err != nil {
			return nodes, err
		}
		nodes = append(nodes, b)
		address, err := b.AwaitFile(ctx, filepath.Join(dir, name+".address"))
		if err != nil {
			return nodes, err
		}
		b.url = "http://" + address
		if b.http, err = client.New(b.url, 30*time.Second); err != nil {
			return nodes, err
		}
		if i == 0 {
			if seed, err = node.GossipAddress(filepath.Join(dir, name)); err != nil {
				return nodes, err
			}
		}
	}
	return nodes, await(ctx, clusterReady, func() error { return balanced(ctx, nodes, min(c.Replicas, n)) })
}

// freePort returns a loopback address that was free a moment ago.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("port for profiles: %w", err)
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// alive returns an error with the end of the log when the process has ended.
func (b *benchNode) alive() error {
	if err := b.Failure(); err != nil {
		return fmt.Errorf("%w: node %w", ErrCluster, err)
	}
	return nil
}

// stopCluster ends all nodes at the same time.
func stopCluster(nodes []*benchNode) {
	var all []*process.Process
	for _, b := range nodes {
		all = append(all, b.Process)
	}
	process.StopAll(all)
}

// balanced returns nil when every node sees all members, all partitions with so many
// ready owners, and no change under way.
func balanced(ctx context.Context, nodes []*benchNode, replicas int) error {
	for _, b := range nodes {
		if err := b.alive(); err != nil {
			return final{err}
		}
		var shards struct {
			Partitions []struct{ Owners []struct{ Ready bool } }
			Changes    []struct{ ID uint64 }
		}
		var members []struct {
			Alive      bool
			Partitions int
		}
		if err := errors.Join(b.http.Get(ctx, "/shards", nil, &shards), b.http.Get(ctx, "/members", nil, &members)); err != nil {
			return err
		}
		if len(members) != len(nodes) || len(shards.Changes) > 0 || len(shards.Partitions) == 0 {
			return fmt.Errorf("%w: %s sees %d members of %d and %d changes", ErrCluster, b.Name, len(members), len(nodes), len(shards.Changes))
		}
		for _, m := range members {
			if !m.Alive || m.Partitions == 0 {
				return fmt.Errorf("%w: %s sees a member without partitions", ErrCluster, b.Name)
			}
		}
		for i, p := range shards.Partitions {
			ready := 0
			for _, o := range p.Owners {
				if o.Ready {
					ready++
				}
			}
			if ready != replicas || len(p.Owners) != replicas {
				return fmt.Errorf("%w: %s sees %d ready owners of partition %d, want %d", ErrCluster, b.Name, ready, i, replicas)
			}
		}
	}
	return nil
}

// settled waits until the log has said nothing new for a time d.
func settled(ctx context.Context, nodes []*benchNode, replicas int, d time.Duration) error {
	return await(ctx, clusterReady, func() error {
		first, err := mapIndex(ctx, nodes)
		if err != nil {
			return err
		}
		if err := sleepFor(ctx, d); err != nil {
			return err
		}
		if err := balanced(ctx, nodes, replicas); err != nil {
			return err
		}
		if last, err := mapIndex(ctx, nodes); err != nil || last != first {
			return errors.Join(err, fmt.Errorf("%w: the layout still changes", ErrCluster))
		}
		return nil
	})
}

// mapIndex returns the latest layout that a node works with.
func mapIndex(ctx context.Context, nodes []*benchNode) (index uint64, err error) {
	for _, b := range nodes {
		var st struct {
			Cluster struct {
				MapIndex uint64 `json:"map_index"`
			}
		}
		if err := b.http.Get(ctx, "/status", nil, &st); err != nil {
			return 0, err
		}
		index = max(index, st.Cluster.MapIndex)
	}
	return index, nil
}

// final is an error after which waiting is no use.
type final struct{ error }

func (f final) Unwrap() error { return f.error }

// await asks again and again until ok returns nil. After the deadline its last error is
// the error.
func await(ctx context.Context, limit time.Duration, ok func() error) error {
	deadline := time.Now().Add(limit)
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		err := ok()
		var f final
		switch {
		case err == nil:
			return nil
		case errors.As(err, &f) || ctx.Err() != nil:
			return err
		case time.Now().After(deadline):
			return fmt.Errorf("after %v: %w", limit, err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// nodeCPU is what one process has used.
type nodeCPU struct{ process, io time.Duration }

// cpu reads the clock of the node's process, exact to the nanosecond, and the run time
// of libzmq's I/O threads, which have names of their own.
func (b *benchNode) cpu() (nodeCPU, error) {
	pid := b.PID
	var ts unix.Timespec
	// The clock of another process: CPUCLOCK_SCHED of its id (see clock_getcpuclockid).
	if err := unix.ClockGettime(int32(^pid<<3|2), &ts); err != nil {
		return nodeCPU{}, fmt.Errorf("CPU clock of node %s: %w", b.Name, errors.Join(err, b.alive()))
	}
	out := nodeCPU{process: time.Duration(ts.Nano())}
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/comm", pid))
	if err != nil {
		return out, err
	}
	for _, comm := range tasks {
		name, err := os.ReadFile(comm)
		if err != nil || !strings.HasPrefix(string(name), "ZMQbg/IO") {
			continue // a thread that has ended meanwhile is none of libzmq's
		}
		raw, err := os.ReadFile(filepath.Join(filepath.Dir(comm), "schedstat"))
		if err != nil {
			return out, fmt.Errorf("I/O thread of node %s: %w", b.Name, err)
		}
		var ns int64
		if _, err := fmt.Sscan(string(raw), &ns); err != nil {
			return out, fmt.Errorf("I/O thread of node %s: %q: %w", b.Name, raw, err)
		}
		out.io += time.Duration(ns)
	}
	return out, nil
}

// cpuOf returns the clocks of all nodes.
func cpuOf(nodes []*benchNode) ([]nodeCPU, error) {
	out := make([]nodeCPU, len(nodes))
	for i, b := range nodes {
		var err error
		if out[i], err = b.cpu(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// cpuSince returns the differences to an earlier look, and their sum.
func cpuSince(now, before []nodeCPU) (each []nodeCPU, sum nodeCPU) {
	for i := range now {
		d := nodeCPU{now[i].process - before[i].process, now[i].io - before[i].io}
		each = append(each, d)
		sum.process += d.process
		sum.io += d.io
	}
	return each, sum
}
