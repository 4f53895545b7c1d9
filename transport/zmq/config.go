package zmq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"time"
)

// Socket options that nothing needs to change. The first five are what Dynamo's
// listener uses (reference: ai-dynamo/dynamo lib/llm, 2026).
const (
	reconnectMin      = 100 * time.Millisecond
	reconnectMax      = 5 * time.Second
	heartbeatInterval = 5 * time.Second
	heartbeatTimeout  = 15 * time.Second
	heartbeatTTL      = 15 * time.Second

	// defaultReceiveHighWater holds a burst of the largest fleet; libzmq's 1,000
	// loses batches.
	defaultReceiveHighWater = 200_000
	defaultMaxMessage       = 64 << 20
	// vLLM's own defaults.
	defaultSendHighWater = 100_000
	defaultReplayBuffer  = 10_000

	publisherLinger = time.Second
)

// maxSockets is what libzmq accepts at most (its slots are numbered in 16 bits).
const maxSockets = 65_535

// Config of a Network. The zero value is usable.
type Config struct {
	// IOThreads is the number of libzmq's I/O threads. One moves about a gigabyte a
	// second; 0 = a quarter of GOMAXPROCS, at least 1 and at most 8.
	IOThreads int
	// MaxSockets bounds the sockets of the network; 0 = 65,535, which is also the
	// largest value. A subscription with its monitor takes three.
	MaxSockets int
	// PublisherLoops is the number of threads that serve all publishers; 0 = 1.
	PublisherLoops int
	// Resolve finds the IPv4 addresses of a host; nil = the system's name service. It
	// is called from goroutines of its own and must return when ctx is done.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)
	// Logger; nil = slog.Default().
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	if c.IOThreads == 0 {
		c.IOThreads = min(max(runtime.GOMAXPROCS(0)/4, 1), 8)
	}
	if c.MaxSockets == 0 {
		c.MaxSockets = maxSockets
	}
	if c.PublisherLoops == 0 {
		c.PublisherLoops = 1
	}
	if c.Resolve == nil {
		// The resolver of libc cannot be interrupted, so it would outlive its loop.
		resolver := &net.Resolver{PreferGo: true}
		c.Resolve = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return resolver.LookupNetIP(ctx, "ip4", host)
		}
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// Validate reports every field that cannot be used.
func (c Config) Validate() error {
	var errs []error
	check := func(name string, v, low, high int) {
		if v != 0 && (v < low || v > high) {
			errs = append(errs, fmt.Errorf("zmq config: %s is %d, must be between %d and %d", name, v, low, high))
		}
	}
	check("IOThreads", c.IOThreads, 1, 128)
	check("MaxSockets", c.MaxSockets, 16, maxSockets)
	check("PublisherLoops", c.PublisherLoops, 1, 128)
	return errors.Join(errs...)
}
