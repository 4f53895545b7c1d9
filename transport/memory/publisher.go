package memory

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kvcluster/kvcluster/transport"
)

// publisher implements transport.Publisher. Everything but cfg is guarded by
// Network.mu.
type publisher struct {
	net    *Network
	cfg    transport.PublisherConfig
	out    *end
	router *end // nil without a replay endpoint
	buffer []record
	closed bool
}

// record is one batch as an engine keeps it for replay.
type record struct {
	topic   string
	seq     uint64
	payload []byte
}

// NewPublisher implements transport.Network.
func (n *Network) NewPublisher(cfg transport.PublisherConfig) (transport.Publisher, error) {
	if err := checkName(cfg.Endpoint, !cfg.Connect); err != nil {
		return nil, fmt.Errorf("publisher: %w", err)
	}
	if cfg.ReplayEndpoint != "" {
		if err := checkName(cfg.ReplayEndpoint, true); err != nil {
			return nil, fmt.Errorf("publisher replay: %w", err)
		}
	}
	if cfg.Buffer < 0 || cfg.HighWater < 0 {
		return nil, fmt.Errorf("publisher %s: Buffer %d and HighWater %d must not be negative", cfg.Endpoint, cfg.Buffer, cfg.HighWater)
	}
	if cfg.Buffer == 0 {
		cfg.Buffer = defaultReplayBuffer
	}
	if cfg.HighWater == 0 {
		cfg.HighWater = defaultSendHighWater
	}
	p := &publisher{net: n, cfg: cfg}
	p.out = &end{role: rolePub, pub: p, highWater: cfg.HighWater}

	n.mu.Lock()
	defer n.mu.Unlock()
	if cfg.ReplayEndpoint != "" {
		p.router = &end{role: roleRouter, pub: p}
		if err := n.bindLocked(cfg.ReplayEndpoint, p.router); err != nil {
			return nil, fmt.Errorf("publisher replay: %w", err)
		}
	}
	if cfg.Connect {
		n.connectLocked(cfg.Endpoint, p.out)
	} else if err := n.bindLocked(cfg.Endpoint, p.out); err != nil {
		if p.router != nil {
			n.closeLocked(p.router)
		}
		return nil, fmt.Errorf("publisher: %w", err)
	}
	return p, nil
}

// do runs fn under the lock unless the publisher is closed.
func (p *publisher) do(op string, fn func()) error {
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	if p.closed {
		return fmt.Errorf("%s on %s: %w", op, p.cfg.Endpoint, transport.ErrClosed)
	}
	fn()
	return nil
}

// Publish implements transport.Publisher.
func (p *publisher) Publish(topic string, seq uint64, payload []byte) error {
	return p.do("publish", func() {
		p.recordLocked(topic, seq, payload)
		p.sendLocked([][]byte{[]byte(topic), sequence(seq), payload})
	})
}

// Record implements transport.Publisher.
func (p *publisher) Record(topic string, seq uint64, payload []byte) error {
	return p.do("record", func() { p.recordLocked(topic, seq, payload) })
}

func (p *publisher) recordLocked(topic string, seq uint64, payload []byte) {
	if len(p.buffer) == p.cfg.Buffer {
		p.buffer[0] = record{}
		p.buffer = p.buffer[1:]
	}
	p.buffer = append(p.buffer, record{topic, seq, bytes.Clone(payload)})
}

// SendRaw implements transport.Publisher.
func (p *publisher) SendRaw(frames ...[]byte) error {
	if len(frames) == 0 {
		return fmt.Errorf("send on %s: a message has at least one frame", p.cfg.Endpoint)
	}
	return p.do("send", func() { p.sendLocked(frames) })
}

// sendLocked sends to every subscription whose topic fits and whose mark allows it.
func (p *publisher) sendLocked(frames [][]byte) {
	now := time.Now()
	for _, c := range slices.Clone(p.out.conns) { // a frame that is too large drops one
		sub := c.indexer()
		if now.Before(c.activeAt) || !strings.HasPrefix(string(frames[0]), sub.topic) {
			continue
		}
		if c.toIndexer.messages+sub.sock.waiting() >= sub.highWater+p.out.highWater {
			continue
		}
		c.toIndexer.sendLocked(cloneFrames(frames))
	}
}

func cloneFrames(frames [][]byte) [][]byte {
	out := make([][]byte, len(frames))
	for i, f := range frames {
		out[i] = append([]byte{}, f...)
	}
	return out
}

// requestLocked answers one replay request: [empty][start, 8 bytes].
func (p *publisher) requestLocked(c *conn, frames [][]byte) {
	f := c.at.faults.replay
	if f.Hang || len(frames) != 2 || len(frames[0]) != 0 || len(frames[1]) != 8 {
		return
	}
	four := p.cfg.FourFrames != f.OtherShape
	reply := func(topic string, seq uint64, payload []byte) {
		if f.HighWater > 0 && c.toIndexer.messages+c.indexer().sock.waiting() >= f.HighWater {
			return
		}
		if four {
			c.toIndexer.sendLocked([][]byte{{}, []byte(topic), sequence(seq), bytes.Clone(payload)})
		} else {
			c.toIndexer.sendLocked([][]byte{{}, sequence(seq), bytes.Clone(payload)})
		}
	}
	start, sent := max(binary.BigEndian.Uint64(frames[1]), f.StartAt), 0
	for _, r := range p.buffer {
		if r.seq < start || f.Skip != nil && f.Skip(r.seq) {
			continue
		}
		if f.StopAfter > 0 && sent == f.StopAfter {
			return
		}
		reply(r.topic, r.seq, r.payload)
		sent++
	}
	if !f.NoEnd && f.StopAfter == 0 {
		reply("", ^uint64(0), nil)
	}
}

// ForgetReplay implements transport.Publisher.
func (p *publisher) ForgetReplay() error {
	return p.do("forget replay", func() { p.buffer = nil })
}

// Endpoint implements transport.Publisher.
func (p *publisher) Endpoint() string { return p.out.at.name }

// ReplayEndpoint implements transport.Publisher.
func (p *publisher) ReplayEndpoint() string {
	if p.router == nil {
		return ""
	}
	return p.router.at.name
}

// Close implements transport.Publisher. What is on its way still arrives.
func (p *publisher) Close() error {
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	p.net.closeLocked(p.out)
	if p.router != nil {
		p.net.closeLocked(p.router)
	}
	return nil
}
