package main

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/kvcluster/kvcluster/chaos/mockengine"
	"github.com/kvcluster/kvcluster/chaos/trace"
	"github.com/kvcluster/kvcluster/cmd/internal/client"
	"github.com/kvcluster/kvcluster/transport/zmq"
)

type mockCmd struct {
	Workers   int      `help:"Number of mock workers." default:"8" short:"n" env:"-"`
	Ranks     int      `help:"Data-parallel ranks of each worker." default:"1"`
	Format    string   `help:"Formats given to the workers in turn: vllm-map, vllm-array, sglang-map, sglang-array, sglang-bigram, trtllm." default:"vllm-map,vllm-array,sglang-map,sglang-array,trtllm"`
	Trace     string   `help:"Trace of requests (Mooncake JSON lines); without it one is generated." type:"existingfile" xor:"trace"`
	Generate  bool     `help:"Generate a trace of the public shape (shared system prompts, multi-turn, long tails); it is what happens without --trace." xor:"trace"`
	Requests  int      `help:"Requests of the generated trace, or how many of a trace to play; 0 = 1000, or all." default:"0"`
	Seed      uint64   `help:"Seed of the generated trace." default:"42"`
	Repeat    int      `help:"Play the trace so many times; -1 = until interrupted." default:"1"`
	BlockSize int      `help:"Tokens per block (page); 1 is allowed." default:"16" short:"b"`
	Capacity  int      `help:"Blocks in the cache of one worker." default:"16384"`
	Host      int      `help:"Blocks in the host tier of one worker; 0 = none." name:"host-capacity" default:"0"`
	Speedup   float64  `help:"Seconds of the trace played in one second; 0 = as fast as the pacing allows." default:"10"`
	MaxRate   float64  `help:"Blocks stored and removed a second by all workers together; 0 = no bound." name:"max-block-rate" default:"0"`
	Register  string   `help:"Register the workers at this node." placeholder:"URL" short:"s"`
	Keep      bool     `help:"Leave the workers registered at the end." default:"false"`
	Stay      bool     `help:"Keep the sockets open after the trace has ended."`
	Model     string   `help:"Model name." default:"mock" short:"m"`
	Group     string   `help:"Routing group." default:"default" short:"g"`
	First     uint64   `help:"Instance id of the first worker." name:"first-instance" default:"1"`
	BindHost  string   `help:"Interface for the publishers." default:"127.0.0.1"`
	BasePort  int      `help:"Port of the first publisher, the next ones follow, then the replay ports; 0 = the system chooses." default:"0"`
	Fault     []string `help:"Faults, kind[:count]@batch[/publisher]: restart, restart-in-place, lose, drop, reset-sequence, garbage, clear, stop." placeholder:"FAULT"`
	Quiet     bool     `help:"No progress, only the summary." short:"q"`
}

// Help shows the common uses.
func (mockCmd) Help() string {
	return `Real PUB and replay sockets, a prefix cache with LRU eviction behind each.

Examples:
  kvcluster mock --register http://127.0.0.1:8090
  kvcluster mock -n 16 --format sglang-map --trace conversation_trace.jsonl --speedup 20 --register http://127.0.0.1:8090
  kvcluster mock --generate --requests 500 --fault lose:3@20 --fault restart@60/2 --register http://127.0.0.1:8090`
}

// Run plays the trace to its end or until interrupted.
func (c *mockCmd) Run(a *app) error {
	cfg, err := c.config(a)
	if err != nil {
		return err
	}
	if c.Register != "" { // say at once when nobody is there
		cl, err := client.New(c.Register, 10*time.Second)
		if err != nil {
			return fmt.Errorf("%w: --register: %w", errUsage, err)
		}
		if err := cl.Get(a.ctx, "/health", nil, nil); err != nil {
			return err
		}
	}
	fleet, err := mockengine.New(cfg)
	if errors.Is(err, mockengine.ErrConfig) {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	if err != nil {
		return err
	}
	network, err := zmq.New(zmq.Config{Logger: a.log})
	if err != nil {
		return err
	}
	defer network.Close()
	if err := fleet.Open(network); err != nil {
		return err
	}
	for _, e := range fleet.Endpoints() {
		a.log.Debug("publisher", "instance", e.Instance, "rank", e.Rank, "format", e.Format, "endpoint", e.Publish, "replay", e.Replay)
	}
	stop := func() {}
	if !c.Quiet {
		stop = progress(a.stderr, func() string {
			s := fleet.Stats()
			return fmt.Sprintf("trace %v  requests %d  batches %d  stored %d  removed %d  held %d", s.TraceTime.Round(time.Second), s.Admitted, s.Batches, s.Stored.Blocks, s.Removed.Blocks, s.Held[0]+s.Held[1])
		})
	}
	err = fleet.Run(a.ctx)
	stop()
	if err != nil {
		return err
	}
	_, err = io.WriteString(a.stdout, fleet.Stats().String())
	return err
}

func (c *mockCmd) config(a *app) (mockengine.Config, error) {
	cfg := mockengine.Config{
		Workers: c.Workers, Ranks: c.Ranks, Repeat: c.Repeat, BlockSize: c.BlockSize, Capacity: c.Capacity, HostCapacity: c.Host,
		Speedup: c.Speedup, MaxBlockRate: c.MaxRate, Host: c.BindHost, BasePort: c.BasePort, Register: c.Register, Unregister: !c.Keep,
		FirstInstance: c.First, Model: c.Model, RoutingGroup: c.Group, Stay: c.Stay, Logger: a.log,
	}
	if c.Requests < 0 || c.Workers < 1 {
		return cfg, fmt.Errorf("%w: --workers must be at least 1 and --requests not below 0", errUsage)
	}
	var err error
	if cfg.Formats, err = mockengine.ParseFormats(c.Format); err != nil {
		return cfg, fmt.Errorf("%w: --format: %w", errUsage, err)
	}
	for _, f := range c.Fault {
		fault, err := mockengine.ParseFault(f)
		if err != nil {
			return cfg, fmt.Errorf("%w: %w", errUsage, err)
		}
		cfg.Faults = append(cfg.Faults, fault)
	}
	if c.Trace != "" {
		if cfg.Trace, err = trace.ReadFile(c.Trace); err != nil {
			return cfg, err
		}
		if c.Requests > 0 {
			cfg.Trace = cfg.Trace.Head(c.Requests)
		}
		return cfg, nil
	}
	n := c.Requests
	if n == 0 {
		n = 1000
	}
	cfg.Generate = trace.DefaultGenerate(n)
	cfg.Generate.Seed = c.Seed
	return cfg, nil
}
