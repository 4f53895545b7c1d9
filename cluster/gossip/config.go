package gossip

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"time"

	"github.com/hashicorp/memberlist"
)

// Config of a Gossip. Zero means the default.
type Config struct {
	// Meta is what this node says about itself; Name, ServerID and Boot must be set.
	Meta Meta
	// Bind is the host:port to listen at, with TCP and UDP. The host is an address or
	// resolves to one of this machine; port 0 takes any. Default "0.0.0.0:7946".
	Bind string
	// Advertise is the host:port (or host) that others reach this node at. Default the
	// address bound; for 0.0.0.0 a private address of this machine.
	Advertise string
	// Label keeps clusters apart that could reach each other: nodes of another label
	// are not heard. It is sent in clear. At most 64 bytes. Default "kvcluster".
	Label string
	// Key encrypts and authenticates everything (AES-GCM): 16, 24 or 32 bytes, the same
	// on all nodes. Empty: in clear.
	Key []byte
	// Seeds are addresses (host:port) to join, again and again while there is nobody
	// alive at them. A name may stand for several addresses.
	Seeds []string
	// Rejoin is how often seeds and known nodes that are not alive are tried. memberlist
	// forgets the dead, so that the two sides of a long cut would stay apart without it.
	// Default 5 s.
	Rejoin time.Duration
	// Probe is the beat of the failure detector, and decides how soon a death is seen:
	// see Detection. Default 400 ms.
	Probe time.Duration
	// ProbeTimeout is how long a probe waits for its direct answer before others are
	// asked to probe too. Default two fifths of Probe.
	ProbeTimeout time.Duration
	// Coalesce is how long a burst of changes may grow before Changed tells. Default
	// 50 ms.
	Coalesce time.Duration
	// MaxSkew is how far the clocks of two nodes may be apart at Join. Default 10 s.
	MaxSkew time.Duration
	// DialTimeout bounds one attempt to reach a node. Default 2 s.
	DialTimeout time.Duration
	Logger      *slog.Logger

	// Transport replaces sockets, for tests and simulations; Bind is not used then.
	Transport memberlist.Transport
	// Resolve replaces the resolver of the system.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)
	// Clock replaces the clock of the wall.
	Clock func() time.Time
}

// DefaultPort is the port of addresses that have none.
const DefaultPort = 7946

// defaultProbe is the beat of a LAN: a death is seen in two to three seconds, and a node
// that stands still for one is not taken for dead.
const defaultProbe = 400 * time.Millisecond

// suspicionMult is memberlist's factor between a failed probe and the verdict, in beats:
// the time in which a node that is only slow, or whose answer was lost, may object. Two is
// the largest for which memberlist waits for no second witness; with three, it waits twice
// as long for one that a cluster of two nodes does not have (measured: 2.7 s instead of
// 1.5 s, because runs that died a moment ago are counted as witnesses).
const suspicionMult = 2

// retransmitMult is how often news are passed on by each node, times the number of
// decimal digits of the cluster. memberlist's default of 4 leaves somebody in five nodes
// uninformed until the next exchange in about one of 200 cases.
const retransmitMult = 8

// deadBeats is how long memberlist remembers the dead and tells them of their death, so
// that they can object. Behind it, the retries of Run take over.
const deadBeats = 25

func (c *Config) applyDefaults() {
	setDefault(&c.Bind, fmt.Sprintf("0.0.0.0:%d", DefaultPort))
	setDefault(&c.Label, "kvcluster")
	setDefault(&c.Rejoin, 5*time.Second)
	setDefault(&c.Probe, defaultProbe)
	setDefault(&c.ProbeTimeout, c.Probe*2/5)
	setDefault(&c.Coalesce, 50*time.Millisecond)
	setDefault(&c.MaxSkew, 10*time.Second)
	setDefault(&c.DialTimeout, 2*time.Second)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Clock == nil {
		c.Clock = time.Now
	}
	if c.Resolve == nil {
		c.Resolve = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}
	if c.Meta.Started == 0 {
		c.Meta.Started = c.Clock().UnixMilli()
	}
}

func setDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// Validate reports what makes no sense. Zero values are defaults and fine.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("gossip: "+format, args...)) }
	if c.Meta.Name == "" || c.Meta.ServerID == "" || c.Meta.Boot == 0 {
		bad("name, server id and boot must be set: %q, %q, %d", c.Meta.Name, c.Meta.ServerID, c.Meta.Boot)
	}
	if c.Meta.Protocol < 0 || c.Meta.Weight < 0 || math.IsNaN(c.Meta.Weight) || math.IsInf(c.Meta.Weight, 0) {
		bad("protocol %d, weight %v", c.Meta.Protocol, c.Meta.Weight)
	}
	if _, err := c.Meta.Pack(); err != nil {
		errs = append(errs, err)
	}
	switch len(c.Key) {
	case 0, 16, 24, 32:
	default:
		bad("the key has %d bytes; it must have 16, 24 or 32", len(c.Key))
	}
	if len(c.Label) > maxLabel {
		bad("the label has %d bytes; at most %d", len(c.Label), maxLabel)
	}
	for name, d := range map[string]time.Duration{"rejoin": c.Rejoin, "probe": c.Probe, "probe timeout": c.ProbeTimeout,
		"coalesce": c.Coalesce, "max skew": c.MaxSkew, "dial timeout": c.DialTimeout} {
		if d < 0 {
			bad("%s is negative: %v", name, d)
		}
	}
	if c.Probe > 0 && c.ProbeTimeout >= c.Probe {
		bad("the probe timeout %v must be shorter than the probe interval %v", c.ProbeTimeout, c.Probe)
	}
	return errors.Join(errs...)
}

// Detection returns how long it takes until a node that has died without a word is seen
// dead by all, in a cluster of that many nodes with the given beat: usually, and at most
// when the others are well (each point of Health makes a witness's probe a beat longer).
//
//	the first probe that fails begins    (n-1)/n beats later on average: every node probes one other per
//	                                     beat, all of them in turn; nearly always within 4
//	the probe is given up                1 beat
//	objections are heard                 2 beats x max(1, log10 n)
//	the verdict goes round               a third of a beat; nearly always within 1
//
// That is 1.7 s and 3.2 s for five nodes and the default beat. Nodes that died less than
// deadBeats ago count as nodes.
func Detection(nodes int, beat time.Duration) (usual, atMost time.Duration) {
	n := max(2, float64(nodes))
	objections := suspicionMult * max(1, math.Log10(n))
	beats := func(b float64) time.Duration { return time.Duration(b * float64(beat)) }
	return beats((n-1)/n + 1 + objections + 1./3), beats(min(4, 2*n-3) + 1 + objections + 1)
}

// memberlist returns the configuration of memberlist. Times that are not named in
// Config keep their proportion to the beat.
func (c Config) memberlist() *memberlist.Config {
	m := memberlist.DefaultLANConfig()
	m.Label, m.SecretKey = c.Label, c.Key
	m.ProbeInterval, m.ProbeTimeout = c.Probe, c.ProbeTimeout
	m.SuspicionMult, m.SuspicionMaxTimeoutMult = suspicionMult, 1
	m.RetransmitMult = retransmitMult
	m.GossipInterval = c.Probe / 3
	m.GossipToTheDeadTime = deadBeats * c.Probe
	m.PushPullInterval = 25 * c.Probe
	// Messages are small, and each compressor takes more memory than a thousand of them.
	m.EnableCompression = false
	m.TCPTimeout = c.DialTimeout
	// Names hold the boot, so a name at another address is never the next run of a node.
	m.DeadNodeReclaimTime = 0
	return m
}
