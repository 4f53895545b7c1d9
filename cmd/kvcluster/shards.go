package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/kvcluster/kvcluster/cmd/internal/live"
)

type shardsCmd struct {
	serverFlags
	All  bool `help:"One line a partition." short:"a"`
	JSON bool `help:"Print JSON, as GET /shards answers." name:"json"`
}

// Help shows the views.
func (shardsCmd) Help() string {
	return `Examples:
  kvcluster shards
  kvcluster shards --all
  kvcluster shards --json | jq '.changes'`
}

// shardsBody is GET /shards.
type shardsBody struct {
	Partitions []struct {
		Partition int `json:"partition"`
		Owners    []struct {
			Name  string `json:"name"`
			Ready bool   `json:"ready"`
		} `json:"owners"`
		Receivers []string `json:"receivers"`
		Held      *uint64  `json:"held_blocks"`
	} `json:"partitions"`
	Changes []struct {
		ID    uint64 `json:"id"`
		Moves []struct {
			Partition int    `json:"partition"`
			To        string `json:"to"`
			Drop      string `json:"drop"`
		} `json:"moves"`
		Waiting []string `json:"waiting_for"`
		Done    int      `json:"copies_done"`
		Total   int      `json:"copies"`
		Bytes   uint64   `json:"bytes"`
		Rate    uint64   `json:"bytes_per_second"`
	} `json:"changes"`
}

// Run prints the map.
func (c *shardsCmd) Run(a *app) error {
	cl, err := c.client()
	if err != nil {
		return err
	}
	var raw json.RawMessage
	if err := cl.Get(a.ctx, "/shards", nil, &raw); err != nil {
		return err
	}
	if c.JSON {
		_, err = a.stdout.Write(append(raw, '\n'))
		return err
	}
	var s shardsBody
	if err := json.Unmarshal(raw, &s); err != nil {
		return fmt.Errorf("the answer of /shards is not what was expected: %w", err)
	}
	if c.All {
		return s.printAll(a.stdout)
	}
	return s.print(a.stdout)
}

// print draws how the partitions lie on the nodes.
func (s *shardsBody) print(w io.Writer) error {
	type share struct{ owned, ready, filling int }
	nodes := map[string]*share{}
	of := func(name string) *share {
		if nodes[name] == nil {
			nodes[name] = &share{}
		}
		return nodes[name]
	}
	complete, unread := 0, 0
	for _, p := range s.Partitions {
		ready := 0
		for _, o := range p.Owners {
			of(o.Name).owned++
			if o.Ready {
				of(o.Name).ready++
				ready++
			}
		}
		for _, r := range p.Receivers {
			of(r).filling++
		}
		if ready == len(p.Owners) && ready > 0 {
			complete++
		}
		if ready == 0 {
			unread++
		}
	}
	fmt.Fprintf(w, "%d partitions: %d with all their owners ready, %d that nobody may be asked for\n\n", len(s.Partitions), complete, unread)
	most := 1
	for _, n := range nodes {
		most = max(most, n.owned)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NODE\tOWNS\tREADY\tBEING FILLED\t")
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		n := nodes[name]
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%s\n", name, n.owned, n.ready, n.filling, strings.Repeat("█", n.owned*32/most))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, j := range s.Changes {
		to := map[string]int{}
		for _, m := range j.Moves {
			to[m.To]++
		}
		var parts []string
		for _, name := range slices.Sorted(maps.Keys(to)) {
			if name == "" {
				parts = append(parts, fmt.Sprintf("%d given up", to[name]))
			} else {
				parts = append(parts, fmt.Sprintf("%d to %s", to[name], name))
			}
		}
		fmt.Fprintf(w, "\nchange %d: %s; this node has filled %d of %d copies, %s bytes, %s/s; waiting for %s\n",
			j.ID, strings.Join(parts, ", "), j.Done, j.Total, live.Count(float64(j.Bytes)), live.Count(float64(j.Rate)), orDash(strings.Join(j.Waiting, ", ")))
	}
	return nil
}

// printAll writes one line a partition.
func (s *shardsBody) printAll(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "PARTITION\tOWNERS\tBEING FILLED\tHELD HERE")
	for _, p := range s.Partitions {
		var owners []string
		for _, o := range p.Owners {
			name := o.Name
			if !o.Ready {
				name += " (not ready)"
			}
			owners = append(owners, name)
		}
		held := "-"
		if p.Held != nil {
			held = live.Count(float64(*p.Held))
		}
		fmt.Fprintf(t, "%d\t%s\t%s\t%s\n", p.Partition, orDash(strings.Join(owners, ", ")), orDash(strings.Join(p.Receivers, ", ")), held)
	}
	return t.Flush()
}
