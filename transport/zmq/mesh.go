package zmq

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"

	zmq4 "github.com/pebbe/zmq4"

	"github.com/kvcluster/kvcluster/transport"
)

const (
	// meshHighWater is how many messages libzmq holds for one connection, on either
	// side. Links pack 64 KiB into one, so this is 16 MiB; more waits in meshPeer.
	meshHighWater = 256
	// bootSuffix is the length of "/" and a boot id in hexadecimal.
	bootSuffix = 17
)

var _ transport.MeshNetwork = (*Network)(nil)

// mesh implements transport.Mesh: a ROUTER that receives from everybody and a
// DEALER for each peer that sends, all on one loop. So a message takes one hop, and
// the two directions between two nodes share nothing.
type mesh struct {
	net      *Network
	cfg      transport.MeshConfig
	loop     *loop
	cancel   context.CancelFunc
	done     chan struct{} // closed when the loop has ended
	endpoint string
	id       string // routing id of our DEALERs

	// Touched only by the loop.
	router    *socket
	names     map[string]string // node by routing id
	nameless  bool              // a peer without a proper routing id has been logged
	closeErr  error
	closeOnce sync.Once

	peers atomic.Pointer[map[string]*meshPeer] // replaced under mu

	mu struct {
		sync.Mutex
		closed bool
	}
}

// NewMesh implements transport.MeshNetwork.
func (n *Network) NewMesh(cfg transport.MeshConfig) (transport.Mesh, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("new mesh: %w", err)
	}
	cfg = cfg.WithDefaults()
	e, err := parseEndpoint(cfg.Bind, true)
	if err != nil {
		return nil, fmt.Errorf("new mesh %s: %w", cfg.Name, err)
	}
	zctx, err := n.acquire()
	if err != nil {
		return nil, fmt.Errorf("new mesh %s: %w", cfg.Name, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	m := &mesh{
		net: n, cfg: cfg, cancel: cancel, done: make(chan struct{}),
		loop:  newLoop(n, zctx, "mesh-"+cfg.Name, n.release),
		id:    fmt.Sprintf("%s/%016x", cfg.Name, cfg.Boot),
		names: map[string]string{},
	}
	m.peers.Store(&map[string]*meshPeer{})
	opened := make(chan error, 1)
	m.loop.Post(func() { opened <- m.open(e) })
	go func() {
		defer close(m.done)
		if err := m.loop.Run(ctx); err != nil {
			// Then the posted function has run too, and failed.
			cfg.Logger.Error("mesh ended", "mesh", cfg.Name, "error", err)
		}
	}()
	if err := <-opened; err != nil {
		cancel()
		<-m.done
		return nil, fmt.Errorf("new mesh %s: %w", cfg.Name, err)
	}
	return m, nil
}

func (m *mesh) open(e endpoint) (err error) {
	if m.loop.closing {
		return transport.ErrClosed
	}
	m.router, err = m.loop.newSocket(zmq4.ROUTER, "mesh "+e.text, e, (*meshReceiver)(m), socketOptions{bound: true}, func(zs *zmq4.Socket, _ string) error {
		// Handover: a peer whose old connection still seems to stand gets the new one.
		err := errors.Join(e.tune(zs, 0, m.cfg.MaxMessage), zs.SetRouterHandover(true), zs.SetRcvhwm(meshHighWater))
		if err != nil {
			return err
		}
		return e.bind(zs)
	})
	if err != nil {
		return err
	}
	if m.endpoint, err = m.router.zs.GetLastEndpoint(); err != nil {
		return err
	}
	return nil
}

// Endpoint implements transport.Mesh.
func (m *mesh) Endpoint() string { return m.endpoint }

// SetPeer implements transport.Mesh.
func (m *mesh) SetPeer(name, text string) error {
	if err := transport.CheckNodeName(name); err != nil {
		return fmt.Errorf("mesh %s: set peer: %w", m.cfg.Name, err)
	}
	var e endpoint
	if text != "" {
		var err error
		if e, err = parseEndpoint(text, false); err != nil {
			return fmt.Errorf("mesh %s: set peer %s: %w", m.cfg.Name, name, err)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.closed {
		return fmt.Errorf("mesh %s: set peer %s: %w", m.cfg.Name, name, transport.ErrClosed)
	}
	peers := *m.peers.Load()
	old := peers[name]
	if old != nil && old.endpoint.text == text || old == nil && text == "" {
		return nil
	}
	next := maps.Clone(peers)
	delete(next, name)
	if text != "" {
		p := &meshPeer{mesh: m, name: name, endpoint: e}
		next[name] = p
		m.loop.Post(p.open)
	}
	m.peers.Store(&next)
	if old != nil {
		m.loop.Post(old.close)
	}
	return nil
}

// Send implements transport.Mesh.
func (m *mesh) Send(to string, parts ...[]byte) bool {
	p := (*m.peers.Load())[to]
	return p != nil && p.send(parts)
}

// Close implements transport.Mesh.
func (m *mesh) Close() error {
	m.mu.Lock()
	m.mu.closed = true
	m.mu.Unlock()
	m.closeOnce.Do(func() {
		closing := make(chan *zmq4.Socket, 1)
		var err error
		if m.loop.Post(func() {
			var pair *zmq4.Socket
			pair, err = m.router.watchClosing()
			m.router.Close()
			closing <- pair
		}) {
			if pair := <-closing; pair != nil {
				err = errors.Join(err, m.net.awaitClosed(pair))
			}
		}
		m.cancel()
		<-m.done
		for _, p := range *m.peers.Load() {
			p.drop(true)
		}
		if err != nil {
			m.closeErr = fmt.Errorf("close mesh %s: %w", m.cfg.Name, err)
		}
	})
	return m.closeErr
}

// meshReceiver is the mesh as the receiver of its ROUTER.
type meshReceiver mesh

func (r *meshReceiver) OnConnect()    {}
func (r *meshReceiver) OnDisconnect() {}

// deliver gets [routing id][message].
func (r *meshReceiver) deliver(frames [][]byte) {
	if len(frames) != 2 {
		return
	}
	from, ok := r.names[string(frames[0])]
	if !ok {
		if from, ok = nodeOf(frames[0]); !ok {
			if !r.nameless {
				r.loop.log.Warn("a peer without a node's name talks to the mesh, its messages are dropped", "socket", r.router.what)
			}
			r.nameless = true
			return
		}
		// Every restart of a peer brings a new one.
		if len(r.names) >= 4096 {
			clear(r.names)
		}
		r.names[string(frames[0])] = from
	}
	r.cfg.Handler(from, frames[1])
}

// nodeOf takes a node's name out of a routing id.
func nodeOf(id []byte) (string, bool) {
	n := len(id) - bootSuffix
	if n <= 0 || id[n] != '/' {
		return "", false
	}
	name := string(id[:n])
	return name, transport.CheckNodeName(name) == nil
}
