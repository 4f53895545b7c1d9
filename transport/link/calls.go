package link

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// defaultCall ends a call without a deadline, maxServed one that asks for more.
	defaultCall = 30 * time.Second
	maxServed   = time.Hour
)

// A CallHandler answers calls of one method. It runs in a goroutine of its own; ctx
// ends with the time of the caller, or when that gives up. req is its own.
type CallHandler func(ctx context.Context, peer string, req []byte) ([]byte, error)

// CallError is the failure of a call at the other side. It unwraps to the sentinel
// of its code; see Config.Errors.
type CallError struct {
	Peer, Method string
	Code         string // empty when the error has none
	Message      string
	sentinel     error
}

func (e *CallError) Error() string {
	return fmt.Sprintf("call %s of %s: %s", e.Method, e.Peer, e.Message)
}

// Unwrap returns the sentinel, or nil.
func (e *CallError) Unwrap() error { return e.sentinel }

// calls are those that a hub makes, and those that it serves.
type calls struct {
	h      *Hub
	ctx    context.Context // of what is served
	cancel context.CancelFunc
	codes  []string // in the order in which errors are compared with them
	errors map[string]error

	made, served, late, busy atomic.Uint64

	mu struct {
		sync.Mutex
		wait    sync.WaitGroup // what is served
		methods map[string]CallHandler
		last    uint64 // id
		pending map[uint64]*pendingCall
		serving map[servedCall]context.CancelFunc
		ended   bool
	}
}

type pendingCall struct {
	peer   string
	answer chan answer // takes one
}

type answer struct {
	response response
	err      error // instead
}

type servedCall struct {
	peer     string
	boot, id uint64
}

func newCalls(h *Hub) *calls {
	c := &calls{h: h, errors: map[string]error{}}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.mu.methods = map[string]CallHandler{}
	c.mu.pending = map[uint64]*pendingCall{}
	c.mu.serving = map[servedCall]context.CancelFunc{}
	for _, set := range []map[string]error{builtinCodes, h.cfg.Errors} {
		for code, err := range set {
			c.errors[code] = err
			c.codes = append(c.codes, code)
		}
	}
	// Own errors first: one may wrap a built-in one.
	slices.SortFunc(c.codes, func(a, b string) int {
		if builtin := func(s string) bool { return builtinCodes[s] != nil }; builtin(a) != builtin(b) {
			if builtin(a) {
				return 1
			}
			return -1
		}
		return strings.Compare(a, b)
	})
	return c
}

// Handle says who answers calls of a method. It replaces an earlier one.
func (h *Hub) Handle(method string, fn CallHandler) {
	h.calls.mu.Lock()
	defer h.calls.mu.Unlock()
	h.calls.mu.methods[method] = fn
}

// Call asks a peer and waits for its answer, until ctx ends or for 30 s. It is
// carried out at most once. A call that the network loses ends with the deadline, and
// one for which there is no connection at once, with ErrDown. It must not be called
// from the Handler of the hub.
func (h *Hub) Call(ctx context.Context, peer, method string, req []byte) ([]byte, error) {
	body, err := h.calls.call(ctx, peer, method, req)
	var remote *CallError
	if err != nil && !errors.As(err, &remote) {
		err = fmt.Errorf("call %s of %s: %w", method, peer, err)
	}
	return body, err
}

func (c *calls) call(ctx context.Context, peer, method string, req []byte) ([]byte, error) {
	p := (*c.h.peers.Load())[peer]
	switch {
	case p == nil:
		return nil, ErrPeer
	case len(req) > c.h.cfg.MaxPayload:
		return nil, ErrTooLarge
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	deadline, ok := ctx.Deadline()
	if !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, defaultCall)
		defer cancel()
		deadline, _ = ctx.Deadline()
	}
	left := time.Until(deadline)
	if left <= 0 {
		return nil, context.DeadlineExceeded
	}
	waiting := &pendingCall{peer: peer, answer: make(chan answer, 1)}
	c.mu.Lock()
	if c.mu.ended {
		c.mu.Unlock()
		return nil, ErrClosed
	}
	c.mu.last++
	id := c.mu.last
	c.mu.pending[id] = waiting
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.mu.pending, id)
		c.mu.Unlock()
	}()
	c.made.Add(1)
	head := request{boot: c.h.cfg.Boot, id: id, timeout: left, method: method}.append(make([]byte, 0, 64), c.h.tag)
	if !p.tx(head, req) {
		return nil, ErrDown
	}
	select {
	case a := <-waiting.answer:
		switch {
		case a.err != nil:
			return nil, a.err
		case a.response.failed:
			return nil, &CallError{peer, method, a.response.code, string(a.response.body), c.errors[a.response.code]}
		}
		return a.response.body, nil
	case <-ctx.Done():
		p.tx(appendU64(appendHeader(nil, kindCancel, c.h.tag), c.h.cfg.Boot, id))
		return nil, ctx.Err()
	}
}

