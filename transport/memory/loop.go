package memory

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvcluster/kvcluster/transport"
	"github.com/kvcluster/kvcluster/transport/internal/timers"
)

// share is how many events of one socket are handled before the next socket, and
// posts and timers, get their turn.
const share = 256

// loop implements transport.Loop with a goroutine and a channel.
type loop struct {
	net  *Network
	name string
	wake chan struct{} // holds a token when there may be work

	// Touched only by the goroutine of Run.
	timers  timers.Heap
	sockets map[*socket]struct{}
	running []func()
	closing bool

	count struct {
		sockets                                         atomic.Int64
		messages, bytes, wakeups, connects, disconnects atomic.Uint64
	}

	mu struct {
		sync.Mutex
		posts   []func()
		ready   []*socket // with something in the inbox, each once
		started bool
		ended   bool
	}
}

func newLoop(n *Network, name string) *loop {
	return &loop{net: n, name: name, wake: make(chan struct{}, 1), sockets: map[*socket]struct{}{}}
}

func (l *loop) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Post implements transport.Loop.
func (l *loop) Post(fn func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.ended {
		return false
	}
	l.mu.posts = append(l.mu.posts, fn)
	l.signal()
	return true
}

// Run implements transport.Loop.
func (l *loop) Run(ctx context.Context) error {
	l.mu.Lock()
	started := l.mu.started
	l.mu.started = true
	l.mu.Unlock()
	if started {
		return fmt.Errorf("run loop %s: already running or ended: %w", l.name, transport.ErrClosed)
	}
	for ctx.Err() == nil {
		l.runPosts()
		l.timers.Run(time.Now())
		if more := l.drain(); !more {
			l.wait(ctx)
		}
	}
	l.end()
	return nil
}

// wait blocks until there is work.
func (l *loop) wait(ctx context.Context) {
	var due <-chan time.Time
	if at, ok := l.timers.Next(); ok {
		t := time.NewTimer(time.Until(at))
		defer t.Stop()
		due = t.C
	}
	select {
	case <-l.wake:
	case <-due:
	case <-ctx.Done():
	}
	l.count.wakeups.Add(1)
}

// end refuses further posts, runs those that were accepted, and closes all.
func (l *loop) end() {
	l.closing = true
	l.mu.Lock()
	l.mu.ended = true
	l.mu.Unlock()
	l.runPosts()
	for s := range l.sockets {
		s.Close()
	}
	l.timers.Clear()
}

func (l *loop) runPosts() {
	l.mu.Lock()
	l.running, l.mu.posts = l.mu.posts, l.running[:0]
	l.mu.Unlock()
	for i, fn := range l.running {
		l.running[i] = nil
		fn()
	}
}

// drain gives each ready socket its share and reports whether anything is left.
func (l *loop) drain() (more bool) {
	l.mu.Lock()
	list := l.mu.ready
	l.mu.ready = nil
	l.mu.Unlock()
	for _, s := range list {
		s.drain()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.mu.ready) > 0 || len(l.mu.posts) > 0
}

// AfterFunc implements transport.Loop.
func (l *loop) AfterFunc(d time.Duration, fn func()) transport.Timer {
	if l.closing {
		return timers.Expired()
	}
	return l.timers.Add(time.Now().Add(max(d, 0)), fn)
}

// Now implements transport.Loop.
func (l *loop) Now() time.Time { return time.Now() }

// Stats implements transport.Loop.
func (l *loop) Stats() transport.LoopStats {
	l.mu.Lock()
	pending := len(l.mu.posts)
	l.mu.Unlock()
	return transport.LoopStats{
		Name:         l.name,
		Sockets:      int(l.count.sockets.Load()),
		Messages:     l.count.messages.Load(),
		Bytes:        l.count.bytes.Load(),
		Wakeups:      l.count.wakeups.Load(),
		Connects:     l.count.connects.Load(),
		Disconnects:  l.count.disconnects.Load(),
		PendingPosts: pending,
	}
}
