package zmq

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	zmq4 "github.com/pebbe/zmq4"

	"github.com/kvcluster/kvcluster/transport"
)

// ErrOpen: the network cannot be closed, loops or publishers still use it.
var ErrOpen = errors.New("still in use")

// Network is one libzmq context: its I/O threads and the sockets on it. It
// implements transport.Network. Safe for concurrent use.
type Network struct {
	cfg Config

	monitors atomic.Uint64 // names of monitor endpoints given out

	mu struct {
		sync.Mutex
		ctx        *zmq4.Context // nil before the first use
		closed     bool
		users      int            // loops and publishers that are not closed
		publishers []*engineLoop  // started with the first publisher
		next       int            // the publisher loop that gets the next publisher
		unheard    []*zmq4.Socket // monitors whose event has not come; see awaitClosed
	}
}

var _ transport.Network = (*Network)(nil)

// New returns a network that holds nothing yet: threads and descriptors come with
// the first loop or publisher. It fails only on a bad configuration.
func New(cfg Config) (*Network, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Network{cfg: cfg.withDefaults()}, nil
}

// engineLoop is a loop that serves publishers.
type engineLoop struct {
	*loop
	cancel context.CancelFunc
	done   chan struct{}
}

// NewLoop implements transport.Network. A loop counts as in use until its Run has
// returned, so one that is never run keeps Close from succeeding.
func (n *Network) NewLoop(name string) (transport.Loop, error) {
	ctx, err := n.acquire()
	if err != nil {
		return nil, fmt.Errorf("new loop %s: %w", name, err)
	}
	return newLoop(n, ctx, name, n.release), nil
}

// acquire returns the context for one more user.
func (n *Network) acquire() (*zmq4.Context, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	ctx, err := n.contextLocked()
	if err == nil {
		n.mu.users++
	}
	return ctx, err
}

func (n *Network) release() {
	n.mu.Lock()
	n.mu.users--
	n.mu.Unlock()
}

func (n *Network) contextLocked() (*zmq4.Context, error) {
	if n.mu.closed {
		return nil, transport.ErrClosed
	}
	if n.mu.ctx != nil {
		return n.mu.ctx, nil
	}
	ctx, err := zmq4.NewContext()
	if err != nil {
		return nil, fmt.Errorf("zmq context: %w", err)
	}
	if err := errors.Join(ctx.SetIoThreads(n.cfg.IOThreads), ctx.SetMaxSockets(n.cfg.MaxSockets)); err != nil {
		return nil, errors.Join(fmt.Errorf("zmq context: %w", err), ctx.Term())
	}
	n.mu.ctx = ctx
	return ctx, nil
}

// engineLoop returns the loop for the next publisher, in turn, and starts it when
// it is the first use.
func (n *Network) engineLoop() (*engineLoop, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	zctx, err := n.contextLocked()
	if err != nil {
		return nil, err
	}
	i := n.mu.next
	n.mu.next = (i + 1) % n.cfg.PublisherLoops
	if i == len(n.mu.publishers) {
		ctx, cancel := context.WithCancel(context.Background())
		e := &engineLoop{
			loop:   newLoop(n, zctx, fmt.Sprintf("publishers-%d", i), func() {}),
			cancel: cancel,
			done:   make(chan struct{}),
		}
		go func() {
			defer close(e.done)
			if err := e.Run(ctx); err != nil {
				n.cfg.Logger.Error("publisher loop ended", "loop", e.name, "error", err)
			}
		}()
		n.mu.publishers = append(n.mu.publishers, e)
	}
	n.mu.users++
	return n.mu.publishers[i], nil
}

// Close ends the context: its threads are gone when it returns. It fails with
// ErrOpen while a loop has not ended or a publisher is not closed, and waits at
// most for the publishers' linger of one second.
func (n *Network) Close() error {
	n.mu.Lock()
	if n.mu.closed {
		n.mu.Unlock()
		return nil
	}
	if n.mu.users > 0 {
		users := n.mu.users
		n.mu.Unlock()
		return fmt.Errorf("close zmq network: %w by %d loops and publishers", ErrOpen, users)
	}
	n.mu.closed = true
	ctx, loops, unheard := n.mu.ctx, n.mu.publishers, n.mu.unheard
	n.mu.Unlock()

	for _, e := range loops {
		e.cancel()
		<-e.done
	}
	if ctx == nil {
		return nil
	}
	var errs []error
	for _, pair := range unheard {
		errs = append(errs, pair.Close())
	}
	if err := errors.Join(append(errs, ctx.Term())...); err != nil {
		return fmt.Errorf("close zmq network: %w", err)
	}
	return nil
}
