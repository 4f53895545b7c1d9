package memory

import (
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/kvcluster/kvcluster/transport"
)

// Config of a Network. Zero values mean the defaults.
type Config struct {
	// Reconnect is how long after a loss, or after an address was bound, a waiting
	// socket connects; 0 = 100 ms, the first step of the real one.
	Reconnect time.Duration
	// Heartbeat is how long a frozen connection lives; 0 = 15 s. The real one takes 15
	// to 20 s: the time to the next heartbeat comes first.
	Heartbeat time.Duration
	// SubscribeDelay is how long after OnConnect a subscription reaches the
	// publisher: what is published meanwhile is missed. 0 = at once.
	SubscribeDelay time.Duration
}

func (c Config) withDefaults() Config {
	if c.Reconnect <= 0 {
		c.Reconnect = 100 * time.Millisecond
	}
	if c.Heartbeat <= 0 {
		c.Heartbeat = 15 * time.Second
	}
	return c
}

// Network implements transport.Network. Safe for concurrent use.
type Network struct {
	cfg    Config
	meshes meshes

	mu struct {
		sync.Mutex
		addresses map[string]*address
		numbers   int // given out for wildcards
	}
}

var _ transport.Network = (*Network)(nil)

// New returns an empty network.
func New(cfg Config) *Network {
	n := &Network{cfg: cfg.withDefaults()}
	n.mu.addresses = map[string]*address{}
	return n
}

// address is a name with everything that has to do with it. It is never removed:
// faults can be set before anything is bound.
type address struct {
	name    string
	bound   *end   // nil when free
	dialers []*end // in the order in which they came
	conns   []*conn
	faults  faults
}

func (n *Network) addressLocked(name string) *address {
	a := n.mu.addresses[name]
	if a == nil {
		a = &address{name: name}
		n.mu.addresses[name] = a
	}
	return a
}

// checkName checks an endpoint as far as a name can be wrong.
func checkName(name string, bind bool) error {
	switch {
	case name == "" || strings.HasSuffix(name, "://"):
		return fmt.Errorf("%w %q: empty", transport.ErrEndpoint, name)
	case strings.ContainsFunc(name, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }):
		return fmt.Errorf("%w %q: blank or control character", transport.ErrEndpoint, name)
	case !bind && wildcard(name) != "":
		return fmt.Errorf("%w %q: a wildcard can only be bound", transport.ErrEndpoint, name)
	}
	return nil
}

// wildcard returns the part of the name that a number takes the place of.
func wildcard(name string) string {
	if strings.HasSuffix(name, ":0") {
		return "0"
	}
	if strings.HasSuffix(name, "*") {
		return "*"
	}
	return ""
}

// bindLocked makes e the owner of an address.
func (n *Network) bindLocked(name string, e *end) error {
	if w := wildcard(name); w != "" {
		n.mu.numbers++
		// Above the ports that people write by hand.
		name = fmt.Sprintf("%s%d", strings.TrimSuffix(name, w), 100_000+n.mu.numbers)
	}
	a := n.addressLocked(name)
	if a.bound != nil {
		return fmt.Errorf("bind %s: %w", name, transport.ErrAddressInUse)
	}
	a.bound, e.at = e, a
	for _, d := range a.dialers {
		n.dialLaterLocked(d)
	}
	return nil
}

// connectLocked makes e connect to an address now, or when there is a peer.
func (n *Network) connectLocked(name string, e *end) {
	a := n.addressLocked(name)
	e.at, e.dialer = a, true
	a.dialers = append(a.dialers, e)
	n.dialLocked(e)
}

// NewLoop implements transport.Network.
func (n *Network) NewLoop(name string) (transport.Loop, error) {
	return newLoop(n, name), nil
}
