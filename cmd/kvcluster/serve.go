package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/kvcluster/kvcluster/cluster/ingest"
	"github.com/kvcluster/kvcluster/cmd/internal/node"
	"github.com/kvcluster/kvcluster/shard/catalog"
)

type serveCmd struct {
	Listen      string `help:"HTTP address for gateways and operators; port 0 lets the system choose. There is no TLS and no authentication: 0.0.0.0 serves everybody." default:"127.0.0.1:8090" group:"http"`
	AddressFile string `help:"Write the HTTP address here once it is open." type:"path" group:"http"`
	Pprof       string `help:"Loopback address for pprof; empty = none." default:"" group:"http"`
	AccessLog   string `help:"JSON access log, one line a request." type:"path" group:"http"`
	TraceHeader string `help:"Request header that is copied into the access log." name:"trace-id-header" default:"x-trace-id" group:"http"`
	LocalTime   bool   `help:"Local time instead of UTC in the access log." name:"access-log-local-time" group:"http"`
	TestRoutes  bool   `help:"Mount /test/pause_listener and /test/resume_listener." env:"DYN_KV_INDEXER_TEST_ENDPOINTS" group:"http"`
	MaxQueries  int    `help:"Queries worked on at the same time; 0 = by the machine." default:"0" group:"http"`
	StreamStats bool   `help:"Metrics for every stream; turn off for many thousands." negatable:"" default:"true" name:"stream-metrics" group:"http"`

	Name         string   `help:"Name of this node, unique in the cluster; empty = the host name." default:"" group:"node"`
	Workers      []string `help:"Workers to register at the start: id[:rank]=address, comma separated." placeholder:"ID=ADDRESS" group:"node"`
	ModelName    string   `help:"Model of --workers." default:"default" group:"node"`
	RoutingGroup string   `help:"Routing group of --workers." default:"default" group:"node"`
	BlockSize    uint32   `help:"Tokens per block of --workers." group:"node"`
	MinWorkers   int      `help:"Not ready before so many workers are registered." env:"DYN_ROUTER_MIN_INITIAL_WORKERS" default:"0" group:"node"`
	Partitions   uint32   `help:"Pieces of the key space; fixed for the life of a cluster." default:"256" group:"node"`
	Peers        []string `help:"Peers to list under /peers." group:"node"`

	Loops         int           `help:"Threads that read engine sockets; 0 = a quarter of the cores." default:"0" group:"ingest"`
	IOThreads     int           `help:"libzmq I/O threads; 0 = by the machine." name:"io-threads" default:"0" group:"ingest"`
	HighWater     int           `help:"Receive high-water mark of a stream, in batches." name:"rcvhwm" default:"200000" group:"ingest"`
	MaxMessage    int64         `help:"Largest message part, in bytes." default:"67108864" group:"ingest"`
	OnLoss        string        `help:"When batches are lost for good: clear the worker's blocks, or keep them flagged as degraded." enum:"clear,keep" default:"clear" group:"ingest"`
	ProbeAfter    time.Duration `help:"Ask a silent source's replay socket after this time; negative = never." default:"5s" group:"ingest"`
	ReplayTimeout time.Duration `help:"A replay without a reply for so long is over." default:"3s" group:"ingest"`
	RestartGap    time.Duration `help:"Pause before a worker whose engine restarts again starts over; doubles up to --restart-gap-max while that goes on." default:"1s" group:"ingest"`
	RestartGapMax time.Duration `help:"Longest such pause; so long without a restart ends it." default:"60s" group:"ingest"`
	SilentAfter   time.Duration `help:"Call out a worker that sends nothing for so long." default:"60s" group:"ingest"`

	Index       string `help:"Kind of index: tree, or reference (the plain model that judges it)." enum:"tree,reference" default:"tree" group:"index"`
	Lanes       int    `help:"Threads that write the index; 0 = by the machine." default:"0" group:"index"`
	CPUs        string `help:"Cores for the lanes, as in taskset: 2-5,8." name:"cpus" default:"" group:"index"`
	NUMANode    int    `help:"Use the cores of this NUMA node; -1 = any." name:"numa-node" default:"-1" group:"index"`
	MemoryLimit string `help:"Bound for the index's memory (512M, 24G); beyond it the oldest blocks are dropped and no longer credited." default:"" group:"index"`

	clusterFlags
}

// Help shows the common starts.
func (serveCmd) Help() string {
	return `Every flag can also be set by an environment variable (KVCLUSTER_LISTEN for --listen)
or in a YAML file (kvcluster --config node.yaml serve, keys without the dashes).

Examples:
  kvcluster serve
  kvcluster serve --listen 0.0.0.0:8090 --memory-limit 24G
  kvcluster serve --data /var/lib/kvcluster --host 10.0.0.1
  kvcluster serve --workers 1=tcp://10.0.0.1:5557,2=tcp://10.0.0.2:5557 --model-name llama-3 --block-size 16`
}

// Run serves until interrupted.
func (c *serveCmd) Run(a *app) error { return c.serve(a, nil) }

