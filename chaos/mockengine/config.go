package mockengine

import (
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/url"
	"time"

	"github.com/kvcluster/kvcluster/chaos/driver"
	"github.com/kvcluster/kvcluster/chaos/trace"
)

// HashMode says how engine hashes are made.
type HashMode string

// The hash modes.
const (
	// HashEngine computes the engines' own digests (SHA-256 chains).
	HashEngine HashMode = "engine"
	// HashFast derives 64-bit names from the path: for large fleets and page size 1.
	HashFast HashMode = "fast"
)

// Config describes a fleet. SetDefaults fills in what is left at zero.
type Config struct {
	// Workers is the number of instances, Ranks the data-parallel ranks of each
	// (default 1); every (instance, rank) is a publisher with a cache of its own.
	Workers, Ranks int
	// Formats are given to the publishers in turn; default vllm-map.
	Formats []Format

	// Trace is the traffic; when nil, one is generated as Generate says.
	Trace    *trace.Trace
	Generate trace.GenerateConfig
	// Repeat plays the trace so many times (default 1); -1 = until the context ends.
	Repeat int
	// Driver spreads the requests; its Workers is set to Workers x Ranks.
	Driver driver.Config

	BlockSize    int // tokens per block or page, default 16; 1 is allowed
	Capacity     int // device blocks of one publisher, default 16,384
	HostCapacity int // host blocks of one publisher, 0 = no host tier
	// AnnounceCopies stores and removes every physical copy of a block, as vLLM does,
	// instead of only the first and the last: a store of what is stored already is
	// then one more copy.
	AnnounceCopies bool
	// SingleRemovals sends one removal event for each evicted block, as vLLM does,
	// instead of one for all blocks that one admission evicts.
	SingleRemovals bool
	Hash           HashMode // default HashEngine

	// Speedup plays that many seconds of trace time in one second; 0 = as fast as
	// MaxBatchRate and MaxBlockRate allow.
	Speedup float64
	// MaxBatchRate bounds the batches of one publisher in a second; default 2,000, so
	// that the send high-water mark (100,000 batches by default) lasts for 50 s of a
	// subscriber that does not read. MaxBlockRate bounds the blocks stored and removed
	// by the whole fleet; 0 = no bound.
	MaxBatchRate, MaxBlockRate float64

	PrefillRate  float64       // tokens in a second of trace time, default 20,000
	DecodeRate   float64       // tokens in a second for each request, default 50
	PrefillChunk int           // tokens of one prefill step; 0 = a whole prompt
	Step         time.Duration // scheduler step in trace time: one batch at most; default 20 ms

	// Host is the interface to bind to (default 127.0.0.1), Advertise the host that
	// is registered (default Host). BasePort is the PUB port of the first publisher;
	// the next ones follow, then the replay ports. 0 = chosen by the system.
	Host, Advertise string
	BasePort        int
	// Endpoint and ReplayEndpoint replace Host and BasePort for a single publisher.
	Endpoint, ReplayEndpoint string
	// Connect dials Endpoint instead of binding it: all publishers push to one
	// subscriber that binds.
	Connect  bool
	NoReplay bool // no replay socket
	// Topic of every message; {instance}, {rank} and {model} are replaced, so that
	// publishers that push to one subscriber can be told apart.
	Topic     string
	Buffer    int // batches kept for replay, default 10,000
	HighWater int // send high-water mark, default 100,000

	// Register is the base URL of a kvcluster node (http://127.0.0.1:8090), empty =
	// no registration. Unregister says goodbye at the end.
	Register      string
	Unregister    bool
	FirstInstance uint64 // id of the first instance, default 1
	Model         string // default "default"
	RoutingGroup  string // default "default"
	// Settle is the pause between registration and the first batch, so that the
	// subscriber is connected; default 500 ms with Register, else 0.
	Settle time.Duration
	// RegisterTimeout bounds the attempts to reach the node; default 30 s.
	RegisterTimeout time.Duration

	// Stay keeps the sockets open, answering replays, after the trace has ended.
	Stay   bool
	Faults []Fault

	// Sink receives every event that was published, or lost on purpose; nil = none.
	Sink Sink
	// Recorder is told of every request that a worker has taken; nil = none.
	Recorder *driver.Recorder
	Logger   *slog.Logger // default: discard

	// NewEncoder and NewHasher replace the engines' encodings and digests; nil = the
	// real ones.
	NewEncoder func(Format) (Encoder, error)
	NewHasher  func(Format) (Hasher, error)
}

// SetDefaults fills in what was left at zero.
func (c *Config) SetDefaults() {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.Workers, 1)
	def(&c.Ranks, 1)
	def(&c.Repeat, 1)
	def(&c.BlockSize, 16)
	def(&c.Capacity, 16384)
	def(&c.Buffer, 10000)
	def(&c.HighWater, 100000)
	if len(c.Formats) == 0 {
		c.Formats = []Format{VLLMMap}
	}
	if c.Trace == nil && c.Generate == (trace.GenerateConfig{}) {
		c.Generate = trace.DefaultGenerate(1000)
	}
	c.Driver.Workers = c.Workers * c.Ranks
	c.Driver.SetDefaults()
	if c.Hash == "" {
		c.Hash = HashEngine
	}
	if c.MaxBatchRate == 0 {
		c.MaxBatchRate = 2000
	}
	if c.PrefillRate == 0 {
		c.PrefillRate = 20000
	}
	if c.DecodeRate == 0 {
		c.DecodeRate = 50
	}
	if c.Step == 0 {
		c.Step = 20 * time.Millisecond
	}
	if c.Host == "" {
		c.Host = "127.0.0.1"
	}
	if c.Advertise == "" {
		c.Advertise = c.Host
	}
	if c.FirstInstance == 0 {
		c.FirstInstance = 1
	}
	if c.Model == "" {
		c.Model = "default"
	}
	if c.RoutingGroup == "" {
		c.RoutingGroup = "default"
	}
	if c.Settle == 0 && c.Register != "" {
		c.Settle = 500 * time.Millisecond
	}
	if c.RegisterTimeout == 0 {
		c.RegisterTimeout = 30 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.NewEncoder == nil {
		c.NewEncoder = newEncoder
	}
	if c.NewHasher == nil {
		c.NewHasher = newHasher
	}
}

