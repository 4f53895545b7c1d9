package memory

import (
	"container/heap"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kvcluster/kvcluster/transport"
)

// meshInbox is how many messages may wait for a handler; what comes beyond is lost,
// as behind libzmq's high-water mark.
const meshInbox = 65_536

var _ transport.MeshNetwork = (*Network)(nil)

// MeshFault decides what becomes of one message: it arrives once per returned
// delay, so none = lost, two = duplicated. Messages with equal delays keep their
// order, others overtake. It is called one message at a time and must neither call
// the network nor keep the message.
type MeshFault func(message []byte) []time.Duration

// meshes is the part of a Network that belongs to meshes, with a lock of its own.
type meshes struct {
	sync.Mutex
	boxes   map[string]*meshBox // by endpoint
	numbers int
	faults  map[[2]string]MeshFault
	cut     map[[2]string]bool
	order   uint64
}

// meshBox is what is on its way to an endpoint. It outlives who listens there: what
// was meant for a node that has been replaced reaches its successor.
type meshBox struct {
	bound *mesh // nil when free
	inbox inbox
}

func (n *Network) boxLocked(endpoint string) *meshBox {
	if n.meshes.boxes == nil {
		n.meshes.boxes = map[string]*meshBox{}
	}
	b := n.meshes.boxes[endpoint]
	if b == nil {
		b = &meshBox{}
		n.meshes.boxes[endpoint] = b
	}
	return b
}

// SetMeshFault has every message from one node to another judged; nil ends that.
// It stays when the nodes restart.
func (n *Network) SetMeshFault(from, to string, f MeshFault) {
	n.meshes.Lock()
	defer n.meshes.Unlock()
	if f == nil {
		delete(n.meshes.faults, [2]string{from, to})
		return
	}
	if n.meshes.faults == nil {
		n.meshes.faults = map[[2]string]MeshFault{}
	}
	n.meshes.faults[[2]string{from, to}] = f
}

// CutMesh loses everything that one node sends to another, in that direction only,
// until HealMesh. What is on its way still arrives. The sender does not notice.
func (n *Network) CutMesh(from, to string) { n.setCut(from, to, true) }

// HealMesh ends CutMesh.
func (n *Network) HealMesh(from, to string) { n.setCut(from, to, false) }

func (n *Network) setCut(from, to string, cut bool) {
	n.meshes.Lock()
	defer n.meshes.Unlock()
	if n.meshes.cut == nil {
		n.meshes.cut = map[[2]string]bool{}
	}
	n.meshes.cut[[2]string{from, to}] = cut
}

// PauseMesh stops the delivery to a node, as SIGSTOP does: messages wait, and come
// all at once when it goes on. The node itself can still send.
func (n *Network) PauseMesh(name string, paused bool) {
	n.meshes.Lock()
	defer n.meshes.Unlock()
	for _, b := range n.meshes.boxes {
		if b.bound != nil && b.bound.cfg.Name == name {
			b.bound.paused = paused
			b.bound.signal()
		}
	}
}

// NewMesh implements transport.MeshNetwork.
func (n *Network) NewMesh(cfg transport.MeshConfig) (transport.Mesh, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("new mesh: %w", err)
	}
	cfg = cfg.WithDefaults()
	if err := checkName(cfg.Bind, true); err != nil {
		return nil, fmt.Errorf("new mesh %s: %w", cfg.Name, err)
	}
	n.meshes.Lock()
	defer n.meshes.Unlock()
	endpoint := cfg.Bind
	if w := wildcard(endpoint); w != "" {
		n.meshes.numbers++
		endpoint = fmt.Sprintf("%s%d", endpoint[:len(endpoint)-len(w)], 100_000+n.meshes.numbers)
	}
	box := n.boxLocked(endpoint)
	if box.bound != nil {
		return nil, fmt.Errorf("new mesh %s: bind %s: %w", cfg.Name, endpoint, transport.ErrAddressInUse)
	}
	m := &mesh{
		net: n, cfg: cfg, endpoint: endpoint, box: box, peers: map[string]string{},
		wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
	}
	box.bound = m
	// What arrived while nobody listened is lost.
	for now := time.Now(); len(box.inbox) > 0 && !box.inbox[0].at.After(now); {
		heap.Pop(&box.inbox)
	}
	go m.run()
	return m, nil
}

// mesh implements transport.Mesh. Everything but the constants is guarded by
// Network.meshes.
type mesh struct {
	net      *Network
	cfg      transport.MeshConfig
	endpoint string
	wake     chan struct{}
	stop     chan struct{}
	done     chan struct{}

	box    *meshBox
	peers  map[string]string // endpoints by name
	paused bool
	closed bool
}

