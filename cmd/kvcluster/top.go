package main

import (
	"fmt"
	"time"

	"github.com/kvcluster/kvcluster/cmd/internal/live"
)

type topCmd struct {
	serverFlags
	Period time.Duration `help:"Time between two looks." default:"1s"`
	Count  int           `help:"Stop after so many looks; 0 = go on until interrupted." default:"0"`
}

// Help shows the plain form.
func (topCmd) Help() string {
	return `On a terminal a table that redraws itself, elsewhere one line a period.

Examples:
  kvcluster top
  kvcluster top --period 10s --count 6 >> node.log`
}

// Run watches until interrupted.
func (c *topCmd) Run(a *app) error {
	cl, err := c.client()
	if err != nil {
		return err
	}
	if c.Period <= 0 || c.Count < 0 {
		return fmt.Errorf("%w: --period must be above 0 and --count not below", errUsage)
	}
	return live.Watch(a.ctx, a.stdout, cl, c.Period, c.Count, nil)
}
