// Package live watches a node over HTTP and draws what it sees: a table that redraws
// itself on a terminal, one plain line a period elsewhere.
package live

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/kvcluster/kvcluster/cmd/internal/client"
)

// Snapshot is a node at one moment.
type Snapshot struct {
	At       time.Time
	Ready    bool
	Models   int
	Streams  map[string]int // by state
	Degraded int
	Held     [4]uint64 // blocks by tier, in the order of Tiers
	Distinct uint64
	Reserved uint64
	Lanes    []Lane
	Events   uint64 // since the node began
	Batches  uint64
	Gaps     uint64
	Orphans  uint64
	Lag      time.Duration // largest among the streams
	Workers  []Worker      // by held blocks, most first
	Nodes    []Node        // of the cluster, by name
	Cluster  *Cluster      // nil = a node alone
}

// Cluster is the state of the cluster in short, as the node that was asked sees it.
type Cluster struct {
	Leader     string  `json:"leader"`
	MapIndex   uint64  `json:"map_index"`
	LeaseHeld  bool    `json:"lease_held"`
	Balance    float64 `json:"balance"`
	LogLag     uint64  `json:"log_lag"`
	Unready    int     `json:"unready_partitions"`
	Unowned    int     `json:"unowned_partitions"`
	Degraded   int     `json:"degraded_slots"`
	Unreadable int     `json:"unreadable_slots"`
	Changes    int     `json:"changes"`
	Disk       struct {
		Free uint64 `json:"free_bytes"`
		Low  bool   `json:"low"`
	} `json:"disk"`
}

// Node is one member of the cluster.
type Node struct {
	Name       string `json:"name"`
	Role       string `json:"role"`
	Phase      string `json:"phase"`
	Alive      bool   `json:"alive"`
	Partitions int    `json:"partitions"`
	Ready      int    `json:"ready_partitions"`
	Sources    int    `json:"sources"`
}

// Tiers are the names of the tiers in the order of Held.
var Tiers = [4]string{"device", "host_pinned", "disk", "external"}

// Lane is one lane of the index.
type Lane struct {
	Queued  uint64 `json:"queued"`
	Percent uint64 `json:"busy_percent"`
}

// Worker is one rank of a worker.
type Worker struct {
	Instance, Rank, State string
	Held                  uint64
	Events                uint64
	Lag                   time.Duration
	Remark                string
}

type statusBody struct {
	Ready     bool           `json:"ready"`
	Models    int            `json:"models"`
	Listeners map[string]int `json:"listeners"`
	Degraded  int            `json:"degraded_streams"`
	Cluster   *Cluster       `json:"cluster"`
	Index     struct {
		Held     map[string]uint64 `json:"held_blocks"`
		Distinct uint64            `json:"distinct_blocks"`
		Reserved uint64            `json:"reserved_bytes"`
		Lanes    []Lane            `json:"lanes"`
	} `json:"index"`
}

type workerBody struct {
	Instance  client.ID `json:"instance_id"`
	Listeners map[string]struct {
		Status    string            `json:"status"`
		LastError string            `json:"last_error"`
		Batches   uint64            `json:"batches"`
		Events    uint64            `json:"events"`
		Gaps      uint64            `json:"gaps"`
		Orphans   uint64            `json:"orphan_blocks"`
		Held      map[string]uint64 `json:"held"`
		LagUs     uint64            `json:"lag_us"`
		Warnings  []string          `json:"warnings"`
	} `json:"listeners"`
}

// Take asks a node for its state.
func Take(ctx context.Context, c *client.Client) (*Snapshot, error) {
	var st statusBody
	if err := c.Get(ctx, "/status", nil, &st); err != nil {
		return nil, err
	}
	var ws []workerBody
	if err := c.Get(ctx, "/workers", nil, &ws); err != nil {
		return nil, err
	}
	var nodes []Node
	if err := c.Get(ctx, "/members", nil, &nodes); err != nil {
		return nil, err
	}
	s := &Snapshot{
		Nodes: nodes, Cluster: st.Cluster,
		At: time.Now(), Ready: st.Ready, Models: st.Models, Streams: st.Listeners, Degraded: st.Degraded,
		Distinct: st.Index.Distinct, Reserved: st.Index.Reserved, Lanes: st.Index.Lanes,
	}
	if len(nodes) < 2 { // of several nodes each holds a part: the streams know the whole
		for i, t := range Tiers {
			s.Held[i] = st.Index.Held[t]
		}
	}
	for _, w := range ws {
		for rank, l := range w.Listeners {
			o := Worker{Instance: string(w.Instance), Rank: rank, State: l.Status, Events: l.Events, Lag: time.Duration(l.LagUs) * time.Microsecond, Remark: l.LastError}
			if o.Remark == "" && len(l.Warnings) > 0 {
				o.Remark = l.Warnings[0]
			}
			for i, t := range Tiers {
				o.Held += l.Held[t]
				if len(nodes) > 1 {
					s.Held[i] += l.Held[t]
				}
			}
			s.Events += l.Events
			s.Batches += l.Batches
			s.Gaps += l.Gaps
			s.Orphans += l.Orphans
			s.Lag = max(s.Lag, o.Lag)
			s.Workers = append(s.Workers, o)
		}
	}
	slices.SortFunc(s.Workers, func(a, b Worker) int {
		return cmp.Or(-cmp.Compare(a.Held, b.Held), cmp.Compare(a.Instance, b.Instance), cmp.Compare(a.Rank, b.Rank))
	})
	return s, nil
}
