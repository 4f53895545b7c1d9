package gossip

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// maxGreetings bounds the greetings that are under way at once.
const maxGreetings = 8

// Join greets the nodes at the addresses (host:port) and becomes one of them. It
// succeeds when it has joined at one of the addresses; nobody need answer at the others.
// It fails, and joins nobody, when it finds ErrNameInUse or ErrIdentityInUse; otherwise
// with all that it found, one sentence each: ErrUnresolved, ErrNobody, ErrNotGossip,
// ErrOtherLabel, ErrWrongKey, ErrOtherCluster, ErrOtherProtocol, ErrClock. An address of
// this node itself is passed over.
func (g *Gossip) Join(ctx context.Context, addrs []string) error {
	_, err := g.join(ctx, addrs, true)
	return err
}

// join returns how many nodes it joined. Clocks count only when strict.
func (g *Gossip) join(ctx context.Context, addrs []string, strict bool) (int, error) {
	list, err := g.running()
	if err != nil {
		return 0, fmt.Errorf("join: %w", err)
	}
	targets, errs := g.targets(ctx, addrs)
	var found []target
	self := false
	for _, r := range g.greetAll(ctx, targets, strict) {
		switch {
		case errors.Is(r.err, errSelf):
			self = true
		case errors.Is(r.err, ErrNameInUse), errors.Is(r.err, ErrIdentityInUse):
			return 0, r.err
		case r.err != nil:
			errs = append(errs, r.err)
		default:
			found = append(found, r)
		}
	}
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("join: %w", err)
	}
	if len(found) == 0 {
		switch {
		case len(errs) == 0 && self:
			errs = append(errs, fault(ErrNobody, "Only this node itself answers at %s. Give the address of another node.", strings.Join(addrs, ", ")))
		case len(errs) == 0:
			errs = append(errs, fault(ErrNobody, "There is no address to join at. Give the address of a node of the cluster."))
		}
		return 0, errors.Join(errs...)
	}
	for _, err := range errs {
		g.log.tell(slog.LevelWarn, "seed "+err.Error(), "a node was not joined", "err", err)
	}
	return g.enter(ctx, list, found)
}

// enter lets memberlist exchange everything with the nodes that were greeted.
func (g *Gossip) enter(ctx context.Context, list *memberlist.Memberlist, found []target) (int, error) {
	var at []string
	for _, r := range found {
		if id := r.meta.ClusterID; id != "" && !g.adopt(id) {
			g.log.tell(slog.LevelWarn, "two clusters", "a node was not joined: it belongs to another cluster than one that was joined a moment ago", "at", r.address, "cluster", id)
			continue
		}
		at = append(at, r.address)
	}
	type outcome struct {
		n   int
		err error
	}
	done := make(chan outcome, 1)
	go func() { // ends within DialTimeout per address, as memberlist's time-outs say
		n, err := list.Join(at)
		done <- outcome{n, err}
	}()
	select {
	case o := <-done:
		if o.n == 0 {
			return 0, fault(ErrNobody, "The nodes at %s answered and then could not be joined (%v). Try again.", strings.Join(at, ", "), flat(o.err))
		}
		return o.n, nil
	case <-ctx.Done():
		return 0, fmt.Errorf("join: %w", ctx.Err())
	}
}

// flat is a text of several lines in one.
func flat(err error) string {
	if err == nil {
		return "no reason given"
	}
	return strings.Join(strings.Fields(err.Error()), " ")
}

// adopt notes the cluster of the first node that was joined: a node without a cluster
// of its own must not become the bridge between two. It reports whether id is the one.
func (g *Gossip) adopt(id string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mu.cluster == "" {
		g.mu.cluster = id
		g.table.setMeta(g.mu.meta, id)
	}
	return g.mu.cluster == id
}

// target is an address to greet, and what came of it.
type target struct {
	address string // IP:port
	given   string // what it was resolved from
	meta    Meta   // of who answers
	err     error
}

func (t target) String() string {
	if t.given == t.address || t.given == "" {
		return t.address
	}
	return t.given + " (" + t.address + ")"
}

// targets resolves addresses; each is in the result once.
func (g *Gossip) targets(ctx context.Context, addrs []string) (out []target, errs []error) {
	for _, addr := range addrs {
		resolved, err := g.cfg.resolve(ctx, strings.TrimSpace(addr))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, a := range resolved {
			if !slices.ContainsFunc(out, func(t target) bool { return t.address == a }) {
				out = append(out, target{address: a, given: addr})
			}
		}
	}
	return out, errs
}

func (g *Gossip) greetAll(ctx context.Context, targets []target, strict bool) []target {
	var wg sync.WaitGroup
	slots := make(chan struct{}, maxGreetings)
	for i := range targets {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			t := &targets[i]
			if t.err = ctx.Err(); t.err == nil {
				t.meta, t.err = g.examine(*t, strict)
			}
		})
	}
	wg.Wait()
	return targets
}

var errSelf = errors.New("this node itself")

