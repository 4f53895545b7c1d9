package gossip

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// Gossip is this node's part in the gossip. Its methods may be called from any
// goroutine.
type Gossip struct {
	cfg   Config
	log   *throttle
	table *table
	wake  chan struct{} // Meta is to be told; capacity 1

	mu struct {
		sync.Mutex
		list    *memberlist.Memberlist // nil before Start
		wire    *mux
		closed  bool
		left    bool
		meta    Meta
		cluster string // of this node: its Meta's, or that of the first node it joined
		address string
		seeds   []string
		rivals  []Peer // confirmed, see Conflicts
	}
	stats stats
}

// New returns a Gossip that does nothing before Start. It fails where Validate does.
func New(cfg Config) (*Gossip, error) {
	cfg.applyDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	log := newThrottle(cfg.Logger.With("component", "gossip", "node", cfg.Meta.Name))
	g := &Gossip{cfg: cfg, log: log, wake: make(chan struct{}, 1)}
	g.table = newTable(g.nodeName())
	g.mu.meta, g.mu.cluster, g.mu.seeds = cfg.Meta, cfg.Meta.ClusterID, append([]string(nil), cfg.Seeds...)
	// Whoever waits at the port is answered as soon as it is open.
	g.table.setMeta(g.mu.meta, g.mu.cluster)
	return g, nil
}

// nodeName is memberlist's name for this run of this node.
func (g *Gossip) nodeName() string { return nodeName(g.cfg.Meta) }

func nodeName(m Meta) string { return m.ServerID + "@" + strconv.FormatUint(m.Boot, 16) }

// Start listens and answers. It knows nobody before Join, or before Run has reached a
// seed. Errors are ErrBind and ErrTooLong. After it, Run or Close must be called.
func (g *Gossip) Start() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mu.closed || g.mu.list != nil {
		return fmt.Errorf("start gossip: %w", errors.Join(ErrStopped, errors.New("it was started before")))
	}
	transport, ip, port, err := g.cfg.listen(log.New(g.log, "", 0))
	if err != nil {
		return err
	}
	m := newMux(transport, g.cfg.DialTimeout, g.answer)
	mc := g.cfg.memberlist()
	mc.Name, mc.Transport = g.nodeName(), m
	mc.AdvertiseAddr, mc.AdvertisePort = ip, port
	mc.Logger = log.New(g.log, "", 0)
	d := &delegate{g}
	mc.Delegate, mc.Events, mc.Alive = d, d, d
	// Create calls back, under no lock of ours but this one: callbacks do not take it.
	list, err := memberlist.Create(mc)
	if err != nil {
		_ = m.Shutdown()
		return fault(ErrBind, "The gossip address cannot be used: %v. Check the bind and the advertise address.", err)
	}
	g.mu.list, g.mu.wire, g.mu.address = list, m, list.LocalNode().Address()
	return nil
}

// Run keeps the gossip going until ctx ends: it tells about changes, tries seeds and
// lost nodes again, and stops memberlist at the end. memberlist's last probe may outlive
// it by as many beats as Health says, plus one.
func (g *Gossip) Run(ctx context.Context) error {
	if _, err := g.running(); err != nil {
		return err
	}
	var wg sync.WaitGroup
	for _, loop := range []func(context.Context){g.tellChanges, g.tellMeta, g.rejoin} {
		wg.Go(func() { loop(ctx) })
	}
	wg.Wait()
	return errors.Join(ctx.Err(), g.Close())
}

// Close stops memberlist without a word to the others; see Leave. It may be called more
// than once.
func (g *Gossip) Close() error {
	g.mu.Lock()
	list, closed := g.mu.list, g.mu.closed
	g.mu.closed = true
	g.mu.Unlock()
	if list == nil || closed {
		return nil
	}
	if err := list.Shutdown(); err != nil {
		return fmt.Errorf("stop gossip: %w", err)
	}
	return nil
}

func (g *Gossip) running() (*memberlist.Memberlist, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mu.list == nil || g.mu.closed {
		return nil, ErrStopped
	}
	return g.mu.list, nil
}

// Address returns the host:port that this node tells others; empty before Start.
func (g *Gossip) Address() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mu.address
}

// Meta returns what this node says about itself.
func (g *Gossip) Meta() Meta {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mu.meta
}

// SetMeta changes what this node says about itself. Name, ServerID, Boot and Started
// stay as they are. It fails with ErrTooLong and does not wait for the others to hear.
func (g *Gossip) SetMeta(m Meta) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	old := g.mu.meta
	m.Name, m.ServerID, m.Boot, m.Started = old.Name, old.ServerID, old.Boot, old.Started
	if _, err := m.Pack(); err != nil {
		return err
	}
	if m == old {
		return nil
	}
	g.mu.meta = m
	if m.ClusterID != "" {
		g.mu.cluster = m.ClusterID
	}
	g.table.setMeta(m, g.mu.cluster)
	select {
	case g.wake <- struct{}{}:
	default:
	}
	return nil
}

// SetSeeds replaces the seeds that Run tries.
func (g *Gossip) SetSeeds(addrs []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.seeds = append([]string(nil), addrs...)
}

// tellMeta hands a changed Meta to memberlist.
func (g *Gossip) tellMeta(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.wake:
		}
		g.mu.Lock()
		list, quiet := g.mu.list, g.mu.closed || g.mu.left
		g.mu.Unlock()
		if quiet {
			continue // memberlist may have forgotten this node already
		}
		// The time-out is only about how long this waits: the change is queued in any case.
		if err := list.UpdateNode(g.cfg.DialTimeout); err != nil {
			g.log.tell(slog.LevelDebug, "update", "a change of this node's own data goes round slowly", "err", err)
		}
	}
}

// Leave tells the others that this node stops, so that they need not find out. It waits
// until one of them has it, at most for the time-out (more than 0). Run goes on until
// its context ends, but joins nobody any more.
func (g *Gossip) Leave(timeout time.Duration) error {
	g.mu.Lock()
	list, done := g.mu.list, g.mu.closed || g.mu.left
	g.mu.left = true
	g.mu.Unlock()
	if list == nil || done {
		return nil
	}
	if err := list.Leave(max(timeout, time.Millisecond)); err != nil {
		return fmt.Errorf("leave gossip: %w", err)
	}
	return nil
}

// Health is memberlist's awareness score: 0 is good, and each point means that this node
// was late for its own probes or had to object to a suspicion, and makes its probes a
// beat longer. Above 0 for long, the node has too little CPU or a bad network.
func (g *Gossip) Health() int {
	list, err := g.running()
	if err != nil {
		return 0
	}
	return list.GetHealthScore()
}

// Detection returns how long a death stays unseen in the cluster as it is now; see the
// function Detection.
func (g *Gossip) Detection() (usual, atMost time.Duration) {
	return Detection(g.table.counted(deadBeats*g.cfg.Probe), g.cfg.Probe)
}
