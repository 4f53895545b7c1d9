package zmq

import (
	"errors"
	"sync"
	"syscall"

	zmq4 "github.com/pebbe/zmq4"

	"github.com/kvcluster/kvcluster/transport"
)

// meshPeer sends to one node. It is a receiver only for the events of its
// connection: nothing comes back through a DEALER of a mesh.
type meshPeer struct {
	mesh     *mesh
	name     string
	endpoint endpoint

	// Touched only by the loop.
	socket  *socket
	ended   bool
	sending []outMessage // taken from the queue; the first sent of them are gone
	sent    int

	mu struct {
		sync.Mutex
		up     bool // a connection stands
		gone   bool
		queue  []outMessage
		waits  int   // messages of queue and sending
		bytes  int64 // of them
		posted bool  // the loop has been told of the queue
	}
}

// open runs on the loop.
func (p *meshPeer) open() {
	l := p.mesh.loop
	if p.ended || l.closing {
		return
	}
	var err error
	p.socket, err = l.newSocket(zmq4.DEALER, "mesh peer "+p.name+" "+p.endpoint.text, p.endpoint, p, socketOptions{monitored: true}, func(zs *zmq4.Socket, target string) error {
		err := errors.Join(
			p.endpoint.tune(zs, 0, 1<<20),
			zs.SetIdentity(p.mesh.id),
			// Only what has a connection is queued: the rest would be stale when it stands.
			zs.SetImmediate(true),
			zs.SetSndhwm(meshHighWater),
		)
		if err != nil {
			return err
		}
		return p.endpoint.connect(zs, target)
	})
	if err != nil {
		p.socket = nil
		l.log.Error("open mesh peer", "peer", p.name, "error", err, "retry_in", reopenAfter)
		l.AfterFunc(reopenAfter, p.open)
	}
}

// close runs on the loop.
func (p *meshPeer) close() {
	p.ended = true
	if p.socket != nil {
		p.socket.Close()
	}
	p.drop(true)
}

// drop forgets what waits. It runs on the loop, or when that has ended.
func (p *meshPeer) drop(gone bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.up = false
	p.mu.gone = p.mu.gone || gone
	for _, m := range p.sending[p.sent:] {
		freeOutMessage(m)
	}
	for _, m := range p.mu.queue {
		freeOutMessage(m)
	}
	p.sending, p.sent = p.sending[:0], 0
	p.mu.queue, p.mu.waits, p.mu.bytes = p.mu.queue[:0], 0, 0
}

// OnConnect implements receiver.
func (p *meshPeer) OnConnect() {
	p.mu.Lock()
	p.mu.up = !p.mu.gone
	p.mu.Unlock()
}

// OnDisconnect implements receiver.
func (p *meshPeer) OnDisconnect() { p.drop(false) }

// deliver implements receiver. A ROUTER of a mesh never answers.
func (p *meshPeer) deliver([][]byte) {}

// send queues one message for the loop.
func (p *meshPeer) send(parts [][]byte) bool {
	size := 0
	for _, b := range parts {
		size += len(b)
	}
	limits := &p.mesh.cfg
	if int64(size) > limits.MaxMessage {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	// A message larger than the queue may go alone.
	full := p.mu.waits > 0 && p.mu.bytes+int64(size) > limits.QueueBytes || p.mu.waits >= transport.MeshQueueMessages
	if !p.mu.up || full {
		return false
	}
	m := newOutMessage(size, parts)
	if m == nil {
		return false
	}
	p.mu.queue = append(p.mu.queue, m)
	p.mu.waits++
	p.mu.bytes += int64(size)
	if !p.mu.posted {
		p.mu.posted = p.mesh.loop.Post(p.flush)
	}
	return true
}

// flush takes the queue and sends, on the loop.
func (p *meshPeer) flush() {
	p.mu.Lock()
	p.mu.posted = false
	p.mu.Unlock()
	p.onWritable()
	// Sending has libzmq work off its commands, so an event may have been signalled
	// for the last time.
	if p.socket != nil {
		p.mesh.loop.enqueue(p.socket)
	}
}

// onWritable implements writer: it sends what the socket takes. What it does not
// take waits until the socket is signalled.
func (p *meshPeer) onWritable() {
	if p.socket == nil || p.socket.zs == nil || p.socket.closed {
		return
	}
	for {
		if p.sent == len(p.sending) {
			p.mu.Lock()
			p.sending, p.mu.queue = p.mu.queue, p.sending[:0]
			p.mu.Unlock()
			p.sent = 0
			if len(p.sending) == 0 {
				return
			}
		}
		n, bytes, err := sendOut(p.socket.raw, p.sending[p.sent:])
		p.sent += n
		p.mu.Lock()
		p.mu.waits -= n
		p.mu.bytes -= bytes
		p.mu.Unlock()
		if err != nil {
			if zmq4.AsErrno(err) != zmq4.Errno(syscall.EAGAIN) {
				p.mesh.loop.log.Error("send failed", "socket", p.socket.what, "error", err)
			}
			return
		}
	}
}
