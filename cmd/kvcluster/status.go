package main

import (
	"encoding/json"
	"time"

	"github.com/kvcluster/kvcluster/cmd/internal/live"
)

type statusCmd struct {
	serverFlags
	JSON bool `help:"Print JSON, as GET /status answers." name:"json"`
}

// Help shows the use in scripts.
func (statusCmd) Help() string {
	return `Examples:
  kvcluster status
  kvcluster status --json | jq .ready`
}

// Run prints one page.
func (c *statusCmd) Run(a *app) error {
	cl, err := c.client()
	if err != nil {
		return err
	}
	if c.JSON {
		var raw json.RawMessage
		if err := cl.Get(a.ctx, "/status", nil, &raw); err != nil {
			return err
		}
		_, err = a.stdout.Write(append(raw, '\n'))
		return err
	}
	before, err := live.Take(a.ctx, cl)
	if err != nil {
		return err
	}
	select { // rates need two looks
	case <-a.ctx.Done():
		return a.ctx.Err()
	case <-time.After(500 * time.Millisecond):
	}
	now, err := live.Take(a.ctx, cl)
	if err != nil {
		return err
	}
	return live.Table(a.stdout, cl.Base(), before, now, 20)
}
