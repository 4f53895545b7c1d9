package main

import (
	"encoding/json"
	"fmt"

	"github.com/kvcluster/kvcluster/cmd/internal/live"
)

type snapshotCmd struct {
	serverFlags
	JSON bool `help:"Print JSON, as POST /snapshot answers." name:"json"`
}

// Help says what a snapshot is for.
func (snapshotCmd) Help() string {
	return `Writes what the node holds to its data folder. It does so by itself too, every
--snapshot-every and when it is stopped. A cluster whose nodes are all started again
goes on with what they have written, as far as engines can replay what came since.

Examples:
  kvcluster snapshot
  kvcluster snapshot --server http://n2:8090
  kvcluster snapshot --json | jq '.bytes / .held_blocks'`
}

// Run asks for it and prints what it cost.
func (c *snapshotCmd) Run(a *app) error {
	cl, err := c.client()
	if err != nil {
		return err
	}
	var raw json.RawMessage
	if err := cl.Post(a.ctx, "/snapshot", nil, &raw); err != nil {
		return err
	}
	if c.JSON {
		_, err = a.stdout.Write(append(raw, '\n'))
		return err
	}
	var s struct {
		Path    string  `json:"path"`
		Bytes   uint64  `json:"bytes"`
		Slots   uint64  `json:"slots"`
		Copies  uint64  `json:"copies"`
		Blocks  uint64  `json:"held_blocks"`
		Seconds float64 `json:"seconds"`
	}
	if err := json.Unmarshal(raw, &s); err != nil {
		return fmt.Errorf("the answer of /snapshot is not what was expected: %w", err)
	}
	fmt.Fprintf(a.stdout, "%s: %s bytes in %.2f s: %d slots, %d copies, %s held blocks",
		s.Path, live.Count(float64(s.Bytes)), s.Seconds, s.Slots, s.Copies, live.Count(float64(s.Blocks)))
	if s.Blocks > 0 {
		fmt.Fprintf(a.stdout, " (%.1f bytes a block, %.2f s a million)", float64(s.Bytes)/float64(s.Blocks), s.Seconds*1e6/float64(s.Blocks))
	}
	_, err = fmt.Fprintln(a.stdout)
	return err
}
