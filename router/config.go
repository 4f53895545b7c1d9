package router

import (
	"errors"
	"fmt"
	"net"
	"runtime"
	"time"
)

// Body limits in bytes: what Dynamo's indexer accepts. 8 MiB fit a million tokens as
// JSON text.
const (
	MaxQueryBody = 8 << 20
	MaxBody      = 2 << 20
)

// Config is the configuration of a Router. The zero value of a field means its default.
type Config struct {
	// Address to serve on. Default 127.0.0.1:8090; 0.0.0.0:8090 serves everybody:
	// there is neither TLS nor authentication.
	Address string
	// DebugAddress serves pprof, on a loopback address only. "" = not at all.
	DebugAddress string
	// Time limits of a connection. ReadTimeout is for a whole request, WriteTimeout for
	// an answer (a dump renews it as long as the client reads), IdleTimeout between
	// requests. Defaults 5 s, 30 s, 60 s, 120 s.
	ReadHeaderTimeout, ReadTimeout, WriteTimeout, IdleTimeout time.Duration
	// MaxConcurrentQueries bounds the queries that are worked on at the same time, and so
	// the searchers kept; others wait up to QueueTimeout and are then refused with 503.
	// Defaults 4 x GOMAXPROCS, 1 s.
	MaxConcurrentQueries int
	QueueTimeout         time.Duration
	// MaxLargeBodies bounds the bodies above 256 KiB that are in memory at the same time,
	// about 12 MiB each at most; further ones wait like queries. Default 64.
	MaxLargeBodies int
	// SilentAfter is how long a registered stream may send nothing before it is called
	// out. Default 60 s.
	SilentAfter time.Duration
	// ShutdownTimeout is how long requests may run on after the end of Run's context.
	// Default 5 s.
	ShutdownTimeout time.Duration

	// AccessLog is the path of a JSON access log, "" = none. TraceIDHeader names the
	// request header copied into it, default x-trace-id.
	AccessLog          string
	TraceIDHeader      string
	AccessLogLocalTime bool

	// TestEndpoints mounts the two /test/ routes.
	TestEndpoints bool
	// Peers are the peers listed from the start.
	Peers []string
	// NoStreamMetrics leaves out the metrics labelled by instance and rank, for many
	// thousand streams.
	NoStreamMetrics bool

	// OnListen, when set, is called with the real address once the port is open.
	OnListen func(net.Addr)
}

func (c *Config) applyDefaults() {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&c.ReadHeaderTimeout, 5*time.Second)
	def(&c.ReadTimeout, 30*time.Second)
	def(&c.WriteTimeout, 60*time.Second)
	def(&c.IdleTimeout, 120*time.Second)
	def(&c.QueueTimeout, time.Second)
	def(&c.SilentAfter, time.Minute)
	def(&c.ShutdownTimeout, 5*time.Second)
	if c.Address == "" {
		c.Address = "127.0.0.1:8090"
	}
	if c.TraceIDHeader == "" {
		c.TraceIDHeader = "x-trace-id"
	}
	if c.MaxConcurrentQueries == 0 {
		c.MaxConcurrentQueries = 4 * runtime.GOMAXPROCS(0)
	}
	if c.MaxLargeBodies == 0 {
		c.MaxLargeBodies = 64
	}
}

// Validate reports everything that is wrong with the configuration.
func (c Config) Validate() error {
	c.applyDefaults()
	var errs []error
	if _, port, err := net.SplitHostPort(c.Address); err != nil {
		errs = append(errs, fmt.Errorf("address %q: %w", c.Address, err))
	} else if _, err := net.LookupPort("tcp", port); err != nil {
		errs = append(errs, fmt.Errorf("address %q: %q is no port", c.Address, port))
	}
	if c.DebugAddress != "" {
		host, _, err := net.SplitHostPort(c.DebugAddress)
		if err != nil {
			errs = append(errs, fmt.Errorf("debug address %q: %w", c.DebugAddress, err))
		} else if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			errs = append(errs, fmt.Errorf("debug address %q: host must be a loopback address", c.DebugAddress))
		}
	}
	for name, d := range map[string]time.Duration{
		"read header timeout": c.ReadHeaderTimeout, "read timeout": c.ReadTimeout, "write timeout": c.WriteTimeout,
		"idle timeout": c.IdleTimeout, "queue timeout": c.QueueTimeout, "silent after": c.SilentAfter,
		"shutdown timeout": c.ShutdownTimeout,
	} {
		if d < 0 {
			errs = append(errs, fmt.Errorf("%s is negative: %v", name, d))
		}
	}
	if c.MaxConcurrentQueries < 0 || c.MaxLargeBodies < 0 {
		errs = append(errs, fmt.Errorf("concurrent queries %d, large bodies %d: must not be negative", c.MaxConcurrentQueries, c.MaxLargeBodies))
	}
	return errors.Join(errs...)
}
