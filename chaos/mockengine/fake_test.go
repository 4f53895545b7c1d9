package mockengine

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvcluster/kvcluster/chaos/trace"
	"github.com/kvcluster/kvcluster/transport"
)

// message is what a publisher was asked to do.
type message struct {
	how     string // publish, record, raw
	seq     uint64
	payload []byte
	frames  int
}

// fakeNetwork keeps what its publishers are asked for.
type fakeNetwork struct {
	mu struct {
		sync.Mutex
		open     map[string]*fakePublisher
		all      []*fakePublisher // in order of their opening
		ports    int
		busy     int // times that an address is still in use after a close
		failures int // publishes that fail, counted down
	}
}

func (n *fakeNetwork) NewLoop(string) (transport.Loop, error) {
	return nil, fmt.Errorf("fake network has no loops")
}

func (n *fakeNetwork) NewPublisher(cfg transport.PublisherConfig) (transport.Publisher, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.open == nil {
		n.mu.open = make(map[string]*fakePublisher)
	}
	p := &fakePublisher{net: n, cfg: cfg}
	name := func(e string) string {
		if base, ok := strings.CutSuffix(e, ":0"); ok {
			n.mu.ports++
			return fmt.Sprintf("%s:%d", base, 40000+n.mu.ports)
		}
		return e
	}
	p.cfg.Endpoint, p.cfg.ReplayEndpoint = name(cfg.Endpoint), name(cfg.ReplayEndpoint)
	if n.mu.open[p.cfg.Endpoint] != nil && !cfg.Connect {
		return nil, fmt.Errorf("bind %s: %w", p.cfg.Endpoint, transport.ErrAddressInUse)
	}
	if n.mu.busy > 0 && len(n.mu.all) > 0 {
		n.mu.busy--
		return nil, fmt.Errorf("bind %s: %w", p.cfg.Endpoint, transport.ErrAddressInUse)
	}
	n.mu.open[p.cfg.Endpoint] = p
	n.mu.all = append(n.mu.all, p)
	return p, nil
}

// fakePublisher is one pair of sockets.
type fakePublisher struct {
	net      *fakeNetwork
	cfg      transport.PublisherConfig
	messages []message
	buffer   []message // what a replay would give
	closed   bool
}

func (p *fakePublisher) add(m message, keep bool) error {
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	if p.closed {
		return transport.ErrClosed
	}
	if p.net.mu.failures > 0 {
		p.net.mu.failures--
		if p.net.mu.failures == 0 {
			return fmt.Errorf("no route")
		}
	}
	m.payload = append([]byte(nil), m.payload...)
	p.messages = append(p.messages, m)
	if keep {
		p.buffer = append(p.buffer, m)
	}
	return nil
}

func (p *fakePublisher) Publish(_ string, seq uint64, payload []byte) error {
	return p.add(message{how: "publish", seq: seq, payload: payload, frames: 3}, true)
}

func (p *fakePublisher) Record(_ string, seq uint64, payload []byte) error {
	return p.add(message{how: "record", seq: seq, payload: payload, frames: 3}, true)
}

func (p *fakePublisher) SendRaw(frames ...[]byte) error {
	return p.add(message{how: "raw", frames: len(frames)}, false)
}

func (p *fakePublisher) ForgetReplay() error {
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	p.buffer = nil
	return nil
}

func (p *fakePublisher) Endpoint() string       { return p.cfg.Endpoint }
func (p *fakePublisher) ReplayEndpoint() string { return p.cfg.ReplayEndpoint }

func (p *fakePublisher) Close() error {
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	p.closed = true
	delete(p.net.mu.open, p.cfg.Endpoint)
	return nil
}

// sockets returns every pair of sockets that was opened on an endpoint.
func (n *fakeNetwork) sockets(endpoint string) []*fakePublisher {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []*fakePublisher
	for _, p := range n.mu.all {
		if p.cfg.Endpoint == endpoint {
			out = append(out, p)
		}
	}
	return out
}

// traffic is a generated trace of short prompts in blocks of 64 tokens.
func traffic(t testing.TB, requests int) *trace.Trace {
	t.Helper()
	c := trace.DefaultGenerate(requests)
	c.TokensPerID = 64
	c.SystemTokens = trace.LogNormal{Median: 200, Sigma: 0.5}
	c.UserTokens = trace.LogNormal{Median: 200, Sigma: 1}
	c.OutputTokens = trace.LogNormal{Median: 40, Sigma: 0.7}
	c.MaxTokens = 4000
	c.SystemPrompts = 5
	c.Rate = 20
	c.Think = 5 * time.Second
	tr, err := trace.Generate(c)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// fleet opens a fleet on a fake network without rate limits.
func fleet(t testing.TB, cfg Config) (*Fleet, *fakeNetwork) {
	t.Helper()
	if cfg.MaxBatchRate == 0 {
		cfg.MaxBatchRate = 1e9
	}
	f, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	n := &fakeNetwork{}
	if err := f.Open(n); err != nil {
		t.Fatal(err)
	}
	return f, n
}

// play runs a fleet to the end of its trace.
func play(t testing.TB, cfg Config) (*Fleet, *fakeNetwork) {
	t.Helper()
	f, n := fleet(t, cfg)
	if err := f.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-f.Done():
	default:
		t.Fatal("the run is over and Done is not closed")
	}
	return f, n
}

// diff compares deeply and looks for the differences only when there are some:
// thousands of records are compared in these tests.
func diff(want, got any) string {
	if reflect.DeepEqual(want, got) {
		return ""
	}
	return cmp.Diff(want, got)
}
