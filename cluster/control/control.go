package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvcluster/kvcluster/cluster/gossip"
	"github.com/kvcluster/kvcluster/cluster/plan"
	"github.com/kvcluster/kvcluster/cluster/raftlog"
	"github.com/kvcluster/kvcluster/cluster/state"
)

// Control is one node's part in the running of the cluster. Its exported methods may be
// called from any goroutine, also before Run.
type Control struct {
	cfg     Config
	deps    Deps
	log     *slog.Logger
	view    atomic.Pointer[state.View]
	wake    chan struct{} // of one: something has changed
	removed chan struct{} // closed when this process is no member any more
	leaving atomic.Bool   // it was, when it last was a member, one that leaves
	tracker *tracker
	leader  leading   // what only the goroutine of Run looks at
	asked   time.Time // likewise: when this node was last led, or asked why it is not
	mu      struct {
		sync.Mutex
		health  map[string]plan.Health
		refused map[string]string // by server id: why this leader does not take it in
		answer  string            // why this node is not taken in
		changed chan struct{}     // closed with the next view or answer
	}
}

// New returns a Control that does nothing until Run, except that it answers calls.
func New(cfg Config, deps Deps) (*Control, error) {
	cfg.applyDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if deps.Log == nil || deps.Gossip == nil || deps.Calls == nil {
		return nil, errors.New("control: log, gossip and calls are required")
	}
	if deps.LowSpace == nil {
		deps.LowSpace = func() bool { return false }
	}
	if deps.Weights == nil {
		deps.Weights = func() []float64 { return nil }
	}
	c := &Control{
		cfg: cfg, deps: deps, log: cfg.Logger.With("component", "control"),
		wake: make(chan struct{}, 1), removed: make(chan struct{}),
		tracker: newTracker(cfg, time.Now()), asked: time.Now(),
	}
	c.mu.changed = make(chan struct{})
	deps.Log.Subscribe(c.onView)
	deps.Calls.Handle(methodReadIndex, c.serveReadIndex)
	deps.Calls.Handle(methodStatus, c.serveStatus)
	deps.Calls.Handle(methodWhy, c.serveWhy)
	deps.Calls.Handle(methodVotes, c.serveVotes)
	return c, nil
}

// onView is called by the log with every new view.
func (c *Control) onView(v *state.View) {
	c.view.Store(v)
	if m, ok := v.Member(c.cfg.Self.Name); ok && m.ServerID == c.cfg.Self.ServerID {
		c.leaving.Store(m.Phase == state.Leaving)
	}
	if v.WasRemoved(c.cfg.Self.ServerID, c.cfg.Self.Boot) {
		c.noteRemoved()
	}
	c.notify()
	c.poke()
}

// poke wakes Run.
func (c *Control) poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// notify wakes those who wait for a view or an answer.
func (c *Control) notify() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.mu.changed)
	c.mu.changed = make(chan struct{})
}

func (c *Control) changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.changed
}

func (c *Control) noteRemoved() {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.removed:
	default:
		close(c.removed)
	}
}

// Removed is closed when this process has been removed from the cluster: it must stop
// serving.
func (c *Control) Removed() <-chan struct{} { return c.removed }

// View returns the state as this node has applied it.
func (c *Control) View() *state.View { return c.view.Load() }

// Subscribe implements cluster.Log.
func (c *Control) Subscribe(fn func(*state.View)) { c.deps.Log.Subscribe(fn) }

// gather is how long Run lets changes pile up before it looks at them: a burst of
// joins or of commands is one change.
const gather = 20 * time.Millisecond

// followerTicks is how much rarer a node that does not lead looks at its duties without a
// reason: it only judges who is alive, and whether it is still a member.
const followerTicks = 4

// Run does this node's duties until ctx is done, or returns ErrRemoved when the node is
// no member any more, which is ErrLeft when that is how its leaving ended. A node that
// still votes in the log stays until another has its vote, or none is needed.
func (c *Control) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		leads := c.step(ctx)
		removed := c.removed
		select {
		case <-removed:
			if c.released(ctx) {
				return c.farewell()
			}
			removed = nil // the vote is needed until it has been taken away: look again soon
		default:
		}
		if leads || removed == nil {
			timer.Reset(c.cfg.Tick)
		} else {
			timer.Reset(followerTicks * c.cfg.Tick)
		}
		gossip := c.deps.Gossip.Changed()
		select {
		case <-ctx.Done():
			return nil
		case <-removed:
			continue
		case <-gossip:
		case <-c.wake:
		case <-c.deps.Log.LeaderCh():
		case <-timer.C:
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(gather):
		}
	}
}

// farewell is what Run ends with when this node is no member any more.
func (c *Control) farewell() error {
	if c.leaving.Load() {
		return ErrLeft
	}
	return fmt.Errorf("node %s: %w; started again it joins with an empty index", c.cfg.Self.Name, ErrRemoved)
}

// peers returns the other nodes by server id. Names may be taken twice, server ids are
// not: a run that is alive counts more than one that is not.
func (c *Control) peers() map[string]gossip.Peer {
	out := map[string]gossip.Peer{}
	for _, p := range c.deps.Gossip.Peers() {
		if p.ServerID != c.cfg.Self.ServerID && (p.Alive || !out[p.ServerID].Alive) {
			out[p.ServerID] = p
		}
	}
	return out
}

// step looks at everything once.
func (c *Control) step(ctx context.Context) (leads bool) {
	peers := c.peers()
	view := c.View()
	health := c.tracker.update(time.Now(), view.Members, peers)
	c.mu.Lock()
	c.mu.health = health
	c.mu.Unlock()
	if !c.deps.Log.Leads(ctx) {
		c.leader = leading{}
		c.follow(ctx, peers)
		return false
	}
	err := c.lead(ctx, peers, health)
	if err != nil && ctx.Err() == nil && !errors.Is(err, raftlog.ErrNoLeader) && !errors.Is(err, raftlog.ErrUnknownOutcome) {
		c.log.Warn("duty of the leader", "error", err)
	}
	return true
}