// examine greets a node and finds out whether this node may join it.
func (g *Gossip) examine(t target, strict bool) (Meta, error) {
	before := time.Now()
	reply, err := g.greet(t)
	if err != nil {
		return Meta{}, err
	}
	trip := time.Since(before)
	own, cluster := g.table.own()
	other := reply.self
	if err := rivalry(own, other, t.String()); err != nil {
		return other, err
	}
	if cluster != "" && other.ClusterID != "" && cluster != other.ClusterID {
		return other, fault(ErrOtherCluster, "The node %q at %s belongs to the cluster %s, and this node to %s. Join with an empty data folder, or at a node of this node's cluster.",
			other.Name, t, other.ClusterID, cluster)
	}
	if own.Protocol != other.Protocol {
		return other, fault(ErrOtherProtocol, "The node %q at %s speaks protocol version %d (software %s), and this node %d (software %s). Run the same release on all nodes.",
			other.Name, t, other.Protocol, orUnknown(other.Version), own.Protocol, orUnknown(own.Version))
	}
	for _, r := range reply.rivals {
		if err := g.confirm(own, r); err != nil {
			return other, err
		}
	}
	// The answer was written about half a trip ago.
	skew := g.cfg.Clock().Add(-trip / 2).Sub(reply.time)
	if skew.Abs() > g.cfg.MaxSkew+trip/2 {
		word := "ahead of"
		if skew < 0 {
			word = "behind"
		}
		err := fault(ErrClock, "The clock of this node is %v %s the clock of %q at %s. Set both clocks, for example by NTP.",
			skew.Abs().Round(time.Second/10), word, other.Name, t)
		if strict {
			return other, err
		}
		g.log.tell(slog.LevelWarn, "clock "+other.ServerID, err.Error())
	}
	return other, nil
}

func orUnknown(version string) string {
	if version == "" {
		return "unknown"
	}
	return version
}

// rivalry judges a node that answered just now.
func rivalry(own, other Meta, at string) error {
	switch {
	case other.ServerID == own.ServerID && other.Boot == own.Boot:
		return errSelf
	case other.ServerID == own.ServerID:
		return fault(ErrIdentityInUse, "Another process with the identity of this node (server id %s) runs at %s: its data folder was copied. Stop one of the two and give it an empty data folder.",
			own.ServerID, at)
	case other.Name == own.Name:
		return fault(ErrNameInUse, "The name %q is in use by the node at %s, which is alive. Give this node another name, or stop that one.", own.Name, at)
	}
	return nil
}

// confirm asks a rival that somebody remembers whether it is still there: one that has
// just died or been stopped holds no name.
func (g *Gossip) confirm(own Meta, r rival) error {
	if r.address == "" || rivalry(own, r.meta, "") == nil {
		return nil
	}
	reply, err := g.greet(target{address: r.address})
	if err != nil {
		return nil
	}
	if err := rivalry(own, reply.self, r.address); err != nil && !errors.Is(err, errSelf) {
		return err
	}
	return nil
}

// greet sends a greeting and reads the answer.
func (g *Gossip) greet(t target) (greeting, error) {
	conn, err := g.dial(t.address)
	if errors.Is(err, ErrStopped) {
		return greeting{}, err
	}
	if err != nil {
		return greeting{}, unreachable(t, err, g.cfg.DialTimeout)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(g.cfg.DialTimeout))
	own, _ := g.table.own()
	raw, err := greeting{label: g.cfg.Label, time: g.cfg.Clock(), self: own}.append(g.cfg.Key)
	if err != nil {
		return greeting{}, err
	}
	if _, err = conn.Write(raw); err == nil {
		var reply greeting
		if reply, err = readGreeting(conn); err == nil {
			return reply, g.judge(t, &reply)
		}
	}
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return greeting{}, fault(ErrNobody, "What listens at %s does not answer within %v. Check that it is a node's gossip port and that the node is well.", t, g.cfg.DialTimeout)
	}
	return greeting{}, fault(ErrNotGossip, "What listens at %s is no gossip port of kvcluster. Check the port: HTTP, link and Raft have others.", t)
}

func unreachable(t target, err error, waited time.Duration) error {
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return fault(ErrNobody, "%s does not answer within %v. Check the address and the firewall.", t, waited)
	}
	return fault(ErrNobody, "Nobody listens at %s (%v). Check that the node runs and that this is its gossip port.", t, reason(err))
}

// judge turns an answer that is no welcome into an error.
func (g *Gossip) judge(t target, reply *greeting) error {
	if reply.version != greetingVersion || reply.verdict == otherVersion {
		return fault(ErrOtherProtocol, "The node at %s speaks version %d of the gossip, and this node %d. Run the same release on all nodes.", t, reply.version, greetingVersion)
	}
	if !reply.answer {
		return fault(ErrNotGossip, "What listens at %s is no gossip port of kvcluster. Check the port: HTTP, link and Raft have others.", t)
	}
	v := reply.verdict
	if v == welcome && reply.label != g.cfg.Label {
		v = otherLabel
	}
	if v == welcome {
		// The other side has opened ours, so this is its fault and not that of a key.
		if v = reply.open(g.cfg.Key); v != welcome {
			v = malformed
		}
	}
	switch v {
	case welcome:
		return nil
	case otherLabel:
		return fault(ErrOtherLabel, "The node at %s has the cluster label %q, and this node %q. Use the same label, or another address.", t, reply.label, g.cfg.Label)
	case needsKey:
		return fault(ErrWrongKey, "The gossip at %s is encrypted, and this node has no key. Give it the key of the cluster.", t)
	case hasNoKey:
		return fault(ErrWrongKey, "This node encrypts its gossip, and the node at %s has no key. Use the same key on all nodes, or none.", t)
	case wrongKey:
		return fault(ErrWrongKey, "The node at %s has another gossip key than this node. Use the same key on all nodes.", t)
	}
	return fault(ErrOtherProtocol, "The node at %s and this node do not understand each other. Run the same release on all nodes.", t)
}

// dial opens a stream without memberlist's label.
func (g *Gossip) dial(address string) (net.Conn, error) {
	if _, err := g.running(); err != nil {
		return nil, err
	}
	g.mu.Lock()
	wire := g.mu.wire
	g.mu.Unlock()
	return wire.DialAddressTimeout(memberlist.Address{Addr: address}, g.cfg.DialTimeout)
}