// Validate names the first value that cannot be used. It expects the defaults to
// be filled in.
func (c *Config) Validate() error {
	bad := func(what string, v any, want string) error {
		return fmt.Errorf("%w: %s is %v, want %s", ErrConfig, what, v, want)
	}
	publishers := c.Workers * c.Ranks
	switch {
	case c.Workers < 1 || c.Workers > 100000:
		return bad("number of workers", c.Workers, "1 to 100000")
	case c.Ranks < 1 || c.Ranks > 1024:
		return bad("number of ranks", c.Ranks, "1 to 1024")
	case c.Repeat < -1:
		return bad("repeat", c.Repeat, "-1 (for ever) or at least 1")
	case c.BlockSize < 1 || c.BlockSize > 1<<16:
		return bad("block size", c.BlockSize, "1 to 65536")
	case c.Capacity < 1 || c.Capacity > 1<<30:
		return bad("capacity", c.Capacity, "1 to 2^30 blocks")
	case c.HostCapacity < 0 || c.HostCapacity > 1<<30:
		return bad("host capacity", c.HostCapacity, "0 to 2^30 blocks")
	case c.Hash != HashEngine && c.Hash != HashFast:
		return bad("hash mode", c.Hash, string(HashEngine)+" or "+string(HashFast))
	case !(c.Speedup >= 0) || math.IsInf(c.Speedup, 0):
		return bad("speed-up", c.Speedup, "0 (as fast as possible) or more")
	case !(c.MaxBatchRate > 0):
		return bad("batch rate", c.MaxBatchRate, "more than 0")
	case !(c.MaxBlockRate >= 0):
		return bad("block rate", c.MaxBlockRate, "0 (no bound) or more")
	case !(c.PrefillRate > 0):
		return bad("prefill rate", c.PrefillRate, "more than 0 tokens/s")
	case !(c.DecodeRate > 0):
		return bad("decode rate", c.DecodeRate, "more than 0 tokens/s")
	case c.PrefillChunk < 0:
		return bad("prefill chunk", c.PrefillChunk, "0 (whole prompt) or more tokens")
	case c.Step <= 0:
		return bad("step", c.Step, "more than 0")
	case c.BasePort < 0 || c.BasePort > 65535:
		return bad("base port", c.BasePort, "0 to 65535")
	case c.BasePort > 0 && c.BasePort+2*publishers-1 > 65535:
		return bad("base port", c.BasePort, fmt.Sprintf("room for %d ports below 65536", 2*publishers))
	case c.Endpoint != "" && publishers > 1 && !c.Connect:
		return bad("endpoint", c.Endpoint, fmt.Sprintf("none with %d publishers (use a base port, or connect)", publishers))
	case c.ReplayEndpoint != "" && publishers > 1:
		return bad("replay endpoint", c.ReplayEndpoint, fmt.Sprintf("none with %d publishers", publishers))
	case c.Connect && c.Endpoint == "":
		return bad("endpoint", "empty", "the address to connect to")
	case c.Buffer < 1:
		return bad("replay buffer", c.Buffer, "at least 1 batch")
	case c.HighWater < 1:
		return bad("high-water mark", c.HighWater, "at least 1 batch")
	case c.Register != "" && (c.Advertise == "*" || c.Advertise == "0.0.0.0" || c.Advertise == "::"):
		return bad("advertised host", c.Advertise, "a host that others can connect to")
	case c.Register != "" && c.Connect:
		return bad("register", c.Register, "empty when the publishers connect")
	}
	if c.Register != "" {
		u, err := url.Parse(c.Register)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return bad("register URL", c.Register, "http://host:port")
		}
	}
	for _, f := range c.Formats {
		if _, err := profileOf(f); err != nil {
			return err
		}
	}
	if c.Trace == nil {
		if err := c.Generate.Validate(); err != nil {
			return err
		}
	} else if len(c.Trace.Requests) == 0 {
		return bad("trace", "empty", "at least one request")
	}
	if err := c.Driver.Validate(); err != nil {
		return err
	}
	for _, f := range c.Faults {
		if err := f.validate(publishers); err != nil {
			return err
		}
	}
	return nil
}

// endpoints returns the PUB and replay addresses of publisher i.
func (c *Config) endpoints(i int) (pub, replay string) {
	publishers := c.Workers * c.Ranks
	at := func(port int) string {
		return "tcp://" + net.JoinHostPort(c.Host, fmt.Sprint(port))
	}
	port, replayPort := 0, 0
	if c.BasePort > 0 {
		port, replayPort = c.BasePort+i, c.BasePort+publishers+i
	}
	pub, replay = at(port), at(replayPort)
	if c.Endpoint != "" {
		pub = c.Endpoint
	}
	if c.ReplayEndpoint != "" {
		replay = c.ReplayEndpoint
	}
	if c.NoReplay {
		replay = ""
	}
	return pub, replay
}
