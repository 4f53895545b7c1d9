package memory

import (
	"slices"
	"time"
)

// Direction of a message.
type Direction uint8

// The directions: batches and replies go to the indexer, requests to the engine.
const (
	ToIndexer Direction = iota
	ToEngine
	numDirections = iota
)

// faults of one address, guarded by Network.mu. They outlive connections and
// sockets.
type faults struct {
	drop   [numDirections]func([][]byte) bool
	delay  [numDirections]time.Duration
	cut    bool
	frozen bool
	replay ReplayFault
}

// ReplayFault is what is wrong with the replay server at an address. The zero value
// is a healthy one.
type ReplayFault struct {
	Hang       bool   // takes requests and never answers
	StopAfter  int    // falls silent behind so many batches, without an end marker; 0 = no limit
	StartAt    uint64 // knows no batch before this sequence
	OtherShape bool   // answers with four frames instead of three, or three instead of four
	NoEnd      bool   // sends no end marker
	// HighWater drops replies, the end marker included, while so many are not yet
	// taken by the requester. libzmq's ROUTER does that at 1,000. 0 = no limit.
	HighWater int
	// Skip leaves out batches by sequence; may be nil. It must not call the network.
	Skip func(seq uint64) bool
}

func (n *Network) faultsOf(name string, fn func(*address)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	fn(n.addressLocked(name))
}

// SetDrop has every message in a direction of an address judged: true = it is lost,
// and nobody is told. nil ends that. The frames are as they go over the wire. drop
// is called one message at a time, in order, and must not call the network.
func (n *Network) SetDrop(name string, d Direction, drop func(frames [][]byte) bool) {
	n.faultsOf(name, func(a *address) { a.faults.drop[d] = drop })
}

// SetDelay makes messages that are sent from now on take that long. The order of a
// direction is kept.
func (n *Network) SetDelay(name string, d Direction, delay time.Duration) {
	n.faultsOf(name, func(a *address) { a.faults.delay[d] = max(delay, 0) })
}

// SetReplayFault says what is wrong with the replay server at an address, for
// requests that come from now on.
func (n *Network) SetReplayFault(name string, f ReplayFault) {
	n.faultsOf(name, func(a *address) { a.faults.replay = f })
}

// Disconnect breaks all connections of an address. They come back by themselves.
func (n *Network) Disconnect(name string) {
	n.faultsOf(name, func(a *address) { a.dropAllLocked() })
}

// Cut breaks all connections of an address and prevents new ones until Heal.
func (n *Network) Cut(name string) {
	n.faultsOf(name, func(a *address) {
		a.faults.cut = true
		a.dropAllLocked()
	})
}

// Freeze lets nothing through without breaking a connection, as a cut cable does:
// messages wait. After the heartbeat time-out the connections are given up, and
// none is made until Heal.
func (n *Network) Freeze(name string) {
	n.faultsOf(name, func(a *address) {
		if a.faults.frozen {
			return
		}
		a.faults.frozen = true
		for _, c := range a.conns {
			c.expiry = time.AfterFunc(n.cfg.Heartbeat, func() {
				n.mu.Lock()
				defer n.mu.Unlock()
				if c.at.faults.frozen {
					c.dropLocked()
				}
			})
		}
	})
}

// Heal ends Cut and Freeze. Connections that were frozen and still stand deliver
// what waited.
func (n *Network) Heal(name string) {
	n.faultsOf(name, func(a *address) {
		a.faults.cut, a.faults.frozen = false, false
		for _, c := range slices.Clone(a.conns) {
			if c.expiry != nil {
				c.expiry.Stop()
				c.expiry = nil
			}
			c.toIndexer.pumpLocked()
			c.toEngine.pumpLocked()
		}
		for _, d := range a.dialers {
			if len(d.conns) == 0 {
				n.dialLaterLocked(d)
			}
		}
	})
}

// Connections returns how many connections of an address stand.
func (n *Network) Connections(name string) int {
	var c int
	n.faultsOf(name, func(a *address) { c = len(a.conns) })
	return c
}

func (a *address) dropAllLocked() {
	for _, c := range slices.Clone(a.conns) {
		c.dropLocked()
	}
}