// Endpoint implements transport.Mesh.
func (m *mesh) Endpoint() string { return m.endpoint }

// SetPeer implements transport.Mesh.
func (m *mesh) SetPeer(name, endpoint string) error {
	if err := transport.CheckNodeName(name); err != nil {
		return fmt.Errorf("mesh %s: set peer: %w", m.cfg.Name, err)
	}
	if endpoint != "" {
		if err := checkName(endpoint, false); err != nil {
			return fmt.Errorf("mesh %s: set peer %s: %w", m.cfg.Name, name, err)
		}
	}
	m.net.meshes.Lock()
	defer m.net.meshes.Unlock()
	if m.closed {
		return fmt.Errorf("mesh %s: set peer %s: %w", m.cfg.Name, name, transport.ErrClosed)
	}
	if endpoint == "" {
		delete(m.peers, name)
	} else {
		m.peers[name] = endpoint
	}
	return nil
}

// Send implements transport.Mesh.
func (m *mesh) Send(to string, parts ...[]byte) bool {
	message := slices.Concat(parts...)
	if int64(len(message)) > m.cfg.MaxMessage {
		return false
	}
	ms := &m.net.meshes
	ms.Lock()
	defer ms.Unlock()
	endpoint, ok := m.peers[to]
	if !ok || m.closed {
		return false
	}
	direction := [2]string{m.cfg.Name, to}
	if ms.cut[direction] {
		return true
	}
	box := m.net.boxLocked(endpoint)
	if fault := ms.faults[direction]; fault != nil {
		for _, d := range fault(message) {
			m.putLocked(box, d, slices.Clone(message))
		}
		return true
	}
	// Without a listener there is no connection, and the sender knows.
	return box.bound != nil && m.putLocked(box, 0, message)
}

func (m *mesh) putLocked(box *meshBox, d time.Duration, message []byte) bool {
	if len(box.inbox) >= meshInbox || box.bound != nil && int64(len(message)) > box.bound.cfg.MaxMessage {
		return false
	}
	m.net.meshes.order++
	heap.Push(&box.inbox, envelope{time.Now().Add(max(d, 0)), m.net.meshes.order, m.cfg.Name, message})
	if box.bound != nil {
		box.bound.signal()
	}
	return true
}

func (m *mesh) signal() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// run hands the messages to the handler when they are due.
func (m *mesh) run() {
	defer close(m.done)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		e, wait := m.next()
		if e.from != "" {
			m.cfg.Handler(e.from, e.message)
			// A handler that keeps a message is found out.
			for i := range e.message {
				e.message[i] = 0xdb
			}
			continue
		}
		var due <-chan time.Time
		timer.Stop()
		if wait > 0 {
			timer.Reset(wait)
			due = timer.C
		}
		select {
		case <-m.wake:
		case <-due:
		case <-m.stop:
			return
		}
	}
}

// next takes a message that is due, or says how long that will take; 0 = unknown.
func (m *mesh) next() (envelope, time.Duration) {
	m.net.meshes.Lock()
	defer m.net.meshes.Unlock()
	if m.closed || m.paused || len(m.box.inbox) == 0 {
		return envelope{}, 0
	}
	if d := time.Until(m.box.inbox[0].at); d > 0 {
		return envelope{}, d
	}
	return heap.Pop(&m.box.inbox).(envelope), 0
}

// Close implements transport.Mesh.
func (m *mesh) Close() error {
	m.net.meshes.Lock()
	if !m.closed {
		m.closed = true
		m.box.bound = nil
		close(m.stop)
	}
	m.net.meshes.Unlock()
	<-m.done
	return nil
}

// envelope is a message on its way. The inbox sorts by the moment of arrival and
// then by that of sending.
type envelope struct {
	at      time.Time
	order   uint64
	from    string
	message []byte
}

type inbox []envelope

func (b inbox) Len() int { return len(b) }
func (b inbox) Less(i, j int) bool {
	if !b[i].at.Equal(b[j].at) {
		return b[i].at.Before(b[j].at)
	}
	return b[i].order < b[j].order
}
func (b inbox) Swap(i, j int) { b[i], b[j] = b[j], b[i] }
func (b *inbox) Push(x any)   { *b = append(*b, x.(envelope)) }
func (b *inbox) Pop() any {
	old := *b
	e := old[len(old)-1]
	old[len(old)-1] = envelope{}
	*b = old[:len(old)-1]
	return e
}
