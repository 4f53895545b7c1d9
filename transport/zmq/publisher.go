package zmq

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"

	zmq4 "github.com/pebbe/zmq4"

	"github.com/kvcluster/kvcluster/transport"
)

// maxQueued bounds what Publish queues before it waits, as vLLM's queue does.
const (
	maxQueuedCommands = 16_384
	maxQueuedBytes    = 64 << 20
)

// publisher implements transport.Publisher. Its sockets belong to one of the
// network's publisher loops; the methods queue commands for it.
type publisher struct {
	cfg  transport.PublisherConfig
	net  *Network
	loop *engineLoop

	// Touched only by the loop until close hands them over.
	pub     *socket
	router  *socket // nil without a replay endpoint
	ring    ring
	running []command

	endpoint, replayEndpoint string

	mu struct {
		sync.Mutex
		room     sync.Cond // signalled when the queue was taken
		queue    []command
		bytes    int
		posted   bool // the loop has been told of the queue
		closed   bool
		closeErr error
	}
}

type commandKind uint8

const (
	commandPublish commandKind = iota
	commandRecord
	commandRaw
	commandForget
)

type command struct {
	kind   commandKind
	rec    record
	frames [][]byte
}

// NewPublisher implements transport.Network. Publishers share a few threads: a
// mock fleet of thousands needs no more.
func (n *Network) NewPublisher(cfg transport.PublisherConfig) (transport.Publisher, error) {
	pe, err := parseEndpoint(cfg.Endpoint, !cfg.Connect)
	if err != nil {
		return nil, fmt.Errorf("publisher: %w", err)
	}
	var re endpoint
	if cfg.ReplayEndpoint != "" {
		if re, err = parseEndpoint(cfg.ReplayEndpoint, true); err != nil {
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
	p := &publisher{cfg: cfg, net: n, ring: ring{limit: cfg.Buffer}}
	p.mu.room.L = &p.mu.Mutex
	if p.loop, err = n.engineLoop(); err != nil {
		return nil, fmt.Errorf("publisher %s: %w", cfg.Endpoint, err)
	}
	if err := p.onLoop(func() error { return p.open(pe, re) }); err != nil {
		n.release()
		return nil, err
	}
	return p, nil
}

// onLoop runs fn on the publisher's loop and waits for it.
func (p *publisher) onLoop(fn func() error) error {
	result := make(chan error, 1)
	if !p.loop.Post(func() { result <- fn() }) {
		return fmt.Errorf("publisher %s: loop ended: %w", p.cfg.Endpoint, transport.ErrClosed)
	}
	return <-result
}

func (p *publisher) open(pe, re endpoint) (err error) {
	defer func() {
		if err != nil && p.pub != nil {
			p.pub.Close()
		}
	}()
	p.pub, err = p.loop.newSocket(zmq4.PUB, "publish "+pe.text, pe, nil, socketOptions{sendOnly: true}, func(zs *zmq4.Socket, target string) error {
		if err := errors.Join(pe.tune(zs, 0, -1), zs.SetSndhwm(p.cfg.HighWater)); err != nil {
			return fmt.Errorf("publisher %s: %w", pe.text, err)
		}
		if p.cfg.Connect {
			return pe.connect(zs, target)
		}
		return pe.bind(zs)
	})
	if err != nil {
		return err
	}
	if p.endpoint, err = p.pub.zs.GetLastEndpoint(); err != nil {
		return fmt.Errorf("publisher %s: %w", pe.text, err)
	}
	if re.text == "" {
		return nil
	}
	// Marks of the ROUTER are left at libzmq's 1,000, as engines leave them.
	p.router, err = p.loop.newSocket(zmq4.ROUTER, "replay "+re.text, re, (*replayServer)(p), socketOptions{bound: true}, func(zs *zmq4.Socket, _ string) error {
		if err := re.tune(zs, 0, 1<<20); err != nil {
			return fmt.Errorf("publisher replay %s: %w", re.text, err)
		}
		return re.bind(zs)
	})
	if err != nil {
		return err
	}
	if p.replayEndpoint, err = p.router.zs.GetLastEndpoint(); err != nil {
		p.router.Close()
		return fmt.Errorf("publisher replay %s: %w", re.text, err)
	}
	return nil
}

// enqueue queues a command and waits for room first.
func (p *publisher) enqueue(op string, c command) error {
	size := len(c.rec.payload)
	for _, f := range c.frames {
		size += len(f)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for !p.mu.closed && len(p.mu.queue) > 0 && (len(p.mu.queue) >= maxQueuedCommands || p.mu.bytes+size > maxQueuedBytes) {
		p.mu.room.Wait()
	}
	if p.mu.closed {
		return fmt.Errorf("%s on %s: %w", op, p.cfg.Endpoint, transport.ErrClosed)
	}
	p.mu.queue = append(p.mu.queue, c)
	p.mu.bytes += size
	if p.mu.posted {
		return nil
	}
	if !p.loop.Post(p.flush) {
		return fmt.Errorf("%s on %s: %w", op, p.cfg.Endpoint, transport.ErrClosed)
	}
	p.mu.posted = true
	return nil
}

// Publish implements transport.Publisher.
func (p *publisher) Publish(topic string, seq uint64, payload []byte) error {
	return p.enqueue("publish", command{kind: commandPublish, rec: record{[]byte(topic), seq, slices.Clone(payload)}})
}

// Record implements transport.Publisher.
func (p *publisher) Record(topic string, seq uint64, payload []byte) error {
	return p.enqueue("record", command{kind: commandRecord, rec: record{[]byte(topic), seq, slices.Clone(payload)}})
}

// SendRaw implements transport.Publisher.
func (p *publisher) SendRaw(frames ...[]byte) error {
	if len(frames) == 0 {
		return fmt.Errorf("send on %s: a message has at least one frame", p.cfg.Endpoint)
	}
	c := command{kind: commandRaw, frames: make([][]byte, len(frames))}
	for i, f := range frames {
		c.frames[i] = slices.Clone(f)
	}
	return p.enqueue("send", c)
}

// ForgetReplay implements transport.Publisher.
func (p *publisher) ForgetReplay() error {
	return p.enqueue("forget replay", command{kind: commandForget})
}

// Endpoint implements transport.Publisher.
func (p *publisher) Endpoint() string { return p.endpoint }

// ReplayEndpoint implements transport.Publisher.
func (p *publisher) ReplayEndpoint() string { return p.replayEndpoint }

// flush carries out what is queued, on the loop.
func (p *publisher) flush() {
	p.mu.Lock()
	p.running, p.mu.queue = p.mu.queue, p.running[:0]
	p.mu.bytes, p.mu.posted = 0, false
	p.mu.room.Broadcast()
	p.mu.Unlock()
	for i := range p.running {
		p.do(&p.running[i])
	}
	clear(p.running)
}

func (p *publisher) do(c *command) {
	var err error
	switch c.kind {
	case commandPublish:
		p.ring.add(c.rec)
		seq := sequence(c.rec.seq)
		err = sendAll(p.pub.raw, c.rec.topic, seq[:], c.rec.payload)
	case commandRecord:
		p.ring.add(c.rec)
	case commandRaw:
		err = sendAll(p.pub.raw, c.frames...)
	case commandForget:
		p.ring.forget()
	}
	if err != nil {
		p.loop.log.Error("send failed", "socket", p.pub.what, "error", err)
	}
}

// replayServer is the publisher as the receiver of its ROUTER.
type replayServer publisher

func (r *replayServer) OnConnect()    {}
func (r *replayServer) OnDisconnect() {}

// deliver answers one request: [identity][empty][start, 8 bytes]. Anything else is
// dropped in silence, as engines do.
func (r *replayServer) deliver(frames [][]byte) {
	if len(frames) != 3 || len(frames[1]) != 0 || len(frames[2]) != 8 {
		return
	}
	// Commands that were queued before the request was sent have their effect on it.
	(*publisher)(r).flush()
	identity, start := frames[0], binary.BigEndian.Uint64(frames[2])
	r.ring.from(start, func(rec record) {
		r.reply(identity, rec.topic, sequence(rec.seq), rec.payload)
	})
	r.reply(identity, nil, sequence(^uint64(0)), nil) // the end marker
	// Sending has libzmq work off its commands, so a request may have been signalled
	// for the last time.
	r.loop.enqueue(r.router)
}

// reply sends one reply. What does not fit below the high-water mark of that peer
// is dropped by libzmq, which reports success.
func (r *replayServer) reply(identity, topic []byte, seq [8]byte, payload []byte) {
	var err error
	if r.cfg.FourFrames {
		err = sendAll(r.router.raw, identity, nil, topic, seq[:], payload)
	} else {
		err = sendAll(r.router.raw, identity, nil, seq[:], payload)
	}
	if err != nil {
		r.loop.log.Error("reply failed", "socket", r.router.what, "error", err)
	}
}

// Close implements transport.Publisher. When it returns the addresses can be
// bound again; what was queued is still being sent, for at most a second, while
// the network is open.
func (p *publisher) Close() error {
	p.mu.Lock()
	if p.mu.closed {
		defer p.mu.Unlock()
		return p.mu.closeErr
	}
	p.mu.closed = true
	p.mu.room.Broadcast()
	p.mu.Unlock()

	var pairs []*zmq4.Socket
	err := p.onLoop(func() (err error) {
		pairs, err = p.shut()
		return err
	})
	// Waiting is done here and not on the loop, which serves other publishers.
	for _, pair := range pairs {
		err = errors.Join(err, p.net.awaitClosed(pair))
	}
	if err != nil {
		err = fmt.Errorf("close publisher %s: %w", p.cfg.Endpoint, err)
	}
	p.mu.Lock()
	p.mu.closeErr = err
	p.mu.Unlock()
	p.net.release()
	return err
}

// shut runs on the loop. It returns monitors that tell when the addresses are free.
func (p *publisher) shut() (pairs []*zmq4.Socket, err error) {
	p.flush()
	for _, s := range []*socket{p.pub, p.router} {
		if s == nil {
			continue
		}
		err = errors.Join(err, s.zs.SetLinger(publisherLinger))
		if s != p.pub || !p.cfg.Connect {
			pair, perr := s.watchClosing()
			err = errors.Join(err, perr)
			if pair != nil {
				pairs = append(pairs, pair)
			}
		}
		s.Close()
	}
	return pairs, err
}

// watchClosing returns a monitor that reports when the I/O thread has closed what
// the socket listens on: a restarted engine binds the address again at once.
//
// Unbinding would not need it, but ends the connections without what is queued.
//
// The monitor asks for exactly one event. libzmq sends events with a blocking call:
// one that comes after the monitor was closed holds up an I/O thread, or the thread
// that closes sockets, for ever. MONITOR_STOPPED would be one.
func (s *socket) watchClosing() (*zmq4.Socket, error) {
	name := fmt.Sprintf("inproc://monitor-%d", s.loop.net.monitors.Add(1))
	if err := s.zs.Monitor(name, zmq4.EVENT_CLOSED|zmq4.EVENT_CLOSE_FAILED); err != nil {
		return nil, err
	}
	pair, err := s.loop.ctx.NewSocket(zmq4.PAIR)
	if err != nil {
		return nil, errors.Join(err, s.zs.Monitor("", 0))
	}
	if err := errors.Join(pair.SetLinger(0), pair.SetRcvtimeo(2*publisherLinger), pair.Connect(name)); err != nil {
		return nil, errors.Join(err, s.zs.Monitor("", 0), pair.Close())
	}
	return pair, nil
}

func (n *Network) awaitClosed(pair *zmq4.Socket) error {
	_, _, _, err := pair.RecvEvent(0)
	if err == nil {
		return pair.Close()
	}
	// The event may still come, so the monitor stays open until the network is closed.
	n.mu.Lock()
	n.mu.unheard = append(n.mu.unheard, pair)
	n.mu.Unlock()
	return fmt.Errorf("an address is still bound after %v: %w", 2*publisherLinger, err)
}
