package control

import (
	"context"
	"encoding/binary"
	"errors"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvcluster/kvcluster/cluster/state"
)

const (
	// commandTimeout bounds one command of the leader.
	commandTimeout = 10 * time.Second
	// together is how many commands of a plan are on their way at the same time: the
	// sources of a dead reader get new ones in a few writes to the disk.
	together = 64
)

// carryOut proposes the commands of a plan. Assignments next to each other go together,
// the others one after the other. An error of the first that fails is returned; the
// rest of its group is proposed all the same.
func (c *Control) carryOut(ctx context.Context, index uint64, cmds []state.Command) error {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	for len(cmds) > 0 {
		n := 1
		for n < len(cmds) && n < together && cmds[0].Assign != nil && cmds[n].Assign != nil {
			n++
		}
		results := make(chan error, n)
		for _, cmd := range cmds[:n] {
			go func() { results <- c.carryOne(ctx, index, cmd) }()
		}
		var errs []error
		for range n {
			errs = append(errs, <-results)
		}
		if err := errors.Join(errs...); err != nil {
			return err
		}
		cmds = cmds[n:]
	}
	return nil
}

func (c *Control) carryOne(ctx context.Context, index uint64, cmd state.Command) error {
	if err := identify(index, &cmd); err != nil {
		return err
	}
	r, err := c.deps.Log.Lead(ctx, cmd)
	if err != nil {
		return err
	}
	c.logPlanned(cmd, r)
	return r.Err()
}

// identify gives a planned command its id. It is a function of the command and of the
// log index that it was planned from, so that the same plan, made twice, is carried out
// once.
func identify(index uint64, cmd *state.Command) error {
	raw, err := cmd.Encode()
	if err != nil {
		return err
	}
	h := xxh3.Hash128Seed(raw, index)
	binary.LittleEndian.PutUint64(cmd.ID[:8], h.Lo)
	binary.LittleEndian.PutUint64(cmd.ID[8:], h.Hi)
	return nil
}

func (c *Control) logPlanned(cmd state.Command, r state.Result) {
	switch {
	case cmd.Begin != nil && r.Code == state.OK:
		c.log.Info("copies begin", "change", r.Job, "copies", len(cmd.Begin.Moves), "to", cmd.Begin.Moves[0].To)
	case cmd.Abort != nil:
		c.log.Info("change ends without effect: its target is gone or leaves", "change", *cmd.Abort)
	case cmd.Assign != nil:
		c.log.Info("source gets a reader", "source", cmd.Assign.Source, "node", cmd.Assign.Node)
	case cmd.Remove != nil:
		c.log.Info("member has given everything away and goes", "member", *cmd.Remove)
	}
}