// serve runs the node; seeds are members of a cluster to join.
func (c *serveCmd) serve(a *app, seeds []string) error {
	cfg, err := c.config(seeds)
	if err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	cfg.Router.OnListen = func(addr net.Addr) {
		a.log.Info("serving", "url", "http://"+addr.String(), "node", cfg.Name, "version", version)
		if c.AddressFile == "" {
			return
		}
		if err := writeFileAtomic(c.AddressFile, addr.String()); err != nil {
			a.log.Error("address file not written", "error", err)
		}
	}
	if err := node.Run(a.ctx, cfg, a.log); err != nil {
		return err
	}
	a.log.Info("stopped")
	return nil
}

func (c *serveCmd) config(seeds []string) (node.Config, error) {
	cfg := node.Defaults()
	cfg.Version, cfg.Partitions, cfg.MinWorkers = version, c.Partitions, c.MinWorkers
	if cfg.Name = c.Name; cfg.Name == "" {
		host, err := os.Hostname()
		if err != nil {
			return cfg, fmt.Errorf("no --name given and no host name: %w", err)
		}
		cfg.Name = host
	}
	cfg.Router.Address, cfg.Router.DebugAddress = c.Listen, c.Pprof
	cfg.Router.AccessLog, cfg.Router.TraceIDHeader, cfg.Router.AccessLogLocalTime = c.AccessLog, c.TraceHeader, c.LocalTime
	cfg.Router.TestEndpoints, cfg.Router.Peers, cfg.Router.MaxConcurrentQueries = c.TestRoutes, c.Peers, c.MaxQueries
	cfg.Router.SilentAfter, cfg.Router.NoStreamMetrics = c.SilentAfter, !c.StreamStats
	cfg.Ingest = ingest.Config{
		Loops: c.Loops, HighWater: c.HighWater, MaxMessage: c.MaxMessage, ProbeAfter: c.ProbeAfter,
		ReplayTimeout: c.ReplayTimeout, RestartBackoff: c.RestartGap, RestartBackoffMax: c.RestartGapMax,
	}
	if cfg.Ingest.Loops == 0 {
		cfg.Ingest.Loops = max(1, runtime.GOMAXPROCS(0)/4)
	}
	if c.OnLoss == "keep" {
		cfg.Ingest.OnLoss = ingest.KeepOnLoss
	}
	cfg.ZMQ.IOThreads = c.IOThreads
	limit, err := parseSize(c.MemoryLimit)
	if err != nil {
		return cfg, fmt.Errorf("--memory-limit: %w", err)
	}
	cfg.Index = node.IndexConfig{Kind: c.Index, Lanes: c.Lanes, CPUs: c.CPUs, NUMANode: c.NUMANode, MemoryLimit: limit}
	for _, w := range c.Workers {
		r, err := c.worker(w)
		if err != nil {
			return cfg, err
		}
		if r.Instance != "" {
			cfg.Workers = append(cfg.Workers, r)
		}
	}
	if c.Data == "" && len(seeds) > 0 {
		c.Data = filepath.Join("kvcluster-data", cfg.Name)
	}
	if err := c.clusterFlags.apply(&cfg, seeds); err != nil {
		return cfg, err
	}
	return cfg, cfg.Validate()
}

// worker reads id[:rank]=address; blank entries are skipped, as Dynamo's indexer does.
func (c *serveCmd) worker(s string) (catalog.Registration, error) {
	if strings.TrimSpace(s) == "" {
		return catalog.Registration{}, nil
	}
	id, addr, ok := strings.Cut(s, "=")
	if !ok {
		return catalog.Registration{}, fmt.Errorf("--workers: %q is not id[:rank]=address", s)
	}
	if c.BlockSize == 0 {
		return catalog.Registration{}, fmt.Errorf("--workers needs --block-size")
	}
	id, rank, ranked := strings.Cut(strings.TrimSpace(id), ":")
	r := catalog.Registration{
		Instance: id, Group: catalog.GroupKey{Model: c.ModelName, RoutingGroup: c.RoutingGroup}, BlockSize: c.BlockSize, Endpoint: strings.TrimSpace(addr),
	}
	if ranked {
		n, err := strconv.ParseUint(rank, 10, 32)
		if err != nil {
			return r, fmt.Errorf("--workers: rank %q of worker %s is not a number", rank, id)
		}
		r.Rank = uint32(n)
	}
	if err := catalog.CheckEndpoint(r.Endpoint); err != nil {
		return r, fmt.Errorf("--workers: %w", err)
	}
	return r, nil
}

// parseSize reads a number of bytes with an optional K, M, G or T (powers of 1024).
func parseSize(s string) (uint64, error) {
	if s == "" {
		return 0, nil
	}
	shift := 0
	digits := strings.TrimSuffix(strings.TrimSuffix(strings.ToUpper(strings.TrimSpace(s)), "B"), "I")
	if n := len(digits); n > 0 {
		if i := strings.IndexByte("KMGT", digits[n-1]); i >= 0 {
			shift, digits = 10*(i+1), digits[:n-1]
		}
	}
	v, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || v > 1<<63>>shift {
		return 0, fmt.Errorf("%q is not a size like 512M or 24G", s)
	}
	return v << shift, nil
}

// writeFileAtomic makes the whole text appear at once, so that a waiting script never
// reads half of it.
func writeFileAtomic(path, text string) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".address-*")
	if err != nil {
		return err
	}
	if _, err = tmp.WriteString(text); err == nil {
		err = tmp.Close()
	}
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		os.Remove(tmp.Name())
	}
	return err
}
