package link

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/kvcluster/kvcluster/transport"
)

// Errors, wrapped with operation and peer.
var (
	// ErrDown: there is no such session now; or, of a call, no way to the peer.
	ErrDown = errors.New("link is down")
	// ErrFull: what the peer has not applied exceeds Config.Retention. The session is
	// over with it.
	ErrFull = errors.New("link retains too much")
	// ErrPeer: not one of the peers that SetPeers named.
	ErrPeer = errors.New("unknown peer")
	// ErrTooLarge: longer than Config.MaxPayload.
	ErrTooLarge = errors.New("payload too large")
	// ErrClosed: the hub does not run.
	ErrClosed = errors.New("link hub is closed")
	// ErrRefused: the peer belongs to another cluster or speaks another version.
	ErrRefused = errors.New("refused by peer")
	// ErrBusy: the peer has as many calls of ours as it serves at once.
	ErrBusy = errors.New("too many calls")
	// ErrMethod: the peer has no such method.
	ErrMethod = errors.New("unknown method")
	// ErrConfig: a hub cannot be made from this configuration.
	ErrConfig = errors.New("invalid link configuration")
)

// Config of a Hub. Name, Cluster, Boot and Bind must be set; zero means the default
// elsewhere. Heartbeat and Timeout must be the same on all nodes of a cluster.
type Config struct {
	Name    string // of this node
	Cluster string // nodes of another one are refused
	Boot    uint64 // differs in every run of this node; not 0
	Bind    string // endpoint

	// Window is how many bytes of payload a sender may have sent us that we have not
	// acknowledged; 0 = 8 MiB: 10 Gb/s with acknowledgements 6 ms apart. One payload may
	// exceed it.
	Window int64
	// Retention is how many bytes are kept for a peer until it has applied them; 0 =
	// 64 MiB (a node that dies costs each of seven others about 14 MB during the
	// detection of its death, at 10 million blocks a second). RetentionAge bounds the
	// age of the oldest; 0 = 30 s. Beyond either the session is over.
	Retention    int64
	RetentionAge time.Duration
	// Heartbeat is how soon a sender speaks again when what it sent is not acknowledged,
	// and asks again for a session; 0 = 200 ms.
	Heartbeat time.Duration
	// Idle is how often both sides of a session speak when nothing is under way. A word
	// and its echo take twice that at most, so Timeout should be several times as long; 0 =
	// the longer of Heartbeat and a sixth of Timeout: 500 ms.
	Idle time.Duration
	// Timeout is how old the proof of a living sender may be until what its session
	// carries is no longer current; 0 = 3 s.
	Timeout time.Duration
	// Margin is added to Timeout where the other side counts it, for clocks that do not
	// run alike; 0 = a tenth of Timeout.
	Margin time.Duration
	// AckDelay is the least time between two acknowledgements of a session that go alone; 0 =
	// 2 ms. Those that ride on frames are not held back.
	AckDelay time.Duration
	// FlushDelay is the least time between two transmissions of new frames by the hub: what
	// is sent less than that after the last waits, and goes together. 0 = 1 ms.
	FlushDelay time.Duration
	// MaxPayload bounds a frame, a request and an answer in bytes; 0 = 16 MiB.
	MaxPayload int
	// CallsPerPeer is how many calls of one peer are served at once; 0 = 256.
	CallsPerPeer int
	// Errors are the sentinels that errors of calls may wrap, by a code that goes over
	// the wire. They must be the same on all nodes.
	Errors map[string]error
	// Logger; nil = slog.Default().
	Logger *slog.Logger

	broken mutant // for tests
}

// mutant switches off a rule, to see that the tests find it missing.
type mutant struct {
	duplicates  bool // deliver what was delivered before
	earlyAck    bool // acknowledge on delivery
	ignoreBoot  bool // take a session for known whatever its boot ids
	noResend    bool // do not answer requests for missing frames
	mixSessions bool // take frames of any session of the same two boots
	ownClock    bool // believe in a sender that was heard of, however old its word is
}

func (c Config) withDefaults() Config {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	if c.Window == 0 {
		c.Window = 8 << 20
	}
	if c.Retention == 0 {
		c.Retention = 64 << 20
	}
	set(&c.RetentionAge, 30*time.Second)
	set(&c.Heartbeat, 200*time.Millisecond)
	set(&c.Timeout, 3*time.Second)
	set(&c.Margin, c.Timeout/10)
	set(&c.Idle, max(c.Heartbeat, c.Timeout/6))
	set(&c.AckDelay, 2*time.Millisecond)
	set(&c.FlushDelay, time.Millisecond)
	if c.MaxPayload == 0 {
		c.MaxPayload = 16 << 20
	}
	if c.CallsPerPeer == 0 {
		c.CallsPerPeer = 256
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// Validate reports every field that cannot be used.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: %s", ErrConfig, fmt.Sprintf(format, args...)))
	}
	if err := transport.CheckNodeName(c.Name); err != nil {
		errs = append(errs, err)
	}
	if c.Cluster == "" || len(c.Cluster) > 255 {
		bad("Cluster has %d bytes, want 1 to 255", len(c.Cluster))
	}
	if c.Boot == 0 {
		bad("Boot is 0")
	}
	if c.Window < 0 || c.Retention < 0 || c.RetentionAge < 0 || c.Heartbeat < 0 || c.Timeout < 0 || c.Margin < 0 || c.Idle < 0 || c.AckDelay < 0 || c.FlushDelay < 0 || c.CallsPerPeer < 0 {
		bad("negative limit or time")
	}
	if c.MaxPayload < 0 || c.MaxPayload > math.MaxInt32 {
		bad("MaxPayload %d", c.MaxPayload)
	}
	d := c.withDefaults()
	if d.Timeout < 2*d.Heartbeat {
		bad("Timeout %v must be at least two heartbeats of %v", d.Timeout, d.Heartbeat)
	}
	if d.Timeout < 2*d.Idle {
		bad("Timeout %v must be at least twice Idle, which is %v", d.Timeout, d.Idle)
	}
	if int64(d.MaxPayload)+retainedOverhead > d.Retention {
		bad("MaxPayload %d does not fit into Retention %d", d.MaxPayload, d.Retention)
	}
	for code, err := range c.Errors {
		if code == "" || len(code) > 255 || err == nil || builtinCodes[code] != nil {
			bad("error code %q for %v", code, err)
		}
	}
	return errors.Join(errs...)
}

// builtinCodes are the errors of calls that every hub knows.
var builtinCodes = map[string]error{
	"deadline": context.DeadlineExceeded,
	"canceled": context.Canceled,
	"method":   ErrMethod,
	"busy":     ErrBusy,
	"large":    ErrTooLarge,
	"closed":   ErrClosed,
}