// onResponse wakes the caller; the answer to a call that has ended is dropped.
func (c *calls) onResponse(p *peer, body []byte) error {
	m, err := parseResponse(body)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	waiting := c.mu.pending[m.id]
	if m.boot != c.h.cfg.Boot || waiting == nil || waiting.peer != p.name {
		c.late.Add(1)
		return nil
	}
	delete(c.mu.pending, m.id)
	m.body = slices.Clone(m.body)
	waiting.answer <- answer{response: m}
	return nil
}

// failPeer ends the calls of a peer.
func (c *calls) failPeer(peer string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, waiting := range c.mu.pending {
		if waiting.peer == peer {
			delete(c.mu.pending, id)
			waiting.answer <- answer{err: err}
		}
	}
}

// onRequest starts a call of a peer, as long as that has not too many.
func (c *calls) onRequest(p *peer, body []byte) error {
	m, err := parseRequest(body)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	key := servedCall{p.name, m.boot, m.id}
	if _, twice := c.mu.serving[key]; twice || c.mu.ended {
		return nil
	}
	fn := c.mu.methods[m.method]
	switch {
	case fn == nil:
		c.answer(p, m, nil, fmt.Errorf("%w %q", ErrMethod, m.method))
		return nil
	case p.serving.Load() >= int64(c.h.cfg.CallsPerPeer):
		c.busy.Add(1)
		c.answer(p, m, nil, ErrBusy)
		return nil
	}
	p.serving.Add(1)
	c.served.Add(1)
	ctx, cancel := context.WithTimeout(c.ctx, min(max(m.timeout, 0), maxServed))
	c.mu.serving[key] = cancel
	m.body = slices.Clone(m.body)
	c.mu.wait.Go(func() {
		defer func() {
			cancel()
			p.serving.Add(-1)
			c.mu.Lock()
			delete(c.mu.serving, key)
			c.mu.Unlock()
		}()
		res, err := fn(ctx, p.name, m.body)
		c.answer(p, m, res, err)
	})
	return nil
}

// answer sends the outcome of a call.
func (c *calls) answer(p *peer, m request, body []byte, err error) {
	if err == nil && len(body) > c.h.cfg.MaxPayload {
		err = fmt.Errorf("answer: %w: %d bytes", ErrTooLarge, len(body))
	}
	r := response{boot: m.boot, id: m.id, failed: err != nil}
	if err != nil {
		r.code = c.codeOf(err)
		body = []byte(err.Error())
		body = body[:min(len(body), 64<<10)]
	}
	p.tx(r.append(make([]byte, 0, 64), c.h.tag), body)
}

func (c *calls) codeOf(err error) string {
	for _, code := range c.codes {
		if errors.Is(err, c.errors[code]) {
			return code
		}
	}
	return ""
}

func (c *calls) onCancel(p *peer, body []byte) error {
	r := reader{b: body}
	key := servedCall{p.name, r.u64(), r.u64()}
	if err := r.done(true); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if cancel := c.mu.serving[key]; cancel != nil {
		cancel()
	}
	return nil
}

// end fails what is pending and waits for what is served.
func (c *calls) end() {
	c.mu.Lock()
	c.mu.ended = true
	for id, waiting := range c.mu.pending {
		delete(c.mu.pending, id)
		waiting.answer <- answer{err: ErrClosed}
	}
	c.mu.Unlock()
	c.cancel()
	c.mu.wait.Wait()
}
